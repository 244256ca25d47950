/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_WORKER_H
#define DSEC_BOX_WORKER_H

#include <sys/types.h>

#include "base/buf.h"
#include "box.h"

/*
 * A program of ours that does what takes long beside the loop: dsec-ckpt.  Its
 * words are JSON records, a line each; the last, with "ok", is its result.
 */
struct worker;

/* ${rec}: what it said before its end, borrowed. */
typedef void worker_event_fn(struct worker *w, const json_t *rec);

/*
 * It ended: with "ok":true, ${rec} (borrowed) being its result, or ${why} tells
 * what went wrong.  The worker may be started again or freed.
 */
typedef void worker_end_fn(struct worker *w, const json_t *rec,
			   const struct err *why);

/* All zero is one that does not run. */
struct worker {
	struct box *box;
	worker_event_fn *on_event; /* or NULL */
	worker_end_fn *on_end;
	void *arg;

	bool running;
	pid_t pid;
	int pidfd, in, out;
	struct loop_source pid_src, out_src;
	struct loop_timer limit;
	struct buf text;
	json_t *result;
};

/*
 * worker_start(w, argv, state_fd, limit_ms, e):
 * Run dsec-ckpt with ${argv} (argv[0] is its name); box, on_end and the like
 * are set.  ${state_fd} (or -1) is its descriptor 3.  After ${limit_ms} it is
 * killed.
 */
int worker_start(struct worker *w, const char *const *argv, int state_fd,
		 unsigned limit_ms, struct err *e);

/* worker_say(w, text): a line to its stdin.  One that is dead ends anyway. */
void worker_say(struct worker *w, const char *text);

/* worker_kill(w): end it and what it started; nobody is told. */
void worker_kill(struct worker *w);

#endif
