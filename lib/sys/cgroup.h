/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CGROUP_H
#define SYS_CGROUP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * Control groups, whichever kind this node has.  Which kind is probed from what
 * is mounted and what works, never from versions:
 *
 *   v2      one tree with controllers: limits on <parent>/<id>, membership in
 *           leaves below it that have no controller of their own
 *   hybrid  v1 trees carry the limits (<parent>/<id> in memory, cpu, pids), the
 *           controller-less v2 tree carries membership, freeze and kill
 *   v1      v1 trees carry the limits, the freezer tree carries leaves, freeze
 *           and kill (freeze, SIGKILL each, thaw)
 *
 * A sandbox has one group with its limits, a leaf "init" for its pid 1, and a
 * leaf per command, which is never used again after a kill (the kernel kills
 * what is cloned into a group that ever was).  The leaves of commands lie below
 * init's, which is the root of the cgroup namespace inside: the checkpoint
 * engine takes no process that is outside of it.  Names are enough to find a
 * leaf, and where it lies is this module's affair; no descriptor is kept per
 * sandbox, but for a cgroup_freezer of whoever wants one.
 *
 * The parent stands at the top of each tree.  systemd leaves groups alone that
 * it did not make, and cannot take a controller away from the top that we have
 * enabled below it; it need not delegate anything.
 */
enum cgroup_mode { CGROUP_V2, CGROUP_HYBRID, CGROUP_V1 };

struct cgroup_root; /* what the probe found, with the parents' descriptors */

struct cgroup_limits {
	uint64_t memory_bytes; /* swap included; 0: none */
	uint64_t cpu_milli;    /* thousandths of a CPU; 0: none */
	uint32_t pids;	       /* 0: none */
};

struct cgroup_stats {
	uint64_t memory_bytes, memory_peak_bytes;
	uint64_t cpu_us;
	uint64_t oom_kills; /* by the sandbox's own limit, since it was made */
	uint32_t pids;
};

/*
 * cgroup_open(parent, ret_root, e):
 * Probe, and make ${parent} (relative, such as "dsec") in each tree that is
 * used.  "configuration" where a limit we need cannot be enforced, naming it.
 */
int cgroup_open(const char *parent, struct cgroup_root **ret_root,
		struct err *e);
void cgroup_close(struct cgroup_root *root);
enum cgroup_mode cgroup_mode(const struct cgroup_root *root);
bool cgroup_clone_into(const struct cgroup_root *root); /* it works here */
const char *cgroup_mode_name(enum cgroup_mode mode); /* "v2", "hybrid", "v1" */

/*
 * cgroup_make(root, id, limits, e):
 * Make the group of sandbox ${id} with its limits and its leaf "init".  On
 * failure nothing is left.
 */
int cgroup_make(const struct cgroup_root *root, const char *id,
		const struct cgroup_limits *limits, struct err *e);

/*
 * cgroup_limit_cpu(root, id, cpu_milli, e): set or change the CPU limit (0:
 * none).  A launch runs inside the group: with a small share it would crawl, so
 * it sets this last.
 */
int cgroup_limit_cpu(const struct cgroup_root *root, const char *id,
		     uint64_t cpu_milli, struct err *e);

int cgroup_leaf_make(const struct cgroup_root *root, const char *id,
		     const char *leaf, struct err *e);

/*
 * cgroup_leaf_add(root, id, leaf, pid, e):
 * Move a process of the sandbox, with its threads, to another of its leaves;
 * frozen or not, it is then as that leaf is.  Its limits do not change: they
 * are the sandbox's.
 */
int cgroup_leaf_add(const struct cgroup_root *root, const char *id,
		    const char *leaf, pid_t pid, struct err *e);

/*
 * cgroup_each_leaf(root, id, fn, arg, e):
 * ${fn} for the name of each leaf of ${id}, those of commands first, "init"
 * last, until one fails.
 */
typedef int cgroup_leaf_fn(const struct cgroup_root *root, const char *id,
			   const char *leaf, void *arg, struct err *e);
int cgroup_each_leaf(const struct cgroup_root *root, const char *id,
		     cgroup_leaf_fn *fn, void *arg, struct err *e);

/*
 * cgroup_pids(root, id, leaf, ret_pids, ret_n, e):
 * The processes of a leaf ("init": pid 1 and what shares its leaf, without the
 * commands), or (leaf NULL) of the whole sandbox, as the caller's pid namespace
 * knows them; the caller's to free.
 */
int cgroup_pids(const struct cgroup_root *root, const char *id,
		const char *leaf, pid_t **ret_pids, size_t *ret_n,
		struct err *e);

/*
 * How a process gets in.  Before the clone: cgroup_leaf_prepare() opens what
 * is needed.  into >= 0 is for CLONE_INTO_CGROUP; procs[] are descriptors of
 * cgroup.procs files the child must write "0" to, as host root, before it gives
 * anything up: cgroup_leaf_join() does that with raw system calls alone, and
 * is safe in a child that shares our memory.  All close-on-exec.
 */
#define CGROUP_PROCS_MAX 8
struct cgroup_join {
	int into; /* -1: none */
	int procs[CGROUP_PROCS_MAX];
	unsigned n;
};
int cgroup_leaf_prepare(const struct cgroup_root *root, const char *id,
			const char *leaf, struct cgroup_join *ret_join,
			struct err *e);
int cgroup_leaf_join(const struct cgroup_join *join); /* 0 or -errno */
void cgroup_join_done(struct cgroup_join *join);

/*
 * cgroup_supervisor_prepare(root, ret_join, e):
 * The same for the group <parent>/supervisors, which is for processes of ours
 * that must outlive whoever started them: a service that is stopped takes its
 * whole group along, and a session's limits are not a supervisor's.  It is made
 * once, has no limits, and is never killed.
 */
int cgroup_supervisor_prepare(const struct cgroup_root *root,
			      struct cgroup_join *ret_join, struct err *e);

/*
 * cgroup_freeze(root, id, on, timeout_ms, e):
 * Freeze or thaw all of a sandbox and wait until it is so; -ETIMEDOUT: it did
 * not freeze and was thawed again.
 */
int cgroup_freeze(const struct cgroup_root *root, const char *id, bool on,
		  unsigned timeout_ms, struct err *e);

/*
 * cgroup_freezer_open(root, id, ret_freezer, e), cgroup_freezer_set(f, on,
 * timeout_ms, e), cgroup_freezer_done(f):
 * The same for one that is frozen and thawed again and again: its files stay
 * open.  cgroup_freezer_done() closes what is open of {-1, -1}.
 */
struct cgroup_freezer {
	int file, state; /* what is written; what tells, v2 */
	bool v1;
};
int cgroup_freezer_open(const struct cgroup_root *root, const char *id,
			struct cgroup_freezer *ret_freezer, struct err *e);
int cgroup_freezer_set(const struct cgroup_freezer *f, bool on,
		       unsigned timeout_ms, struct err *e);
void cgroup_freezer_done(struct cgroup_freezer *f);

/*
 * cgroup_is_frozen(root, id, leaf, e): 1 when all of the sandbox, or of a leaf,
 * is frozen by whatever froze it; 0; -errno.
 */
int cgroup_is_frozen(const struct cgroup_root *root, const char *id,
		     const char *leaf, struct err *e);

/*
 * cgroup_freezer_dir(root, id, path, e): the directory that freezes all of the
 * sandbox, by its whole name, into path[PATH_MAX]: for a program of others.
 */
int cgroup_freezer_dir(const struct cgroup_root *root, const char *id,
		       char *path, struct err *e);

/*
 * cgroup_leaf_freeze(root, id, leaf, on, timeout_ms, e):
 * A leaf by itself; it stays so whatever cgroup_freeze() does to the sandbox,
 * so what is frozen here must be thawed here.  timeout_ms 0: do not wait.
 * "init" takes every other leaf along.
 */
int cgroup_leaf_freeze(const struct cgroup_root *root, const char *id,
		       const char *leaf, bool on, unsigned timeout_ms,
		       struct err *e);

/*
 * cgroup_swap_allow(root, id, on, e):
 * May the sandbox's memory go to swap?  Not while it runs (its limit would be
 * as wide as the node's swap), only for the time of a pause.  What is out stays
 * out until it is touched.
 */
int cgroup_swap_allow(const struct cgroup_root *root, const char *id, bool on,
		      struct err *e);

/*
 * cgroup_limit(root, id, limits, e):
 * Memory and processes anew, and the CPU if cpu_milli is not 0.
 */
int cgroup_limit(const struct cgroup_root *root, const char *id,
		 const struct cgroup_limits *limits, struct err *e);

/*
 * cgroup_kill(root, id, leaf, timeout_ms, ret_killed, e):
 * SIGKILL every process of a leaf (of a command), or of the whole sandbox (leaf
 * NULL), and wait until none is left; how many there were at first into
 * *${ret_killed} (may be NULL).  Works on a frozen sandbox.
 */
int cgroup_kill(const struct cgroup_root *root, const char *id,
		const char *leaf, unsigned timeout_ms, unsigned *ret_killed,
		struct err *e);

/* cgroup_signal(root, id, leaf, sig, e): ${sig} to every process of a leaf, or
 * (leaf NULL) of all leaves but "init". */
int cgroup_signal(const struct cgroup_root *root, const char *id,
		  const char *leaf, int sig, struct err *e);

/* cgroup_leaf_count(root, id, leaf): live processes in it; -errno. */
int cgroup_leaf_count(const struct cgroup_root *root, const char *id,
		      const char *leaf);

/* cgroup_leaf_remove, cgroup_remove: rmdir; absent is fine.  cgroup_remove
 * takes every leaf along.  -EBUSY while processes are left. */
int cgroup_leaf_remove(const struct cgroup_root *root, const char *id,
		       const char *leaf, struct err *e);
int cgroup_remove(const struct cgroup_root *root, const char *id,
		  struct err *e);

/* cgroup_oom_kills(root, id, ret_kills, e): that one of its numbers; a single
 * read while there are none. */
int cgroup_oom_kills(const struct cgroup_root *root, const char *id,
		     uint64_t *ret_kills, struct err *e);

int cgroup_stats(const struct cgroup_root *root, const char *id,
		 struct cgroup_stats *ret_stats, struct err *e);

#endif
