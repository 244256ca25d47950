/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_COPROC_H
#define SERVE_COPROC_H

#include "base/cleanup.h"
#include "base/loop.h"
#include "wire/json.h"

/*
 * A program of ours as a long-lived filter: requests go to its stdin, records
 * come from its stdout (PROTOCOL.md section 1).  It is started with the first
 * request, again with back-off when it ended, and let go when it had nothing to
 * do for a while.  What it was asked and had not answered when it died is asked
 * again where that does no harm, and fails with "helper_lost" otherwise, so
 * every request has an answer.  Control records only: bytes have streams.
 */
struct coproc;
struct coproc_call;

struct coproc_conf {
	struct loop *loop;
	const char *const *argv;	/* argv[0]: a path; borrowed */
	unsigned window;		/* requests it has at once, 1 to 4096 */
	unsigned queue_max;		/* that wait beside them; then "busy" */
	unsigned idle_ms;		/* let it go after so long; 0: never */
	bool cancels;			/* it knows "cancel" */
	void (*note)(const char *text); /* what happens to it, or NULL */
};

/* coproc_new(conf, ret, e): starts nothing yet.
 * coproc_free(c): its input ends, and it with that; what it had been asked
 * fails with "helper_lost", but that of coproc_drop(). */
must_check int coproc_new(const struct coproc_conf *conf, struct coproc **ret,
			  struct err *e);
void coproc_free(struct coproc *c);

enum coproc_flags {
	COPROC_AGAIN = 1 << 0, /* may be asked again when nobody knows whether
				  it was done: it reads, or has a key */
};

/*
 * What a request brings.  ${rec} is borrowed; its "id" is of no meaning.
 * record: one with "ok", or (without) an event.  True ends the call: the last.
 * failed: it ended without.  After either end the call is gone.
 */
struct coproc_ops {
	bool (*record)(void *arg, json_t *rec);
	void (*failed)(void *arg, const struct err *why);
};

/*
 * coproc_ask(c, req, flags, ops, arg, ret, e):
 * Ask it; ${req} is borrowed, its "id" replaced.  "deadline_ms" counts from
 * here, and is kept to even if the program does not.  Nothing is called before
 * it returns.  "busy" (with retry_after_ms): enough is waiting.
 */
must_check int coproc_ask(struct coproc *c, const json_t *req, unsigned flags,
			  const struct coproc_ops *ops, void *arg,
			  struct coproc_call **ret, struct err *e);

/* coproc_tell(c, line): a line that gets no answer; -EAGAIN, and nothing done,
 * when it does not run, or takes nothing just now. */
int coproc_tell(struct coproc *c, const json_t *line);

/*
 * coproc_cancel(k): what was not given to it yet fails with "cancelled" (at
 * once, by its ops); else it is told, where it knows how, and answers as it
 * likes.  1 if so, else 0.
 * coproc_drop(k): nobody waits any more; its ops are not called again.
 */
int coproc_cancel(struct coproc_call *k);
void coproc_drop(struct coproc_call *k);

struct coproc_stats {
	pid_t pid; /* 0: not running */
	unsigned running, waiting, restarts;
	uint64_t asked, lost;
};
void coproc_stats(const struct coproc *c, struct coproc_stats *ret);

#endif
