/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "net/transit_priv.h"
#include "sys/netns.h"
#include "sys/sockdiag.h"

/* Those with somebody at the other end. */
#define STATES                                                                 \
	(1U << TCP_ESTABLISHED | 1U << TCP_FIN_WAIT1 | 1U << TCP_FIN_WAIT2 |   \
	 1U << TCP_CLOSE_WAIT)

struct poke {
	int raw; /* in the transit namespace */
	int n;
};

struct segment {
	struct iphdr ip;
	struct tcphdr tcp;
};

static uint16_t fold(uint32_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

static uint32_t add(uint32_t sum, const void *data, size_t len)
{
	const uint8_t *p = data;

	for (size_t i = 0; i + 1 < len; i += 2)
		sum += (uint32_t)p[i] << 8 | p[i + 1];
	return sum;
}

/*
 * From the peer, outside of every window: the sandbox's end answers with where
 * it stands, and the rules judge the answer.
 */
static void send_one(struct poke *p, uint32_t from, uint32_t to,
		     uint16_t from_port, uint16_t to_port, uint32_t seq)
{
	const struct sockaddr_in dst = {.sin_family = AF_INET,
					.sin_addr.s_addr = to};
	struct segment s = {
		.ip = {.ihl = 5,
		       .version = 4,
		       .ttl = 64,
		       .protocol = IPPROTO_TCP,
		       .tot_len = htons(sizeof(s)),
		       .saddr = from,
		       .daddr = to},
		.tcp = {.source = from_port,
			.dest = to_port,
			.seq = htonl(seq),
			.doff = sizeof(s.tcp) / 4,
			.ack = 1,
			.window = htons(1024)},
	};
	uint32_t sum = IPPROTO_TCP + sizeof(s.tcp);

	sum = add(sum, &s.ip.saddr, 8);
	sum = add(sum, &s.tcp, sizeof(s.tcp));
	s.tcp.check = htons(fold(sum));
	(void)sendto(p->raw, &s, sizeof(s), MSG_DONTWAIT, (const void *)&dst,
		     sizeof(dst));
}

static bool v4_of(int family, const __be32 *addr, uint32_t *ret)
{
	if (family == AF_INET6 &&
	    (addr[0] || addr[1] || addr[2] != htonl(0xffff)))
		return false;
	*ret = family == AF_INET6 ? addr[3] : addr[0];
	/* Not with itself. */
	return (ntohl(*ret) >> 24) != 127 && ntohl(*ret) != TRANSIT_STABLE;
}

static int poke(const void *msg, size_t len, void *arg)
{
	const struct inet_diag_msg *d = msg;
	struct poke *p = arg;
	uint32_t from, to;

	(void)len;
	if (!v4_of(d->idiag_family, d->id.idiag_dst, &from) ||
	    !v4_of(d->idiag_family, d->id.idiag_src, &to) || from == to)
		return 0;
	p->n++;
	for (uint32_t i = 0; i < 2; i++)
		send_one(p, from, to, d->id.idiag_dport, d->id.idiag_sport,
			 i << 31);
	return 0;
}

static int poke_family(struct poke *p, int diag, uint8_t family)
{
	const struct inet_diag_req_v2 req = {
		.sdiag_family = family,
		.sdiag_protocol = IPPROTO_TCP,
		.idiag_states = STATES,
	};

	return sockdiag_dump(diag, &req, sizeof(req),
			     sizeof(struct inet_diag_msg), poke, p);
}

int transit_poke(int netns, int inside, struct err *e)
{
	auto_close int diag = netns_socket(inside, AF_NETLINK, SOCK_RAW,
					   NETLINK_SOCK_DIAG, e);
	auto_close int raw = -1;
	struct poke p = {0};
	int r;

	if (diag < 0)
		return diag;
	raw = p.raw = netns_socket(netns, AF_INET, SOCK_RAW, IPPROTO_RAW, e);
	if (raw < 0)
		return raw;
	r = poke_family(&p, diag, AF_INET);
	if (!r)
		r = poke_family(&p, diag, AF_INET6);
	return r < 0 ? err_sys(e, -r, "list connections") : p.n;
}
