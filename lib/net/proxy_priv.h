/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_PROXY_PRIV_H
#define NET_PROXY_PRIV_H

#include "net/dial.h"
#include "net/hello.h"
#include "net/proxy.h"

enum conn_state {
	CONN_HELLO,   /* what name it tells the server is not known yet */
	CONN_RESOLVE, /* name and port are allowed */
	CONN_DIAL,
	CONN_PUMP, /* joined with addr */
};

/* One connection of a sandbox. */
struct conn {
	struct proxy_client *client;
	struct conn *next, **pprev;
	enum conn_state state;
	uint16_t port;
	int fd; /* the sandbox's end; the pump's in CONN_PUMP */
	struct loop_source src;
	char *name;	     /* NULL: not known yet */
	struct netaddr addr; /* that was connected to; then the upstream's */
	/* one of these, by state */
	struct hello *hello;
	size_t seen; /* of the hello */
	struct loop_timer deadline;
	struct resolver_wait wait;
	sa_family_t family; /* that is asked for */
	struct dial *dial;
	struct pump *pump;
	struct netpol *brokered; /* it is the broker's, under this policy */
};

struct proxy_client {
	struct proxy *proxy;
	char *id;
	struct netpol *policy;
	struct fakename *names;
	struct denied *denied;
	struct conn *conns;
	size_t nout; /* questions that the resolver has out for it */
	struct proxy_stats own, *stats; /* where it is counted */
	struct pump_bucket up, down;
	uint64_t rate_at_ms; /* of new connections */
	uint64_t rate_left;  /* in thousandths */
};

struct proxy_port {
	struct proxy *proxy;
	struct proxy_client *client; /* NULL: by find() */
	proxy_find *find;
	void *arg;
	bool broker; /* whatever comes is for it */
	uint16_t port;
	struct loop_source src;
	struct loop_timer pause;
};

struct proxy {
	struct loop *loop;
	struct resolver *resolver;
	const struct netdeny *const *deny;
	struct pump_pool *pool;
	int broker;
	int reserve; /* given up for a moment where there are no descriptors */
	char hello[HELLO_MAX]; /* scratch */
};

/*
 * proxy_conn_new(c, fd, port, addr): a connection that has been accepted; ${fd}
 * is taken over in any case; NULL: it was refused.
 *
 * conn_named(n, name): its address stands for ${name} (NULL: for none).
 * conn_hello(n): wait for its ClientHello.  Either may be the end of it.
 */
struct conn *proxy_conn_new(struct proxy_client *c, int fd, uint16_t port,
			    const struct netaddr *addr);
void conn_named(struct conn *n, const char *name);
void conn_hello(struct conn *n);

/* conn_end(n): reset, both sides. */
void conn_end(struct conn *n);

/* proxy_conn_refuse(n, why): the same, told and counted. */
void proxy_conn_refuse(struct conn *n, const char *why);

/* conn_may(n): do policy and netdeny allow what it is, as far as is known? */
bool conn_may(const struct conn *n);

#endif
