/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <libnftnl/udata.h>
#include <linux/netfilter/nf_tables.h>
#include <string.h>

#include "sys/nft_priv.h"

/* A list of elements is one attribute, whose length has 16 bits. */
#define LIST_MAX 60000

/* nft(8) keeps the order of bytes of keys and data with the set. */
enum { ORDER_HOST = 1, ORDER_NET = 2 };

static uint32_t width(uint8_t type)
{
	switch (type) {
	case NFT_T_ADDR6:
	case NFT_T_IFNAME:
	case NFT_T_VERDICT:
		return 16;
	case NFT_T_ETHER:
		return 6;
	case NFT_T_PORT:
		return 2;
	case NFT_T_PROTO:
	case NFT_T_ICMP6:
		return 1;
	default:
		return 4;
	}
}

static bool is_host(uint8_t type)
{
	return type == NFT_T_MARK || type == NFT_T_IFNAME;
}

size_t nft_field(uint8_t *key, size_t at, const void *data, size_t len)
{
	memcpy(key + at, data, len);
	memset(key + at + len, 0, (4 - len % 4) % 4);
	return at + (len + 3) / 4 * 4;
}

size_t nft_field_name(uint8_t *key, size_t at, const char *ifname)
{
	const size_t len = strnlen(ifname, 15);

	memset(key + at, 0, 16);
	memcpy(key + at, ifname, len);
	return at + 16;
}

static void put32(struct nlmsghdr *h, uint16_t type, uint32_t v)
{
	mnl_attr_put_u32(h, type, htonl(v));
}

static void put64(struct nlmsghdr *h, uint16_t type, uint64_t v)
{
	mnl_attr_put_u64(h, type, htobe64(v));
}

static void put_limit(struct nlmsghdr *h, const struct nft_set *s)
{
	put64(h, NFTA_LIMIT_RATE, s->value);
	put64(h, NFTA_LIMIT_UNIT, 1);
	put32(h, NFTA_LIMIT_BURST, s->burst);
	put32(h, NFTA_LIMIT_TYPE, NFT_LIMIT_PKTS);
	put32(h, NFTA_LIMIT_FLAGS, s->invert ? NFT_LIMIT_F_INV : 0);
}

/* The attributes of the expression, into a nest of the caller's. */
void nft_stateful_put(struct nft_batch *t, const struct nft_set *s)
{
	static const char *const names[] = {[NFT_E_COUNTER] = "counter",
					    [NFT_E_COUNT] = "connlimit",
					    [NFT_E_RATE] = "limit"};
	struct nlmsghdr *h = t->msg;
	struct nlattr *data;

	mnl_attr_put_strz(h, NFTA_EXPR_NAME, names[s->stateful]);
	data = mnl_attr_nest_start(h, NFTA_EXPR_DATA);
	switch (s->stateful) {
	case NFT_E_COUNTER:
		put64(h, NFTA_COUNTER_BYTES, 0);
		put64(h, NFTA_COUNTER_PACKETS, 0);
		break;
	case NFT_E_COUNT:
		put32(h, NFTA_CONNLIMIT_COUNT, (uint32_t)s->value);
		put32(h, NFTA_CONNLIMIT_FLAGS, NFT_CONNLIMIT_F_INV);
		break;
	default:
		put_limit(h, s);
	}
	mnl_attr_nest_end(h, data);
}

static unsigned fields(const struct nft_set *s)
{
	unsigned n = 0;

	while (n < NFT_FIELDS && s->key[n])
		n++;
	return n;
}

static void put_key(struct nlmsghdr *h, const struct nft_set *s)
{
	uint32_t type = 0, len = 0;

	for (unsigned i = 0; i < fields(s); i++) {
		type = type << 6 | s->key[i];
		len += fields(s) > 1 ? (width(s->key[i]) + 3) / 4 * 4
				     : width(s->key[i]);
	}
	put32(h, NFTA_SET_KEY_TYPE, type);
	put32(h, NFTA_SET_KEY_LEN, len);
}

static void put_data(struct nlmsghdr *h, const struct nft_set *s)
{
	if (s->object)
		put32(h, NFTA_SET_OBJ_TYPE, s->object);
	if (!s->data)
		return;
	put32(h, NFTA_SET_DATA_TYPE,
	      s->data == NFT_T_VERDICT ? NFT_DATA_VERDICT : s->data);
	put32(h, NFTA_SET_DATA_LEN, width(s->data));
}

static void put_desc(struct nlmsghdr *h, const struct nft_set *s)
{
	const bool ranges = fields(s) > 1 && (s->flags & NFT_SET_INTERVAL);
	struct nlattr *desc, *concat, *field;

	if (!s->size && !ranges)
		return;
	desc = mnl_attr_nest_start(h, NFTA_SET_DESC);
	if (s->size)
		put32(h, NFTA_SET_DESC_SIZE, s->size);
	if (ranges) {
		concat = mnl_attr_nest_start(h, NFTA_SET_DESC_CONCAT);
		for (unsigned i = 0; i < fields(s); i++) {
			field = mnl_attr_nest_start(h, NFTA_LIST_ELEM);
			put32(h, NFTA_SET_FIELD_LEN, width(s->key[i]));
			mnl_attr_nest_end(h, field);
		}
		mnl_attr_nest_end(h, concat);
	}
	mnl_attr_nest_end(h, desc);
}

/* For nft(8), which else shows keys of host order wrong. */
static void put_userdata(struct nlmsghdr *h, const struct nft_set *s)
{
	struct nftnl_udata_buf *u = nftnl_udata_buf_alloc(64);
	const uint32_t key = fields(s) > 1	  ? 0
			     : is_host(s->key[0]) ? ORDER_HOST
						  : ORDER_NET;

	if (!u)
		return;
	nftnl_udata_put_u32(u, NFTNL_UDATA_SET_KEYBYTEORDER, key);
	if (s->data && s->data != NFT_T_VERDICT)
		nftnl_udata_put_u32(u, NFTNL_UDATA_SET_DATABYTEORDER,
				    is_host(s->data) ? ORDER_HOST : ORDER_NET);
	mnl_attr_put(h, NFTA_SET_USERDATA, nftnl_udata_buf_len(u),
		     nftnl_udata_buf_data(u));
	nftnl_udata_buf_free(u);
}

static void put_set(struct nft_batch *t, const struct nft_set *s,
		    const char *name, uint32_t flags, uint32_t id)
{
	struct nlmsghdr *h = nft_start(t, NFT_MSG_NEWSET, NLM_F_CREATE);
	struct nlattr *nest;

	if (!h)
		return;
	if (s->data)
		flags |= NFT_SET_MAP;
	if (s->object)
		flags |= NFT_SET_OBJECT;
	if (fields(s) > 1 && (flags & NFT_SET_INTERVAL))
		flags |= NFT_SET_CONCAT;
	mnl_attr_put_strz(h, NFTA_SET_TABLE, t->table);
	mnl_attr_put_strz(h, NFTA_SET_NAME, name);
	put32(h, NFTA_SET_FLAGS, flags);
	put_key(h, s);
	put_data(h, s);
	put_desc(h, s);
	put32(h, NFTA_SET_ID, id);
	put_userdata(h, s);
	if (s->stateful) {
		nest = mnl_attr_nest_start(h, NFTA_SET_EXPR);
		nft_stateful_put(t, s);
		mnl_attr_nest_end(h, nest);
	}
	nft_end(t);
}

void nft_set_add(struct nft_batch *t, const struct nft_set *s)
{
	put_set(t, s, s->name, s->flags, ++t->set_id);
}

uint32_t nft_set_anonymous(struct nft_batch *t, const struct nft_set *s)
{
	put_set(t, s, s->data ? "__map%d" : "__set%d",
		s->flags | NFT_SET_ANONYMOUS | NFT_SET_CONSTANT, ++t->set_id);
	return t->set_id;
}

/* --- elements ------------------------------------------------------------ */

static void start_list(struct nft_batch *t)
{
	struct nlmsghdr *h;

	h = nft_start(t, t->elem_type,
		      t->elem_type == NFT_MSG_NEWSETELEM ? NLM_F_CREATE : 0);
	t->list = t->elem = 0;
	if (!h)
		return;
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_TABLE, t->table);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_SET, t->set);
	if (t->list_id)
		put32(h, NFTA_SET_ELEM_LIST_SET_ID, t->list_id);
	t->list = h->nlmsg_len;
	mnl_attr_nest_start(h, NFTA_SET_ELEM_LIST_ELEMENTS);
}

static void close_nest(struct nft_batch *t, size_t *at)
{
	if (t->msg && *at)
		mnl_attr_nest_end(t->msg, (void *)((char *)t->msg + *at));
	*at = 0;
}

static void end_list(struct nft_batch *t)
{
	close_nest(t, &t->elem);
	close_nest(t, &t->list);
	nft_end(t);
}

void nft_elems(struct nft_batch *t, const char *set, uint32_t anonymous_id,
	       bool add)
{
	t->set = set;
	t->elem_type = add ? NFT_MSG_NEWSETELEM : NFT_MSG_DELSETELEM;
	t->list_id = anonymous_id;
	start_list(t);
}

static void put_value(struct nft_batch *t, uint16_t type, const void *data,
		      size_t len)
{
	struct nlattr *nest;

	if (!t->msg)
		return;
	nest = mnl_attr_nest_start(t->msg, type);
	mnl_attr_put(t->msg, NFTA_DATA_VALUE, len, data);
	mnl_attr_nest_end(t->msg, nest);
}

void nft_elem(struct nft_batch *t, const void *key, size_t len)
{
	if (t->msg && t->msg->nlmsg_len > LIST_MAX) {
		end_list(t);
		start_list(t);
	}
	if (!t->msg)
		return;
	close_nest(t, &t->elem);
	t->elem = t->msg->nlmsg_len;
	mnl_attr_nest_start(t->msg, NFTA_LIST_ELEM);
	put_value(t, NFTA_SET_ELEM_KEY, key, len);
}

void nft_elem_end_key(struct nft_batch *t, const void *key, size_t len)
{
	put_value(t, NFTA_SET_ELEM_KEY_END, key, len);
}

void nft_elem_interval_end(struct nft_batch *t)
{
	if (t->msg)
		put32(t->msg, NFTA_SET_ELEM_FLAGS, NFT_SET_ELEM_INTERVAL_END);
}

void nft_elem_data(struct nft_batch *t, const void *data, size_t len)
{
	put_value(t, NFTA_SET_ELEM_DATA, data, len);
}

void nft_elem_verdict(struct nft_batch *t, int verdict, const char *chain)
{
	struct nlattr *data, *code;

	if (!t->msg)
		return;
	data = mnl_attr_nest_start(t->msg, NFTA_SET_ELEM_DATA);
	code = mnl_attr_nest_start(t->msg, NFTA_DATA_VERDICT);
	put32(t->msg, NFTA_VERDICT_CODE, (uint32_t)verdict);
	if (chain)
		mnl_attr_put_strz(t->msg, NFTA_VERDICT_CHAIN, chain);
	mnl_attr_nest_end(t->msg, code);
	mnl_attr_nest_end(t->msg, data);
}

void nft_elem_object(struct nft_batch *t, const char *name)
{
	if (t->msg)
		mnl_attr_put_strz(t->msg, NFTA_SET_ELEM_OBJREF, name);
}

void nft_elem_timeout(struct nft_batch *t, uint64_t ms)
{
	if (t->msg)
		put64(t->msg, NFTA_SET_ELEM_TIMEOUT, ms);
}

void nft_elem_comment(struct nft_batch *t, const char *text)
{
	uint8_t u[2 + 128];
	size_t len = strlen(text);

	if (len > 127)
		len = 127;
	if (!t->msg)
		return;
	u[0] = NFTNL_UDATA_SET_ELEM_COMMENT;
	u[1] = (uint8_t)(len + 1);
	memcpy(u + 2, text, len);
	u[2 + len] = 0;
	mnl_attr_put(t->msg, NFTA_SET_ELEM_USERDATA, len + 3, u);
}

void nft_elem_stateful(struct nft_batch *t, const struct nft_set *s)
{
	struct nlattr *nest;

	if (!t->msg)
		return;
	nest = mnl_attr_nest_start(t->msg, NFTA_SET_ELEM_EXPR);
	nft_stateful_put(t, s);
	mnl_attr_nest_end(t->msg, nest);
}

void nft_elems_end(struct nft_batch *t)
{
	end_list(t);
}

void nft_set_flush(struct nft_batch *t, const char *name)
{
	struct nlmsghdr *h = nft_start(t, NFT_MSG_DELSETELEM, 0);

	if (!h)
		return;
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_TABLE, t->table);
	mnl_attr_put_strz(h, NFTA_SET_ELEM_LIST_SET, name);
	nft_end(t);
}

/* --- quotas -------------------------------------------------------------- */

static struct nlmsghdr *start_quota(struct nft_batch *t, uint16_t type,
				    uint16_t flags, const char *name)
{
	struct nlmsghdr *h = nft_start(t, type, flags);

	if (!h)
		return NULL;
	mnl_attr_put_strz(h, NFTA_OBJ_TABLE, t->table);
	mnl_attr_put_strz(h, NFTA_OBJ_NAME, name);
	put32(h, NFTA_OBJ_TYPE, NFT_OBJECT_QUOTA);
	return h;
}

void nft_quota_add(struct nft_batch *t, const char *name, uint64_t bytes)
{
	struct nlmsghdr *h = start_quota(t, NFT_MSG_NEWOBJ, NLM_F_CREATE, name);
	struct nlattr *data;

	if (!h)
		return;
	data = mnl_attr_nest_start(h, NFTA_OBJ_DATA);
	put64(h, NFTA_QUOTA_BYTES, bytes);
	put32(h, NFTA_QUOTA_FLAGS, NFT_QUOTA_F_INV);
	mnl_attr_nest_end(h, data);
	nft_end(t);
}

void nft_quota_del(struct nft_batch *t, const char *name)
{
	if (start_quota(t, NFT_MSG_DELOBJ, 0, name))
		nft_end(t);
}
