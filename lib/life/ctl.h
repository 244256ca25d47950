/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_CTL_H
#define LIFE_CTL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/fd.h"
#include "box/tree.h"
#include "wire/json.h"

/*
 * The client's end of a supervisor's socket (PROTOCOL.md section 6): requests
 * go out as lines, records come back, some of them with descriptors.  A
 * connection may carry many requests at once; telling their records apart by
 * "id" is the caller's affair.  What arrives is checked: a record that is not
 * JSON, is over 1 MiB or names descriptors that did not come is an error.
 */
struct ctl;

enum ctl_flags {
	CTL_NONBLOCK = 1 << 0,	 /* for an event loop: no call ever waits */
	CTL_NO_RECOVER = 1 << 1, /* nor does ctl_open() for a recovery */
};

/*
 * ctl_open(t, sandbox, flags, ret_ctl, e):
 * Connect to the supervisor of ${sandbox}, an id or a name.  ${t} is borrowed
 * for as long as the connection lives.  What went wrong, by code:
 *   sandbox_unknown  there is and was no such sandbox
 *   stopped          it ended; the message has the cause, infra is the cause's
 *   one_shot         it lives, but has no supervisor
 *   supervisor_lost  it should have one, but nobody listens
 *   busy             it is being made, or (CTL_NONBLOCK) too many wait already:
 *                    try again after retry_after_ms
 * One that is paused to disk and has no supervisor any more gets one first;
 * what hinders that (see recover()) is the failure then.  With CTL_NO_RECOVER
 * it does not: -ESTALE, "busy", and recovery_new() is the caller's to begin.
 */
int ctl_open(const struct tree *t, const char *sandbox, unsigned flags,
	     struct ctl **ret_ctl, struct err *e);
void ctl_free(struct ctl *c);

/* ctl_id(c): the sandbox's id.  ctl_fd(c): the socket, to be watched. */
const char *ctl_id(const struct ctl *c);
int ctl_fd(const struct ctl *c);

/*
 * ctl_send(c, req, fds, nfds, e):
 * Send one request with ${nfds} descriptors (borrowed) on its first byte.
 * With CTL_NONBLOCK, what does not fit is kept: while ctl_pending() is true
 * watch for EPOLLOUT and call ctl_flush().
 */
int ctl_send(struct ctl *c, const json_t *req, const int *fds, size_t nfds,
	     struct err *e);
bool ctl_pending(const struct ctl *c);
int ctl_flush(struct ctl *c, struct err *e);

/* A record with the descriptors that came with it.  All zero is none. */
#define CTL_FDS_MAX FD_PASS_MAX
struct ctl_record {
	json_t *rec;
	bool final; /* it has "ok" */
	size_t nfds;
	int fds[CTL_FDS_MAX]; /* in the order of "fds"; -1: taken */
};

#define auto_ctl_record __attribute__((cleanup(ctl_record_done)))

void ctl_record_done(struct ctl_record *r);

/*
 * ctl_take_fd(r, name): the descriptor that "fds" calls ${name}, now the
 * caller's (close-on-exec); -1 if there is none.
 */
int ctl_take_fd(struct ctl_record *r, const char *name);

/*
 * ctl_next(c, ret, e):
 * The next record, without waiting: 0 and *${ret} filled (the caller's to
 * ctl_record_done()); -EAGAIN: none yet.  When the supervisor is gone: code
 * "stopped" or "supervisor_lost", as for ctl_open().  After any error but
 * -EAGAIN the connection is of no more use.
 */
int ctl_next(struct ctl *c, struct ctl_record *ret, struct err *e);

/*
 * ctl_wait(c, deadline_ms, ret, e):
 * The same, waiting until clock_ms() is ${deadline_ms} (0: for ever);
 * -ETIMEDOUT, code "deadline", when it passes.
 */
int ctl_wait(struct ctl *c, uint64_t deadline_ms, struct ctl_record *ret,
	     struct err *e);

/*
 * ctl_call(t, sandbox, req, deadline_ms, ret_rec, e):
 * Connect, send ${req}, and wait for the final record; events on the way are
 * dropped.  A record with "ok":false becomes ${e} with its code.
 */
int ctl_call(const struct tree *t, const char *sandbox, const json_t *req,
	     uint64_t deadline_ms, json_t **ret_rec, struct err *e);

/*
 * ctl_call_stop(t, sandbox, req, stop, ret_rec, e):
 * The same without a deadline, until ${stop} reads: then the request (whose
 * "id" is a number) is cancelled, and still waited for, a minute at the most,
 * so that nothing of it is under way any more.
 */
int ctl_call_stop(const struct tree *t, const char *sandbox, const json_t *req,
		  int stop, json_t **ret_rec, struct err *e);

/*
 * ctl_dead(t, id, ret_rec, e):
 * How sandbox ${id} ended: what teardown_recorded() or teardown_lost() says.
 * -ENOENT, "sandbox_unknown", when nothing is kept about it.
 */
int ctl_dead(const struct tree *t, const char *id, json_t **ret_rec,
	     struct err *e);

/*
 * ctl_made(t, id, ret_rec, e):
 * What became of the sandbox ${id}, whose maker died before he could tell: 0,
 * and what its supervisor says to "inspect"; of one that ended its spec, with
 * "state" "stopped".  1: it was not made, or is lost.
 */
int ctl_made(const struct tree *t, const char *id, json_t **ret_rec,
	     struct err *e);

#endif
