/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UPSTREAM_H
#define TESTS_UPSTREAM_H

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/loop.h"
#include "net/dns.h"

/*
 * A DNS server on the test's own loop, UDP and TCP on one port of 127.0.0.1.
 * The first label says what it does:
 *   nx none fail refuse drop	no address
 *   tc		40 addresses, over TCP alone
 *   chain	a CNAME to ok.end.test, which it does not follow
 *   loopN	a CNAME to loopN+1
 *   spoof	three answers with wrong ids, then the right one
 *   priv	127.0.0.1
 *   mixed	10.0.0.1, 192.0.2.1
 *   zero	TTL 0
 *   six	an address of v6 alone
 * and any other 192.0.2.1 with TTL 60 (2001:db8::1).
 */
struct upstream {
	struct loop *loop;
	int udp, tcp;
	struct loop_source udp_src, tcp_src, conn_src;
	struct sockaddr_in addr;
	unsigned queries, over_tcp;
	char last[DNS_NAME_MAX + 1];
};

struct up_out {
	uint8_t data[4096];
	size_t len;
};

static inline void up_rr(struct up_out *o, unsigned type, unsigned ttl,
			 const void *data, size_t len)
{
	const uint8_t head[12] =
		{0xc0, 12,	    0, (uint8_t)type,	    0,
		 1,    0,	    0, (uint8_t)(ttl >> 8), (uint8_t)ttl,
		 0,    (uint8_t)len};

	memcpy(o->data + o->len, head, sizeof(head));
	memcpy(o->data + o->len + sizeof(head), data, len);
	o->len += sizeof(head) + len;
	o->data[7]++;
}

static inline void up_addr(struct up_out *o, const struct dns_query *q,
			   unsigned ttl, const char *v4)
{
	struct in6_addr six = {{{0x20, 0x01, 0x0d, 0xb8, [15] = 1}}};
	struct in_addr four;

	inet_pton(AF_INET, v4, &four);
	if (q->type == DNS_A)
		up_rr(o, DNS_A, ttl, &four, sizeof(four));
	else
		up_rr(o, DNS_AAAA, ttl, &six, sizeof(six));
}

static inline bool up_is(const struct dns_query *q, const char *label)
{
	size_t n = strlen(label);

	return !strncmp(q->name, label, n) &&
	       (q->name[n] == '.' || !q->name[n]);
}

static inline void up_loop(struct up_out *o, const struct dns_query *q)
{
	char data[32];
	int n;

	/* data[0] is the label's length. */
	n = snprintf(data, sizeof(data), "-loop%d", atoi(q->name + 4) + 1);
	data[0] = (char)(n - 1);
	data[n] = '\0';
	up_rr(o, DNS_CNAME, 60, data, (size_t)n + 1);
}

/* false: no answer. */
static inline bool up_answer(struct upstream *u, const uint8_t *msg, size_t len,
			     bool tcp, struct up_out *o)
{
	struct dns_query q;

	if (dns_query_parse(msg, len, &q) != 0)
		return false;
	u->queries++;
	strcpy(u->last, q.name);
	memset(o, 0, sizeof(*o));
	o->len = 12u + q.question_len;
	memcpy(o->data, msg, o->len);
	memcpy(o->data + 2, "\x81\x80\0\1\0\0\0\0\0\0", 10);
	if (up_is(&q, "drop"))
		return false;
	if (up_is(&q, "nx"))
		o->data[3] |= DNS_NXDOMAIN;
	else if (up_is(&q, "fail"))
		o->data[3] |= DNS_SERVFAIL;
	else if (up_is(&q, "refuse"))
		o->data[3] |= DNS_REFUSED;
	else if (up_is(&q, "none") || (up_is(&q, "six") && q.type == DNS_A))
		return true;
	else if (up_is(&q, "tc") && !tcp)
		o->data[2] |= 0x02;
	else if (up_is(&q, "tc"))
		for (int i = 0; i < 40; i++)
			up_addr(o, &q, 60, "192.0.2.40");
	else if (up_is(&q, "chain"))
		up_rr(o, DNS_CNAME, 30, "\2ok\3end\4test", 13);
	else if (!strncmp(q.name, "loop", 4))
		up_loop(o, &q);
	else if (up_is(&q, "priv"))
		up_addr(o, &q, 60, "127.0.0.1");
	else if (up_is(&q, "mixed"))
		up_addr(o, &q, 60, "10.0.0.1"), up_addr(o, &q, 60, "192.0.2.1");
	else if (up_is(&q, "zero"))
		up_addr(o, &q, 0, "192.0.2.1");
	else
		up_addr(o, &q, 60, "192.0.2.1");
	return true;
}

static inline void up_udp(struct loop *l, struct loop_source *s,
			  uint32_t events)
{
	struct upstream *u = s->arg;
	struct sockaddr_in peer;
	socklen_t plen = sizeof(peer);
	uint8_t msg[2048];
	struct up_out o;
	ssize_t n;

	(void)l, (void)events;
	n = recvfrom(u->udp, msg, sizeof(msg), MSG_DONTWAIT,
		     (struct sockaddr *)&peer, &plen);
	if (n < 0 || !up_answer(u, msg, (size_t)n, false, &o))
		return;
	if (!strncmp(u->last, "spoof", 5)) {
		o.data[1] ^= 0x55;
		o.data[o.len - 1] = 66;
		for (int i = 0; i < 3; i++)
			sendto(u->udp, o.data, o.len, 0,
			       (struct sockaddr *)&peer, plen);
		o.data[1] ^= 0x55;
		o.data[o.len - 1] = 1;
	}
	sendto(u->udp, o.data, o.len, 0, (struct sockaddr *)&peer, plen);
}

static inline void up_conn(struct loop *l, struct loop_source *s,
			   uint32_t events)
{
	struct upstream *u = s->arg;
	uint8_t msg[2048], head[2];
	struct up_out o;
	ssize_t n;

	(void)events;
	n = recv(s->fd, msg, sizeof(msg), 0);
	if (n > 2 && up_answer(u, msg + 2, (size_t)n - 2, true, &o)) {
		u->over_tcp++;
		head[0] = (uint8_t)(o.len >> 8);
		head[1] = (uint8_t)o.len;
		send(s->fd, head, 2, MSG_NOSIGNAL | MSG_MORE);
		send(s->fd, o.data, o.len, MSG_NOSIGNAL);
	}
	loop_del(l, s);
	fd_close(s->fd);
}

/* One connection at a time. */
static inline void up_tcp(struct loop *l, struct loop_source *s,
			  uint32_t events)
{
	struct upstream *u = s->arg;
	int fd;

	(void)events;
	fd = accept4(u->tcp, NULL, NULL, SOCK_CLOEXEC);
	loop_add(l, &u->conn_src, fd, EPOLLIN, up_conn, u, NULL);
}

static inline void upstream_start(struct upstream *u, struct loop *l)
{
	socklen_t len = sizeof(u->addr);

	memset(u, 0, sizeof(*u));
	u->loop = l;
	u->addr.sin_family = AF_INET;
	u->addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	/* The port that the one got may be taken for the other. */
	do {
		u->addr.sin_port = 0;
		u->udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		bind(u->udp, (struct sockaddr *)&u->addr, len);
		getsockname(u->udp, (struct sockaddr *)&u->addr, &len);
		u->tcp = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (bind(u->tcp, (struct sockaddr *)&u->addr, len) == 0)
			break;
		fd_close(u->udp);
		fd_close(u->tcp);
	} while (true);
	listen(u->tcp, 64);
	loop_add(l, &u->udp_src, u->udp, EPOLLIN, up_udp, u, NULL);
	loop_add(l, &u->tcp_src, u->tcp, EPOLLIN, up_tcp, u, NULL);
}

static inline void upstream_stop(struct upstream *u)
{
	loop_del(u->loop, &u->udp_src);
	loop_del(u->loop, &u->tcp_src);
	fd_close(u->udp);
	fd_close(u->tcp);
}

static inline void up_stop_loop(struct loop *l, struct loop_timer *t)
{
	(void)t;
	loop_stop(l, 0);
}

/* run_for(l, ms): the loop, until loop_stop() or so long. */
static inline void run_for(struct loop *l, unsigned ms)
{
	struct loop_timer t = {.fn = up_stop_loop};

	loop_timer_set(l, &t, clock_ms() + ms);
	loop_run(l, NULL);
	loop_timer_set(l, &t, 0);
}

#endif
