/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_WATCH_H
#define DSEC_SERVE_WATCH_H

#include "serve/server.h"

/*
 * What monitoring sees of a daemon: its requests, and what nodes report.  NULL
 * is a daemon that nobody watches; all of these take it.
 */
struct watch;

struct watch_conf {
	struct loop *loop;
	const char *address;   /* of loopback; NULL: there is no watch */
	struct server *server; /* borrowed */
	/* Told before metrics are written, to call watch_node() for each node;
	 * or NULL. */
	void (*refresh)(void *arg, struct watch *w);
	/* Until when its own certificate is good (clock_wall_ms()). */
	uint64_t (*until_ms)(void *arg);
	/* NULL: ready; else why not, a literal.  Or NULL: always. */
	const char *(*unready)(void *arg);
	void *arg;
};

/* watch_open(c, ret, e): *${ret} is NULL without an address. */
must_check int watch_open(const struct watch_conf *c, struct watch **ret,
			  struct err *e);
void watch_close(struct watch *w);

/* watch_ended(w, k, rec): that is the last record of a request; of a node's
 * own report, it is kept. */
void watch_ended(struct watch *w, const struct call *k, const json_t *rec);

/*
 * watch_refused(w, r, why): a handshake that failed.  Those of a certificate
 * are told in the log, one a second and how many were not.
 */
struct refusals {
	uint64_t told_ms;
	unsigned untold;
};
void watch_refused(struct watch *w, struct refusals *r, const struct err *why);

/* watch_node(w, name, state, report): what a node reports, or NULL; ${state} is
 * "live" or why it is not. */
void watch_node(struct watch *w, const char *name, const char *state,
		const json_t *report);

#endif
