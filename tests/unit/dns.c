/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>

#include "../tap.h"
#include "net/dns.h"

/* A message: bytes are added by pieces of text (C escapes, NULs included). */
struct msg {
	uint8_t data[4096];
	size_t len;
};

static void put(struct msg *m, const void *data, size_t len)
{
	memcpy(m->data + m->len, data, len);
	m->len += len;
}

#define LIT(m, s) put(m, s, sizeof(s) - 1)

/* Header: flags, counts of the four parts. */
static void head(struct msg *m, unsigned flags, unsigned qd, unsigned an,
		 unsigned ns, unsigned ar)
{
	const uint8_t h[12] = {0x12,
			       0x34,
			       (uint8_t)(flags >> 8),
			       (uint8_t)flags,
			       0,
			       (uint8_t)qd,
			       0,
			       (uint8_t)an,
			       0,
			       (uint8_t)ns,
			       0,
			       (uint8_t)ar};

	m->len = 0;
	put(m, h, sizeof(h));
}

static void rr(struct msg *m, const void *owner, size_t len, unsigned type,
	       unsigned ttl, const void *data, unsigned n)
{
	const uint8_t h[10] = {(uint8_t)(type >> 8),
			       (uint8_t)type,
			       0,
			       1,
			       (uint8_t)(ttl >> 24),
			       (uint8_t)(ttl >> 16),
			       (uint8_t)(ttl >> 8),
			       (uint8_t)ttl,
			       (uint8_t)(n >> 8),
			       (uint8_t)n};

	put(m, owner, len);
	put(m, h, sizeof(h));
	put(m, data, n);
}

#define RR(m, owner, type, ttl, data)                                          \
	rr(m, owner, sizeof(owner) - 1, type, ttl, data, sizeof(data) - 1)

#define QUESTION "\3www\7example\3org\0\0\1\0\1"

static int query(struct msg *m, struct dns_query *q)
{
	return dns_query_parse(m->data, m->len, q);
}

static void test_query(void)
{
	struct dns_query q;
	struct msg m;

	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\3wWw\7EXAMPLE\3org\0\0\1\0\1");
	is_int(query(&m, &q), 0, "a query");
	is_str(q.name, "www.example.org", "its name, in lower case");
	is_int(q.id, 0x1234, "its id");
	is_int(q.type, DNS_A, "its type");
	is_int(q.room, 512, "room without EDNS");
	is_int(q.question_len, 21, "length of the question");

	LIT(&m, "x");
	is_int(query(&m, &q), DNS_FORMERR, "bytes after the end");

	head(&m, 0x0100, 1, 0, 0, 1);
	LIT(&m, QUESTION "\0\0\51\x10\0\0\0\0\0\0\0");
	is_int(query(&m, &q), 0, "with EDNS");
	is_int(q.room, DNS_UDP_MAX, "room no more than ours");
	m.data[m.len - 5] = 1;
	is_int(query(&m, &q), DNS_BADVERS, "EDNS of another version");

	head(&m, 0x0100, 2, 0, 0, 0);
	LIT(&m, QUESTION QUESTION);
	is_int(query(&m, &q), DNS_FORMERR, "two questions");
	head(&m, 0x0100, 0, 0, 0, 0);
	is_int(query(&m, &q), DNS_FORMERR, "none");
	head(&m, 0x0100, 1, 1, 0, 0);
	LIT(&m, QUESTION);
	is_int(query(&m, &q), DNS_FORMERR, "a query with answers");
	head(&m, 0x2800, 1, 0, 0, 0);
	LIT(&m, QUESTION);
	is_int(query(&m, &q), DNS_NOTIMP, "an update");
	head(&m, 0x8100, 1, 0, 0, 0);
	LIT(&m, QUESTION);
	is_int(query(&m, &q), -EBADMSG, "an answer is not answered");
	is_int(dns_query_parse(m.data, 11, &q), -EBADMSG, "nor half a header");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\3www\7example\3org\0\0\1\0\3");
	is_int(query(&m, &q), DNS_REFUSED, "class CHAOS");
}

static void test_names(void)
{
	struct dns_query q;
	struct msg m;

	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\300\14\0\1\0\1");
	is_int(query(&m, &q), DNS_FORMERR, "a pointer to itself");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\1a\300\14\0\1\0\1");
	is_int(query(&m, &q), DNS_FORMERR, "a loop");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\1a\300\0\0\1\0\1");
	is_int(query(&m, &q), DNS_FORMERR, "a pointer into the header");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\1a\100b");
	is_int(query(&m, &q), DNS_FORMERR, "a label of another kind");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\77abc");
	is_int(query(&m, &q), DNS_FORMERR, "a label cut short");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\3a.b\1\0\1c\0\0\1\0\1");
	is_int(query(&m, &q), 0, "a name of other bytes is parsed");
	ok(q.odd, "and told");
	is_str(q.name, "a?b.?.c", "in a form that can be shown");
	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\0\0\2\0\1");
	is_int(query(&m, &q), 0, "the root");
	is_str(q.name, "", "has no name");

	/* 3 * 64 + 62 + 1 = 255 bytes is the most. */
	head(&m, 0x0100, 1, 0, 0, 0);
	for (int i = 0; i < 4; i++) {
		uint8_t label[64];

		memset(label, 'a', sizeof(label));
		label[0] = i < 3 ? 63 : 61;
		put(&m, label, label[0] + 1u);
	}
	LIT(&m, "\0\0\1\0\1");
	is_int(query(&m, &q), 0, "a name of 255 bytes");
	is_int((long long)strlen(q.name), DNS_NAME_MAX, "253 as text");
	m.data[12 + 3 * 64] = 62;
	is_int(query(&m, &q), DNS_FORMERR, "one of 256");
}

static int parse(struct msg *m, struct dns_answer *a)
{
	return dns_answer_parse(m->data, m->len, 0x1234, "www.example.org",
				DNS_A, a);
}

#define QNAME "\300\14"

static void test_answer(void)
{
	struct dns_answer a;
	struct msg m;

	head(&m, 0x8180, 1, 2, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, QNAME, DNS_A, 300, "\300\0\2\1");
	RR(&m, QNAME, DNS_A, 60, "\300\0\2\2");
	is_int(parse(&m, &a), 0, "an answer");
	is_int(a.addrs.n, 2, "two addresses");
	is_int(a.addrs.ttl, 60, "the lower TTL");
	is_int(ntohl(a.addrs.v4[1].s_addr), 0xc0000202, "the second address");
	is_int(dns_answer_parse(m.data, m.len, 0x1235, "www.example.org", DNS_A,
				&a),
	       -EBADMSG, "another id");
	is_int(dns_answer_parse(m.data, m.len, 0x1234, "ww.example.org", DNS_A,
				&a),
	       -EBADMSG, "another name");
	is_int(dns_answer_parse(m.data, m.len, 0x1234, "www.example.org",
				DNS_AAAA, &a),
	       -EBADMSG, "another type");
	for (size_t n = 0; n < m.len; n++)
		if (dns_answer_parse(m.data, n, 0x1234, "www.example.org",
				     DNS_A, &a) == 0)
			ok(false, "cut at %zu", n);
	m.data[2] &= 0x7f;
	is_int(parse(&m, &a), -EBADMSG, "a query is no answer");

	head(&m, 0x8180, 1, 2, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, "\3www\4evil\0", DNS_A, 300, "\300\0\2\1");
	RR(&m, "\3WWW\7example\3ORG\0", DNS_A, 300, "\300\0\2\2");
	is_int(parse(&m, &a), 0, "an address of another name");
	is_int(a.addrs.n, 1, "is left out");

	head(&m, 0x8180, 1, 1, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, QNAME, DNS_A, 300, "\300\0\2\1\1");
	is_int(parse(&m, &a), -EBADMSG, "an address of five bytes");
	head(&m, 0x8183, 1, 0, 0, 0);
	LIT(&m, QUESTION);
	is_int(parse(&m, &a), 0, "NXDOMAIN");
	is_int(a.rcode, DNS_NXDOMAIN, "is told");
	head(&m, 0x8380, 1, 0, 0, 0);
	LIT(&m, QUESTION);
	is_int(parse(&m, &a), 0, "TC");
	ok(a.truncated, "is told");
	head(&m, 0x8181, 0, 0, 0, 0);
	is_int(parse(&m, &a), 0, "FORMERR without a question");
	head(&m, 0x8180, 0, 0, 0, 0);
	is_int(parse(&m, &a), -EBADMSG, "no error without a question");
}

static void test_chain(void)
{
	struct dns_answer a;
	struct msg m;

	/* The order is upstream's. */
	head(&m, 0x8180, 1, 3, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, "\1b\0", DNS_A, 300, "\300\0\2\1");
	RR(&m, "\1a\0", DNS_CNAME, 20, "\1b\0");
	RR(&m, QNAME, DNS_CNAME, 300, "\1a\0");
	is_int(parse(&m, &a), 0, "a chain, backwards");
	is_int(a.addrs.n, 1, "is followed");
	is_int(a.addrs.ttl, 20, "with its lowest TTL");
	is_str(a.next, "", "to its end");

	head(&m, 0x8180, 1, 2, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, "\1x\0", DNS_CNAME, 300, "\1b\0");
	RR(&m, "\1b\0", DNS_A, 300, "\300\0\2\1");
	is_int(parse(&m, &a), 0, "a chain from elsewhere");
	is_int(a.addrs.n, 0, "is not");

	head(&m, 0x8180, 1, 1, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, QNAME, DNS_CNAME, 300, "\3cdn\300\20");
	is_int(parse(&m, &a), 0, "a chain that ends");
	is_str(a.next, "cdn.example.org", "goes on there");

	head(&m, 0x8180, 1, 2, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, QNAME, DNS_CNAME, 300, "\1a\0");
	RR(&m, "\1a\0", DNS_CNAME, 300, QNAME);
	is_int(parse(&m, &a), 0, "a chain that is a loop");
	is_int(a.rcode, DNS_SERVFAIL, "is a failure");
	head(&m, 0x8180, 1, 1, 0, 0);
	LIT(&m, QUESTION);
	RR(&m, QNAME, DNS_CNAME, 300, "\3a b\0");
	is_int(parse(&m, &a), -EBADMSG, "a target that is no name");

	head(&m, 0x8180, 1, 200, 0, 0);
	LIT(&m, QUESTION);
	for (int i = 0; i < 200; i++)
		RR(&m, QNAME, DNS_A, 0x80000000u, "\300\0\2\1");
	is_int(parse(&m, &a), 0, "200 addresses");
	is_int(a.addrs.n, DNS_ADDRS_MAX, "are too many");
	is_int(a.addrs.ttl, 0, "a negative TTL is none");
}

static size_t build(const struct msg *m, const struct dns_reply *r, bool tcp,
		    uint8_t *out)
{
	struct dns_query q;

	dns_query_parse(m->data, m->len, &q);
	return dns_reply_build(m->data, &q, r, tcp, out, DNS_UDP_MAX);
}

static void test_reply(void)
{
	struct dns_addrs addrs = {.family = AF_INET6, .n = 32};
	struct dns_reply r = {.ede = DNS_EDE_NONE, .ttl = 7, .addrs = &addrs};
	uint8_t out[DNS_UDP_MAX];
	struct dns_answer a;
	struct msg m;
	size_t n;

	head(&m, 0x0100, 1, 0, 0, 0);
	LIT(&m, "\3WWW\7example\3org\0\0\34\0\1");
	n = build(&m, &r, false, out);
	ok(n <= 512, "32 addresses in 512 bytes do not go");
	is_int(dns_answer_parse(out, n, 0x1234, "www.example.org", DNS_AAAA,
				&a),
	       0, "it is an answer all the same");
	ok(a.truncated, "with TC");
	ok(!memcmp(out + 12, m.data + 12, 21), "the question as it was asked");
	n = build(&m, &r, true, out);
	is_int(dns_answer_parse(out, n, 0x1234, "www.example.org", DNS_AAAA,
				&a),
	       0, "over TCP");
	is_int(a.addrs.n, 32, "they go");
	is_int(a.addrs.ttl, 7, "with their TTL");

	r = (struct dns_reply){.rcode = DNS_NXDOMAIN, .ede = DNS_EDE_BLOCKED};
	n = build(&m, &r, false, out);
	is_int((long long)n, 33, "no EDE to who has no EDNS");
	head(&m, 0x0100, 1, 0, 0, 1);
	LIT(&m, QUESTION "\0\0\51\4\320\0\0\0\0\0\0");
	n = build(&m, &r, false, out);
	is_int(out[3], 0x83, "NXDOMAIN, RA");
	ok(!memcmp(out + 12 + 21, "\0\0\51\4\320\0\0\0\0", 9) &&
		   out[12 + 21 + 12] == 15 && out[12 + 21 + 16] == 15,
	   "EDE 15");
	ok(n > 60, "in words");

	head(&m, 0x2800, 1, 0, 0, 0);
	LIT(&m, "junk");
	n = build(&m,
		  &(struct dns_reply){.rcode = DNS_NOTIMP, .ede = DNS_EDE_NONE},
		  false, out);
	is_int((long long)n, 12, "NOTIMP is a header");
	is_int(out[2], 0xa8, "with the opcode");
	is_int(out[5], 0, "and no question");
}

static void test_ask(void)
{
	char name[DNS_NAME_MAX + 10];
	uint8_t out[DNS_QUERY_MAX];
	struct dns_query q;
	size_t n;

	n = dns_ask_build(77, "a-b._x.example", DNS_AAAA, out);
	is_int(dns_query_parse(out, n, &q), 0, "a question of ours");
	is_str(q.name, "a-b._x.example", "has its name");
	ok(q.edns && q.id == 77 && q.type == DNS_AAAA, "and the rest");
	is_int((long long)dns_ask_build(1, "", DNS_A, out), 0, "no name");
	is_int((long long)dns_ask_build(1, "a..b", DNS_A, out), 0,
	       "an empty label");
	memset(name, 'a', sizeof(name));
	name[64] = '\0';
	is_int((long long)dns_ask_build(1, name, DNS_A, out), 0,
	       "a label of 64 bytes");
	for (size_t i = 1; i < sizeof(name); i += 2)
		name[i] = '.';
	name[64] = 'a';
	name[DNS_NAME_MAX] = '\0';
	n = dns_ask_build(1, name, DNS_A, out);
	is_int(dns_query_parse(out, n, &q), 0, "127 labels");
	is_str(q.name, name, "all of them");
	strcpy(name + DNS_NAME_MAX, ".a");
	is_int((long long)dns_ask_build(1, name, DNS_A, out), 0, "128 do not");
}

int main(void)
{
	test_query();
	test_names();
	test_answer();
	test_chain();
	test_reply();
	test_ask();
	return tap_done();
}
