/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_SERVE_WORKER_H
#define DSEC_NET_SERVE_WORKER_H

#include "net/denied.h"
#include "net/forwarder.h"
#include "net/proxy.h"
#include "net/route.h"
#include "serve_priv.h"

struct worker;

/* What is counted of a sandbox. */
struct total {
	struct proxy_stats proxy;
	struct forwarder_stats dns;
	uint64_t denied;
};

struct sbox_port {
	uint16_t port;
	int fd;
	struct proxy_port *serves;
};

/* A sandbox, as the worker knows it. */
struct sbox {
	struct sbox *next, *next_address, *next_slot;
	struct worker *worker;
	char *id;
	enum netpol_strength strength;
	struct netpol *policy;
	struct fakename *names;
	struct denied *denied;
	struct forwarder *forwarder;
	struct proxy_client *client;
	/* names: what it listens on inside; -1 */
	int udp53, tcp53;
	struct forwarder_port *dns;
	struct sbox_port ports[NETPOL_LISTEN_MAX];
	size_t nports;
	struct route_sandbox route; /* routed */
	int64_t netns;		    /* its inode; or 0 */
};

#define SBOX_BUCKETS 1024

enum {
	FD_NFT,
	FD_NFLOG,
	FD_DNS_UDP,
	FD_DNS_TCP,
	FD_SNI,
	FD_BROKER,
	FD_TRANSIT
};

struct worker {
	struct loop *loop;
	const struct netconf *conf;
	int to_broker; /* or -1 */
	struct totals *totals;
	struct chan chan;
	struct loop_source src;
	struct netdeny *deny;
	struct resolver *resolver;
	struct pump_pool *pool;
	struct proxy *proxy;
	/* of routed ones also by address and slot */
	struct sbox *by_id[SBOX_BUCKETS], *by_address[SBOX_BUCKETS];
	struct sbox *by_slot[SBOX_BUCKETS];
	/* the addresses of the node */
	int rtnl;
	struct loop_source rtnl_src;
	struct loop_timer rtnl_timer;
	/* transit */
	int transit[FD_TRANSIT];
	struct route *route;
	struct forwarder_port *dns;
	struct proxy_port *sni, *broker;
	struct loop_source nflog;
};

struct sbox *sbox_find(struct worker *w, const char *id);
struct sbox *sbox_of_address(struct worker *w, struct in_addr addr);
struct sbox *sbox_of_slot(struct worker *w, uint32_t slot);

/* The requests of the same names: *${ret} gets what is answered beside "ok". */
int sbox_attach(struct worker *w, struct chan_msg *m, struct err *e);
int sbox_policy(struct worker *w, const json_t *req, unsigned *ret_cut,
		struct err *e);
void sbox_free(struct sbox *b);

/* sbox_sweep(w, e): no rules but those of the sandboxes there are. */
int sbox_sweep(struct worker *w, struct err *e);

/* sbox_stats(b, route, ret, e): ${route}: what the kernel counted of a routed
 * one. */
int sbox_stats(const struct sbox *b, const struct route_stats *route,
	       json_t **ret, struct err *e);

extern const struct forwarder_ops sbox_dns_ops;

/* worker_transit(w, m, e): serve the transit namespace by these. */
int worker_transit(struct worker *w, struct chan_msg *m, struct err *e);
void worker_transit_done(struct worker *w);

/* worker_node(w, e): follow the addresses of the node. */
int worker_node(struct worker *w, struct err *e);

#endif
