/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_STAGE_H
#define BOX_STAGE_H

#include "box/launch.h"
#include "box/net.h"

#define STAGE_MOUNTS_MAX 32
#define STAGE_LAYERS_MAX 18 /* ENV_LAYERS_MAX and our own */

/* The step that fails with -EINVAL where the kernel cannot. */
#define STAGE_MAP_LIB "map the ids of DSEC_LIB"

struct stage_mount {
	const char *source, *target;
};

/*
 * What the child that becomes pid 1 works from.  It shares the parent's memory
 * and descriptors; everything it needs is laid out here beforehand, because it
 * must not allocate.
 */
struct stage {
	const struct launch *l;
	struct cgroup_join join;
	struct net *net; /* made in its network namespace; NULL: nothing */
	int userns;	 /* the sandbox's */
	int parent;	 /* pidfd of who launches it */
	int report_w;	 /* write end of dsec-init's pipe */
	char dev[PATH_MAX];
	char root[PATH_MAX]; /* a directory to mount the root on */
	char pool[PATH_MAX]; /* "" unless layers have a mount of their own */
	char overlay[3 * PATH_MAX];
	char devpts[96], shm[128];
	char cwd[PATH_MAX]; /* to be made if it is not there, or "" */
	bool cwd_made;
	const char *hostname;
	struct stage_mount mounts[STAGE_MOUNTS_MAX]; /* parents first */
	unsigned nmounts;
	void *command_stack;
	size_t command_stack_size;

	/* The command's child waits for go: 1 run, 2 give up. */
	int go;
	pid_t command_tid; /* not 0 until it executed or ended */
	pid_t command;	   /* its pid in the sandbox */
	int command_pidfd;

	/* Out: 0 when it executed; else what failed, unless it was killed. */
	const char *what;
	int r;
};

/*
 * stage_lay_out(st, e): fill in what follows from ${st}->l; before the child.
 */
int stage_lay_out(struct stage *st, struct err *e);

/*
 * What a child of either kind calls, in a mount namespace of its own, with raw
 * system calls alone; 0, or -errno with ${st}->what and r set.
 * stage_root(st): mount the root on ${st}->root, with every layer's ids those
 * of the sandbox, and make it the working directory.  Acts for the sandbox's
 * root: file system ids are those of uid_base then.
 * stage_host_dir(st, source, target): a directory of the host, below which
 * links are not followed, on the directory ${target}, relative to the working
 * directory.
 */
int stage_root(struct stage *st);
int stage_host_dir(struct stage *st, const char *source, const char *target);

/* stage_main(arg): the child of a struct stage; returns when it failed. */
int stage_main(void *arg);

#endif
