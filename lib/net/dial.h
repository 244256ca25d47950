/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_DIAL_H
#define NET_DIAL_H

#include "base/cleanup.h"
#include "base/loop.h"
#include "policy/netaddr.h"

/*
 * A TCP connection to the first of several addresses that answers.  They are
 * tried in order, the next one when one fails or next_ms have passed, at most
 * DIAL_TRIES at once.
 */
#define DIAL_ADDRS 16
#define DIAL_TRIES 3

struct dial;

struct dial_ops {
	/* ${addr} is about to be used: may it? */
	bool (*may)(void *arg, const struct netaddr *addr);
	/*
	 * Once, from the loop and not before dial_new() returns; the dial is
	 * gone then.  ${fd}: connected, non-blocking, kept alive, the callee's;
	 * or -errno of the last failure, -EACCES if none may be used.
	 */
	void (*done)(void *arg, int fd, const struct netaddr *addr);
};

struct dial_conf {
	struct loop *loop;
	const struct netaddr *addrs; /* copied, the first DIAL_ADDRS */
	size_t naddrs;
	uint16_t port;
	unsigned deadline_ms, next_ms;
	const struct dial_ops *ops; /* borrowed */
	void *arg;
};

must_check int dial_new(const struct dial_conf *conf, struct dial **ret,
			struct err *e);

/* dial_free(d): give up; no callback comes. */
void dial_free(struct dial *d);

#endif
