/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_RESTORE_H
#define CKPT_RESTORE_H

#include "ckpt/ckpt.h"
#include "box/profile.h"
#include "img/image.h"
#include "sys/cgroup.h"
#include "sys/engine.h"
#include "sys/pool.h"

/*
 * The return of a sandbox from a checkpoint: its processes with their memory,
 * as children of whoever calls, on a writable layer, in a cgroup and under a
 * claim that are there already.
 *
 * The caller becomes the sandbox's supervisor: pid 1 is its child and dies with
 * it.  It has no threads, and has called restore_reserve() first of all.
 */
struct restore {
	const struct tree *tree;
	const char *id;	       /* of the sandbox that comes */
	const char *dir;       /* the checkpoint, below $DSEC_LIB */
	const struct ckpt *ck; /* of it, checked */
	const json_t *spec;    /* of the sandbox that comes */
	const char *follow;    /* as of struct net, or NULL */
	const struct image *image;
	const struct profile *profile;
	const struct cgroup_root *cgroups;
	const struct pool *pool;
	const struct engine *engine;

	/*
	 * What the supervisor knows.  Its "fds" names every descriptor that
	 * leads inside, by number:
	 *
	 *   {"17":{"kind":K,"of":WHAT,"inner":PID}}
	 *
	 * kind "pipe-read", "pipe-write", "pipe-ref" (O_PATH): an end of the
	 * pipe ${of}, which is "pipe:[123]" where the checkpoint was made; one
	 * pipe for all that name it, even where no process inside has it.
	 * kind "tty": the master of the terminal ${of} ("tty[8803:1d]").
	 * kind "pidfd": of the process that is ${inner} inside.
	 * Each is made anew on that very number, close-on-exec, and (but for
	 * pidfds and references) non-blocking.  BOX_FD_REPORT and BOX_FD_INIT
	 * are made without being named.
	 */
	const json_t *state;

	bool fork; /* a new identity; else the same sandbox again */
	bool live; /* its supervisor goes on: pipes that stand on
		      the numbers are used as they are, and stay */
};

/*
 * restore_reserve(state, live, keep, nkeep, e):
 * To be called before anything else is opened: hold the numbers of
 * ${state}'s "fds" free; with ${live}, those that are pipes already stay what
 * they are.  Descriptors of the caller that stand on one of them
 * are given in ${keep} and are moved.
 */
int restore_reserve(const json_t *state, bool live, int *const *keep,
		    size_t nkeep, struct err *e);

/*
 * restore_run(rs, ret_rec, e):
 * Restore, and return when every descriptor is in its place and the sandbox
 * could be thawed: the leaves of its commands are frozen, pid 1 alone runs.
 * *${ret_rec} is what a record of it should say:
 *
 *   {"reset":[..],"not_reset":[..],"memory":"private"|"ksm","warnings":[..],
 *    "engine_ms":N,"restore_ms":N}
 *
 * On failure no process of it is left, nor its cgroup, and of the numbers of
 * "fds" none is open.  "engine" (infra): the engine failed, with its last
 * words; else as launch_start().
 */
int restore_run(const struct restore *rs, json_t **ret_rec, struct err *e);

/*
 * restore_undo(rs): after a restore_run() that succeeded, for a caller that
 * cannot go on: leave everything as one that failed does.
 */
void restore_undo(const struct restore *rs);

/*
 * restore_hook(action): what the engine runs at points of its work; the caller
 * of restore_run() does it.  0, or -errno: the engine shall give up.
 */
int restore_hook(const char *action);

#endif
