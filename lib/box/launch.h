/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_LAUNCH_H
#define BOX_LAUNCH_H

#include "box/become.h"
#include "box/profile.h"
#include "box/tree.h"
#include "img/image.h"
#include "sys/cgroup.h"
#include "sys/pool.h"

/*
 * The launch of a sandbox, from a claim to its pid 1.  ARCHITECTURE.md tells
 * the order and why; the writable layer, the cgroup and the claim were made
 * before, and whoever made them undoes them when this fails.
 */
struct launch {
	const struct tree *tree;
	const char *id;
	const json_t *spec; /* complete */
	const struct image *image;
	const struct profile *profile;
	const struct cgroup_root *cgroups;
	const struct pool *pool;
	uid_t uid_base;
	const char *follow; /* as of struct net, or NULL */

	/* A command that is to be pid 1's first child, or NULL: argv, cwd, cpus
	 * and descriptors are the caller's, the rest is set here. */
	struct become *command;
};

struct launched {
	pid_t pid;	   /* of pid 1, our child */
	int pidfd;	   /* of pid 1 */
	int report;	   /* read end of dsec-init's pipe */
	pid_t command;	   /* in the sandbox's pid namespace; 0 without one */
	int command_pidfd; /* -1 without one */
};

/*
 * launch_start(l, ret, e):
 * Return 0 when pid 1 runs (and the command, if any, was executed); all
 * descriptors are close-on-exec and the caller's.  On failure no process is
 * left.  Codes as become_error(), "user_unknown", "mount_denied" and system
 * errors; those of net_attach(), whose network is not undone here.  The process
 * must be root, without threads; it becomes non-dumpable.
 */
int launch_start(struct launch *l, struct launched *ret, struct err *e);

/* launch_end(p): SIGKILL pid 1 and reap it: then nothing of it runs. */
void launch_end(struct launched *p);

#endif
