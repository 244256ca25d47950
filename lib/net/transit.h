/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_TRANSIT_H
#define NET_TRANSIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * The node's router: a network namespace of its own ("transit") with one end of
 * each routed sandbox's veth pair.  Root makes it and everything in it that is
 * an interface; its user namespace belongs to the helper's uid, so that the
 * helper programs the rules (net/route.h) without any capability on the node,
 * through sockets that root made there.  Tried: a process with that uid, an
 * empty capability set and no_new_privs loads a table, binds an NFLOG group and
 * flushes connection tracking on sockets that root opened in it.
 *
 * The namespace is kept by a mount at ${run}/net/transit.  Nothing here uses
 * libmnl or libnftnl, so static programs may link it.
 */

#define TRANSIT_GATEWAY	    0xc6120001u /* 198.18.0.1, in host order */
#define TRANSIT_UPLINK	    "dsec-up"
#define TRANSIT_PORT_DNS    53
#define TRANSIT_PORT_SNI    443
#define TRANSIT_PORT_BROKER 80 /* http://broker.internal, at the gateway */
#define TRANSIT_LOG_GROUP   100
#define TRANSIT_UDP_S	    15	  /* a datagram's flow, unless it goes on */
#define TRANSIT_SLOTS	    65536 /* interface numbers: "ds0" to "ds65535" */

/* transit_path(run): ${run}/net/transit, allocated; NULL without memory. */
char *transit_path(const char *run);

/*
 * transit_open(run, e): the namespace as a descriptor, -ENOENT if there is
 * none.
 * transit_make(run, uid, gid, e): the same, made if need be: user namespace of
 * ${uid}, forwarding on, the gateway's address, and a default route into a
 * black hole until there is an uplink, so that attempts are seen and counted.
 * Two callers at once get the same one.  -EPERM if one exists that belongs to
 * another uid.
 * transit_drop(run, e): take mount, interfaces and namespace away; absent is
 * fine.  Sandboxes still attached lose their link.
 */
int transit_open(const char *run, struct err *e);
int transit_make(const char *run, uint32_t uid, uint32_t gid, struct err *e);
int transit_drop(const char *run, struct err *e);

/*
 * What the helper needs of the inside.  -1 where there is none; close with
 * transit_socks_done().
 */
struct transit_socks {
	int nft;     /* netfilter netlink: rules, sets, connection tracking */
	int log;     /* netfilter netlink: NFLOG */
	int dns_udp; /* at the gateway's address, as are the others */
	int dns_tcp;
	int sni;
	int broker;
};

#define TRANSIT_SOCKS 6

int transit_socks_make(int netns, struct transit_socks *ret, struct err *e);
void transit_socks_done(struct transit_socks *s);

/* A sandbox's link. */
struct transit_link {
	uint32_t slot;	  /* of its claim: "ds<slot>" here, "eth0" inside */
	uint32_t address; /* host order, out of the pool, its alone */
	unsigned mbit;	  /* bandwidth each way; 0: no limit */
};

/*
 * transit_address(pool, prefix, slot, ret, e):
 * The address of ${slot} in the pool (host order).  Slots in a row get
 * different ones until the pool is used up; then transit_attach() refuses the
 * second. -ERANGE: a pool of less than four addresses.
 */
int transit_address(uint32_t pool, unsigned prefix, uint32_t slot,
		    uint32_t *ret, struct err *e);

/* transit_name(slot, ret), transit_mac(slot, ret): outer name, inner MAC. */
void transit_name(uint32_t slot, char ret[16]);
void transit_mac(uint32_t slot, uint8_t ret[6]);

/*
 * transit_attach(netns, inside, link, e):
 * The pair between the transit ${netns} and the sandbox's namespace ${inside}:
 * addresses, routes, limits, both ends up, the stable address 198.18.0.2 on the
 * sandbox's lo, IPv6 off on eth0.  A pair with that slot, or an eth0, that is
 * there already is replaced.  Nothing passes until net/route.h knows the
 * sandbox.
 * transit_limit(netns, inside, slot, mbit, e): other bandwidth.
 * transit_poke(netns, inside, e): make every TCP connection of the sandbox say
 * something, so that those a new policy denies are reset at once even if they
 * only wait; those it allows do not notice.  For after a change of policy.
 * Returns how many connections there are.  Each answers twice a second at most.
 * There is no detach: the kernel takes 20 ms to remove a pair, and none of
 * whoever lets the sandbox's namespace end, which takes the pair along when the
 * last process and the last socket in it are gone.  No rule passes anything of
 * it by then, and who gets its slot replaces it; see transit_sweep().
 */
int transit_attach(int netns, int inside, const struct transit_link *link,
		   struct err *e);
int transit_limit(int netns, int inside, uint32_t slot, unsigned mbit,
		  struct err *e);
int transit_poke(int netns, int inside, struct err *e);

/*
 * transit_slots(netns, ret, max, e): the slots with an interface.  Return how
 * many there are, which may be more than ${max} were filled.
 */
int transit_slots(int netns, uint32_t *ret, size_t max, struct err *e);

/*
 * transit_sweep(netns, spare, held, arg, e):
 * The links whose slot held(arg, slot) says that nobody has: sockets that
 * outlive their processes keep a namespace, for minutes.  If they are more
 * than ${spare} they are removed, at the cost of one.  Return how many.
 */
int transit_sweep(int netns, unsigned spare,
		  bool (*held)(void *arg, uint32_t slot), void *arg,
		  struct err *e);

#endif
