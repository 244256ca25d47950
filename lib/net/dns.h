/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_DNS_H
#define NET_DNS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * DNS messages, parsed and built in the caller's storage: nothing is
 * allocated.  All of it is for bytes of strangers, sandboxes and upstreams
 * alike.  Names are held as text: lower case, without the last dot, labels of
 * [a-z0-9_-].  A query's name is canonical as policy/netname.h has it, or it is
 * told as odd.
 */

#define DNS_NAME_MAX  253   /* bytes of a name's text, without its NUL */
#define DNS_UDP_MAX   1232  /* bytes of a datagram that we send or announce */
#define DNS_TCP_MAX   65535 /* bytes of a message, without its length */
#define DNS_QUERY_MAX 1024  /* bytes of a query that is taken at all */
#define DNS_ADDRS_MAX 32    /* addresses of a name that are used */
#define DNS_HEADER    12

enum dns_type {
	DNS_A = 1,
	DNS_CNAME = 5,
	DNS_PTR = 12,
	DNS_AAAA = 28,
	DNS_OPT = 41,
	DNS_SVCB = 64,
	DNS_HTTPS = 65,
	DNS_ANY = 255,
};

enum dns_rcode {
	DNS_NOERROR = 0,
	DNS_FORMERR = 1,
	DNS_SERVFAIL = 2,
	DNS_NXDOMAIN = 3,
	DNS_NOTIMP = 4,
	DNS_REFUSED = 5,
	DNS_BADVERS = 16, /* of EDNS */
};

/* Extended errors (RFC 8914) that we say; DNS_EDE_NONE: none. */
enum dns_ede {
	DNS_EDE_NONE = -1,
	DNS_EDE_OTHER = 0,
	DNS_EDE_BLOCKED = 15,
	DNS_EDE_NOT_SUPPORTED = 21,
	DNS_EDE_NO_REACHABLE = 22, /* no upstream answered */
};

/* The addresses of a name, all of one family. */
struct dns_addrs {
	sa_family_t family; /* AF_INET or AF_INET6 */
	uint16_t n;
	uint32_t ttl; /* seconds, as upstream said */
	union {
		struct in_addr v4[DNS_ADDRS_MAX];
		struct in6_addr v6[DNS_ADDRS_MAX];
	};
};

/* A query of a sandbox. */
struct dns_query {
	uint16_t id, type;
	uint16_t room; /* bytes that its sender takes in a datagram */
	uint8_t flags; /* the third byte of its header */
	bool edns;
	bool odd; /* the name is none of ours; name is fit to be shown only */
	uint16_t question_len; /* bytes from DNS_HEADER on, to be echoed */
	char name[DNS_NAME_MAX + 1]; /* "" is the root */
};

/*
 * dns_query_parse(msg, len, ret):
 * 0: a query with one question of class IN, in *${ret}.  Greater than 0: not
 * that, but to be answered with this rcode, for which *${ret} is good as well.
 * -EBADMSG: to be dropped without an answer.
 */
int dns_query_parse(const void *msg, size_t len, struct dns_query *ret);

/* What is answered: addrs may be NULL. */
struct dns_reply {
	enum dns_rcode rcode;
	enum dns_ede ede; /* told if the query has EDNS */
	uint32_t ttl;	  /* of the addresses */
	const struct dns_addrs *addrs;
};

/*
 * dns_reply_build(query, q, reply, tcp, out, cap):
 * The answer to the message ${query}, which was parsed into ${q}, into ${out}
 * (${cap}: DNS_UDP_MAX or more).  What does not fit ${q}->room is left out with
 * TC set, unless ${tcp}.  The addresses belong to the name that was asked for
 * itself.  Return its length.
 */
size_t dns_reply_build(const void *query, const struct dns_query *q,
		       const struct dns_reply *reply, bool tcp, void *out,
		       size_t cap);

/*
 * dns_ask_build(id, name, type, out): a query for an upstream into ${out} (of
 * DNS_QUERY_MAX bytes), with EDNS.  Its length, 0 if ${name} is none.
 */
size_t dns_ask_build(uint16_t id, const char *name, uint16_t type, void *out);

struct dns_answer {
	enum dns_rcode rcode;
	bool truncated;
	struct dns_addrs addrs; /* of the last name of the chain */
	/* Where the chain of CNAMEs from the question ended without an address;
	 * "" if it has not left the question's name. */
	char next[DNS_NAME_MAX + 1];
};

/*
 * dns_answer_parse(msg, len, id, name, type, ret):
 * An upstream's answer to dns_ask_build(id, name, type): 0 with *${ret}, or
 * -EBADMSG: it is not well-formed, or no answer to that.  CNAMEs are followed
 * from the question alone, addresses of other names are not looked at, more
 * than DNS_ADDRS_MAX are left out.
 */
int dns_answer_parse(const void *msg, size_t len, uint16_t id, const char *name,
		     uint16_t type, struct dns_answer *ret);

#endif
