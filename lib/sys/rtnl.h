/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_RTNL_H
#define SYS_RTNL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Interfaces, addresses, routes and queues of a network namespace.  A writer of
 * our own because static programs need it and libmnl has no static library.
 * Every request is acknowledged by the kernel before the function returns, and
 * what the kernel says about a refusal is in the message.  Addresses are bytes
 * in network order, 4 or 16 by family.
 *
 * A round trip for each would be most of what a link costs, so that what needs
 * no answer may be put together: see rtnl_hold().
 */
#define RTNL_HELD_MAX 1024

struct rtnl {
	int fd;
	uint32_t seq;
	bool holding;
	size_t held_len;
	char held[RTNL_HELD_MAX] __attribute__((aligned(4)));
};

#define auto_rtnl __attribute__((cleanup(rtnl_close)))

/*
 * rtnl_open(netns, ret_nl, e):
 * A route socket in the network namespace ${netns} (a descriptor; -1: ours).
 * The caller, who has no threads, is in that namespace for a moment.
 * rtnl_close() is fine on one whose fd is -1 and makes it so.
 */
int rtnl_open(int netns, struct rtnl *ret_nl, struct err *e);
void rtnl_close(struct rtnl *nl);

/*
 * rtnl_hold(nl), rtnl_flush(nl, e):
 * Between the two, links brought up, addresses, routes and neighbours added are
 * only written down; rtnl_flush() has the kernel do all of them, in their
 * order, also those after one that it refuses, and returns the first refusal.
 */
void rtnl_hold(struct rtnl *nl);
int rtnl_flush(struct rtnl *nl, struct err *e);

/* rtnl_index(nl, name, e): the number of interface ${name}, or -ENODEV. */
int rtnl_index(struct rtnl *nl, const char *name, struct err *e);

/* rtnl_settle(nl, index, e): have the kernel notice now that the interface has
 * a carrier, which a worker of its own else does at some time. */
int rtnl_settle(struct rtnl *nl, int index, struct err *e);

struct rtnl_veth {
	const char *name;   /* ours */
	const uint8_t *mac; /* NULL, or 6 bytes */
	const char *peer;   /* the other end */
	const uint8_t *peer_mac;
	int peer_netns; /* a descriptor; -1: the same namespace */
	unsigned mtu;	/* 0: the kernel's */
	uint32_t group; /* of ours, for rtnl_group_del(); 0: none */
	bool up;	/* ours; the peer is down */
};

/* rtnl_veth_add(nl, v, e): a pair of interfaces; -EEXIST. */
int rtnl_veth_add(struct rtnl *nl, const struct rtnl_veth *v, struct err *e);

/*
 * rtnl_link_up(nl, index, e), rtnl_link_del(nl, name, e); absent: -ENODEV.
 * rtnl_group_set(nl, index, group, e): put a link into a group.
 * rtnl_group_del(nl, group, e): every link of the group at once, which costs
 * about as much as one; none is fine.
 */
int rtnl_link_up(struct rtnl *nl, int index, struct err *e);
int rtnl_link_del(struct rtnl *nl, const char *name, struct err *e);
int rtnl_group_set(struct rtnl *nl, int index, uint32_t group, struct err *e);
int rtnl_group_del(struct rtnl *nl, uint32_t group, struct err *e);

struct rtnl_addr {
	int family; /* AF_INET, AF_INET6 */
	uint8_t addr[16];
	unsigned prefix;
	int index; /* the interface */
	bool host; /* scope host; or global */
};

/* rtnl_addr_add(nl, a, e): existing is fine. */
int rtnl_addr_add(struct rtnl *nl, const struct rtnl_addr *a, struct err *e);

/*
 * rtnl_addrs(nl, ret, max, e): every address of the namespace.  Return how many
 * there are, which may be more than ${max} were filled.
 */
int rtnl_addrs(struct rtnl *nl, struct rtnl_addr *ret, size_t max,
	       struct err *e);

enum rtnl_kind { RTNL_UNICAST, RTNL_LOCAL, RTNL_BLACKHOLE };

struct rtnl_route {
	int family;
	enum rtnl_kind kind;
	uint8_t dst[16];
	unsigned prefix; /* 0: the default route */
	int index;	 /* the interface; 0: none (blackhole) */
	bool link;	 /* scope link: reached without a gateway */
	bool has_gateway, has_src;
	uint8_t gateway[16];
	uint8_t src[16]; /* preferred source address */
	bool onlink;	 /* the gateway is on the link whatever routes say */
	unsigned metric;
	bool exclusive; /* -EEXIST where there is one already */
};

/*
 * rtnl_route_add(nl, r, e): add or replace.
 * rtnl_route_del(nl, r, e): absent is -ESRCH.
 * rtnl_routes(nl, family, ret, max, e): the unicast routes of all tables but
 * that of local addresses; returned as by rtnl_addrs().
 */
int rtnl_route_add(struct rtnl *nl, const struct rtnl_route *r, struct err *e);
int rtnl_route_del(struct rtnl *nl, const struct rtnl_route *r, struct err *e);
int rtnl_routes(struct rtnl *nl, int family, struct rtnl_route *ret, size_t max,
		struct err *e);

/* rtnl_neigh_add(nl, index, family, addr, mac, e): a permanent neighbour. */
int rtnl_neigh_add(struct rtnl *nl, int index, int family, const uint8_t *addr,
		   const uint8_t *mac, struct err *e);

/*
 * rtnl_tbf(nl, index, mbit, e):
 * Let the interface send at most ${mbit} Mbit a second (token bucket, 50 ms of
 * queue); 0 takes such a limit away again, and its absence is fine.
 */
#define RTNL_MBIT_MAX 100000
int rtnl_tbf(struct rtnl *nl, int index, unsigned mbit, struct err *e);

/*
 * rtnl_links(nl, prefix, fn, arg, e):
 * Call fn(arg, name, index) for every interface whose name starts with
 * ${prefix}; a negative value of it ends the walk and is returned.
 */
int rtnl_links(struct rtnl *nl, const char *prefix,
	       int (*fn)(void *arg, const char *name, int index), void *arg,
	       struct err *e);

#endif
