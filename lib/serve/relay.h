/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_RELAY_H
#define SERVE_RELAY_H

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/loop.h"
#include "life/ctl.h"
#include "wire/json.h"

/*
 * A request that a sandbox's supervisor answers itself: a command, and what has
 * streams (attached commands, terminals, files as streams, ports).  One
 * connection to the supervisor for each, on the loop of whoever holds the
 * privilege to make it; the descriptors that it gives are handed on.
 */
struct relay;

/*
 * The ends of a request's streams: descriptors of pipes, terminals and sockets,
 * and before those of an output, parts of files that hold what was written
 * before (PROTOCOL.md section 7).
 */
#define RELAY_FDS_MAX 16
struct relay_fds {
	size_t n;
	int fds[RELAY_FDS_MAX];
	const char *names[RELAY_FDS_MAX]; /* literals */
};

struct relay_ops {
	/*
	 * An event.  "started" may bring descriptors, which are the callee's,
	 * and then has "streams"; for files named stdout.0 and so on it has
	 * "parts":{"stdout":[[AT,LEN]..]}.
	 */
	void (*event)(void *arg, json_t *rec, struct relay_fds *fds);
	/* The end; ${rec} is borrowed, NULL where ${why} says it.  The relay is
	 * freed afterwards. */
	void (*done)(void *arg, json_t *rec, const struct err *why);
};

/* relay_takes(req): is it one for a relay?  Else a program's. */
bool relay_takes(const json_t *req);

/*
 * relay_new(l, t, req, ops, arg, ret, e):
 * Begin.  ${req} is borrowed; its "sandbox" is an id.  Nothing is called before
 * it returns.  Fields are checked: "unknown_field", "bad_value".
 *
 * relay_cancel(r, why): a command that it started and did not detach is killed,
 * and done() comes with ${why}.
 * relay_free(r): hangs up: a command goes on, a file operation and a
 * connection end.
 */
must_check int relay_new(struct loop *l, const struct tree *t,
			 const json_t *req, const struct relay_ops *ops,
			 void *arg, struct relay **ret, struct err *e);
void relay_cancel(struct relay *r, const struct err *why);

/*
 * relay_tty(r, e): ask for the command's terminal again, in place of one that
 * died when the sandbox was paused to disk, which this resumes.  The event
 * "tty" comes with it, or with "error".
 */
must_check int relay_tty(struct relay *r, struct err *e);
void relay_free(struct relay *r);

#endif
