/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "net/route_priv.h"
#include "net/uplink_priv.h"

#include <libmnl/libmnl.h>
#include <libnftnl/common.h>

#define TABLE "dsec-uplink"

/* Before what the node filters itself. */
#define EARLY	(-10)
#define NAT_SRC 100

static void name_is(struct nft_batch *t, uint32_t meta, uint32_t op)
{
	uint8_t key[16];

	nft_field_name(key, 0, TRANSIT_UPLINK);
	nft_meta(t, meta, 1);
	nft_cmp(t, op, 1, key, sizeof(key));
}

static void from_pool(struct nft_batch *t, const struct uplink_conf *c,
		      uint32_t op)
{
	const uint32_t mask = htonl(
		c->pool_prefix ? ~0u << (32 - c->pool_prefix) : 0);

	nft_meta(t, NFT_META_NFPROTO, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, NFPROTO_IPV4);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 12, 4, 1);
	nft_bits(t, 1, &mask, sizeof(mask));
	nft_cmp32(t, op, 1, htonl(c->pool) & mask);
}

static void build(struct nft_batch *t, const struct uplink_conf *c)
{
	nft_table_add(t);
	nft_table_del(t);
	nft_table_add(t);
	nft_chain_add(t,
		      &(struct nft_chain){"input", "filter", NF_INET_LOCAL_IN,
					  EARLY, NF_ACCEPT});
	nft_chain_add(t,
		      &(struct nft_chain){"forward", "filter", NF_INET_FORWARD,
					  EARLY, NF_ACCEPT});
	nft_chain_add(t,
		      &(struct nft_chain){"source", "nat", NF_INET_POST_ROUTING,
					  NAT_SRC, NF_ACCEPT});
	/* The node itself is none of a sandbox's business. */
	nft_rule(t, "input");
	name_is(t, NFT_META_IIFNAME, NFT_CMP_EQ);
	nft_verdict(t, NF_DROP, NULL);
	nft_rule_end(t);
	nft_rule(t, "forward");
	name_is(t, NFT_META_IIFNAME, NFT_CMP_EQ);
	from_pool(t, c, NFT_CMP_NEQ);
	nft_verdict(t, NF_DROP, NULL);
	nft_rule_end(t);
	nft_rule(t, "forward");
	name_is(t, NFT_META_IIFNAME, NFT_CMP_EQ);
	nft_meta(t, NFT_META_NFPROTO, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, NFPROTO_IPV6);
	nft_verdict(t, NF_DROP, NULL);
	nft_rule_end(t);
	if (!c->masquerade)
		return;
	nft_rule(t, "source");
	name_is(t, NFT_META_OIFNAME, NFT_CMP_NEQ);
	from_pool(t, c, NFT_CMP_EQ);
	nft_masquerade(t);
	nft_rule_end(t);
}

static int netfilter(struct err *e)
{
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);

	return fd < 0 ? err_sys(e, errno, "netfilter socket") : fd;
}

int uplink_rules(const struct uplink_conf *c, struct err *e)
{
	auto_close int fd = netfilter(e);
	auto_nft struct nft_batch t = {.r = 0};

	if (fd < 0)
		return fd;
	nft_init(&t, ROUTE_INET, TABLE);
	build(&t, c);
	return nft_commit(&t, fd, e);
}

int uplink_no_rules(struct err *e)
{
	auto_close int fd = netfilter(e);
	auto_nft struct nft_batch t = {.r = 0};

	if (fd < 0)
		return fd;
	nft_init(&t, ROUTE_INET, TABLE);
	nft_table_add(&t);
	nft_table_del(&t);
	return nft_commit(&t, fd, e);
}

int uplink_has_rules(struct err *e)
{
	char room[256] __attribute__((aligned(8)));
	struct nlmsghdr *h;
	auto_close int fd = netfilter(e);
	int r;

	if (fd < 0)
		return fd;
	h = nftnl_nlmsg_build_hdr(room, NFT_MSG_GETTABLE, ROUTE_INET, NLM_F_ACK,
				  1);
	mnl_attr_put_strz(h, NFTA_TABLE_NAME, TABLE);
	r = nft_talk(fd, h, NULL, NULL);
	if (r == -ENOENT)
		return 0;
	return r < 0 ? err_sys(e, -r, "look for table %s", TABLE) : 1;
}
