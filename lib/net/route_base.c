/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every sandbox's packets go through, in this order:
 *
 *   pre      before fragments are put together: interface, MAC and source
 *            address belong together; no IP options; TCP, UDP, ICMP alone
 *   nat      DNS to the proxy whatever resolver is meant, 443 to the SNI proxy
 *   input    the proxies' ports, nothing else of this namespace
 *   forward  flows of the current epoch pass; the others are judged: refused
 *            ranges, the policy's chain, what names led to
 *
 * Who asked is known by interface in either direction.  Judging begins by
 * turning it into the number of its policy, in the packet's mark, so that the
 * map that leads to chains has one element for each policy: the kernel walks
 * such a map, and all that it leads to, whenever an element is added.  For the
 * same reason chains that judge only say "yes" or "no", in the mark, and what
 * follows from it stands in one place.
 */
#include <errno.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "net/route_priv.h"

#include <linux/netfilter/nf_conntrack_common.h>

#define BEFORE_DEFRAG (-450)
#define NAT_DST	      (-100)

/* Bits of ct state. */
#define STATE_INVALID 1u
#define STATE_RELATED (1u << (IP_CT_RELATED + 1))
#define STATE_NEW     (1u << (IP_CT_NEW + 1))

/* clang-format off */
static const struct nft_set sets[] = {
	{.name = "bind4", .key = {NFT_T_IFNAME, NFT_T_ETHER, NFT_T_ADDR4},
	 .size = ROUTE_SET_SIZE},
	{.name = "bind6", .key = {NFT_T_IFNAME, NFT_T_ETHER, NFT_T_ADDR6},
	 .size = ROUTE_SET_SIZE},
	{.name = "slot", .key = {NFT_T_IFNAME}, .data = NFT_T_MARK,
	 .size = ROUTE_SET_SIZE},
	{.name = "cur", .key = {NFT_T_IFNAME}, .data = NFT_T_MARK,
	 .size = ROUTE_SET_SIZE},
	{.name = "live", .key = {NFT_T_IFNAME, NFT_T_MARK},
	 .size = ROUTE_SET_SIZE},
	{.name = "prof", .key = {NFT_T_IFNAME}, .data = NFT_T_MARK,
	 .size = ROUTE_SET_SIZE},
	{.name = "pol", .key = {NFT_T_MARK}, .data = NFT_T_VERDICT},
	{.name = "sni", .key = {NFT_T_MARK}, .data = NFT_T_VERDICT},
	{.name = "broker", .key = {NFT_T_IFNAME}, .size = ROUTE_SET_SIZE},
	{.name = "dns4", .flags = NFT_SET_TIMEOUT,
	 .key = {NFT_T_MARK, NFT_T_ADDR4, NFT_T_PROTO, NFT_T_PORT}},
	{.name = "dns6", .flags = NFT_SET_TIMEOUT,
	 .key = {NFT_T_MARK, NFT_T_ADDR6, NFT_T_PROTO, NFT_T_PORT}},
	{.name = "wide4", .flags = NFT_SET_TIMEOUT | NFT_SET_INTERVAL,
	 .key = {NFT_T_MARK, NFT_T_ADDR4, NFT_T_PROTO, NFT_T_PORT}},
	{.name = "wide6", .flags = NFT_SET_TIMEOUT | NFT_SET_INTERVAL,
	 .key = {NFT_T_MARK, NFT_T_ADDR6, NFT_T_PROTO, NFT_T_PORT}},
	{.name = "deny4", .flags = NFT_SET_INTERVAL, .key = {NFT_T_ADDR4}},
	{.name = "deny6", .flags = NFT_SET_INTERVAL, .key = {NFT_T_ADDR6}},
	{.name = "tx", .key = {NFT_T_IFNAME}, .size = ROUTE_SET_SIZE,
	 .stateful = NFT_E_COUNTER},
	{.name = "rx", .key = {NFT_T_IFNAME}, .size = ROUTE_SET_SIZE,
	 .stateful = NFT_E_COUNTER},
	{.name = "refused", .key = {NFT_T_IFNAME}, .size = ROUTE_SET_SIZE,
	 .stateful = NFT_E_COUNTER},
	{.name = "quotas", .key = {NFT_T_IFNAME},
	 .object = NFT_OBJECT_QUOTA},
	{.name = "conns", .key = {NFT_T_IFNAME}, .stateful = NFT_E_COUNT,
	 .value = 200},
	{.name = "rates", .key = {NFT_T_IFNAME}, .stateful = NFT_E_RATE,
	 .value = 50, .burst = 100, .invert = true},
	{.name = "dnsrates", .key = {NFT_T_IFNAME}, .stateful = NFT_E_RATE,
	 .value = 200, .burst = 400, .invert = true},
	{.name = "dnsflows", .key = {NFT_T_IFNAME}, .stateful = NFT_E_COUNT,
	 .value = ROUTE_DNS_FLOWS},
	{.name = "logs", .key = {NFT_T_IFNAME}, .stateful = NFT_E_RATE,
	 .value = ROUTE_LOG_RATE, .burst = ROUTE_LOG_BURST},
};

/* Attempts that are told and answered, and such that are told and dropped. */
static const char *const refused[] = {
	"policy", "private", "port53", "proto", "option", "stray", "neighbour",
	"uplink", "input", "connections", "rate", "quota",
};
/* clang-format on */

static void add_chain(struct nft_batch *t, const char *name)
{
	nft_chain_add(t, &(struct nft_chain){.name = name});
}

static void add_base(struct nft_batch *t, const char *name, const char *type,
		     unsigned hook, int prio, unsigned policy)
{
	nft_chain_add(t, &(struct nft_chain){name, type, hook, prio, policy});
}

static void iif(struct nft_batch *t, uint32_t op, const char *name)
{
	uint8_t key[16];

	nft_field_name(key, 0, name);
	nft_meta(t, NFT_META_IIFNAME, 1);
	nft_cmp(t, op, 1, key, sizeof(key));
}

static void oif(struct nft_batch *t, uint32_t op, const char *name)
{
	uint8_t key[16];

	nft_field_name(key, 0, name);
	nft_meta(t, NFT_META_OIFNAME, 1);
	nft_cmp(t, op, 1, key, sizeof(key));
}

static void l4(struct nft_batch *t, uint8_t proto)
{
	nft_meta(t, NFT_META_L4PROTO, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, proto);
}

static void family(struct nft_batch *t, uint8_t proto)
{
	nft_meta(t, NFT_META_NFPROTO, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, proto);
}

static void state(struct nft_batch *t, uint32_t bits)
{
	nft_ct(t, NFT_CT_STATE, -1, 1);
	nft_bits(t, 1, &bits, sizeof(bits));
	nft_cmp32(t, NFT_CMP_NEQ, 1, 0);
}

/* ${meta} is the interface's name, of either side. */
static void in_set(struct nft_batch *t, uint32_t meta, const char *set)
{
	nft_meta(t, meta, 1);
	nft_lookup(t, set, 0, 1, 0, false, false);
}

/* The packet's mark: what ${map} ("slot", "prof") has for the interface. */
static void mark(struct nft_batch *t, uint32_t meta, const char *map)
{
	nft_meta(t, meta, 1);
	nft_lookup(t, map, 0, 1, 1, true, false);
	nft_meta_set(t, NFT_META_MARK, 1);
}

/* The rest of a rule. */
static void then(struct nft_batch *t, int verdict, const char *chain)
{
	nft_verdict(t, verdict, chain);
	nft_rule_end(t);
}

static uint32_t small_set(struct nft_batch *t, uint8_t type,
			  const uint8_t *values, size_t n)
{
	const struct nft_set s = {.key = {type}, .size = (uint32_t)n};
	const uint32_t id = nft_set_anonymous(t, &s);

	nft_elems(t, "__set%d", id, true);
	for (size_t i = 0; i < n; i++)
		nft_elem(t, &values[i], 1);
	nft_elems_end(t);
	return id;
}

static void log_line(struct nft_batch *t, const struct route_conf *c,
		     const char *chain, const char *why, uint32_t meta)
{
	nft_rule(t, chain);
	in_set(t, meta, "logs");
	mark(t, meta, "slot");
	nft_log(t, c->log_group, why, ROUTE_SNAPLEN);
	nft_rule_end(t);
}

static void count_line(struct nft_batch *t, const char *chain, uint32_t meta,
		       const char *set)
{
	nft_rule(t, chain);
	in_set(t, meta, set);
	nft_rule_end(t);
}

/* Told at once, with what fits the protocol: nobody waits for a timeout. */
static void reset_line(struct nft_batch *t, const char *chain)
{
	nft_rule(t, chain);
	l4(t, IPPROTO_TCP);
	nft_reject(t, NFT_REJECT_TCP_RST, 0);
	nft_rule_end(t);
}

static void refusals(struct nft_batch *t, const struct route_conf *c)
{
	char chain[32];

	count_line(t, "refuse", NFT_META_IIFNAME, "refused");
	reset_line(t, "refuse");
	nft_rule(t, "refuse");
	nft_reject(t, NFT_REJECT_ICMPX_UNREACH,
		   NFT_REJECT_ICMPX_ADMIN_PROHIBITED);
	nft_rule_end(t);

	/* A reply of a flow that is not allowed any more: the peer is told,
	 * the sandbox when it sends. */
	log_line(t, c, "cut", "cut", NFT_META_OIFNAME);
	count_line(t, "cut", NFT_META_OIFNAME, "refused");
	reset_line(t, "cut");
	nft_rule(t, "cut");
	then(t, NF_DROP, NULL);

	for (size_t i = 0; i < array_len(refused); i++) {
		snprintf(chain, sizeof(chain), "no_%s", refused[i]);
		nft_rule(t, chain);
		iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
		then(t, NFT_GOTO, "cut");
		log_line(t, c, chain, refused[i], NFT_META_IIFNAME);
		nft_rule(t, chain);
		then(t, NFT_GOTO, "refuse");
	}
	/* No answer to who is not known. */
	log_line(t, c, "no_spoof", "spoof", NFT_META_IIFNAME);
	count_line(t, "no_spoof", NFT_META_IIFNAME, "refused");
	nft_rule(t, "no_spoof");
	then(t, NF_DROP, NULL);
	log_line(t, c, "no_invalid", "stray", NFT_META_IIFNAME);
	count_line(t, "no_invalid", NFT_META_IIFNAME, "refused");
	nft_rule(t, "no_invalid");
	then(t, NF_DROP, NULL);
}

/* interface . MAC . source, of one family */
static void bound(struct nft_batch *t, bool v6)
{
	static const uint8_t type[2][2] = {{0x08, 0x00}, {0x86, 0xdd}};
	const uint16_t ether = 1; /* ARPHRD_ETHER */

	nft_rule(t, "pre");
	nft_meta(t, NFT_META_IIFTYPE, 1);
	nft_cmp16(t, NFT_CMP_EQ, 1, ether);
	nft_payload(t, NFT_PAYLOAD_LL_HEADER, 12, 2, 1);
	nft_cmp(t, NFT_CMP_EQ, 1, type[v6], 2);
	nft_meta(t, NFT_META_IIFNAME, NFT_REG_1);
	nft_payload(t, NFT_PAYLOAD_LL_HEADER, 6, 6, NFT_REG_2);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, v6 ? 8 : 12, v6 ? 16 : 4,
		    NFT_REG32_06);
	nft_lookup(t, v6 ? "bind6" : "bind4", 0, 1, 0, false, false);
	then(t, NFT_GOTO, v6 ? "pre6" : "pre4");
}

static void discovery(struct nft_batch *t, const char *chain)
{
	static const uint8_t types[] = {ND_NEIGHBOR_SOLICIT,
					ND_NEIGHBOR_ADVERT};
	const uint32_t id = small_set(t, NFT_T_ICMP6, types, array_len(types));

	nft_rule(t, chain);
	family(t, NFPROTO_IPV6);
	l4(t, IPPROTO_ICMPV6);
	nft_payload(t, NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, false);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 7, 1, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, 255);
	then(t, NF_ACCEPT, NULL);
}

/* Nobody outside is one of us. */
static void foreign(struct nft_batch *t, uint32_t net, unsigned prefix)
{
	const uint32_t mask = htonl(prefix ? ~0u << (32 - prefix) : 0);
	const uint32_t be = htonl(net) & mask;

	nft_rule(t, "pre");
	iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
	family(t, NFPROTO_IPV4);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 12, 4, 1);
	nft_bits(t, 1, &mask, sizeof(mask));
	nft_cmp32(t, NFT_CMP_EQ, 1, be);
	then(t, NF_DROP, NULL);
}

static void pre4(struct nft_batch *t)
{
	static const uint8_t protos[] = {IPPROTO_TCP, IPPROTO_UDP,
					 IPPROTO_ICMP};
	/* Routing drops these before the rules would see them. */
	static const struct netcidr never[] = {
		{.addr = {.b = {0}}, .bits = 8},
		{.addr = {.b = {127}}, .bits = 8},
		{.addr = {.b = {224}}, .bits = 3},
	};
	const struct nft_set s = {.key = {NFT_T_ADDR4},
				  .flags = NFT_SET_INTERVAL};
	const uint8_t low = 0x0f;
	uint32_t id;

	nft_rule(t, "pre4");
	family(t, NFPROTO_IPV4);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 0, 1, 1);
	nft_bits(t, 1, &low, 1);
	nft_cmp8(t, NFT_CMP_GT, 1, 5);
	then(t, NFT_GOTO, "no_option");
	id = nft_set_anonymous(t, &s);
	route_ranges(t, "__set%d", id, never, array_len(never));
	nft_rule(t, "pre4");
	family(t, NFPROTO_IPV4);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 16, 4, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, false);
	then(t, NFT_GOTO, "no_private");
	id = small_set(t, NFT_T_PROTO, protos, array_len(protos));
	nft_rule(t, "pre4");
	family(t, NFPROTO_IPV4);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 9, 1, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, false);
	then(t, NF_ACCEPT, NULL);
	nft_rule(t, "pre4");
	then(t, NFT_GOTO, "no_proto");
}

static void pre6(struct nft_batch *t)
{
	/* No other headers; what a fragment is of is looked at when it has been
	 * put together. */
	static const uint8_t protos[] = {IPPROTO_TCP, IPPROTO_UDP,
					 IPPROTO_ICMPV6, IPPROTO_FRAGMENT};
	const uint32_t id = small_set(t, NFT_T_PROTO, protos,
				      array_len(protos));

	nft_rule(t, "pre6");
	family(t, NFPROTO_IPV6);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 6, 1, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, false);
	then(t, NF_ACCEPT, NULL);
	nft_rule(t, "pre6");
	then(t, NFT_GOTO, "no_proto");
}

static void pre(struct nft_batch *t, const struct route_conf *c)
{
	pre4(t);
	pre6(t);
	nft_rule(t, "pre");
	iif(t, NFT_CMP_EQ, "lo");
	then(t, NF_ACCEPT, NULL);
	foreign(t, c->pool, c->pool_prefix);
	foreign(t, TRANSIT_GATEWAY & 0xfffe0000, 15);
	nft_rule(t, "pre");
	iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
	then(t, NF_ACCEPT, NULL);
	bound(t, false);
	bound(t, true);
	discovery(t, "pre");
	nft_rule(t, "pre");
	then(t, NFT_GOTO, "no_spoof");
}

/* th dport == ${port}, of UDP and TCP over IPv4 */
static void dport(struct nft_batch *t, uint16_t port)
{
	nft_payload(t, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, 1);
	nft_cmp16(t, NFT_CMP_EQ, 1, htons(port));
}

static void nat(struct nft_batch *t, const struct route_conf *c)
{
	static const uint8_t protos[] = {IPPROTO_TCP, IPPROTO_UDP};
	const uint32_t gateway = htonl(c->gateway);
	const uint16_t dns = htons(c->dns_port);
	uint32_t id;

	nft_rule(t, "nat");
	iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
	then(t, NF_ACCEPT, NULL);
	id = small_set(t, NFT_T_PROTO, protos, array_len(protos));
	nft_rule(t, "nat");
	family(t, NFPROTO_IPV4);
	nft_meta(t, NFT_META_L4PROTO, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, false);
	dport(t, 53);
	nft_load(t, NFT_REG_1, &gateway, sizeof(gateway));
	nft_load(t, NFT_REG_2, &dns, sizeof(dns));
	nft_dnat4(t, NFT_REG_1, NFT_REG_2);
	nft_rule_end(t);
	nft_rule(t, "nat");
	family(t, NFPROTO_IPV4);
	l4(t, IPPROTO_TCP);
	dport(t, 443);
	mark(t, NFT_META_IIFNAME, "prof");
	nft_meta(t, NFT_META_MARK, 1);
	nft_lookup(t, "sni", 0, 1, 0, true, false);
	nft_rule_end(t);
}

/*
 * TCP 443 leads to the proxy if a name led to the address; to the rest nothing
 * is open.  Not in each policy's chain: a rule that reads a map has the kernel
 * walk the map when it is added.
 */
static void named(struct nft_batch *t, const struct route_conf *c)
{
	const uint32_t gateway = htonl(c->gateway);
	const uint16_t port = htons(c->sni_port);

	nft_rule(t, "named");
	mark(t, NFT_META_IIFNAME, "slot");
	family(t, NFPROTO_IPV4);
	nft_meta(t, NFT_META_MARK, NFT_REG_1);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 16, 4, NFT_REG32_01);
	nft_meta(t, NFT_META_L4PROTO, NFT_REG32_02);
	nft_payload(t, NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, NFT_REG32_03);
	nft_lookup(t, "dns4", 0, 1, 0, false, false);
	l4(t, IPPROTO_TCP);
	nft_load(t, NFT_REG_1, &gateway, sizeof(gateway));
	nft_load(t, NFT_REG_2, &port, sizeof(port));
	nft_dnat4(t, NFT_REG_1, NFT_REG_2);
	nft_rule_end(t);
}

/* A port of ours, at the gateway's address. */
static void ours(struct nft_batch *t, const struct route_conf *c, uint8_t proto,
		 uint16_t port)
{
	const uint32_t gateway = htonl(c->gateway);

	family(t, NFPROTO_IPV4);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, 16, 4, 1);
	nft_cmp32(t, NFT_CMP_EQ, 1, gateway);
	l4(t, proto);
	dport(t, port);
}

static void input(struct nft_batch *t, const struct route_conf *c)
{
	const uint32_t dnat = IPS_DST_NAT;

	nft_rule(t, "input");
	iif(t, NFT_CMP_EQ, "lo");
	then(t, NF_ACCEPT, NULL);
	nft_rule(t, "input");
	iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
	then(t, NF_DROP, NULL);
	nft_rule(t, "input");
	state(t, STATE_INVALID);
	then(t, NFT_GOTO, "no_invalid");
	/* Each question takes of what all sandboxes share: room at the socket,
	 * and as a flow that is remembered. */
	nft_rule(t, "input");
	ours(t, c, IPPROTO_UDP, c->dns_port);
	in_set(t, NFT_META_IIFNAME, "dnsrates");
	then(t, NFT_GOTO, "no_rate");
	/* Not the rate alone bounds those: what is refused of a flow that is
	 * remembered keeps it there.  After the rate: to count takes time. */
	nft_rule(t, "input");
	state(t, STATE_NEW);
	ours(t, c, IPPROTO_UDP, c->dns_port);
	in_set(t, NFT_META_IIFNAME, "dnsflows");
	then(t, NFT_GOTO, "no_connections");
	nft_rule(t, "input");
	ours(t, c, IPPROTO_UDP, c->dns_port);
	then(t, NF_ACCEPT, NULL);
	/* What the proxies hand on is a connection as any other. */
	nft_rule(t, "input");
	state(t, STATE_NEW);
	l4(t, IPPROTO_TCP);
	then(t, NFT_JUMP, "limits");
	nft_rule(t, "input");
	ours(t, c, IPPROTO_TCP, c->dns_port);
	then(t, NF_ACCEPT, NULL);
	nft_rule(t, "input");
	ours(t, c, IPPROTO_TCP, c->sni_port);
	nft_ct(t, NFT_CT_STATUS, -1, 1);
	nft_bits(t, 1, &dnat, sizeof(dnat));
	nft_cmp32(t, NFT_CMP_NEQ, 1, 0);
	then(t, NF_ACCEPT, NULL);
	nft_rule(t, "input");
	in_set(t, NFT_META_IIFNAME, "broker");
	ours(t, c, IPPROTO_TCP, c->broker_port);
	then(t, NF_ACCEPT, NULL);
	discovery(t, "input");
	nft_rule(t, "input");
	then(t, NFT_GOTO, "no_input");
}

/* slot . peer . protocol . port, the peer being the far end of the flow */
static void learned(struct nft_batch *t, bool v6, bool wide, bool reply)
{
	static const char *const names[2][2] = {{"dns4", "wide4"},
						{"dns6", "wide6"}};
	const uint32_t after = v6 ? NFT_REG32_05 : NFT_REG32_02;
	const uint32_t at = v6 ? (reply ? 8 : 24) : (reply ? 12 : 16);

	nft_rule(t, "names");
	nft_ct(t, NFT_CT_DIRECTION, -1, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, reply ? ROUTE_REPLY : ROUTE_ORIGINAL);
	family(t, v6 ? NFPROTO_IPV6 : NFPROTO_IPV4);
	nft_meta(t, NFT_META_MARK, NFT_REG_1);
	nft_payload(t, NFT_PAYLOAD_NETWORK_HEADER, at, v6 ? 16 : 4,
		    NFT_REG32_01);
	nft_meta(t, NFT_META_L4PROTO, after);
	nft_payload(t, NFT_PAYLOAD_TRANSPORT_HEADER, reply ? 0 : 2, 2,
		    after + 1);
	nft_lookup(t, names[v6][wide], 0, 1, 0, false, false);
	then(t, NFT_GOTO, "yes");
}

/* Pings alone may begin a flow of ICMP. */
static void ping(struct nft_batch *t, bool v6)
{
	nft_rule(t, "judge");
	state(t, STATE_NEW);
	family(t, v6 ? NFPROTO_IPV6 : NFPROTO_IPV4);
	l4(t, v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP);
	nft_payload(t, NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, 1);
	nft_cmp8(t, NFT_CMP_NEQ, 1, v6 ? ICMP6_ECHO_REQUEST : ICMP_ECHO);
	then(t, NFT_GOTO, "no_policy");
}

static void judge_shape(struct nft_batch *t)
{
	static const uint8_t protos[] = {IPPROTO_TCP, IPPROTO_UDP, IPPROTO_ICMP,
					 IPPROTO_ICMPV6};
	const uint8_t flags = 0x17; /* FIN SYN RST ACK */
	uint32_t id;

	id = small_set(t, NFT_T_PROTO, protos, 4);
	nft_rule(t, "judge");
	nft_meta(t, NFT_META_L4PROTO, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, true);
	then(t, NFT_GOTO, "no_proto");
	nft_rule(t, "judge");
	state(t, STATE_NEW);
	l4(t, IPPROTO_TCP);
	nft_payload(t, NFT_PAYLOAD_TRANSPORT_HEADER, 13, 1, 1);
	nft_bits(t, 1, &flags, 1);
	nft_cmp8(t, NFT_CMP_NEQ, 1, 0x02);
	then(t, NFT_GOTO, "no_stray");
	id = small_set(t, NFT_T_PROTO, protos, 2);
	nft_rule(t, "judge");
	family(t, NFPROTO_IPV6);
	nft_meta(t, NFT_META_L4PROTO, 1);
	nft_lookup(t, "__set%d", id, 1, 0, false, false);
	dport(t, 53);
	then(t, NFT_GOTO, "no_port53");
	ping(t, false);
	ping(t, true);
}

/* What a chain that judges ends in. */
static void verdict_mark(struct nft_batch *t, const char *chain, uint32_t value)
{
	nft_rule(t, chain);
	nft_load(t, NFT_REG_1, &value, sizeof(value));
	nft_meta_set(t, NFT_META_MARK, 1);
	nft_rule_end(t);
}

static void judge(struct nft_batch *t)
{
	verdict_mark(t, "yes", ROUTE_ALLOWED);
	verdict_mark(t, "no", ROUTE_REFUSED);
	judge_shape(t);
	for (int v6 = 0; v6 < 2; v6++) {
		nft_rule(t, "judge");
		nft_ct(t, v6 ? NFT_CT_DST_IP6 : NFT_CT_DST_IP, ROUTE_ORIGINAL,
		       1);
		nft_lookup(t, v6 ? "deny6" : "deny4", 0, 1, 0, false, false);
		then(t, NFT_JUMP, "denied");
	}
	nft_rule(t, "judge");
	nft_meta(t, NFT_META_MARK, 1);
	nft_lookup(t, "pol", 0, 1, 0, true, false);
	nft_rule_end(t);
	/* Behind the proxy, and without it nowhere. */
	nft_rule(t, "names");
	l4(t, IPPROTO_TCP);
	nft_ct(t, NFT_CT_PROTO_DST, ROUTE_ORIGINAL, 1);
	nft_cmp16(t, NFT_CMP_EQ, 1, htons(443));
	then(t, NFT_GOTO, "no");
	for (int i = 0; i < 8; i++)
		learned(t, i & 1, i & 2, i & 4);
}

static void judged_as(struct nft_batch *t, const char *chain, uint32_t value,
		      const char *to)
{
	nft_rule(t, chain);
	nft_meta(t, NFT_META_MARK, 1);
	nft_cmp32(t, NFT_CMP_EQ, 1, value);
	then(t, NFT_GOTO, to);
}

/* Marked with its policy for the one, with its slot for the other. */
static void judged(struct nft_batch *t, const char *chain, uint32_t meta)
{
	nft_rule(t, chain);
	mark(t, meta, "prof");
	then(t, NFT_JUMP, "judge");
	judged_as(t, chain, ROUTE_ALLOWED, "pass");
	judged_as(t, chain, ROUTE_REFUSED, "no_policy");
	nft_rule(t, chain);
	mark(t, meta, "slot");
	then(t, NFT_JUMP, "names");
	judged_as(t, chain, ROUTE_ALLOWED, "pass");
	nft_rule(t, chain);
	then(t, NFT_GOTO, "no_policy");
}

static void set_epoch(struct nft_batch *t, uint32_t meta)
{
	nft_meta(t, meta, 1);
	nft_lookup(t, "cur", 0, 1, 1, true, false);
	nft_ct_set(t, NFT_CT_MARK, 1);
}

/* A flow that the policy allows begins, or goes on in this epoch. */
static void pass(struct nft_batch *t)
{
	nft_rule(t, "limits");
	in_set(t, NFT_META_IIFNAME, "conns");
	then(t, NFT_GOTO, "no_connections");
	/* UDP is new until it is answered. */
	nft_rule(t, "limits");
	l4(t, IPPROTO_TCP);
	in_set(t, NFT_META_IIFNAME, "rates");
	then(t, NFT_GOTO, "no_rate");

	nft_rule(t, "pass");
	state(t, STATE_NEW);
	then(t, NFT_JUMP, "limits");
	nft_rule(t, "pass");
	iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
	set_epoch(t, NFT_META_OIFNAME);
	then(t, NFT_GOTO, "in");
	nft_rule(t, "pass");
	set_epoch(t, NFT_META_IIFNAME);
	then(t, NFT_GOTO, "out");
	nft_rule(t, "pass");
	then(t, NF_DROP, NULL);
}

/* Its packets are counted, and go. */
static void through(struct nft_batch *t, const char *chain, uint32_t meta,
		    const char *set)
{
	nft_rule(t, chain);
	nft_meta(t, meta, 1);
	nft_objects(t, "quotas", 1);
	then(t, NFT_GOTO, "no_quota");
	count_line(t, chain, meta, set);
	nft_rule(t, chain);
	then(t, NF_ACCEPT, NULL);
}

static void live(struct nft_batch *t, const char *chain, uint32_t meta,
		 const char *to)
{
	nft_rule(t, chain);
	nft_meta(t, meta, NFT_REG_1);
	nft_ct(t, NFT_CT_MARK, -1, NFT_REG_2);
	nft_lookup(t, "live", 0, 1, 0, false, false);
	then(t, NFT_GOTO, to);
}

static void inward(struct nft_batch *t)
{
	live(t, "inward", NFT_META_OIFNAME, "in");
	/* Nobody asked for it. */
	nft_rule(t, "inward");
	nft_ct(t, NFT_CT_DIRECTION, -1, 1);
	nft_cmp8(t, NFT_CMP_EQ, 1, ROUTE_ORIGINAL);
	then(t, NF_DROP, NULL);
	nft_rule(t, "inward");
	state(t, STATE_INVALID | STATE_RELATED);
	then(t, NF_DROP, NULL);
	judged(t, "inward", NFT_META_OIFNAME);
}

static void forward(struct nft_batch *t)
{
	nft_rule(t, "forward");
	iif(t, NFT_CMP_EQ, TRANSIT_UPLINK);
	then(t, NFT_GOTO, "inward");
	nft_rule(t, "forward");
	oif(t, NFT_CMP_EQ, "lo");
	then(t, NFT_GOTO, "no_uplink");
	nft_rule(t, "forward");
	oif(t, NFT_CMP_NEQ, TRANSIT_UPLINK);
	then(t, NFT_GOTO, "no_neighbour");
	live(t, "forward", NFT_META_IIFNAME, "out");
	/* An error about a flow that is not of this epoch, or not its own. */
	nft_rule(t, "forward");
	state(t, STATE_INVALID | STATE_RELATED);
	then(t, NFT_GOTO, "no_invalid");
	judged(t, "forward", NFT_META_IIFNAME);
}

static void chains(struct nft_batch *t, const char *marker)
{
	static const char *const plain[] = {
		"refuse", "cut",    "no_spoof", "no_invalid", "denied",
		"judge",  "names",  "limits",	"pass",	      "in",
		"out",	  "inward", "pre4",	"pre6",	      "yes",
		"no",	  "named",
	};
	char name[32];

	add_chain(t, marker);
	for (size_t i = 0; i < array_len(plain); i++)
		add_chain(t, plain[i]);
	for (size_t i = 0; i < array_len(refused); i++) {
		snprintf(name, sizeof(name), "no_%s", refused[i]);
		add_chain(t, name);
	}
	add_base(t, "pre", "filter", NF_INET_PRE_ROUTING, BEFORE_DEFRAG,
		 NF_DROP);
	add_base(t, "nat", "nat", NF_INET_PRE_ROUTING, NAT_DST, NF_ACCEPT);
	add_base(t, "input", "filter", NF_INET_LOCAL_IN, 0, NF_DROP);
	add_base(t, "forward", "filter", NF_INET_FORWARD, 0, NF_DROP);
}

void route_base(struct nft_batch *t, const struct route_conf *c,
		const char *marker)
{
	static const struct netcidr all4 = {.bits = 0};
	static const struct netcidr all6 = {.addr = {.v6 = true}, .bits = 0};

	nft_table_add(t);
	for (size_t i = 0; i < array_len(sets); i++)
		nft_set_add(t, &sets[i]);
	route_ranges(t, "deny4", 0, &all4, 1);
	route_ranges(t, "deny6", 0, &all6, 1);
	chains(t, marker);
	refusals(t, c);
	pre(t, c);
	nat(t, c);
	named(t, c);
	input(t, c);
	nft_rule(t, "denied");
	then(t, NFT_GOTO, "no_private");
	through(t, "out", NFT_META_IIFNAME, "tx");
	through(t, "in", NFT_META_OIFNAME, "rx");
	pass(t);
	judge(t);
	inward(t);
	forward(t);
}

int route_marker(const struct route_conf *c, char ret[24])
{
	auto_nft struct nft_batch t;
	uint64_t hash = 0xcbf29ce484222325u;

	nft_init(&t, ROUTE_INET, ROUTE_TABLE);
	t.clean = true;
	route_base(&t, c, "");
	if (t.r)
		return t.r;
	for (size_t i = 0; i < t.b.len; i++)
		hash = (hash ^ (uint8_t)t.b.data[i]) * 0x100000001b3u;
	snprintf(ret, 24, "rules_%016llx", (unsigned long long)hash);
	return 0;
}
