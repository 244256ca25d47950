/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include "../tap.h"
#include "net/forwarder.h"
#include "upstream.h"

static struct loop *loop;

/* A sandbox, its policy and what happened to it. */
struct box {
	struct forwarder *f;
	struct forwarder_port *port;
	struct fakename *names;
	int udp, tcp;
	struct sockaddr_in addr;
	bool deny_all;
	int learn;
	unsigned learned, denied;
	char name[DNS_NAME_MAX + 1], why[16];
};

static enum forwarder_verdict pol_name(void *arg, const char *name)
{
	const struct box *b = arg;
	size_t n = strlen(name);

	if (b->deny_all)
		return FORWARDER_DENY;
	if (!strcmp(name, "broker.internal"))
		return FORWARDER_OURS;
	if (n > 5 && !strcmp(name + n - 5, ".test"))
		return FORWARDER_EXACT;
	if (n > 5 && !strcmp(name + n - 5, ".wild"))
		return FORWARDER_WILD;
	return FORWARDER_DENY;
}

static bool pol_addr(void *arg, const char *name, sa_family_t family,
		     const void *addr)
{
	const uint8_t *p = addr;

	(void)arg, (void)name;
	return family == AF_INET6 || (p[0] != 127 && p[0] != 10);
}

static int pol_learn(void *arg, const char *name, const struct dns_addrs *a)
{
	struct box *b = arg;

	(void)name;
	b->learned += a->n;
	return b->learn;
}

static void pol_denied(void *arg, const char *name, const char *why)
{
	struct box *b = arg;

	b->denied++;
	strcpy(b->name, name);
	strcpy(b->why, why);
}

static const struct forwarder_ops ops = {pol_name, pol_addr, pol_learn,
					 pol_denied};

static struct forwarder *find(void *arg, const struct sockaddr *peer)
{
	struct box *b = arg;

	(void)peer;
	return b->f;
}

static int bound(int type, struct sockaddr_in *addr)
{
	socklen_t len = sizeof(*addr);
	int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);

	if (bind(fd, (struct sockaddr *)addr, len) < 0) {
		fd_close(fd);
		return -1;
	}
	getsockname(fd, (struct sockaddr *)addr, &len);
	return fd;
}

static void box_start(struct box *b, struct resolver *r, bool fake)
{
	struct forwarder_conf conf = {.loop = loop,
				      .resolver = r,
				      .ops = &ops,
				      .arg = b,
				      .fake = fake,
				      .v6 = !fake,
				      .per_s = 10000};

	memset(b, 0, sizeof(*b));
	do {
		b->addr = (struct sockaddr_in){.sin_family = AF_INET,
					       .sin_addr.s_addr = htonl(
						       INADDR_LOOPBACK)};
		if (b->udp > 0)
			fd_close(b->udp);
		b->udp = bound(SOCK_DGRAM, &b->addr);
		b->tcp = bound(SOCK_STREAM, &b->addr);
	} while (b->tcp < 0);
	listen(b->tcp, 32);
	if (fakename_new(-1, &b->names, NULL) < 0)
		abort();
	conf.names = b->names;
	if (forwarder_new(&conf, &b->f, NULL) < 0 ||
	    forwarder_port_new(loop, b->udp, b->tcp, find, b, &b->port, NULL) <
		    0)
		abort();
}

static void box_stop(struct box *b)
{
	forwarder_port_free(b->port);
	forwarder_free(b->f);
	fakename_free(b->names);
	fd_close(b->udp);
	fd_close(b->tcp);
}

/* What the client in the sandbox got. */
struct got {
	uint8_t msg[2048];
	ssize_t len;
	struct dns_answer a;
	int ede; /* -1: none */
};

static void on_client(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct got *g = s->arg;

	(void)l, (void)events;
	g->len = recv(s->fd, g->msg, sizeof(g->msg), MSG_DONTWAIT);
	loop_stop(loop, 0);
}

/* The code of an extended error; our messages have it at the end. */
static int ede_of(const struct got *g, size_t question)
{
	size_t at = 12 + question + 16u * g->a.addrs.n;

	if (at + 17 > (size_t)g->len || g->msg[at + 12] != 15)
		return -1;
	return g->msg[at + 15] << 8 | g->msg[at + 16];
}

/* Ask with a datagram; the rcode, or -ETIMEDOUT. */
static int ask(struct box *b, const char *name, uint16_t type, struct got *g)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct loop_source s = {0};
	uint8_t msg[DNS_QUERY_MAX];
	struct dns_query q;
	size_t n;

	memset(g, 0, sizeof(*g));
	g->len = -1;
	n = dns_ask_build(4711, name, type, msg);
	dns_query_parse(msg, n, &q);
	connect(fd, (struct sockaddr *)&b->addr, sizeof(b->addr));
	loop_add(loop, &s, fd, EPOLLIN, on_client, g, NULL);
	send(fd, msg, n, 0);
	run_for(loop, 3000);
	loop_del(loop, &s);
	fd_close(fd);
	if (g->len < 0)
		return -ETIMEDOUT;
	if (dns_answer_parse(g->msg, (size_t)g->len, 4711, name, type, &g->a) <
	    0)
		return -EBADMSG;
	g->ede = ede_of(g, q.question_len);
	return (int)g->a.rcode;
}

static void test_denied(struct upstream *u, struct resolver *r)
{
	struct box b;
	struct got g;

	box_start(&b, r, true);
	u->queries = 0;
	is_int(ask(&b, "secret.evil", DNS_A, &g), DNS_NXDOMAIN, "not allowed");
	is_int(g.ede, DNS_EDE_BLOCKED, "EDE 15");
	is_str(b.name, "secret.evil", "the attempt is told");
	is_str(b.why, "name", "and why");
	is_int(ask(&b, "secret.evil", 16, &g), DNS_NXDOMAIN, "TXT of it");
	is_int(ask(&b, "a.wild", DNS_ANY, &g), DNS_REFUSED, "ANY");
	is_int(ask(&b, "a.wild", 252, &g), DNS_REFUSED, "a transfer");
	is_int(ask(&b, "a.wild", DNS_HTTPS, &g), DNS_NOERROR, "HTTPS");
	is_int(g.a.addrs.n, 0, "has no data");
	is_int(ask(&b, "a.wild", DNS_AAAA, &g), DNS_NOERROR, "AAAA");
	is_int(g.a.addrs.n, 0, "has no data");
	is_int(ask(&b, "x.localhost", DNS_A, &g), DNS_NOERROR, "localhost");
	is_int(ntohl(g.a.addrs.v4[0].s_addr), INADDR_LOOPBACK, "is 127.0.0.1");
	b.denied = 0;
	is_int(ask(&b, "1.0.18.198.in-addr.arpa", DNS_PTR, &g), DNS_NXDOMAIN,
	       "a reverse name");
	is_int(b.denied, 0, "is no attempt");
	is_int(u->queries, 0, "nothing of it went upstream");
	box_stop(&b);
}

static void test_fake(struct upstream *u, struct resolver *r)
{
	struct in_addr first;
	struct box b;
	struct got g;

	box_start(&b, r, true);
	is_int(ask(&b, "fa.test", DNS_A, &g), DNS_NOERROR, "an allowed name");
	is_int(g.a.addrs.n, 1, "one address");
	first = g.a.addrs.v4[0];
	ok(ntohl(first.s_addr) >> 17 == FAKENAME_NET >> 17, "a fake one");
	is_str(fakename_name(b.names, first), "fa.test", "stands for it");
	is_int(g.a.addrs.ttl, FORWARDER_FAKE_TTL, "its TTL");
	is_int(ask(&b, "fa.test", DNS_A, &g), DNS_NOERROR, "again");
	is_int(g.a.addrs.v4[0].s_addr, first.s_addr, "the same");
	is_int(ask(&b, "nx.test", DNS_A, &g), DNS_NXDOMAIN, "no such name");
	is_int(g.ede, -1, "and nothing of a policy");
	is_int(ask(&b, "none.test", DNS_A, &g), DNS_NOERROR, "no address");
	is_int(g.a.addrs.n, 0, "none");
	is_int(ask(&b, "six.test", DNS_A, &g), DNS_NOERROR, "one of v6");
	is_int(g.a.addrs.n, 1, "has a fake one as well");
	is_int(ask(&b, "priv.test", DNS_A, &g), DNS_NOERROR, "127.0.0.1");
	is_int(g.a.addrs.n, 0, "is not told");
	is_int(g.ede, DNS_EDE_BLOCKED, "but why");
	is_str(b.why, "private", "here too");
	is_int(ask(&b, "drop.test", DNS_A, &g), DNS_SERVFAIL, "nobody answers");
	is_int(g.ede, DNS_EDE_NO_REACHABLE, "is told");
	u->queries = 0;
	is_int(ask(&b, "broker.internal", DNS_A, &g), DNS_NOERROR, "a broker");
	is_int(g.a.addrs.n, 1, "has an address");
	is_int(u->queries, 0, "that nobody was asked for");
	box_stop(&b);
}

static void test_routed(struct resolver *r)
{
	struct box b;
	struct got g;

	box_start(&b, r, false);
	is_int(ask(&b, "ra.test", DNS_A, &g), DNS_NOERROR, "a name");
	is_int(ntohl(g.a.addrs.v4[0].s_addr), 0xc0000201, "its own address");
	is_int(b.learned, 1, "which is let through first");
	is_int(ask(&b, "ra.test", DNS_AAAA, &g), DNS_NOERROR, "AAAA");
	is_int(g.a.addrs.n, 1, "is answered");
	is_int(ask(&b, "mixed.test", DNS_A, &g), DNS_NOERROR, "one is private");
	is_int(g.a.addrs.n, 1, "the other is told");
	is_int(ntohl(g.a.addrs.v4[0].s_addr), 0xc0000201, "alone");
	is_int(ask(&b, "chain.test", DNS_A, &g), DNS_NOERROR, "a chain");
	is_int(g.a.addrs.n, 1, "its end stands at its beginning");
	is_int(ask(&b, "tc.test", DNS_A, &g), DNS_NOERROR, "many");
	is_int(g.a.addrs.n, 32, "32 fit");
	b.learn = -1;
	is_int(ask(&b, "ra.test", DNS_A, &g), DNS_SERVFAIL,
	       "what cannot be let through is not told");
	box_stop(&b);
}

/* The policy changes while a question is out. */
static void test_change(struct resolver *r)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct loop_source s = {0};
	uint8_t msg[DNS_QUERY_MAX];
	struct box b;
	struct got g = {.len = -1};
	size_t n;

	box_start(&b, r, false);
	n = dns_ask_build(4711, "change.test", DNS_A, msg);
	connect(fd, (struct sockaddr *)&b.addr, sizeof(b.addr));
	send(fd, msg, n, 0);
	/* A round for the query, none yet for the answer. */
	run_for(loop, 0);
	b.deny_all = true;
	loop_add(loop, &s, fd, EPOLLIN, on_client, &g, NULL);
	run_for(loop, 3000);
	loop_del(loop, &s);
	ok(g.len > 3, "an answer");
	is_int(g.msg[3] & 15, DNS_NXDOMAIN, "of the new policy");
	is_int(b.learned, 0, "nothing was let through");

	/* And one that goes away with a question out. */
	b.deny_all = false;
	n = dns_ask_build(4711, "drop.test", DNS_A, msg);
	send(fd, msg, n, 0);
	run_for(loop, 20);
	box_stop(&b);
	fd_close(fd);
}

/* Data that leaves in names (field report 73). */
static void test_budget(struct upstream *u, struct resolver *r)
{
	struct forwarder_stats st;
	char name[128];
	struct box b;
	struct got g;
	unsigned asked = 0;

	box_start(&b, r, false);
	/* What others asked is over. */
	run_for(loop, 700);
	u->queries = 0;
	for (int i = 0; i < 200; i++) {
		snprintf(name, sizeof(name),
			 "%04d-secret-secret-secret-secret-x.wild", i);
		if (ask(&b, name, DNS_A, &g) == DNS_NOERROR)
			asked++;
	}
	is_int(asked, FAKENAME_BUDGET / FAKENAME_LONG_COST, "long names");
	is_int(u->queries, asked, "no more of them leave");
	is_int(g.a.rcode, DNS_SERVFAIL, "the next one fails");
	is_str(b.why, "limit", "for that reason");
	is_int(ask(&b, "budget.test", DNS_A, &g), DNS_NOERROR,
	       "a name in full is free");
	forwarder_rate(b.f, 5);
	usleep(1100 * 1000);
	asked = 0;
	for (int i = 0; i < 8; i++)
		if (ask(&b, "budget.test", DNS_A, &g) == DNS_NOERROR)
			asked++;
	is_int(asked, 5, "so many a second");
	is_int(g.a.rcode, DNS_SERVFAIL, "the others fail");
	is_str(b.why, "dns_rate", "for that reason");
	forwarder_stats(b.f, &st);
	is_int((long long)st.limited, 200 - 128 + 3, "they are counted");
	box_stop(&b);
}

/* Sandboxes that ask for what nobody answers, as many as they can. */
static void test_share(struct resolver *r)
{
	static struct box b[40];
	uint8_t msg[DNS_QUERY_MAX];
	struct resolver_stats st;
	char name[32];
	struct got g;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	for (unsigned i = 0; i < array_len(b); i++) {
		box_start(&b[i], r, true);
		for (unsigned k = 0; k < FORWARDER_PENDING; k++) {
			snprintf(name, sizeof(name), "drop.%u.%u.test", i, k);
			sendto(fd, msg, dns_ask_build(1, name, DNS_A, msg), 0,
			       (struct sockaddr *)&b[i].addr,
			       sizeof(b[i].addr));
		}
	}
	run_for(loop, 1);
	is_int(ask(&b[39], "left.test", DNS_A, &g), DNS_SERVFAIL,
	       "who has too many out is told");
	is_str(b[39].why, "limit", "why");
	box_stop(&b[39]);
	box_start(&b[39], r, true);
	is_int(ask(&b[39], "left.test", DNS_A, &g), DNS_NOERROR,
	       "something is left for another");
	resolver_stats(r, &st);
	ok(st.flight > RESOLVER_FLIGHT / 2, "while %zu are out", st.flight);
	for (unsigned i = 0; i < array_len(b); i++)
		box_stop(&b[i]);
	resolver_stats(r, &st);
	is_int((long long)st.flight, 0, "with them go their questions");
	fd_close(fd);
}

/* --- over TCP ------------------------------------------------------------ */

static int tcp_open(struct box *b)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;

	connect(fd, (struct sockaddr *)&b->addr, sizeof(b->addr));
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	fcntl(fd, F_SETFL, O_NONBLOCK);
	return fd;
}

static size_t tcp_query(uint8_t *out, uint16_t id, const char *name)
{
	size_t n = dns_ask_build(id, name, DNS_A, out + 2);

	out[0] = (uint8_t)(n >> 8);
	out[1] = (uint8_t)n;
	return n + 2;
}

/* Answers that arrive until there are ${want}, or the end (-1). */
static int tcp_answers(int fd, int want)
{
	uint8_t in[16384];
	size_t len = 0, at;
	ssize_t n;
	int got = 0;

	for (int i = 0; i < 400; i++) {
		n = recv(fd, in + len, sizeof(in) - len, 0);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			return -1;
		if (n > 0)
			len += (size_t)n;
		got = 0;
		for (at = 0; at + 2 <= len; got++) {
			size_t m = (size_t)in[at] << 8 | in[at + 1];

			if (at + 2 + m > len)
				break;
			at += 2 + m;
		}
		if (got >= want)
			break;
		run_for(loop, 10);
	}
	return got;
}

static void test_tcp(struct resolver *r)
{
	int fd, fds[FORWARDER_CONNS + 1];
	uint8_t out[4096], b2[2] = {0xff, 0xff};
	size_t len = 0;
	struct box b;

	box_start(&b, r, true);
	fd = tcp_open(&b);
	len = tcp_query(out, 1, "fa.test");
	for (size_t i = 0; i < len; i++) {
		send(fd, out + i, 1, MSG_NOSIGNAL);
		run_for(loop, 1);
	}
	is_int(tcp_answers(fd, 1), 1, "a query byte by byte");
	len = 0;
	for (uint16_t i = 0; i < 20; i++) {
		char name[32];

		snprintf(name, sizeof(name), "pipe%u.test", i);
		len += tcp_query(out + len, i, name);
	}
	send(fd, out, len, MSG_NOSIGNAL);
	shutdown(fd, SHUT_WR);
	is_int(tcp_answers(fd, 20), 20, "20 at once, and half closed");
	is_int(tcp_answers(fd, 1), -1, "then it is closed");
	fd_close(fd);

	fd = tcp_open(&b);
	send(fd, b2, 2, MSG_NOSIGNAL);
	is_int(tcp_answers(fd, 1), -1, "a query of 64 KiB closes it");
	fd_close(fd);

	/* Gone with a question out. */
	fd = tcp_open(&b);
	len = tcp_query(out, 1, "drop.test");
	send(fd, out, len, MSG_NOSIGNAL);
	run_for(loop, 20);
	fd_close(fd);
	run_for(loop, 20);

	for (int i = 0; i <= FORWARDER_CONNS; i++)
		fds[i] = tcp_open(&b);
	run_for(loop, 50);
	is_int(tcp_answers(fds[FORWARDER_CONNS], 1), -1, "one too many");
	len = tcp_query(out, 1, "fa.test");
	send(fds[0], out, len, MSG_NOSIGNAL);
	is_int(tcp_answers(fds[0], 1), 1, "the others are served");
	for (int i = 0; i <= FORWARDER_CONNS; i++)
		fd_close(fds[i]);
	box_stop(&b);
}

int main(void)
{
	struct resolver_conf conf = {.try_ms = 100,
				     .deadline_ms = 600,
				     .nservers = 1};
	struct resolver *r;
	struct upstream u;

	if (loop_new(&loop, NULL) < 0)
		return 1;
	upstream_start(&u, loop);
	memcpy(&conf.servers[0], &u.addr, sizeof(u.addr));
	if (resolver_new(loop, &conf, &r, NULL) < 0)
		return 1;
	test_denied(&u, r);
	test_fake(&u, r);
	test_routed(r);
	test_change(r);
	test_budget(&u, r);
	test_share(r);
	test_tcp(r);
	resolver_free(r);
	upstream_stop(&u);
	loop_free(loop);
	return tap_done();
}
