/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "net/route_priv.h"

#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter/nfnetlink_log.h>

#define REPLY_SIZE 65536

static uint16_t port_at(const uint8_t *p)
{
	return (uint16_t)(p[0] << 8 | p[1]);
}

static void ports(const uint8_t *p, size_t len, struct route_denied *d)
{
	if (len < 4 || (d->ipproto != IPPROTO_TCP && d->ipproto != IPPROTO_UDP))
		return;
	d->sport = port_at(p);
	d->dport = port_at(p + 2);
}

/* The first bytes of the packet, which the sandbox wrote. */
static void packet(const uint8_t *p, size_t len, struct route_denied *d)
{
	if (len >= 20 && p[0] >> 4 == 4) {
		const size_t head = (size_t)(p[0] & 15) * 4;

		d->ipproto = p[9];
		memcpy(d->src.b, p + 12, 4);
		memcpy(d->dst.b, p + 16, 4);
		if (head >= 20 && head <= len)
			ports(p + head, len - head, d);
	} else if (len >= 40 && p[0] >> 4 == 6) {
		d->ipproto = p[6];
		d->src.v6 = d->dst.v6 = true;
		memcpy(d->src.b, p + 8, 16);
		memcpy(d->dst.b, p + 24, 16);
		ports(p + 40, len - 40, d);
	}
}

static bool read_one(const struct nlmsghdr *h, struct route_denied *d)
{
	const struct nlattr *a;

	memset(d, 0, sizeof(*d));
	if (h->nlmsg_type != (NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_PACKET))
		return false;
	mnl_attr_for_each(a, h, sizeof(struct nfgenmsg))
	{
		const size_t len = mnl_attr_get_payload_len(a);

		switch (mnl_attr_get_type(a)) {
		case NFULA_PREFIX:
			snprintf(d->why, sizeof(d->why), "%.*s", (int)len,
				 mnl_attr_get_str(a));
			break;
		case NFULA_MARK: /* absent: slot 0 */
			if (len == sizeof(uint32_t))
				d->slot = ntohl(mnl_attr_get_u32(a));
			break;
		case NFULA_PAYLOAD:
			packet(mnl_attr_get_payload(a), len, d);
			break;
		}
	}
	return d->why[0];
}

int route_log(struct route *r,
	      void (*fn)(void *arg, const struct route_denied *d), void *arg,
	      struct err *e)
{
	auto_free char *reply = malloc(REPLY_SIZE);
	const struct nlmsghdr *h;
	struct route_denied d;
	int told = 0, n;
	ssize_t got;

	if (!reply)
		return err_sys(e, ENOMEM, "refused packets");
	for (;;) {
		got = recv(r->c.log, reply, REPLY_SIZE, MSG_DONTWAIT);
		if (got < 0 && (errno == EINTR || errno == ENOBUFS))
			continue; /* some were lost; all are counted */
		if (got < 0 && errno == EAGAIN)
			return told;
		if (got < 0)
			return err_sys(e, errno, "read refused packets");
		n = (int)got;
		for (h = (const void *)reply; mnl_nlmsg_ok(h, n);
		     h = mnl_nlmsg_next(h, &n)) {
			if (!read_one(h, &d))
				continue;
			fn(arg, &d);
			told++;
		}
	}
}
