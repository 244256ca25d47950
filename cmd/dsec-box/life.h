/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_LIFE_H
#define DSEC_BOX_LIFE_H

#include "conn.h"

/*
 * The states of the sandbox and what moves it from one to another.
 *
 *   running <-> paused, both -> stopping -> stopped
 *
 * Only life.c writes box.state.  Freezing and thawing are done when the call
 * returns, so nobody ever sees them half way.
 */

/* life_start(b, e): it runs; timers, state.json, pid 1 watched. */
int life_start(struct box *b, struct err *e);

/* life_again(b, e): the same after a re-exec: the state is as it was. */
int life_again(struct box *b, struct err *e);

/* life_awake(b, e): running, resumed if it was paused; or "stopped". */
int life_awake(struct box *b, struct err *e);

/* life_quiet(b): an activity ended: the idle time begins now. */
void life_quiet(struct box *b);

/* The ops: 1: the ask is answered or waits; -errno. */
int life_pause(struct ask *a, const json_t *req, struct err *e);
int life_resume(struct ask *a, const json_t *req, struct err *e);
int life_hold(struct ask *a, const json_t *req, struct err *e);
int life_stop(struct ask *a, const json_t *req, struct err *e);
int life_watch(struct ask *a, const json_t *req, struct err *e);
int life_inspect(struct ask *a, const json_t *req, struct err *e);

/* life_end(b, outcome, grace_ms): begin to stop; again is fine. */
void life_end(struct box *b, const char *outcome, unsigned grace_ms);

/* life_let_go(b): a holder may be gone; after the last one it runs again. */
void life_let_go(struct box *b);

/* life_outcome(word): the literal of PROTOCOL.md that ${word} is. */
const char *life_outcome(const char *word);

#endif
