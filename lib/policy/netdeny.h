/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_NETDENY_H
#define POLICY_NETDENY_H

#include "base/cleanup.h"
#include "policy/netpol.h"

/*
 * What no policy can allow: loopback, private, shared, link-local (metadata
 * services), benchmark, multicast and reserved ranges; in v6 the same and every
 * form that carries a v4 address (::/96, mapped, NAT64, Teredo, 6to4); every
 * address of the node; the cluster's networks.  Only an exception of the
 * operator's (net.json) opens a part of it, and then a policy must still allow
 * it.
 *
 * Whoever connects or resolves on behalf of a sandbox asks netdeny_denies()
 * with the address it is about to use, after resolution.
 */
struct netdeny;

/* A part of it, for rules of the kernel.  Those that netdeny_ranges() gives are
 * sorted (netcidr_cmp) and disjoint: none contains another. */
struct netdeny_range {
	struct netcidr cidr;
	const char *what; /* "private network": for people; a literal */
};

/* netdeny_new(): the constant ranges alone; NULL out of memory. */
struct netdeny *netdeny_new(void);
void netdeny_free(struct netdeny *d);

#define auto_netdeny __attribute__((cleanup(netdeny_cleanup)))
static inline void netdeny_cleanup(struct netdeny **d)
{
	netdeny_free(*d);
}

/* netdeny_set_node(d, addrs, n): the addresses the node has now, in place of
 * those it had.  netdeny_add_cluster(d, c): a network of the cluster, or the
 * pool that sandboxes get theirs from.  0 or -ENOMEM. */
must_check int netdeny_set_node(struct netdeny *d, const struct netaddr *addrs,
				size_t n);
must_check int netdeny_add_cluster(struct netdeny *d, const struct netcidr *c);

/*
 * netdeny_add_exception(d, entry, where, e):
 * An exception: {"cidr","ports","proto"} as in an allow of rules.  "bad_value"
 * names what is wrong with it and ${where}.
 */
int netdeny_add_exception(struct netdeny *d, const json_t *entry,
			  const char *where, struct err *e);

/* netdeny_denies(d, a, proto, port): NULL: not denied; else the range's what.
 */
const char *netdeny_denies(const struct netdeny *d, const struct netaddr *a,
			   enum netpol_proto proto, uint16_t port);

/* netdeny_ranges(d, ret_n), netdeny_exceptions(d, ret_n): borrowed until ${d}
 * changes. */
const struct netdeny_range *netdeny_ranges(const struct netdeny *d,
					   size_t *ret_n);
const struct netpol_rule *netdeny_exceptions(const struct netdeny *d,
					     size_t *ret_n);

#endif
