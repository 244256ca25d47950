/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_DOCTOR_H
#define DSEC_DOCTOR_H

#include <stdbool.h>

#include "base/cleanup.h"
#include "box/tree.h"
#include "sys/cgroup.h"
#include "wire/exit.h"
#include "wire/json.h"

/* The parts of the examination; --only names some of them. */
enum part {
	PART_KERNEL = 1 << 0, /* what the kernel can do */
	PART_CGROUP = 1 << 1, /* limits, and how they are enforced */
	PART_LIMITS = 1 << 2, /* sysctls that break at scale */
	PART_NODE = 1 << 3,   /* our directories, programs, profiles */
	PART_POOL = 1 << 4,   /* where writable layers live */
	PART_DEAD = 1 << 5,   /* what the dead left */
	PART_ALL = (1 << 6) - 1,
};

enum severity {
	SEV_INFO,    /* worth knowing; nothing to do */
	SEV_WARNING, /* works, but not at scale or not with everything */
	SEV_ERROR,   /* sandboxes do not start, or do not hold */
};

struct doctor {
	struct tree tree;
	unsigned parts;
	json_t *features; /* name: true, false or a word */
	json_t *values;	  /* name: number or string */
	json_t *findings; /* {check, severity, why, fix} */
	json_t *fixed;	  /* strings: what --fix did */
	json_t *mounts;	  /* layers: {digest, way, used} */
	enum severity worst;
	bool json;
};

const char *part_name(unsigned part);
unsigned part_of(const char *word); /* 0: none of them */

/* d_feature(d, name, on), d_word(d, name, word), d_value(d, name, v). */
void d_feature(struct doctor *d, const char *name, bool on);
void d_word(struct doctor *d, const char *name, const char *word);
void d_value(struct doctor *d, const char *name, int64_t v);

/* d_finding(d, check, sev, fix, why, ...): ${fix} is the exact command, NULL
 * where there is none. */
void d_finding(struct doctor *d, const char *check, enum severity sev,
	       const char *fix, const char *why, ...)
	__attribute__((format(printf, 5, 6)));
void d_fixed(struct doctor *d, const char *what, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * d_child(fn, arg): run ${fn} in a child of our own, so that what it does to
 * itself (namespaces, mounts) is gone afterwards.  0, or the errno it returned.
 */
typedef int probe_fn(void *arg); /* 0 or a positive errno */
int d_child(probe_fn *fn, void *arg);

/* d_text(d, name, text): a value that is a text. */
void d_text(struct doctor *d, const char *name, const char *text);

void check_kernel(struct doctor *d);
/* check_pausing(d): the checkpoint engine and swap; of the kernel's part.
 * check_waiting(d), fix_waiting(d, cgroups, e): sandboxes on the disk without a
 * supervisor; of the dead's part. */
void check_pausing(struct doctor *d);
void check_waiting(struct doctor *d);
int fix_waiting(struct doctor *d, struct cgroup_root *cgroups, struct err *e);
void check_mounts(struct doctor *d);
void check_cgroup(struct doctor *d);
void check_limits(struct doctor *d);
void check_node(struct doctor *d);
/* check_config(d): would the configuration, or admission, refuse launches?
 * check_services(d, net): are the files of semantic names right? */
void check_config(struct doctor *d);
struct netconf;
void check_services(struct doctor *d, const struct netconf *net);
void check_pool(struct doctor *d);
void check_dead(struct doctor *d);

/* fix_*(d, .., e): do what is safe and ours; d_fixed() tells what was done. */
int fix_limits(struct doctor *d, struct err *e);
int fix_node(struct doctor *d, struct err *e);
int fix_pool(struct doctor *d, int64_t size_mb, struct err *e);
int fix_dead(struct doctor *d, struct err *e);

/*
 * leaks(d, ret_list, e): what belongs to no sandbox, a record each
 * ("leak", "path", "sandbox"); what was seen in two looks only, because a
 * sandbox that is being made or removed is half there.
 */
int leaks(const struct doctor *d, json_t **ret_list, struct err *e);

/*
 * check_layer_mounts(d): the layers that are mounted or unpacked here, into
 * ${d}->mounts.  fix_layer_mounts(d, e): those that no sandbox uses go.
 */
void check_layer_mounts(struct doctor *d);
int fix_layer_mounts(struct doctor *d, struct err *e);

/* unmount_prepared(d, e): undo the mounts under $DSEC_RUN/mnt. */
int unmount_prepared(struct doctor *d, struct err *e);

/* check_network(d): the helper, the uplink, clashes; of the node's part.
 * count_networks(t): those of sandboxes that are not there any more.
 * fix_networks(d, e): these go, and those of live sandboxes are in force. */
void check_network(struct doctor *d);
unsigned count_networks(const struct tree *t);
int fix_networks(struct doctor *d, struct err *e);

/* is_on_tmpfs(path): of ${path}, or of its nearest parent that is there. */
bool is_on_tmpfs(const char *path);

/* report(d, ok, e): the answer, for people or as a record. */
int report(const struct doctor *d, bool ok, struct err *e);

#endif
