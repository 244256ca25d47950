/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_RUN_RUN_H
#define DSEC_RUN_RUN_H

#include "life/create.h"
#include "wire/field.h"

/*
 * The parts of dsec-run.
 */

/* Fields of a request and flags, those of the sandbox's spec included. */
extern struct field run_fields[];
extern size_t run_fields_len;

/* run_fields_init(): put the table together; once, first. */
void run_fields_init(void);

/*
 * request_do(c, req, sig, ret_rec, e): (request.c)
 * One checked request, to its final record.  Blocks.  sig is a signalfd that
 * tells to end: a one-shot that it interrupts ends as "killed", a wait as
 * "cancelled", with ${req} saying for what.
 * request_failed(req, why): the record of one that failed.
 */
int request_do(struct creator *c, json_t *req, int sig, json_t **ret_rec,
	       struct err *e);
json_t *request_failed(const json_t *req, const struct err *why);

/* run_signals(e): a signalfd of those that tell us to end; of them only what
 * our caller does not ignore. */
must_check int run_signals(struct err *e);

/*
 * one_shot_raw(c, req, e): (one_shot.c)
 * dsec-run --rm -- ARGV: our descriptors, the command's exit status.
 */
int one_shot_raw(struct creator *c, json_t *req, struct err *e);

/*
 * one_shot_record(c, req, sig, ret_rec, e): (one_shot.c)
 * The same for a request with "rm": its output goes into the record.
 */
int one_shot_record(struct creator *c, json_t *req, int sig, json_t **ret_rec,
		    struct err *e);

/* A sandbox that is there, and its command. */
struct running {
	char sandbox[BOX_ID_LEN + 1], exec[16]; /* "": there is none */
	int stop; /* what ends the wait for it: a signalfd, or -1 */
};

/*
 * from_snapshot(c, req, rec, w, e): (from.c)
 * A request with "snapshot": make the sandbox, unless ${w}->stop has a signal
 * before it is there, put what there is to tell into ${rec}, and begin its
 * command, if it has one.  Where that fails, w->sandbox is there without.
 *
 * from_command(t, req, w, e): the second half of it, for a sandbox that is
 * there: its command is begun unless it was, and w->exec is its name.
 */
int from_snapshot(struct creator *c, const json_t *req, json_t *rec,
		  struct running *w, struct err *e);
int from_command(const struct tree *t, const json_t *req, struct running *w,
		 struct err *e);

/*
 * stream(tree, defaults, jobs, e): (stream.c)
 * Requests from stdin, records to stdout, up to ${jobs} at once, each in a
 * worker process of its own.  Return the exit status.
 */
int stream(const struct tree *tree, json_t *defaults, unsigned jobs,
	   struct err *e);

#endif
