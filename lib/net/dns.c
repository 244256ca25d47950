/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/dns_priv.h"
#include "policy/netname.h"

#define HOPS	   16  /* pointers in a name */
#define CHAIN	   16  /* CNAMEs from the question on */
#define RECORDS	   256 /* of an answer that are looked at */
#define NAME_BYTES 255 /* of a name on the wire */

static unsigned get16(const uint8_t *p)
{
	return (unsigned)p[0] << 8 | p[1];
}

static uint32_t get32(const uint8_t *p)
{
	return (uint32_t)get16(p) << 16 | get16(p + 2);
}

/* A byte of a label: 0 if it has no place in one of ours. */
static char canon(uint8_t c)
{
	if (c >= 'A' && c <= 'Z')
		return (char)(c + 'a' - 'A');
	if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
	    c == '_')
		return (char)c;
	return 0;
}

/* Add a label to the name in ${out}, of ${n} bytes so far; its length then. */
static size_t add_label(const uint8_t *label, size_t len, char *out, size_t n,
			bool *odd)
{
	if (n)
		out[n++] = '.';
	for (size_t i = 0; i < len; i++) {
		out[n] = canon(label[i]);
		if (!out[n]) {
			out[n] = '?';
			*odd = true;
		}
		n++;
	}
	return n;
}

/*
 * The name at *${pos} into ${out}; *${pos} is moved behind it.  A pointer has
 * to lead to before the run of labels that it ends, so that there is no loop.
 */
static int read_name(const struct dns_msg *m, size_t *pos, char *out, bool *odd)
{
	size_t at = *pos, run = at, end = 0, n = 0, bytes = 1;
	unsigned hops = 0, c;

	*odd = false;
	for (;;) {
		if (at >= m->len)
			return -EBADMSG;
		c = m->data[at];
		if (c >= 0xc0) {
			if (at + 2 > m->len || ++hops > HOPS)
				return -EBADMSG;
			end = end ? end : at + 2;
			at = get16(m->data + at) & 0x3fff;
			if (at >= run || at < DNS_HEADER)
				return -EBADMSG;
			run = at;
			continue;
		}
		at++;
		if (c == 0)
			break;
		bytes += c + 1;
		if (c > 63 || bytes > NAME_BYTES || at + c > m->len)
			return -EBADMSG;
		n = add_label(m->data + at, c, out, n, odd);
		at += c;
	}
	out[n] = '\0';
	*pos = end ? end : at;
	return 0;
}

static void take_room(struct dns_query *q, unsigned size)
{
	q->edns = true;
	if (size > q->room)
		q->room = size > DNS_UDP_MAX ? DNS_UDP_MAX : (uint16_t)size;
}

/* What follows the question: nothing, or the one record of EDNS. */
static int read_edns(const struct dns_msg *m, size_t at, struct dns_query *q)
{
	const uint8_t *p = m->data + at;

	if (get16(m->data + 10) == 0)
		return at == m->len ? 0 : DNS_FORMERR;
	if (m->len - at < 11 || p[0] || get16(p + 1) != DNS_OPT ||
	    11 + get16(p + 9) != m->len - at)
		return DNS_FORMERR;
	take_room(q, get16(p + 3));
	return p[6] ? DNS_BADVERS : 0;
}

int dns_query_parse(const void *msg, size_t len, struct dns_query *ret)
{
	const struct dns_msg m = {msg, len};
	const uint8_t *h = msg;
	char canon[NETNAME_MAX + 1];
	size_t at = DNS_HEADER;
	unsigned class;

	*ret = (struct dns_query){.room = 512};
	if (len < DNS_HEADER || len > DNS_QUERY_MAX || h[2] & 0x80)
		return -EBADMSG;
	ret->id = (uint16_t)get16(h);
	ret->flags = h[2];
	if (h[2] & 0x78)
		return DNS_NOTIMP;
	if (h[2] & 0x02 || get16(h + 4) != 1 || get16(h + 6) || get16(h + 8) ||
	    get16(h + 10) > 1)
		return DNS_FORMERR;
	if (read_name(&m, &at, ret->name, &ret->odd) < 0 || len - at < 4)
		return DNS_FORMERR;
	if (*ret->name &&
	    netname_canon(ret->name, strlen(ret->name), canon) < 0)
		ret->odd = true;
	ret->type = (uint16_t)get16(h + at);
	class = get16(h + at + 2);
	at += 4;
	ret->question_len = (uint16_t)(at - DNS_HEADER);
	return class != DNS_IN ? DNS_REFUSED : read_edns(&m, at, ret);
}

/* A record of an answer. */
struct record {
	char name[DNS_NAME_MAX + 1];
	bool odd;
	unsigned type, class;
	uint32_t ttl;
	size_t data, len;
};

static int read_record(const struct dns_msg *m, size_t *pos, struct record *ret)
{
	const uint8_t *p;
	int r = read_name(m, pos, ret->name, &ret->odd);

	if (r < 0)
		return r;
	if (m->len - *pos < 10)
		return -EBADMSG;
	p = m->data + *pos;
	ret->type = get16(p);
	ret->class = get16(p + 2);
	ret->ttl = get32(p + 4);
	ret->len = get16(p + 8);
	ret->data = *pos + 10;
	if (m->len - ret->data < ret->len)
		return -EBADMSG;
	if (ret->ttl > INT32_MAX)
		ret->ttl = 0;
	*pos = ret->data + ret->len;
	return 0;
}

static int take_addr(const struct dns_msg *m, const struct record *rec,
		     struct dns_addrs *a)
{
	if (rec->len != (rec->type == DNS_A ? 4 : 16))
		return -EBADMSG;
	if (a->n == DNS_ADDRS_MAX)
		return 0;
	if (rec->type == DNS_A)
		memcpy(&a->v4[a->n++], m->data + rec->data, 4);
	else
		memcpy(&a->v6[a->n++], m->data + rec->data, 16);
	return 0;
}

static int take_cname(const struct dns_msg *m, const struct record *rec,
		      char *target)
{
	size_t at = rec->data;
	bool odd;

	if (read_name(m, &at, target, &odd) < 0 || at != rec->data + rec->len)
		return -EBADMSG;
	return odd ? -EBADMSG : 0;
}

/*
 * All that the answers, from ${at} on, say of the name ${own}: addresses into
 * ${a}, or a CNAME into ${target} ("": none).
 */
static int look_up(const struct dns_msg *m, size_t at, const char *own,
		   unsigned type, struct dns_addrs *a, char *target)
{
	unsigned n = get16(m->data + 6);
	struct record rec;
	int r = 0;

	*target = '\0';
	for (unsigned i = 0; r == 0 && i < n && i < RECORDS; i++) {
		r = read_record(m, &at, &rec);
		if (r < 0 || rec.class != DNS_IN || rec.odd ||
		    strcmp(rec.name, own) != 0)
			continue;
		if (rec.type == type)
			r = take_addr(m, &rec, a);
		else if (rec.type == DNS_CNAME)
			r = take_cname(m, &rec, target);
		else
			continue;
		if (rec.ttl < a->ttl)
			a->ttl = rec.ttl;
	}
	return r;
}

static int follow(const struct dns_msg *m, size_t at, const char *name,
		  unsigned type, struct dns_answer *ret)
{
	char own[DNS_NAME_MAX + 1], target[DNS_NAME_MAX + 1];
	int r;

	snprintf(own, sizeof(own), "%s", name);
	for (unsigned hop = 0; hop < CHAIN; hop++) {
		r = look_up(m, at, own, type, &ret->addrs, target);
		if (r < 0)
			return r;
		if (ret->addrs.n || !*target)
			break;
		memcpy(own, target, sizeof(own));
		if (hop + 1 == CHAIN)
			ret->rcode = DNS_SERVFAIL;
	}
	if (!ret->addrs.n && strcmp(own, name) != 0)
		memcpy(ret->next, own, sizeof(own));
	return 0;
}

/* Is the one question that of ${name}?  *${at} is behind it then. */
static bool same_question(const struct dns_msg *m, size_t *at, const char *name,
			  unsigned type)
{
	char asked[DNS_NAME_MAX + 1];
	bool odd;

	if (get16(m->data + 4) != 1 || read_name(m, at, asked, &odd) < 0 ||
	    m->len - *at < 4 || odd || strcmp(asked, name) != 0 ||
	    get16(m->data + *at) != type || get16(m->data + *at + 2) != DNS_IN)
		return false;
	*at += 4;
	return true;
}

int dns_answer_parse(const void *msg, size_t len, uint16_t id, const char *name,
		     uint16_t type, struct dns_answer *ret)
{
	const struct dns_msg m = {msg, len};
	const uint8_t *h = msg;
	size_t at = DNS_HEADER;

	if (len < DNS_HEADER || get16(h) != id || (h[2] & 0xf8) != 0x80)
		return -EBADMSG;
	ret->rcode = (enum dns_rcode)(h[3] & 0x0f);
	ret->truncated = h[2] & 0x02;
	ret->next[0] = '\0';
	ret->addrs.family = type == DNS_A ? AF_INET : AF_INET6;
	ret->addrs.n = 0;
	ret->addrs.ttl = INT32_MAX;
	/* One that fails may leave its question away. */
	if (ret->rcode != DNS_NOERROR && ret->rcode != DNS_NXDOMAIN &&
	    get16(h + 4) == 0)
		return 0;
	if (!same_question(&m, &at, name, type))
		return -EBADMSG;
	if (ret->truncated || ret->rcode != DNS_NOERROR)
		return 0;
	return follow(&m, at, name, type, ret);
}
