/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <string.h>

#include "net/dns_priv.h"

/* A message that is being written; ${cap} was checked by who calls. */
struct out {
	uint8_t *data;
	size_t len;
};

static void put8(struct out *o, unsigned v)
{
	o->data[o->len++] = (uint8_t)v;
}

static void put16(struct out *o, unsigned v)
{
	put8(o, v >> 8);
	put8(o, v);
}

static void put32(struct out *o, uint32_t v)
{
	put16(o, v >> 16);
	put16(o, v & 0xffff);
}

static void put(struct out *o, const void *data, size_t len)
{
	memcpy(o->data + o->len, data, len);
	o->len += len;
}

static const char *ede_text(enum dns_ede ede)
{
	switch (ede) {
	case DNS_EDE_BLOCKED:
		return "not allowed by the network policy";
	case DNS_EDE_NOT_SUPPORTED:
		return "type not supported";
	case DNS_EDE_NO_REACHABLE:
		return "no upstream server answers";
	case DNS_EDE_OTHER:
		return "too many names or queries";
	case DNS_EDE_NONE:
		break;
	}
	return "";
}

static size_t opt_len(const struct dns_query *q, const struct dns_reply *reply)
{
	if (!q->edns)
		return 0;
	return reply->ede == DNS_EDE_NONE ? 11
					  : 17 + strlen(ede_text(reply->ede));
}

static void put_opt(struct out *o, const struct dns_reply *reply)
{
	const char *text = ede_text(reply->ede);

	put8(o, 0);
	put16(o, DNS_OPT);
	put16(o, DNS_UDP_MAX);
	put8(o, reply->rcode >> 4);
	put8(o, 0); /* version */
	put16(o, 0);
	if (reply->ede == DNS_EDE_NONE) {
		put16(o, 0);
		return;
	}
	put16(o, (unsigned)strlen(text) + 6);
	put16(o, 15); /* the option: extended error */
	put16(o, (unsigned)strlen(text) + 2);
	put16(o, (unsigned)reply->ede);
	put(o, text, strlen(text));
}

static void put_addr(struct out *o, const struct dns_addrs *a, size_t i,
		     uint32_t ttl)
{
	bool v4 = a->family == AF_INET;

	put16(o, 0xc000 | DNS_HEADER); /* the name of the question */
	put16(o, v4 ? DNS_A : DNS_AAAA);
	put16(o, DNS_IN);
	put32(o, ttl);
	put16(o, v4 ? 4 : 16);
	if (v4)
		put(o, &a->v4[i], 4);
	else
		put(o, &a->v6[i], 16);
}

size_t dns_reply_build(const void *query, const struct dns_query *q,
		       const struct dns_reply *reply, bool tcp, void *out,
		       size_t cap)
{
	struct out o = {out, DNS_HEADER};
	size_t each, n = reply->addrs ? reply->addrs->n : 0, fit;
	size_t room = tcp || q->room > cap ? cap : q->room;
	uint8_t *h = out;

	assert(cap >= DNS_UDP_MAX);
	put(&o, (const uint8_t *)query + DNS_HEADER, q->question_len);
	each = reply->addrs && reply->addrs->family == AF_INET6 ? 28 : 16;
	room -= opt_len(q, reply);
	fit = o.len < room ? (room - o.len) / each : 0;
	fit = fit < n ? fit : n;
	for (size_t i = 0; i < fit; i++)
		put_addr(&o, reply->addrs, i, reply->ttl);
	if (q->edns)
		put_opt(&o, reply);
	memset(h, 0, DNS_HEADER);
	h[0] = (uint8_t)(q->id >> 8);
	h[1] = (uint8_t)q->id;
	/* QR, the opcode and RD as asked, TC; RA. */
	h[2] = (uint8_t)(0x80 | (q->flags & 0x79) | (fit < n ? 0x02 : 0));
	h[3] = (uint8_t)(0x80 | (reply->rcode & 0x0f));
	h[5] = q->question_len ? 1 : 0;
	h[7] = (uint8_t)fit;
	h[11] = q->edns ? 1 : 0;
	return o.len;
}

static bool put_name(struct out *o, const char *name)
{
	const char *dot;
	size_t n;

	for (; *name; name = *dot ? dot + 1 : dot) {
		dot = strchrnul(name, '.');
		n = (size_t)(dot - name);
		if (n == 0 || n > 63 || o->len + n > DNS_HEADER + 254)
			return false;
		put8(o, (unsigned)n);
		put(o, name, n);
	}
	put8(o, 0);
	return true;
}

size_t dns_ask_build(uint16_t id, const char *name, uint16_t type, void *out)
{
	static const uint8_t head[DNS_HEADER] = {[2] = 0x01, [5] = 1, [11] = 1};
	struct out o = {out, 0};

	if (!*name)
		return 0;
	put(&o, head, sizeof(head));
	o.data[0] = (uint8_t)(id >> 8);
	o.data[1] = (uint8_t)id;
	if (!put_name(&o, name))
		return 0;
	put16(&o, type);
	put16(&o, DNS_IN);
	put8(&o, 0);
	put16(&o, DNS_OPT);
	put16(&o, DNS_UDP_MAX);
	put32(&o, 0);
	put16(&o, 0);
	return o.len;
}
