/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>

#include <libnftnl/expr.h>
#include <libnftnl/rule.h>
#include <linux/netfilter/nf_log.h>
#include <linux/netfilter/nf_nat.h>

#include "sys/nft_priv.h"

void nft_rule(struct nft_batch *t, const char *chain)
{
	t->rule = nftnl_rule_alloc();
	if (!t->rule) {
		t->r = -ENOMEM;
		return;
	}
	nftnl_rule_set_u32(t->rule, NFTNL_RULE_FAMILY, t->family);
	nftnl_rule_set_str(t->rule, NFTNL_RULE_TABLE, t->table);
	nftnl_rule_set_str(t->rule, NFTNL_RULE_CHAIN, chain);
}

void nft_rule_end(struct nft_batch *t)
{
	struct nlmsghdr *h;

	if (!t->rule)
		return;
	h = nft_start(t, NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND);
	if (h) {
		nftnl_rule_nlmsg_build_payload(h, t->rule);
		nft_end(t);
	}
	nftnl_rule_free(t->rule);
	t->rule = NULL;
}

/* A new expression of the rule; NULL without memory. */
static struct nftnl_expr *expr(struct nft_batch *t, const char *kind)
{
	struct nftnl_expr *x = t->rule ? nftnl_expr_alloc(kind) : NULL;

	if (x)
		nftnl_rule_add_expr(t->rule, x);
	else
		t->r = -ENOMEM;
	return x;
}

void nft_meta(struct nft_batch *t, uint32_t key, uint32_t reg)
{
	struct nftnl_expr *x = expr(t, "meta");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_META_KEY, key);
	nftnl_expr_set_u32(x, NFTNL_EXPR_META_DREG, reg);
}

void nft_meta_set(struct nft_batch *t, uint32_t key, uint32_t reg)
{
	struct nftnl_expr *x = expr(t, "meta");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_META_KEY, key);
	nftnl_expr_set_u32(x, NFTNL_EXPR_META_SREG, reg);
}

void nft_ct(struct nft_batch *t, uint32_t key, int direction, uint32_t reg)
{
	struct nftnl_expr *x = expr(t, "ct");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_CT_KEY, key);
	if (direction >= 0)
		nftnl_expr_set_u8(x, NFTNL_EXPR_CT_DIR, (uint8_t)direction);
	nftnl_expr_set_u32(x, NFTNL_EXPR_CT_DREG, reg);
}

void nft_ct_set(struct nft_batch *t, uint32_t key, uint32_t reg)
{
	struct nftnl_expr *x = expr(t, "ct");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_CT_KEY, key);
	nftnl_expr_set_u32(x, NFTNL_EXPR_CT_SREG, reg);
}

void nft_payload(struct nft_batch *t, uint32_t base, uint32_t offset,
		 uint32_t len, uint32_t reg)
{
	struct nftnl_expr *x = expr(t, "payload");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_PAYLOAD_BASE, base);
	nftnl_expr_set_u32(x, NFTNL_EXPR_PAYLOAD_OFFSET, offset);
	nftnl_expr_set_u32(x, NFTNL_EXPR_PAYLOAD_LEN, len);
	nftnl_expr_set_u32(x, NFTNL_EXPR_PAYLOAD_DREG, reg);
}

void nft_bits(struct nft_batch *t, uint32_t reg, const void *mask, size_t len)
{
	static const uint8_t zero[16];
	struct nftnl_expr *x = expr(t, "bitwise");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_BITWISE_SREG, reg);
	nftnl_expr_set_u32(x, NFTNL_EXPR_BITWISE_DREG, reg);
	nftnl_expr_set_u32(x, NFTNL_EXPR_BITWISE_LEN, (uint32_t)len);
	nftnl_expr_set(x, NFTNL_EXPR_BITWISE_MASK, mask, (uint32_t)len);
	nftnl_expr_set(x, NFTNL_EXPR_BITWISE_XOR, zero, (uint32_t)len);
}

void nft_cmp(struct nft_batch *t, uint32_t op, uint32_t reg, const void *data,
	     size_t len)
{
	struct nftnl_expr *x = expr(t, "cmp");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_CMP_SREG, reg);
	nftnl_expr_set_u32(x, NFTNL_EXPR_CMP_OP, op);
	nftnl_expr_set(x, NFTNL_EXPR_CMP_DATA, data, (uint32_t)len);
}

void nft_cmp8(struct nft_batch *t, uint32_t op, uint32_t reg, uint8_t value)
{
	nft_cmp(t, op, reg, &value, sizeof(value));
}

void nft_cmp16(struct nft_batch *t, uint32_t op, uint32_t reg, uint16_t be)
{
	nft_cmp(t, op, reg, &be, sizeof(be));
}

void nft_cmp32(struct nft_batch *t, uint32_t op, uint32_t reg, uint32_t value)
{
	nft_cmp(t, op, reg, &value, sizeof(value));
}

void nft_lookup(struct nft_batch *t, const char *set, uint32_t id, uint32_t reg,
		uint32_t dreg, bool map, bool invert)
{
	struct nftnl_expr *x = expr(t, "lookup");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_LOOKUP_SREG, reg);
	nftnl_expr_set_str(x, NFTNL_EXPR_LOOKUP_SET, set);
	if (id)
		nftnl_expr_set_u32(x, NFTNL_EXPR_LOOKUP_SET_ID, id);
	if (map)
		nftnl_expr_set_u32(x, NFTNL_EXPR_LOOKUP_DREG, dreg);
	if (invert)
		nftnl_expr_set_u32(x, NFTNL_EXPR_LOOKUP_FLAGS,
				   NFT_LOOKUP_F_INV);
}

void nft_objects(struct nft_batch *t, const char *map, uint32_t reg)
{
	struct nftnl_expr *x = expr(t, "objref");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_OBJREF_SET_SREG, reg);
	nftnl_expr_set_str(x, NFTNL_EXPR_OBJREF_SET_NAME, map);
}

void nft_load(struct nft_batch *t, uint32_t reg, const void *data, size_t len)
{
	struct nftnl_expr *x = expr(t, "immediate");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_IMM_DREG, reg);
	nftnl_expr_set(x, NFTNL_EXPR_IMM_DATA, data, (uint32_t)len);
}

void nft_verdict(struct nft_batch *t, int verdict, const char *chain)
{
	struct nftnl_expr *x = expr(t, "immediate");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_IMM_DREG, NFT_REG_VERDICT);
	nftnl_expr_set_u32(x, NFTNL_EXPR_IMM_VERDICT, (uint32_t)verdict);
	if (chain)
		nftnl_expr_set_str(x, NFTNL_EXPR_IMM_CHAIN, chain);
}

void nft_dnat4(struct nft_batch *t, uint32_t reg_addr, uint32_t reg_port)
{
	struct nftnl_expr *x = expr(t, "nat");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_NAT_TYPE, NFT_NAT_DNAT);
	nftnl_expr_set_u32(x, NFTNL_EXPR_NAT_FAMILY, NFPROTO_IPV4);
	nftnl_expr_set_u32(x, NFTNL_EXPR_NAT_REG_ADDR_MIN, reg_addr);
	nftnl_expr_set_u32(x, NFTNL_EXPR_NAT_REG_PROTO_MIN, reg_port);
	nftnl_expr_set_u32(x, NFTNL_EXPR_NAT_FLAGS,
			   NF_NAT_RANGE_PROTO_SPECIFIED);
}

void nft_masquerade(struct nft_batch *t)
{
	expr(t, "masq");
}

void nft_reject(struct nft_batch *t, uint32_t type, uint8_t code)
{
	struct nftnl_expr *x = expr(t, "reject");

	if (!x)
		return;
	nftnl_expr_set_u32(x, NFTNL_EXPR_REJECT_TYPE, type);
	nftnl_expr_set_u8(x, NFTNL_EXPR_REJECT_CODE, code);
}

void nft_log(struct nft_batch *t, uint16_t group, const char *prefix,
	     uint32_t bytes)
{
	struct nftnl_expr *x = expr(t, "log");

	if (!x)
		return;
	nftnl_expr_set_u16(x, NFTNL_EXPR_LOG_GROUP, group);
	nftnl_expr_set_str(x, NFTNL_EXPR_LOG_PREFIX, prefix);
	nftnl_expr_set_u32(x, NFTNL_EXPR_LOG_SNAPLEN, bytes);
}
