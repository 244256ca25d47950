/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel has: taken over by a new worker, and counters. */
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "net/route_priv.h"

#include <libmnl/libmnl.h>
#include <libnftnl/common.h>
#include <libnftnl/udata.h>
#include <linux/netfilter/nfnetlink.h>

/* An element as the kernel sends it; pointers into its message. */
struct elem {
	const uint8_t *key, *end, *data;
	size_t key_len, end_len, data_len;
	const char *chain;
	uint64_t expires_ms, packets, bytes;
	const uint8_t *user;
	size_t user_len;
};

struct reader {
	struct route *r;
	int (*fn)(struct reader *x, const struct elem *el);
	enum route_in in;
	bool v6, wide;
	/* counters */
	struct route_stats *stats;
	size_t n;
	uint64_t *packets, *bytes;
};

static const struct nlattr *inner(const struct nlattr *nest, uint16_t type)
{
	const struct nlattr *a;

	mnl_attr_for_each_nested(a, nest) if (mnl_attr_get_type(a) ==
					      type) return a;
	return NULL;
}

static const uint8_t *value(const struct nlattr *nest, size_t *len)
{
	const struct nlattr *a = inner(nest, NFTA_DATA_VALUE);

	if (!a)
		return NULL;
	*len = mnl_attr_get_payload_len(a);
	return mnl_attr_get_payload(a);
}

static const char *chain_of(const struct nlattr *data)
{
	const struct nlattr *v = inner(data, NFTA_DATA_VERDICT);
	const struct nlattr *c = v ? inner(v, NFTA_VERDICT_CHAIN) : NULL;

	return c ? mnl_attr_get_str(c) : NULL;
}

static uint64_t number(const struct nlattr *nest, uint16_t type)
{
	const struct nlattr *a = inner(nest, type);

	return a ? be64toh(mnl_attr_get_u64(a)) : 0;
}

static void counter(const struct nlattr *expr, struct elem *el)
{
	const struct nlattr *data = inner(expr, NFTA_EXPR_DATA);

	if (!data)
		return;
	el->packets = number(data, NFTA_COUNTER_PACKETS);
	el->bytes = number(data, NFTA_COUNTER_BYTES);
}

static void parse(const struct nlattr *nest, struct elem *el)
{
	const struct nlattr *a;

	memset(el, 0, sizeof(*el));
	mnl_attr_for_each_nested(a, nest)
	{
		switch (mnl_attr_get_type(a)) {
		case NFTA_SET_ELEM_KEY:
			el->key = value(a, &el->key_len);
			break;
		case NFTA_SET_ELEM_KEY_END:
			el->end = value(a, &el->end_len);
			break;
		case NFTA_SET_ELEM_DATA:
			el->data = value(a, &el->data_len);
			el->chain = chain_of(a);
			break;
		case NFTA_SET_ELEM_EXPIRATION:
			el->expires_ms = be64toh(mnl_attr_get_u64(a));
			break;
		case NFTA_SET_ELEM_EXPR:
			counter(a, el);
			break;
		case NFTA_SET_ELEM_USERDATA:
			el->user = mnl_attr_get_payload(a);
			el->user_len = mnl_attr_get_payload_len(a);
			break;
		}
	}
}

static int each(const struct nlmsghdr *h, void *arg)
{
	struct reader *x = arg;
	const struct nlattr *a, *b;
	struct elem el;
	int r;

	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg))
	{
		if (mnl_attr_get_type(a) != NFTA_SET_ELEM_LIST_ELEMENTS)
			continue;
		mnl_attr_for_each_nested(b, a)
		{
			parse(b, &el);
			if (!el.key)
				continue;
			r = x->fn(x, &el);
			if (r < 0) {
				errno = -r;
				return MNL_CB_ERROR;
			}
		}
	}
	return MNL_CB_OK;
}

static int dump(struct reader *x, const char *set)
{
	return nft_dump(x->r->c.nft, ROUTE_INET, NFT_MSG_GETSETELEM,
			ROUTE_TABLE, set, each, x);
}

static bool slot_of(const uint8_t *name, size_t len, uint32_t *ret)
{
	char text[17] = "";
	unsigned long slot;
	char *end;

	if (len < 16)
		return false;
	memcpy(text, name, 16);
	if (strncmp(text, "ds", 2) != 0)
		return false;
	slot = strtoul(text + 2, &end, 10);
	if (end == text + 2 || *end || slot >= TRANSIT_SLOTS)
		return false;
	*ret = (uint32_t)slot;
	return true;
}

/* By interface, of which there is a box, or by number. */
static struct route_box *box_of(const struct reader *x, const struct elem *el)
{
	uint32_t slot;

	return slot_of(el->key, el->key_len, &slot) ? x->r->boxes[slot] : NULL;
}

static int read_bind(struct reader *x, const struct elem *el)
{
	struct route_box *b;
	uint32_t slot, address;

	if (el->key_len != 28 || !slot_of(el->key, el->key_len, &slot))
		return 0;
	if (x->r->boxes[slot])
		return -EUCLEAN;
	b = route_box_new(slot);
	if (!b)
		return -ENOMEM;
	memcpy(b->sb.mac, el->key + 16, 6);
	memcpy(&address, el->key + 24, sizeof(address));
	b->sb.address = ntohl(address);
	b->has = 1u << IN_BIND4;
	x->r->boxes[slot] = b;
	x->r->nboxes++;
	return 0;
}

/* Of the maps of policies: number, and chain "p_HASH" or "s_HASH". */
static int read_profile(struct reader *x, const struct elem *el)
{
	struct route_profile *p;
	uint32_t number;

	if (el->key_len != sizeof(number) || !el->chain ||
	    strlen(el->chain) != 34)
		return -EUCLEAN;
	memcpy(&number, el->key, sizeof(number));
	p = route_profile_get(x->r, el->chain + 2);
	if (!p)
		return -ENOMEM;
	p->number = number;
	p->sni |= el->chain[0] == 's';
	if (x->r->last_number < number)
		x->r->last_number = number;
	return 0;
}

static int read_prof(struct reader *x, struct route_box *b,
		     const struct elem *el)
{
	uint32_t number;

	if (el->data_len != sizeof(number))
		return -EUCLEAN;
	memcpy(&number, el->data, sizeof(number));
	for (size_t i = 0; i < x->r->nprofiles; i++)
		if (x->r->profiles[i]->number == number)
			b->profile = x->r->profiles[i];
	if (!b->profile)
		return -EUCLEAN;
	b->profile->refs++;
	return 0;
}

static int read_in(struct reader *x, const struct elem *el)
{
	struct route_box *b = box_of(x, el);

	if (!b)
		return 0;
	b->has |= 1u << x->in;
	if (x->in == IN_PROF)
		return read_prof(x, b, el);
	if (x->in == IN_CUR && el->data_len == sizeof(b->mark))
		memcpy(&b->mark, el->data, sizeof(b->mark));
	if (x->in == IN_BIND6 && el->key_len == 40) {
		b->sb.has6 = true;
		memcpy(b->sb.address6, el->key + 24, 16);
	}
	return 0;
}

static void read_names(const struct elem *el, struct route_dest *d)
{
	char text[256] = "", *save, *name;

	if (el->user_len < 3 || el->user[0] != NFTNL_UDATA_SET_ELEM_COMMENT ||
	    el->user[1] > el->user_len - 2)
		return;
	memcpy(text, el->user + 2, el->user[1]);
	text[sizeof(text) - 1] = '\0';
	for (name = strtok_r(text, " ", &save); name;
	     name = strtok_r(NULL, " ", &save))
		route_dest_name(d, name);
}

static int read_dest(struct reader *x, const struct elem *el)
{
	struct route_dest d = {.v6 = x->v6, .wide = x->wide};
	const size_t len = x->v6 ? 28 : 16;
	struct route_box *b;
	uint32_t slot;
	int r;

	if (el->key_len != len || (el->end && el->end_len != len))
		return 0;
	memcpy(&slot, el->key, sizeof(slot));
	b = slot < TRANSIT_SLOTS ? x->r->boxes[slot] : NULL;
	if (!b)
		return 0;
	memcpy(d.key, el->key, len);
	memcpy(d.end, el->end ? el->end : el->key, len);
	d.until_ms = (int64_t)(clock_ms() + el->expires_ms);
	read_names(el, &d);
	r = route_learn_add(&b->learn, &d);
	for (size_t i = 0; r < 0 && i < array_len(d.names); i++)
		free(d.names[i]);
	return r;
}

static int read_dests(struct route *r)
{
	static const char *const names[] = {"dns4", "dns6", "wide4", "wide6"};
	int n = 0;

	for (size_t i = 0; !n && i < array_len(names); i++) {
		struct reader x = {.r = r,
				   .fn = read_dest,
				   .v6 = i & 1,
				   .wide = i & 2};

		n = dump(&x, names[i]);
	}
	return n;
}

/* What is in every set of a sandbox, always. */
#define ESSENTIAL                                                              \
	(1u << IN_BIND4 | 1u << IN_SLOT | 1u << IN_PROF | 1u << IN_CUR |       \
	 1u << IN_LIVE | 1u << IN_TX | 1u << IN_RX | 1u << IN_REFUSED |        \
	 1u << IN_LOGS)

int route_read(struct route *r, struct err *e)
{
	static const enum route_in order[] = {
		IN_BIND6, IN_PROF,     IN_SLOT,	    IN_CUR,	IN_LIVE,
		IN_TX,	  IN_RX,       IN_LOGS,	    IN_REFUSED, IN_CONNS,
		IN_RATES, IN_DNSRATES, IN_DNSFLOWS, IN_QUOTAS,	IN_BROKER,
	};
	struct reader x = {.r = r, .fn = read_profile, .in = IN_BIND4};
	int n = dump(&x, "pol");

	if (!n)
		n = dump(&x, "sni");
	x.fn = read_bind;
	if (!n)
		n = dump(&x, route_in_name[IN_BIND4]);

	x.fn = read_in;
	for (size_t i = 0; !n && i < array_len(order); i++) {
		x.in = order[i];
		n = dump(&x, route_in_name[x.in]);
	}
	if (!n)
		n = read_dests(r);
	for (size_t s = 0; !n && s < TRANSIT_SLOTS; s++)
		if (r->boxes[s] &&
		    ((r->boxes[s]->has & ESSENTIAL) != ESSENTIAL))
			n = -EUCLEAN;
	for (size_t i = 0; !n && i < r->nprofiles; i++)
		if (!r->profiles[i]->refs)
			n = -EUCLEAN;
	return n < 0 ? err_sys(e, -n, "read back our nftables rules") : 0;
}

/* --- counters ------------------------------------------------------------ */

static struct route_stats *stats_of(struct reader *x, uint32_t slot)
{
	size_t lo = 0, hi = x->n;

	while (lo < hi) {
		const size_t mid = (lo + hi) / 2;

		if (x->stats[mid].slot < slot)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < x->n && x->stats[lo].slot == slot ? &x->stats[lo] : NULL;
}

static int read_counter(struct reader *x, const struct elem *el)
{
	struct route_stats *s;
	uint32_t slot;

	if (!slot_of(el->key, el->key_len, &slot))
		return 0;
	s = stats_of(x, slot);
	if (!s)
		return 0;
	switch (x->in) {
	case IN_TX:
		s->tx_packets = el->packets;
		s->tx_bytes = el->bytes;
		break;
	case IN_RX:
		s->rx_packets = el->packets;
		s->rx_bytes = el->bytes;
		break;
	default:
		s->denied = el->packets;
	}
	return 0;
}

static void fill(const struct route_box *b, struct route_stats *s)
{
	*s = (struct route_stats){.slot = b->sb.slot,
				  .learned = route_learn_live(&b->learn)};
}

static int read_quota(const struct nlmsghdr *h, void *arg)
{
	bool *over = arg;
	const struct nlattr *a;

	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg))
	{
		if (mnl_attr_get_type(a) == NFTA_OBJ_DATA)
			*over = number(a, NFTA_QUOTA_CONSUMED) >=
				number(a, NFTA_QUOTA_BYTES);
	}
	return MNL_CB_OK;
}

/* The packet that was one too many is not in the counters. */
static void judge_quota(struct route *r, const struct route_box *b,
			struct route_stats *s)
{
	char room[256] __attribute__((aligned(8))), name[16];
	struct nlmsghdr *h;

	if (!(b->has & 1u << IN_QUOTAS))
		return;
	h = nftnl_nlmsg_build_hdr(room, NFT_MSG_GETOBJ, ROUTE_INET, NLM_F_ACK,
				  1);
	snprintf(name, sizeof(name), "q%u", b->sb.slot);
	mnl_attr_put_strz(h, NFTA_OBJ_TABLE, ROUTE_TABLE);
	mnl_attr_put_strz(h, NFTA_OBJ_NAME, name);
	mnl_attr_put_u32(h, NFTA_OBJ_TYPE, htonl(NFT_OBJECT_QUOTA));
	(void)nft_talk(r->c.nft, h, read_quota, &s->over_quota);
}

int route_stats_all(struct route *r, struct route_stats *ret, size_t max,
		    struct err *e)
{
	static const enum route_in which[] = {IN_TX, IN_RX, IN_REFUSED};
	struct reader x = {.r = r, .fn = read_counter, .stats = ret};
	size_t total = 0;
	int n = 0;

	for (size_t s = 0; s < TRANSIT_SLOTS; s++) {
		if (!r->boxes[s])
			continue;
		if (total++ < max)
			fill(r->boxes[s], &ret[x.n++]);
	}
	for (size_t i = 0; !n && x.n && i < array_len(which); i++) {
		x.in = which[i];
		n = dump(&x, route_in_name[x.in]);
	}
	if (n < 0)
		return err_sys(e, -n, "read counters");
	for (size_t i = 0; i < x.n; i++)
		judge_quota(r, r->boxes[ret[i].slot], &ret[i]);
	return (int)total;
}

/* One element of a set, asked for by its key. */
static int ask(struct reader *x, const char *set, const char *name)
{
	char room[512] __attribute__((aligned(8)));
	struct nlmsghdr *h = nftnl_nlmsg_build_hdr(room, NFT_MSG_GETSETELEM,
						   ROUTE_INET, NLM_F_ACK, 1);
	struct nlattr *list, *el, *key;
	uint8_t k[NFT_KEY_MAX];

	nft_field_name(k, 0, name);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_TABLE, ROUTE_TABLE);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_SET, set);
	list = mnl_attr_nest_start(h, NFTA_SET_ELEM_LIST_ELEMENTS);
	el = mnl_attr_nest_start(h, NFTA_LIST_ELEM);
	key = mnl_attr_nest_start(h, NFTA_SET_ELEM_KEY);
	mnl_attr_put(h, NFTA_DATA_VALUE, 16, k);
	mnl_attr_nest_end(h, key);
	mnl_attr_nest_end(h, el);
	mnl_attr_nest_end(h, list);
	return nft_talk(x->r->c.nft, h, each, x);
}

int route_stats(struct route *r, uint32_t slot, struct route_stats *ret,
		struct err *e)
{
	static const enum route_in which[] = {IN_TX, IN_RX, IN_REFUSED};
	const struct route_box *b = slot < TRANSIT_SLOTS ? r->boxes[slot]
							 : NULL;
	struct route_stats s;
	struct reader x = {.r = r, .fn = read_counter, .stats = &s, .n = 1};
	int n = 0;

	if (!b)
		return err_sys(e, ENOENT, "no sandbox has slot %u", slot);
	fill(b, &s);
	for (size_t i = 0; !n && i < array_len(which); i++) {
		x.in = which[i];
		n = ask(&x, route_in_name[x.in], b->name);
	}
	if (n < 0)
		return err_sys(e, -n, "read counters");
	judge_quota(r, b, &s);
	*ret = s;
	return 0;
}
