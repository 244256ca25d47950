/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CGROUP_PRIV_H
#define SYS_CGROUP_PRIV_H

#include <limits.h>
#include <stddef.h>

#include "sys/cgroup.h"

/*
 * The trees in use.  Each is a mounted hierarchy, known by an O_PATH descriptor
 * of our parent group in it; every other path is relative to one of these.
 * tree[0] holds the leaves: the v2 tree, or v1's freezer.  memory, pids, cpu
 * and cpuacct are descriptors out of tree[] (on v2 all the same one, on v1 some
 * may share a hierarchy); cpuacct is -1 where tree[0] accounts for CPU time.
 */
#define CGROUP_TREES_MAX 5

struct cgroup_root {
	enum cgroup_mode mode;
	int tree[CGROUP_TREES_MAX];
	unsigned ntrees;
	int memory, pids, cpu, cpuacct;
	bool clone_into; /* CLONE_INTO_CGROUP works, from where we are */
};

/* A path below a tree: ID/init/LEAF/FILE and the longest names of each. */
#define CGROUP_PATH_MAX (3 * (NAME_MAX + 1) + 5)

/*
 * cgroup_open_as(parent, want, ret_root, e):
 * cgroup_open(), made to use a kind of node: for tests.  CGROUP_V1 and
 * CGROUP_HYBRID both work where v1 trees and a v2 tree are mounted.  ${want} of
 * -1: whichever is best.
 */
int cgroup_open_as(const char *parent, int want, struct cgroup_root **ret_root,
		   struct err *e);

/*
 * cgroup_path(path, id, leaf, file, e):
 * Where ${leaf} of ${id} or its ${file} lies, into path[CGROUP_PATH_MAX];
 * ${leaf} and ${file} may be NULL.
 */
int cgroup_path(char *path, const char *id, const char *leaf, const char *file,
		struct err *e);

/* cgroup_read(dirfd, path, buf, size, e): a small kernel file as a string; how
 * many bytes it had. */
int cgroup_read(int dirfd, const char *path, char *buf, size_t size,
		struct err *e);

/* cgroup_key(text, key, ret): the number after "key " at a line's start. */
bool cgroup_key(const char *text, const char *key, uint64_t *ret);

/*
 * cgroup_read_pids(root, dir, pids, e):
 * Add the processes of ${dir} in tree[0], without those of groups below it.
 */
struct cgroup_pids {
	pid_t *pid;
	size_t n;
};
int cgroup_read_pids(const struct cgroup_root *root, const char *dir,
		     struct cgroup_pids *pids, struct err *e);

/*
 * cgroup_get(tree, id, file, key, ret, e):
 * What a file of the sandbox's group says that is one number, or (key not NULL)
 * the number after ${key} at a line's start.
 */
int cgroup_get(int tree, const char *id, const char *file, const char *key,
	       uint64_t *ret, struct err *e);

/*
 * To wait for a group: cgroup_wait_for(timeout_ms), then cgroup_wait_more(w,
 * fd) between looks: some time, or less if ${fd} (may be -1) tells of a change;
 * false when all of it is over.
 */
struct cgroup_wait {
	uint64_t until_ns;
	long slice_ns;
};
struct cgroup_wait cgroup_wait_for(unsigned timeout_ms);
bool cgroup_wait_more(struct cgroup_wait *w, int fd);

/*
 * cgroup_wait_event(root, dir, key, value, timeout_ms, e):
 * Wait until ${key} is ${value} in cgroup.events of ${dir}.  1, 0 when the time
 * is over, or -errno.
 */
int cgroup_wait_event(const struct cgroup_root *root, const char *dir,
		      const char *key, uint64_t value, unsigned timeout_ms,
		      struct err *e);

/*
 * cgroup_freeze_dir(root, dir, on, timeout_ms, e):
 * Freeze or thaw ${dir} and what is below: 1 when it is so in time, 0 when it
 * is not, or -errno.
 */
int cgroup_freeze_dir(const struct cgroup_root *root, const char *dir, bool on,
		      unsigned timeout_ms, struct err *e);

/* cgroup_set(tree, id, file, value, e): a number into one. */
int cgroup_set(int tree, const char *id, const char *file, uint64_t value,
	       struct err *e);

#endif
