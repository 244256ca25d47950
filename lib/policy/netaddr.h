/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_NETADDR_H
#define POLICY_NETADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * An internet address and a range of them.  v4 and v6 are different things:
 * ::ffff:10.0.0.1 is a v6 address here (one that is always denied), never
 * silently 10.0.0.1.
 */
struct netaddr {
	bool v6;
	uint8_t b[16]; /* network order; v4: the first 4, the rest 0 */
};

struct netcidr {
	struct netaddr addr; /* host bits are 0 */
	unsigned bits;	     /* 0 to 32 or 128 */
};

#define NETADDR_TEXT 46 /* longest address with its NUL */
#define NETCIDR_TEXT 50

/* netaddr_parse(text, ret): "1.2.3.4" (four decimal numbers, no other form) or
 * v6 without zone.  0 or -EINVAL. */
int netaddr_parse(const char *text, struct netaddr *ret);

/*
 * netcidr_parse(text, ret): "ADDR/BITS", or "ADDR" for one address.  -EINVAL:
 * it is not one; -EDOM: it has host bits (10.0.0.1/8).
 */
int netcidr_parse(const char *text, struct netcidr *ret);

/* netaddr_text(a, buf), netcidr_text(c, buf): into buf[NETADDR_TEXT],
 * buf[NETCIDR_TEXT], in the one canonical form; return buf. */
const char *netaddr_text(const struct netaddr *a, char *buf);
const char *netcidr_text(const struct netcidr *c, char *buf);

/* netaddr_v4(be32): from network order.  netaddr_of(sa, ret): from a sockaddr
 * of AF_INET or AF_INET6; -EAFNOSUPPORT. */
struct netaddr netaddr_v4(uint32_t be);
int netaddr_of(const struct sockaddr *sa, struct netaddr *ret);

/* netaddr_sock(a, port, ret): into a sockaddr; returns its length. */
socklen_t netaddr_sock(const struct netaddr *a, uint16_t port,
		       struct sockaddr_storage *ret);

bool netaddr_in(const struct netaddr *a, const struct netcidr *c);

/* netcidr_within(in, out): is all of ${in} in ${out}? */
bool netcidr_within(const struct netcidr *in, const struct netcidr *out);

/* An order: v4 before v6, by address, wider ranges first. */
int netaddr_cmp(const struct netaddr *a, const struct netaddr *b);
int netcidr_cmp(const struct netcidr *a, const struct netcidr *b);

#endif
