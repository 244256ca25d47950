/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DNS messages, by the first byte: 'q' a query, which is answered in several
 * ways; 'a' an upstream's answer to "www.example.org" with id 0x1234, of type A
 * or, by the second byte, AAAA.  What we build, we parse.
 */
#include <assert.h>
#include <string.h>

#include "fuzz.h"
#include "net/dns.h"

static void check_name(const char *name)
{
	assert(strlen(name) <= DNS_NAME_MAX);
	for (; *name; name++)
		assert(strchr("abcdefghijklmnopqrstuvwxyz0123456789-_.?",
			      *name));
}

static void check_reply(const uint8_t *msg, const struct dns_query *q,
			const struct dns_reply *reply, bool tcp)
{
	uint8_t out[DNS_UDP_MAX];
	struct dns_answer a;
	size_t n;
	int r;

	n = dns_reply_build(msg, q, reply, tcp, out, sizeof(out));
	assert(n >= DNS_HEADER && n <= (tcp ? sizeof(out) : q->room));
	if (q->odd || !q->question_len || reply->rcode ||
	    (q->type != DNS_A && q->type != DNS_AAAA))
		return;
	r = dns_answer_parse(out, n, q->id, q->name, q->type, &a);
	assert(r == 0 &&
	       (a.truncated || !reply->addrs || a.addrs.n == reply->addrs->n));
}

static void query(const uint8_t *data, size_t size)
{
	struct dns_addrs addrs = {.family = AF_INET, .n = DNS_ADDRS_MAX};
	struct dns_reply reply = {.ede = DNS_EDE_NONE, .addrs = &addrs};
	struct dns_query q;
	int r = dns_query_parse(data, size, &q);

	if (r < 0)
		return;
	check_name(q.name);
	assert(q.room >= 512 && q.room <= DNS_UDP_MAX);
	assert((size_t)DNS_HEADER + q.question_len <= size);
	if (r > 0) {
		reply.rcode = (enum dns_rcode)r;
		reply.addrs = NULL;
	}
	if (q.type == DNS_AAAA)
		addrs.family = AF_INET6;
	check_reply(data, &q, &reply, false);
	check_reply(data, &q, &reply, true);
	reply = (struct dns_reply){.rcode = DNS_NXDOMAIN,
				   .ede = DNS_EDE_BLOCKED};
	check_reply(data, &q, &reply, false);
}

static void answer(const uint8_t *data, size_t size)
{
	uint16_t type = size && data[0] == '6' ? DNS_AAAA : DNS_A;
	uint8_t out[DNS_QUERY_MAX];
	struct dns_answer a;

	if (size < 1 || dns_answer_parse(data + 1, size - 1, 0x1234,
					 "www.example.org", type, &a) < 0)
		return;
	check_name(a.next);
	assert(a.addrs.n <= DNS_ADDRS_MAX);
	assert(!a.addrs.n || !*a.next);
	if (*a.next)
		assert(dns_ask_build(1, a.next, type, out) > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size && data[0] == 'q')
		query(data + 1, size - 1);
	if (size && data[0] == 'a')
		answer(data + 1, size - 1);
	return 0;
}
