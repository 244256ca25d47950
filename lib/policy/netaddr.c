/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "policy/netaddr.h"

int netaddr_parse(const char *text, struct netaddr *ret)
{
	struct netaddr a = {.v6 = strchr(text, ':') != NULL};

	/* inet_pton() takes no octal, hexadecimal or short form of v4. */
	if (inet_pton(a.v6 ? AF_INET6 : AF_INET, text, a.b) != 1)
		return -EINVAL;
	*ret = a;
	return 0;
}

static unsigned width(const struct netaddr *a)
{
	return a->v6 ? 128 : 32;
}

/* Bit masks of byte ${i} for a prefix of ${bits}. */
static uint8_t mask(unsigned bits, unsigned i)
{
	if (bits >= (i + 1) * 8)
		return 0xff;
	if (bits <= i * 8)
		return 0;
	return (uint8_t)(0xff << (8 - bits % 8));
}

static int parse_bits(const char *text, unsigned max, unsigned *ret)
{
	unsigned n = 0;
	size_t len = strlen(text);

	if (len < 1 || len > 3 || (len > 1 && text[0] == '0'))
		return -EINVAL;
	for (size_t i = 0; i < len; i++) {
		if (text[i] < '0' || text[i] > '9')
			return -EINVAL;
		n = n * 10 + (unsigned)(text[i] - '0');
	}
	if (n > max)
		return -EINVAL;
	*ret = n;
	return 0;
}

int netcidr_parse(const char *text, struct netcidr *ret)
{
	const char *slash = strchr(text, '/');
	char addr[NETADDR_TEXT];
	struct netcidr c;
	size_t len = slash ? (size_t)(slash - text) : strlen(text);

	if (len >= sizeof(addr))
		return -EINVAL;
	memcpy(addr, text, len);
	addr[len] = '\0';
	if (netaddr_parse(addr, &c.addr) < 0)
		return -EINVAL;
	c.bits = width(&c.addr);
	if (slash && parse_bits(slash + 1, c.bits, &c.bits) < 0)
		return -EINVAL;
	for (unsigned i = 0; i < width(&c.addr) / 8; i++)
		if (c.addr.b[i] & ~mask(c.bits, i))
			return -EDOM;
	*ret = c;
	return 0;
}

const char *netaddr_text(const struct netaddr *a, char *buf)
{
	if (!inet_ntop(a->v6 ? AF_INET6 : AF_INET, a->b, buf, NETADDR_TEXT))
		buf[0] = '\0';
	return buf;
}

const char *netcidr_text(const struct netcidr *c, char *buf)
{
	char addr[NETADDR_TEXT];

	snprintf(buf, NETCIDR_TEXT, "%s/%u", netaddr_text(&c->addr, addr),
		 c->bits);
	return buf;
}

struct netaddr netaddr_v4(uint32_t be)
{
	struct netaddr a = {.v6 = false};

	memcpy(a.b, &be, sizeof(be));
	return a;
}

int netaddr_of(const struct sockaddr *sa, struct netaddr *ret)
{
	struct netaddr a = {.v6 = sa->sa_family == AF_INET6};

	if (sa->sa_family == AF_INET)
		memcpy(a.b, &((const struct sockaddr_in *)sa)->sin_addr, 4);
	else if (sa->sa_family == AF_INET6)
		memcpy(a.b, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
	else
		return -EAFNOSUPPORT;
	*ret = a;
	return 0;
}

socklen_t netaddr_sock(const struct netaddr *a, uint16_t port,
		       struct sockaddr_storage *ret)
{
	struct sockaddr_in6 s6 = {.sin6_family = AF_INET6,
				  .sin6_port = htons(port)};
	struct sockaddr_in s4 = {.sin_family = AF_INET,
				 .sin_port = htons(port)};

	memset(ret, 0, sizeof(*ret));
	if (a->v6) {
		memcpy(&s6.sin6_addr, a->b, 16);
		memcpy(ret, &s6, sizeof(s6));
		return sizeof(s6);
	}
	memcpy(&s4.sin_addr, a->b, 4);
	memcpy(ret, &s4, sizeof(s4));
	return sizeof(s4);
}

bool netaddr_in(const struct netaddr *a, const struct netcidr *c)
{
	if (a->v6 != c->addr.v6)
		return false;
	for (unsigned i = 0; i * 8 < c->bits; i++)
		if ((a->b[i] ^ c->addr.b[i]) & mask(c->bits, i))
			return false;
	return true;
}

bool netcidr_within(const struct netcidr *in, const struct netcidr *out)
{
	return in->bits >= out->bits && netaddr_in(&in->addr, out);
}

int netaddr_cmp(const struct netaddr *a, const struct netaddr *b)
{
	if (a->v6 != b->v6)
		return a->v6 ? 1 : -1;
	return memcmp(a->b, b->b, sizeof(a->b));
}

int netcidr_cmp(const struct netcidr *a, const struct netcidr *b)
{
	int r = netaddr_cmp(&a->addr, &b->addr);

	if (r)
		return r;
	return a->bits < b->bits ? -1 : a->bits > b->bits;
}
