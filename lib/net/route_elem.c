/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/route_priv.h"

const char *const route_in_name[IN_COUNT] = {
	[IN_BIND4] = "bind4",
	[IN_BIND6] = "bind6",
	[IN_SLOT] = "slot",
	[IN_TX] = "tx",
	[IN_RX] = "rx",
	[IN_LOGS] = "logs",
	[IN_REFUSED] = "refused",
	[IN_CONNS] = "conns",
	[IN_RATES] = "rates",
	[IN_DNSRATES] = "dnsrates",
	[IN_DNSFLOWS] = "dnsflows",
	[IN_QUOTAS] = "quotas",
	[IN_BROKER] = "broker",
	[IN_PROF] = "prof",
	[IN_CUR] = "cur",
	[IN_LIVE] = "live",
};

static size_t key_of(const struct route_box *b, enum route_in in, uint8_t *key)
{
	const uint32_t address = htonl(b->sb.address);
	size_t at;

	at = nft_field_name(key, 0, b->name);
	if (in == IN_BIND4 || in == IN_BIND6)
		at = nft_field(key, at, b->sb.mac, sizeof(b->sb.mac));
	if (in == IN_BIND4)
		return nft_field(key, at, &address, sizeof(address));
	if (in == IN_BIND6)
		return nft_field(key, at, b->sb.address6, 16);
	if (in == IN_LIVE)
		return nft_field(key, at, &b->mark, sizeof(b->mark));
	return at;
}

static uint64_t dns_flows(const struct netpol_limits *l)
{
	const uint64_t n = l->dns_per_s * (uint64_t)(2 * TRANSIT_UDP_S + 4);

	return n < ROUTE_DNS_FLOWS ? n : ROUTE_DNS_FLOWS;
}

static void put_data(struct nft_batch *t, const struct route_box *b,
		     enum route_in in)
{
	const struct nft_set conns = {.stateful = NFT_E_COUNT,
				      .value = b->limits.connections};
	const struct nft_set rates = {
		.stateful = NFT_E_RATE,
		.value = b->limits.connections_per_s,
		.burst = b->limits.connections_per_s * 2,
		.invert = true,
	};
	const struct nft_set dns = {
		.stateful = NFT_E_RATE,
		.value = b->limits.dns_per_s * 2,
		.burst = b->limits.dns_per_s * 4,
		.invert = true,
	};
	const struct nft_set flows = {.stateful = NFT_E_COUNT,
				      .value = dns_flows(&b->limits)};
	char name[ROUTE_CHAIN];

	switch (in) {
	case IN_SLOT:
		nft_elem_data(t, &b->sb.slot, sizeof(b->sb.slot));
		break;
	case IN_CUR:
		nft_elem_data(t, &b->mark, sizeof(b->mark));
		break;
	case IN_PROF:
		nft_elem_data(t, &b->profile->number,
			      sizeof(b->profile->number));
		break;
	case IN_CONNS:
		nft_elem_stateful(t, &conns);
		break;
	case IN_RATES:
		nft_elem_stateful(t, &rates);
		break;
	case IN_DNSRATES:
		nft_elem_stateful(t, &dns);
		break;
	case IN_DNSFLOWS:
		nft_elem_stateful(t, &flows);
		break;
	case IN_QUOTAS:
		snprintf(name, sizeof(name), "q%u", b->sb.slot);
		nft_elem_object(t, name);
		break;
	default:
		break;
	}
}

/* The object that holds a quota lives as long as the element that names it. */
static void quota_object(struct nft_batch *t, const struct route_box *b,
			 bool add)
{
	char name[16];

	snprintf(name, sizeof(name), "q%u", b->sb.slot);
	if (add)
		nft_quota_add(t, name, b->limits.bytes_mb << 20);
	else
		nft_quota_del(t, name);
}

void route_elem(struct nft_batch *t, const struct route_box *b,
		enum route_in in, bool add)
{
	uint8_t key[NFT_KEY_MAX];
	const size_t len = key_of(b, in, key);

	if (in == IN_QUOTAS && add)
		quota_object(t, b, true);
	nft_elems(t, route_in_name[in], 0, add);
	nft_elem(t, key, len);
	if (add)
		put_data(t, b, in);
	nft_elems_end(t);
	if (in == IN_QUOTAS && !add)
		quota_object(t, b, false);
}

struct route_box *route_box_new(uint32_t slot)
{
	struct route_box *b = calloc(1, sizeof(*b));

	if (!b)
		return NULL;
	b->sb.slot = slot;
	transit_name(slot, b->name);
	return b;
}

void route_box_free(struct route_box *b)
{
	if (!b)
		return;
	route_learn_done(&b->learn);
	free(b);
}
