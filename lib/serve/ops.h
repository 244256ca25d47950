/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_OPS_H
#define SERVE_OPS_H

#include <stdbool.h>

#include "base/loop.h"
#include "serve/metrics.h"

/*
 * What monitoring asks a daemon, by HTTP on the machine itself: GET /metrics
 * (the metrics' text), /healthz (200 while the loop turns) and /readyz (200, or
 * 503 and why not).  There is no authentication, so nothing but loopback is
 * listened on, and nothing that a client sends is looked at but its first line.
 * At most 16 connections, of 5 seconds each; more wait.
 */
struct ops;

/* ops_is_loopback(address): is HOST:PORT one that ops_open() takes? */
bool ops_is_loopback(const char *address);

struct ops_conf {
	const char *address;	 /* ADDRESS:PORT of loopback: 127.x.y.z, [::1];
				    port 0: any that is free */
	struct metrics *metrics; /* NULL: /metrics is not found */
	/* Called before the metrics are written, to set gauges; or NULL. */
	void (*refresh)(void *arg);
	/* Is it ready?  NULL: yes; else why not, a literal.  Or NULL: always.
	 */
	const char *(*unready)(void *arg);
	void *arg;
};

/* ops_open(l, c, ret, e): "configuration" for an address that is none, or not
 * of loopback. */
must_check int ops_open(struct loop *l, const struct ops_conf *c,
			struct ops **ret, struct err *e);
void ops_close(struct ops *o);

/* ops_port(o): that it listens on. */
unsigned ops_port(const struct ops *o);

#endif
