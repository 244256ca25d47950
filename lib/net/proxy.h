/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_PROXY_H
#define NET_PROXY_H

#include <netinet/in.h>

#include "net/denied.h"
#include "net/fakename.h"
#include "net/pump.h"
#include "net/resolver.h"
#include "policy/netdeny.h"
#include "policy/netpol.h"

/*
 * Connections of sandboxes to names, made on their behalf from the node's own
 * namespace.  A *proxy* is what all of a node's have in common, a *client* is
 * one sandbox.  Where its name comes from depends on the listener:
 *
 *   proxy_listen()  a socket inside the sandbox (strength names): the fake
 *                   address that was connected to stands for the name.  On port
 *                   443 a ClientHello must name it too, or another that is
 *                   allowed: or a client could ask an allowed address for a
 *                   site that is not, where one address serves both.
 *   proxy_sni()     a socket in the transit namespace to which rules of the
 *                   kernel redirect: the sender's address tells the sandbox,
 *                   the ClientHello the name; of the original destination the
 *                   port alone counts
 *
 * Then for both: the policy decides on name and port; the name is resolved
 * here, out of the budget of net/fakename.h where a ClientHello says it; every
 * address is held against netdeny and the policy's denies when it is about to
 * be used; the first that answers is joined with the client.  A refusal of any
 * kind is a reset, at once.
 */
struct proxy;
struct proxy_client;
struct proxy_port;

#define PROXY_TLS_PORT	 443
#define PROXY_CONNECT_MS 10000	 /* for all addresses together */
#define PROXY_NEXT_MS	 400	 /* until the next is tried beside it */
#define PROXY_HELLO_MS	 10000	 /* for a whole ClientHello */
#define PROXY_IDLE_MS	 7200000 /* without a byte either way */

struct proxy_conf {
	struct loop *loop;
	struct resolver *resolver; /* borrowed, as all here */
	const struct netdeny *const *deny;
	struct pump_pool *pool;
	int broker; /* -1, or the worker's end of net/broker.h; borrowed */
};

must_check int proxy_new(const struct proxy_conf *conf, struct proxy **ret,
			 struct err *e);
void proxy_free(struct proxy *p);

struct proxy_stats {
	uint64_t accepted, refused, cut;
	uint64_t sent, received; /* bytes, as the sandbox sees it */
	unsigned connections;	 /* now */
};

/*
 * proxy_client_new(p, id, policy, names, denied, ret, e):
 * ${policy} gets a reference of its own; ${names} and ${denied} are borrowed.
 */
must_check int proxy_client_new(struct proxy *p, const char *id,
				struct netpol *policy, struct fakename *names,
				struct denied *denied,
				struct proxy_client **ret, struct err *e);

/* proxy_client_free(c): its connections are reset, its listeners let go. */
void proxy_client_free(struct proxy_client *c);

/*
 * proxy_client_policy(c, policy): from when it returns on: connections, whole
 * or in the making, that ${policy} denies are reset on both sides.  How many.
 */
unsigned proxy_client_policy(struct proxy_client *c, struct netpol *policy);

/* proxy_client_count(c, at): of one without connections: count in ${at}, from
 * what it says on; it outlives ${c}. */
void proxy_client_count(struct proxy_client *c, struct proxy_stats *at);
void proxy_client_stats(const struct proxy_client *c, struct proxy_stats *ret);

/* proxy_client_recheck(c): the always-denied addresses have changed:
 * connections to such are reset.  How many. */
unsigned proxy_client_recheck(struct proxy_client *c);

/* proxy_listen(c, fd, port, ret, e): serve a listening socket (borrowed) of the
 * sandbox ${c}, bound to ${port}. */
must_check int proxy_listen(struct proxy_client *c, int fd, uint16_t port,
			    struct proxy_port **ret, struct err *e);

/* Whose address is it: NULL resets the connection. */
typedef struct proxy_client *proxy_find(void *arg, struct in_addr peer);

must_check int proxy_sni(struct proxy *p, int fd, proxy_find *find, void *arg,
			 struct proxy_port **ret, struct err *e);

/* proxy_broker(p, fd, find, arg, ret, e): the same for a socket in the transit
 * namespace that is the broker's for whoever connects. */
must_check int proxy_broker(struct proxy *p, int fd, proxy_find *find,
			    void *arg, struct proxy_port **ret, struct err *e);
void proxy_port_free(struct proxy_port *port);

#endif
