/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A policy's chains.  The ports are those of the flow's first packet, so that
 * one chain judges both directions.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/route_priv.h"

#define SNI_PORT 443

static size_t width(const struct netcidr *c)
{
	return c->addr.v6 ? 16 : 4;
}

/* The first address after ${c}: false if there is none. */
static bool after(const struct netcidr *c, uint8_t *ret)
{
	unsigned bit = c->bits;

	memcpy(ret, c->addr.b, sizeof(c->addr.b));
	while (bit > 0) {
		const uint8_t mask = (uint8_t)(0x80 >> ((bit - 1) % 8));

		bit--;
		ret[bit / 8] ^= mask;
		if (ret[bit / 8] & mask)
			return true;
	}
	return false;
}

/*
 * As the kernel's interval sets want them: where a range begins, where it has
 * ended, in order and never both at one place.
 */
void route_ranges(struct nft_batch *t, const char *set, uint32_t id,
		  const struct netcidr *cidrs, size_t n)
{
	static const uint8_t zero[16];
	uint8_t end[16];
	size_t w;
	bool more;

	if (!n)
		return;
	w = width(&cidrs[0]);
	nft_elems(t, set, id, true);
	if (memcmp(cidrs[0].addr.b, zero, w) != 0) {
		nft_elem(t, zero, w);
		nft_elem_interval_end(t);
	}
	for (size_t i = 0; i < n; i++) {
		nft_elem(t, cidrs[i].addr.b, w);
		more = after(&cidrs[i], end);
		while (more && i + 1 < n &&
		       memcmp(end, cidrs[i + 1].addr.b, w) == 0)
			more = after(&cidrs[++i], end);
		if (!more)
			break;
		nft_elem(t, end, w);
		nft_elem_interval_end(t);
	}
	nft_elems_end(t);
}

static uint8_t proto_of(enum netpol_proto p, bool v6)
{
	switch (p) {
	case NETPOL_TCP:
		return IPPROTO_TCP;
	case NETPOL_UDP:
		return IPPROTO_UDP;
	default:
		return v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;
	}
}

static void to_addresses(struct nft_batch *t, const struct netcidr *c, size_t n,
			 uint32_t id)
{
	const bool v6 = c->addr.v6;
	uint8_t mask[16] = {0};

	if (n == 1 && !c->bits) {
		nft_meta(t, NFT_META_NFPROTO, 1);
		nft_cmp8(t, NFT_CMP_EQ, 1, v6 ? NFPROTO_IPV6 : NFPROTO_IPV4);
		return;
	}
	nft_ct(t, v6 ? NFT_CT_DST_IP6 : NFT_CT_DST_IP, ROUTE_ORIGINAL, 1);
	if (id) {
		nft_lookup(t, "__set%d", id, 1, 0, false, false);
		return;
	}
	if (c->bits < width(c) * 8) {
		for (unsigned i = 0; i < c->bits; i++)
			mask[i / 8] |= (uint8_t)(0x80 >> i % 8);
		nft_bits(t, 1, mask, width(c));
	}
	nft_cmp(t, NFT_CMP_EQ, 1, c->addr.b, width(c));
}

static bool all_ports(const struct netpol_range *p, size_t n)
{
	return !n || (n == 1 && p->lo <= 1 && p->hi == 65535);
}

static uint32_t port_map(struct nft_batch *t, const struct netpol_range *p,
			 size_t n, int verdict, const char *to)
{
	const struct nft_set s = {.key = {NFT_T_PORT},
				  .data = NFT_T_VERDICT,
				  .flags = NFT_SET_INTERVAL};
	const uint16_t zero = 0;
	uint32_t id;
	uint16_t be;

	id = nft_set_anonymous(t, &s);
	nft_elems(t, "__map%d", id, true);
	if (p->lo) {
		nft_elem(t, &zero, sizeof(zero));
		nft_elem_interval_end(t);
	}
	for (size_t i = 0; i < n; i++) {
		be = htons(p[i].lo);
		nft_elem(t, &be, sizeof(be));
		nft_elem_verdict(t, verdict, to);
		if (p[i].hi == 65535)
			break;
		be = htons((uint16_t)(p[i].hi + 1));
		nft_elem(t, &be, sizeof(be));
		nft_elem_interval_end(t);
	}
	nft_elems_end(t);
	return id;
}

static void to_ports(struct nft_batch *t, const struct netpol_range *p)
{
	nft_ct(t, NFT_CT_PROTO_DST, ROUTE_ORIGINAL, 1);
	if (p->lo == p->hi) {
		nft_cmp16(t, NFT_CMP_EQ, 1, htons(p->lo));
		return;
	}
	nft_cmp16(t, NFT_CMP_GTE, 1, htons(p->lo));
	nft_cmp16(t, NFT_CMP_LTE, 1, htons(p->hi));
}

/* What the lines of a rule have in common. */
struct lines {
	const char *chain;
	enum netpol_proto proto;
	int verdict;
	const char *to;
};

/* To ${cidrs}, which are the set ${id} if that is not 0; ${port} NULL: to the
 * ports of ${map}, to all of them if that is 0. */
static void line(struct nft_batch *t, const struct lines *l,
		 const struct netcidr *cidrs, size_t n, uint32_t id,
		 const struct netpol_range *port, uint32_t map)
{
	nft_rule(t, l->chain);
	to_addresses(t, cidrs, n, id);
	nft_meta(t, NFT_META_L4PROTO, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, proto_of(l->proto, cidrs[0].addr.v6));
	if (port)
		to_ports(t, port);
	if (map) {
		nft_ct(t, NFT_CT_PROTO_DST, ROUTE_ORIGINAL, 1);
		nft_lookup(t, "__map%d", map, 1, 0, true, false);
	} else {
		nft_verdict(t, l->verdict, l->to);
	}
	nft_rule_end(t);
}

/*
 * So many addresses or ports have a line each.  Sets are for more: the kernel
 * walks the list of all sets whenever one is added, filled or named in a rule.
 */
#define FEW 4

static void lines_to(struct nft_batch *t, const struct lines *l,
		     const struct netcidr *cidrs, size_t n,
		     const struct netpol_range *ports, size_t nports)
{
	const bool v6 = cidrs[0].addr.v6;
	const struct nft_set s = {.key = {v6 ? NFT_T_ADDR6 : NFT_T_ADDR4},
				  .flags = NFT_SET_INTERVAL};
	uint32_t id = 0, map = 0;

	if (n > 1) {
		id = nft_set_anonymous(t, &s);
		route_ranges(t, "__set%d", id, cidrs, n);
	}
	if (nports > FEW)
		map = port_map(t, ports, nports, l->verdict, l->to);
	if (!nports || map)
		line(t, l, cidrs, n, id, NULL, map);
	for (size_t i = 0; !map && i < nports; i++)
		line(t, l, cidrs, n, id, &ports[i], 0);
}

void route_rule(struct nft_batch *t, const char *chain,
		const struct netcidr *cidrs, size_t n, enum netpol_proto proto,
		const struct netpol_range *ports, size_t nports, int verdict,
		const char *to)
{
	const struct lines l = {chain, proto, verdict, to};
	const size_t each = n > FEW ? n : 1;

	if (all_ports(ports, nports))
		nports = 0;
	for (size_t i = 0; i < n; i += each)
		lines_to(t, &l, &cidrs[i], each, ports, nports);
}

static bool alike(const struct netpol_rule *a, const struct netpol_rule *b)
{
	return !b->name && a->cidr.addr.v6 == b->cidr.addr.v6 &&
	       a->proto == b->proto && a->nports == b->nports &&
	       memcmp(a->ports, b->ports, a->nports * sizeof(a->ports[0])) == 0;
}

/*
 * Rules that differ in their addresses alone are one line.  Within a list the
 * order does not matter.
 */
static void add_list(struct nft_batch *t, const char *chain,
		     const struct netpol *p, enum netpol_list list,
		     const char *to)
{
	size_t n, k;
	const struct netpol_rule *r = netpol_rules(p, list, &n);
	auto_free struct netcidr *c = calloc(n + 1, sizeof(*c));
	auto_free bool *done = calloc(n + 1, sizeof(*done));

	if (!c || !done) {
		t->r = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (r[i].name || done[i])
			continue;
		k = 0;
		for (size_t j = i; j < n; j++) {
			if (done[j] || !alike(&r[i], &r[j]))
				continue;
			done[j] = true;
			c[k++] = r[j].cidr;
		}
		route_rule(t, chain, c, k, r[i].proto, r[i].ports, r[i].nports,
			   NFT_GOTO, to);
	}
}

/* Addresses that are allowed as such are not asked for a name. */
static void add_sni(struct nft_batch *t, const struct netpol *p,
		    const char *chain)
{
	size_t n;
	const struct netpol_rule *r = netpol_rules(p, NETPOL_ALLOW, &n);

	for (size_t i = 0; i < n; i++)
		if (!r[i].name && !r[i].cidr.addr.v6 &&
		    netpol_rule_covers(&r[i], NETPOL_TCP, SNI_PORT))
			route_rule(t, chain, &r[i].cidr, 1, NETPOL_TCP, NULL, 0,
				   NFT_RETURN, NULL);
	nft_rule(t, chain);
	nft_verdict(t, NFT_GOTO, "named");
	nft_rule_end(t);
}

/* Its place in a map of all policies. */
static void place(struct nft_batch *t, const char *map,
		  const struct route_profile *p, int verdict, const char *chain)
{
	nft_elems(t, map, 0, verdict != 0);
	nft_elem(t, &p->number, sizeof(p->number));
	if (verdict)
		nft_elem_verdict(t, verdict, chain);
	nft_elems_end(t);
}

void route_profile_add(struct nft_batch *t, const struct netpol *pol,
		       const struct route_profile *p)
{
	char chain[ROUTE_CHAIN];

	snprintf(chain, sizeof(chain), "p_%s", p->hash);
	nft_chain_add(t, &(struct nft_chain){.name = chain});
	add_list(t, chain, pol, NETPOL_DENY, "no");
	add_list(t, chain, pol, NETPOL_ALLOW, "yes");
	if (netpol_default_allow(pol)) {
		nft_rule(t, chain);
		nft_verdict(t, NFT_GOTO, "yes");
		nft_rule_end(t);
	}
	place(t, "pol", p, NFT_JUMP, chain);
	if (!p->sni)
		return;
	snprintf(chain, sizeof(chain), "s_%s", p->hash);
	nft_chain_add(t, &(struct nft_chain){.name = chain});
	add_sni(t, pol, chain);
	place(t, "sni", p, NFT_GOTO, chain);
}

void route_profile_del(struct nft_batch *t, const struct route_profile *p)
{
	char chain[ROUTE_CHAIN];

	place(t, "pol", p, 0, NULL);
	snprintf(chain, sizeof(chain), "p_%s", p->hash);
	nft_chain_del(t, chain);
	if (!p->sni)
		return;
	place(t, "sni", p, 0, NULL);
	snprintf(chain, sizeof(chain), "s_%s", p->hash);
	nft_chain_del(t, chain);
}
