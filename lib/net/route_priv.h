/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_ROUTE_PRIV_H
#define NET_ROUTE_PRIV_H

#include <netinet/in.h>

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>

#include "net/route.h"
#include "net/transit.h"
#include "sys/nft.h"

/* Directions of connection tracking. */
enum { ROUTE_ORIGINAL, ROUTE_REPLY };

#define ROUTE_TABLE "dsec"
#define ROUTE_INET  1 /* NFPROTO_INET, which userspace headers lack */

/* How many refused attempts of a sandbox are told: a second, and at once. */
#define ROUTE_LOG_RATE	10
#define ROUTE_LOG_BURST 50
#define ROUTE_SNAPLEN	128

/* Sizes that let the kernel choose its fastest kind of set. */
#define ROUTE_SET_SIZE 65536

/* Chains of a policy: a letter, an underscore, 32 digits of its hash. */
#define ROUTE_CHAIN 40

/* Marks that say what a policy has decided: no policy has these numbers. */
#define ROUTE_ALLOWED 0xffffffffu
#define ROUTE_REFUSED 0xfffffffeu

struct route_profile {
	char hash[33];
	uint32_t number; /* in the maps */
	unsigned refs;	 /* sandboxes */
	bool sni;	 /* has a chain for TCP 443 */
};

/* What a name led to: slot, address, protocol, port, as the kernel's set has
 * it. */
struct route_dest {
	uint8_t key[32];
	uint8_t end[32]; /* of a range: the same with its last port */
	bool v6, wide, gone;
	int64_t until_ms;
	char *names[4]; /* owned; NULL: none, or not known any more */
};

struct route_learn {
	struct route_dest *dests;
	size_t n, cap;
	uint32_t *index; /* by hash: number + 1, 0 free */
	size_t buckets;	 /* a power of two, more than n */
};

/* The sets and maps that have an element of a sandbox, in the order in which
 * they are filled. */
enum route_in {
	IN_BIND4,
	IN_BIND6,
	IN_SLOT,
	IN_TX,
	IN_RX,
	IN_REFUSED,
	IN_LOGS,
	IN_CONNS,
	IN_RATES,
	IN_DNSRATES,
	IN_DNSFLOWS,
	IN_QUOTAS,
	IN_BROKER,
	IN_PROF,
	IN_CUR,
	IN_LIVE,
	IN_COUNT,
};

/*
 * Flows of DNS that are remembered of a sandbox: what its rate lets begin until
 * the first ones are forgotten (TRANSIT_UDP_S), so that who asks from another
 * port each time never meets it; and a small part of the table that all share.
 */
#define ROUTE_DNS_FLOWS 8192 /* at most */

struct route_box {
	struct route_sandbox sb;
	char name[16];
	uint32_t mark; /* the epoch */
	unsigned has;  /* bits of route_in */
	struct route_profile *profile;
	struct netpol_limits limits; /* zero after they were read back */
	struct route_learn learn;
};

struct route {
	struct route_conf c;
	struct nft_batch t;
	struct route_box **boxes; /* by slot */
	size_t nboxes;
	struct route_profile **profiles;
	size_t nprofiles;
	uint32_t last_number; /* of a profile */
};

/* route_base(t, c, marker): the table, its sets and the chains that all share.
 * ${marker} is a chain's name that stands for exactly this. */
void route_base(struct nft_batch *t, const struct route_conf *c,
		const char *marker);
/* route_marker(c, ret): a digest of what route_base() makes of ${c}. */
int route_marker(const struct route_conf *c, char ret[24]);

/* route_profile_add(t, pol, p): the chains of ${p}, and their places in the
 * maps; route_profile_del(t, p). */
void route_profile_add(struct nft_batch *t, const struct netpol *pol,
		       const struct route_profile *p);
void route_profile_del(struct nft_batch *t, const struct route_profile *p);

/* What a policy's and an exception's rule look at: lines of a chain, as few as
 * cost the kernel least. */
void route_rule(struct nft_batch *t, const char *chain,
		const struct netcidr *cidrs, size_t n, enum netpol_proto proto,
		const struct netpol_range *ports, size_t nports, int verdict,
		const char *to);

/* route_ranges(t, set, id, cidrs, n): elements of a set of intervals. */
void route_ranges(struct nft_batch *t, const char *set, uint32_t id,
		  const struct netcidr *cidrs, size_t n);

/* route_profile_get(r, hash): the profile, made (with no refs) if need be;
 * NULL without memory.  route_profile_put(r, p): forgotten if it has no refs.
 */
struct route_profile *route_profile_get(struct route *r, const char *hash);
void route_profile_put(struct route *r, struct route_profile *p);

/* route_elem(t, b, in, add): the element of ${b} in that set. */
void route_elem(struct nft_batch *t, const struct route_box *b,
		enum route_in in, bool add);
extern const char *const route_in_name[IN_COUNT];

/* route_box_new(slot): a name and a slot; route_box_free(b). */
struct route_box *route_box_new(uint32_t slot);
void route_box_free(struct route_box *b);

/* route_read(r, e): fill ${r} from the table that is there. */
int route_read(struct route *r, struct err *e);

/*
 * route_learn_drop(t, l, keep, arg): put the removal of what ${keep} does not
 * vouch for (NULL: all) into the batch; route_learn_settle(l, true) when that
 * is in force, or (l, false) when it was refused.
 */
void route_learn_drop(struct nft_batch *t, struct route_learn *l,
		      route_keep_fn *keep, void *arg);
void route_learn_settle(struct route_learn *l, bool done);
void route_learn_done(struct route_learn *l);

/* route_dest_name(d, name): one more that led there, if there is room. */
void route_dest_name(struct route_dest *d, const char *name);

/* route_learn_add(l, d): takes the names of ${d}; -ENOMEM. */
int route_learn_add(struct route_learn *l, const struct route_dest *d);
/* route_learn_live(l): how many have not expired. */
unsigned route_learn_live(const struct route_learn *l);

/* route_flush_tracking(r, mark, mask): connection tracking forgets the flows
 * whose mark is that in the bits of ${mask}. */
void route_flush_tracking(struct route *r, uint32_t mark, uint32_t mask);

#endif
