/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_RESTORE_H
#define BOX_RESTORE_H

#include "box/profile.h"
#include "box/tree.h"
#include "img/image.h"
#include "sys/cgroup.h"
#include "sys/pool.h"
#include "wire/json.h"

/*
 * The return of a sandbox from a checkpoint: its processes with their memory,
 * as children of whoever calls, on a writable layer, in a cgroup and under a
 * claim that are there already.
 *
 * The caller becomes the sandbox's supervisor: pid 1 is its child and dies with
 * it.  It has no threads, and its descriptors 5 and 6 are free.
 */
struct restore {
	const struct tree *tree;
	const char *id;		/* of the sandbox that comes */
	const char *dir;	/* the checkpoint: img/, init; see box/ckpt.h */
	const json_t *manifest; /* of it, checked: ckpt_check() */
	const json_t *spec;	/* of the sandbox that comes */
	const struct image *image;
	const struct profile *profile;
	const struct cgroup_root *cgroups;
	const struct pool *pool;

	/*
	 * The supervisor's state.  Its "fds" names every descriptor that came
	 * from inside or leads there, by number:
	 *
	 *   {"17":{"kind":K,"of":WHAT,"inner":PID,"pending_b64":BYTES}}
	 *
	 * kind "pipe-read", "pipe-write": an end of the pipe ${of}
	 * ("pipe:[123]", as it was called inside), both ends where both are
	 * named; pending: what is in it and was not read yet, put in first.
	 * kind "tty": the master of the sandbox's terminal ${of} ("pts/3").
	 * kind "pidfd": of the process that is ${inner} inside.
	 * Each is made anew on that very number, close-on-exec.  5 ("pipe-read"
	 * of pid 1's report pipe) and 6 ("pidfd" of inner 1) must be there.
	 * A pipe whose number is an open pipe already (any end, or an O_PATH
	 * descriptor of one) is that of a supervisor which goes on: the processes
	 * get it as it is, with what is in it, and it stays open on failure.
	 */
	const json_t *state;

	bool fork;	     /* a new identity; else the same sandbox again */
	unsigned timeout_ms; /* for all of it; 0: as long as it takes */
};

/*
 * restore_run(rs, ret_rec, e):
 * Restore, and return when every descriptor is in its place and the sandbox
 * could be thawed: its leaves are frozen, pid 1 alone runs.  *${ret_rec} is
 * what a record of it should say:
 *
 *   {"reset":[..],"not_reset":[..],"memory":"private"|"ksm","warnings":[..],
 *    "engine_ms":N,"restore_ms":N}
 *
 * On failure no process of it is left and none of the descriptors is open.
 * "engine" (infra): the engine failed, with its last words; "timeout"; else as
 * launch_start().
 */
int restore_run(const struct restore *rs, json_t **ret_rec, struct err *e);

#endif
