/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_AUDIT_H
#define SERVE_AUDIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/hash.h"
#include "base/loop.h"

/*
 * The audit log: a line per call that changes something, written, and synced
 * where who waits for it wants that, before the call is made, so that whoever
 * cannot write it must refuse the call.  A line is a JSON object,
 *
 *   {"seq":7,"at_ms":..,"prev":HEX,"who":"..","request":"..",
 *    "program":"run",..,"decision":"allow","hash":HEX}
 *
 * where prev is the hash of the line before (64 zeros for the first) and hash
 * the SHA-256 of prev's digits followed by the line as it is without its last
 * member, that is, with "}" in place of ,"hash":"..."}.  So nothing can be
 * changed, taken out or put in between without rewriting all that follows.
 * What chains cannot show is an end that was cut off at a line: keep the last
 * seq and hash, which audit_verify() tells, somewhere else.
 *
 * One process writes a log at a time (flock).
 */
struct audit;

#define AUDIT_TEXT_MAX 512 /* bytes of a text; the rest is cut */
#define AUDIT_LINE_MAX 16384

enum audit_decision { AUDIT_ALLOW, AUDIT_DENY };

/* NULL texts are left out; their bytes may be anything. */
struct audit_entry {
	const char *who;     /* dsec://client/x */
	const char *request; /* the client's id for it */
	const char *req;     /* the daemons' */
	const char *program; /* run */
	const char *op;
	const char *sandbox, *project, *task;
	const char *key;
	enum audit_decision decision;
	const char *code; /* of a denial */
	uint64_t at_ms;	  /* wall clock */
};

/* Who waits for an entry to be durable, or (written) to be in the file, where
 * only a crash of the machine can take it away; the caller's, until it is
 * called. */
struct audit_wait {
	void (*fn)(struct audit_wait *w, int r, const struct err *why);
	void *arg;
	bool written;
	struct audit_wait *next; /* the log's */
};

/*
 * audit_open(path, l, ret, e):
 * Open or make the log (0600) and find its end.  A last line that was torn by
 * a crash (it has no end, so nobody was told that it is durable) is taken off,
 * which the next entry tells: audit_torn().  -EBADMSG, "configuration": the
 * last whole line is not what its hash says; nothing is appended to that.
 * -EBUSY: another process writes it.
 * With ${l} a child of this process syncs, so that the loop does not wait for
 * the disk; it ends with us.  Without one the caller does, by audit_sync().
 */
must_check int audit_open(const char *path, struct loop *l, struct audit **ret,
			  struct err *e);

/* audit_close(a): syncs what is there; who waits is called. */
void audit_close(struct audit *a);

/*
 * audit_add(a, entry, w, e):
 * Append.  ${w} (or NULL) is called once the entry is durable, or will not be
 * (then it is not in the log); entries that come while one sync is under way
 * share the next.  -ENOSPC and the like: it is not in the log, ${w} is not
 * called, and what it was for must not be done.  -EAGAIN, "busy": too many
 * wait.
 */
must_check int audit_add(struct audit *a, const struct audit_entry *entry,
			 struct audit_wait *w, struct err *e);

/* audit_sync(a, e): wait until all that was added is durable. */
must_check int audit_sync(struct audit *a, struct err *e);

/* audit_reopen(a, e): the log was moved away; go on, with the same chain, in a
 * new file of its name, whose first line ("program":"audit","op":"continue")
 * is there when the name is.  "exists": it was not moved; as after any other
 * failure, it is written on where it was. */
must_check int audit_reopen(struct audit *a, struct err *e);

/* audit_torn(a): bytes that were taken off when it was opened. */
uint64_t audit_torn(const struct audit *a);

struct audit_state {
	uint64_t lines;	      /* that are right, of all files */
	uint64_t first, last; /* seq; first 1: it is the whole of the log */
	uint64_t torn;	      /* bytes behind the last whole line */
	uint64_t bad_line;    /* the first that is wrong, as lines; 0: none */
	const char *why;      /* ... a literal */
	char hash[HASH_SHA256_HEX + 1]; /* of the last that is right */
};

/*
 * audit_verify(fd, s, e):
 * Read a log from its start; ${s} is all zero, or that of the log that was
 * moved away before it, which this one must go on from.  0 (look at ${s}), or
 * -errno when it cannot be read.
 */
must_check int audit_verify(int fd, struct audit_state *s, struct err *e);

#endif
