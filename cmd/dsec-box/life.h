/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_LIFE_H
#define DSEC_BOX_LIFE_H

#include "conn.h"

/*
 * The states of the sandbox and what moves it from one to another.
 *
 *   running <-> paused, both -> stopping -> stopped
 *
 * pause.h has the way between the first two, which has levels.
 */

/* life_set_state(b, state): and tell who watches; level is set before.
 * life_write_state(b): state.json alone.  life_state_record(b): what an op of
 * these answers; NULL when out of memory.  life_tell(a): the event of it. */
void life_set_state(struct box *b, enum box_state state);
void life_write_state(struct box *b);
json_t *life_state_record(const struct box *b);
void life_tell(struct ask *a);

/* life_stopped(b, e): the error of who comes too late. */
int life_stopped(const struct box *b, struct err *e);

/* life_start(b, e): it runs; timers, state.json, pid 1 watched. */
int life_start(struct box *b, struct err *e);

/* life_again(b, e): the same after a re-exec: the state is as it was. */
int life_again(struct box *b, struct err *e);

/* life_quiet(b): an activity ended: the idle time begins now. */
void life_quiet(struct box *b);

/* The ops: 1: the ask is answered or waits; -errno. */
int life_stop(struct ask *a, const json_t *req, struct err *e);
int life_watch(struct ask *a, const json_t *req, struct err *e);
int life_inspect(struct ask *a, const json_t *req, struct err *e);

/* life_inspect_record(b, ret, e): what an inspect answers, without "pss". */
int life_inspect_record(struct box *b, json_t **ret, struct err *e);

/* life_end(b, outcome, grace_ms): begin to stop; again is fine. */
void life_end(struct box *b, const char *outcome, unsigned grace_ms);

/* life_outcome(word): the literal of PROTOCOL.md that ${word} is. */
const char *life_outcome(const char *word);

#endif
