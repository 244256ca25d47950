/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_ROUTE_H
#define NET_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/netdeny.h"
#include "policy/netpol.h"

/*
 * The rules of the transit namespace (net/transit.h): one nft table, `dsec`.
 * Sandboxes are elements of its maps; policies are chains that all sandboxes of
 * one policy share, named by its hash, made with the first and gone with the
 * last.  Every change is one netlink batch with one acknowledgement: in force
 * when the function returns 0, and nothing at all has changed when it does not
 * (the kernel's reason is in ${e}).
 *
 * Flows that were allowed carry their sandbox's epoch, a number in the
 * connection mark which the table takes as a pass in both directions.  A new
 * policy is a new epoch: each flow is judged again by its next packet,
 * whichever end sends it; those still allowed go on, the others are reset.
 *
 * For the helper's worker, which needs no capability of the node for it; it
 * links libnftnl and libmnl, so only dynamic programs do.
 */

struct route;

struct route_sandbox {
	uint32_t slot;
	uint32_t address; /* host order */
	uint8_t mac[6];
	bool has6;
	uint8_t address6[16];
};

/*
 * Destinations that names led to.  Up to ROUTE_EXACT_PORTS in a row cost
 * nothing; wider ranges are kept in a set that is slow to change.
 */
struct route_learned {
	struct netaddr addr;
	enum netpol_proto proto; /* TCP, UDP */
	uint16_t lo, hi;
};

#define ROUTE_EXACT_PORTS 8
#define ROUTE_LEARN_MAX	  2048 /* of one sandbox at a time */
#define ROUTE_TIMEOUT_MAX 7200

struct route_conf {
	int nft, log;  /* of transit_socks; borrowed */
	uint32_t pool; /* host order; nobody outside may claim these */
	unsigned pool_prefix;
	uint32_t gateway; /* where the proxies listen, host order */
	uint16_t dns_port, sni_port, broker_port;
	uint16_t log_group;
};

/* route_conf_init(c): the values of net/transit.h, no sockets, the pool. */
void route_conf_init(struct route_conf *c);

/*
 * route_open(c, ret, e):
 * Take over the table that is there (what a previous worker left: every
 * sandbox, epoch and learned address is read back and no flow is touched), or
 * make it: until route_put() nothing passes, and everything is always-denied
 * until route_deny().
 * route_free(r): forget it; the rules stay.
 */
int route_open(const struct route_conf *c, struct route **ret, struct err *e);
void route_free(struct route *r);

/*
 * route_deny(r, d, e):
 * What no policy can allow, in place of what was said before, and the
 * operator's exceptions, which policies then may allow.  Flows to what is new
 * in it are not cut until their sandbox's next epoch.
 */
int route_deny(struct route *r, const struct netdeny *d, struct err *e);

/*
 * May this learned destination stay under the new policy?  ${name}: what was
 * asked for, or NULL if it is not known any more.
 */
typedef bool route_keep_fn(void *arg, const struct route_learned *l,
			   const char *name);

/*
 * route_put(r, sb, p, keep, arg, e):
 * Put ${sb} under policy ${p}: a new sandbox, or another policy for the slot.
 * Rules of CIDRs are for the kernel.  Rules of domains come in by
 * route_learn(), and TCP 443 to what was learned goes to the SNI proxy, but for
 * addresses that a CIDR rule allows on 443.  Bandwidth is
 * transit_limit()'s.
 * Learned destinations that ${keep} does not vouch for (NULL: all) are gone
 * with the same batch.  The same sandbox with the same hash: nothing happens,
 * so that a replay after a restart touches no flow.  Another address or MAC for
 * a slot replaces all of it. Return 1 if something changed, 0 if not.
 */
int route_put(struct route *r, const struct route_sandbox *sb,
	      const struct netpol *p, route_keep_fn *keep, void *arg,
	      struct err *e);

/*
 * route_del(r, slot, e):
 * The sandbox is gone: its elements, its policy's chain if it was the last,
 * its entries in connection tracking.  Absent is fine.
 * route_sweep(r, slots, n, e): the same for all but these.  Return how many.
 */
int route_del(struct route *r, uint32_t slot, struct err *e);
int route_sweep(struct route *r, const uint32_t *slots, size_t n,
		struct err *e);

/*
 * route_learn(r, slot, name, l, n, timeout_s, e):
 * ${name} was resolved for the sandbox: let it reach these for ${timeout_s}
 * from now (an element that is there already gets the new time, never a shorter
 * one).  To be called before the answer leaves.  The caller has judged name and
 * port; UDP 443 is left out here.
 * -EDQUOT (code "quota"): the sandbox has ROUTE_LEARN_MAX;
 * the elements that fit are in force.  Return how many elements are new.
 */
int route_learn(struct route *r, uint32_t slot, const char *name,
		const struct route_learned *l, size_t n, unsigned timeout_s,
		struct err *e);

struct route_stats {
	uint32_t slot;
	uint64_t tx_packets, tx_bytes; /* allowed, from the sandbox */
	uint64_t rx_packets, rx_bytes; /* allowed, to it */
	uint64_t denied;	       /* packets */
	unsigned learned;
	bool over_quota;
};

/*
 * route_stats(r, slot, ret, e): one sandbox; -ENOENT.
 * route_stats_all(r, ret, max, e): all in one dump; returns how many there are.
 */
int route_stats(struct route *r, uint32_t slot, struct route_stats *ret,
		struct err *e);
int route_stats_all(struct route *r, struct route_stats *ret, size_t max,
		    struct err *e);

struct route_denied {
	uint32_t slot;
	/* policy private port53 spoof proto option fragment stray neighbour
	 * input unasked connections rate quota cut */
	char why[16];
	uint8_t ipproto; /* IPPROTO_ */
	struct netaddr src, dst;
	uint16_t sport, dport; /* 0: not TCP or UDP */
};

/*
 * route_log(r, fn, arg, e):
 * Hand every denied attempt that waits on the log socket to ${fn} (the kernel
 * lets through 10 a second of each sandbox, 50 at once; route_stats counts
 * all). Never blocks; watch conf.log for readability.  Return how many.
 */
int route_log(struct route *r,
	      void (*fn)(void *arg, const struct route_denied *d), void *arg,
	      struct err *e);

#endif
