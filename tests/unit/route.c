/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of routed sandboxes: what they are made of, flows, changes. */
#include "netlab.h"

#define ALLOW_5432                                                             \
	"{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":[5432]},"           \
	"{\"cidr\":\"198.51.100.10\",\"proto\":\"udp\",\"ports\":[5432]}]}"
/* Another policy that still allows it. */
#define ALLOW_MORE                                                             \
	"{\"allow\":[{\"cidr\":\"198.51.100.0/24\",\"ports\":[\"5000-6000\","  \
	"22]},{\"cidr\":\"198.51.100.10\",\"proto\":\"udp\",\"ports\":[5432]}]}"

static char why[64];
static unsigned logged;

static void note(void *arg, const struct route_denied *d)
{
	(void)arg;
	snprintf(why, sizeof(why), "%u %s %u.%u.%u.%u:%u", d->slot, d->why,
		 d->dst.b[0], d->dst.b[1], d->dst.b[2], d->dst.b[3], d->dport);
	logged++;
}

static const char *last_log(struct lab *l)
{
	strcpy(why, "nothing");
	if (lab_wait(l->socks.log, POLLIN, 2000))
		(void)route_log(l->r, note, NULL, NULL);
	return why;
}

static bool gets(int fd, const char *text)
{
	char buf[64] = "";

	return lab_wait(fd, POLLIN, 6000) &&
	       recv(fd, buf, sizeof(buf) - 1, 0) == (ssize_t)strlen(text) &&
	       strcmp(buf, text) == 0;
}

/* What becomes of a connection that waits: its error, 0 none in 5 s. */
static int fails(int fd)
{
	char c;

	if (!lab_wait(fd, POLLIN, 5000))
		return 0;
	return recv(fd, &c, 1, 0) < 0 ? errno : -1;
}

struct flow {
	int server, client, peer;
};

static struct flow tcp(struct lab *l, const char *addr, unsigned port)
{
	struct flow f = {.client = -1, .peer = -1};

	f.server = lab_server(l, SOCK_STREAM, addr, port);
	if (lab_connect(l->a, addr, port, &f.client) == 0)
		f.peer = lab_accept(f.server);
	ok(f.peer >= 0, "a connection to port %u", port);
	return f;
}

static void flow_done(struct flow *f)
{
	if (f->peer >= 0)
		fd_close(f->peer);
	if (f->client >= 0)
		fd_close(f->client);
	fd_close(f->server);
}

static bool both_ways(const struct flow *f)
{
	return send(f->client, "up", 2, MSG_NOSIGNAL) == 2 &&
	       gets(f->peer, "up") &&
	       send(f->peer, "down", 4, MSG_NOSIGNAL) == 4 &&
	       gets(f->client, "down");
}

static void basics(struct lab *l)
{
	struct flow f;
	uint64_t n;

	n = lab_denied(l, LAB_A);
	is_int(n, (long long)UINT64_MAX, "unknown to the rules");
	is_int(lab_connect(l->a, "198.51.100.10", 5432, NULL), ETIMEDOUT,
	       "and so without any answer");
	is_int(lab_put(l, LAB_A, "{}"), 1, "deny all");
	is_int(lab_put(l, LAB_A, "{}"), 0, "again: nothing to do");
	is_int(lab_connect(l->a, "198.51.100.10", 5432, NULL), ECONNREFUSED,
	       "refused at once");
	is_str(last_log(l), "7 policy 198.51.100.10:5432", "told");
	is_int(lab_put(l, LAB_A, ALLOW_5432), 1, "allow one port");
	f = tcp(l, "198.51.100.10", 5432);
	ok(both_ways(&f), "data flows");
	is_int(lab_connect(l->a, "198.51.100.10", 5433, NULL), ECONNREFUSED,
	       "other port");
	is_int(lab_connect(l->a, "198.51.100.11", 5432, NULL), ECONNREFUSED,
	       "other address");
	flow_done(&f);
}

static void epochs(struct lab *l)
{
	struct flow f;
	int quiet;

	lab_put(l, LAB_A, ALLOW_5432);
	f = tcp(l, "198.51.100.10", 5432);
	is_int(lab_put(l, LAB_A, ALLOW_MORE), 1, "another epoch");
	ok(send(f.peer, "first", 5, MSG_NOSIGNAL) == 5 &&
		   gets(f.client, "first"),
	   "a flow still allowed goes on, its peer speaking first");
	ok(both_ways(&f), "and both ways");
	poll(NULL, 0, 100); /* nothing of it is waiting to be acknowledged */
	quiet = f.client;
	is_int(lab_put(l, LAB_A, "{}"), 1, "tighten");
	ok(send(f.peer, "late", 4, MSG_NOSIGNAL) == 4, "the peer goes on");
	is_int(fails(f.peer), ECONNRESET, "and is reset");
	is_int(send(quiet, "more", 4, MSG_NOSIGNAL), 4, "the sandbox too");
	is_int(fails(quiet), ECONNRESET, "is reset, and got nothing");
	flow_done(&f);

	lab_put(l, LAB_A, ALLOW_5432);
	f = tcp(l, "198.51.100.10", 5432);
	lab_put(l, LAB_A, ALLOW_MORE);
	is_int(transit_poke(l->transit, l->a, NULL), 1, "one to poke");
	ok(both_ways(&f), "which does not hurt what is allowed");
	lab_put(l, LAB_A, "{}");
	poll(NULL, 0, 600); /* answered at most twice a second */
	is_int(transit_poke(l->transit, l->a, NULL), 1, "poked again");
	is_int(fails(f.client), ECONNRESET,
	       "one that only waits is reset without anybody speaking");
	flow_done(&f);
}

static void datagrams(struct lab *l)
{
	const struct sockaddr_in to = lab_to("198.51.100.10", 5432);
	struct sockaddr_in from;
	socklen_t len = sizeof(from);
	int srv = lab_server(l, SOCK_DGRAM, "198.51.100.10", 5432);
	int cli = netns_socket(l->a, AF_INET, SOCK_DGRAM, 0, NULL);
	char buf[8];

	lab_put(l, LAB_A, ALLOW_5432);
	ok(!connect(cli, (const void *)&to, sizeof(to)) &&
		   send(cli, "hi", 2, 0) == 2 && lab_wait(srv, POLLIN, 2000) &&
		   recvfrom(srv, buf, sizeof(buf), 0, (void *)&from, &len) == 2,
	   "a datagram");
	ok(sendto(srv, "yo", 2, 0, (void *)&from, len) == 2 && gets(cli, "yo"),
	   "its answer");
	lab_put(l, LAB_A, "{}");
	ok(sendto(srv, "no", 2, 0, (void *)&from, len) == 2 &&
		   send(cli, "hi", 2, 0) == 2,
	   "both go on after the change");
	is_int(fails(cli), EHOSTUNREACH, "refused, and no byte passed");
	ok(!lab_wait(srv, POLLIN, 100), "nothing arrived");
	fd_close(srv);
	fd_close(cli);
}

static int learn(struct lab *l, const char *name, const char *addr, uint16_t lo,
		 uint16_t hi, unsigned s)
{
	struct route_learned d = {.proto = NETPOL_TCP, .lo = lo, .hi = hi};
	struct err e = {0};
	int r;

	lab_bytes(addr, d.addr.b);
	lab_helper(true);
	r = route_learn(l->r, LAB_A, name, &d, 1, s, &e);
	lab_helper(false);
	if (r < 0)
		printf("# learn: %s\n", e.msg);
	return r;
}

static void redirects(struct lab *l)
{
	int peer, fd = -1;

	lab_put(l, LAB_A,
		"{\"allow\":[{\"domain\":\"a.test\"},{\"cidr\":"
		"\"198.51.100.11\",\"ports\":[443]}]}");
	is_int(lab_connect(l->a, "192.0.2.1", 53, &fd), 0,
	       "any resolver is ours");
	peer = lab_accept(l->socks.dns_tcp);
	ok(peer >= 0, "and answers");
	fd_close(peer);
	fd_close(fd);
	is_int(lab_connect(l->a, "198.51.100.10", 443, NULL), ECONNREFUSED,
	       "443 of an address that no name led to");
	is_int(learn(l, "a.test", "198.51.100.10", 443, 443, 60), 1, "a name");
	is_int(lab_connect(l->a, "198.51.100.10", 443, &fd), 0, "443");
	peer = lab_accept(l->socks.sni);
	ok(peer >= 0, "asked for its name");
	fd_close(peer);
	fd_close(fd);
	peer = lab_server(l, SOCK_STREAM, "198.51.100.11", 443);
	is_int(lab_connect(l->a, "198.51.100.11", 443, NULL), 0,
	       "one allowed by address is not");
	fd_close(peer);
	is_int(lab_connect(l->a, "198.18.0.1", 443, NULL), ECONNREFUSED,
	       "the proxy has no address of its own");
	is_int(lab_connect(l->a, "198.18.0.1", 80, NULL), ECONNREFUSED,
	       "no broker without a rule");
	is_int(lab_connect(l->a, "198.18.0.1", 22, NULL), ECONNREFUSED,
	       "no other port of the gateway");
	lab_put(l, LAB_A, "{\"broker\":[\"x\"]}");
	is_int(lab_connect(l->a, "198.18.0.1", 80, &fd), 0, "broker");
	fd_close(fd);
	is_int(lab_connect(l->a, "198.18.0.1", 443, NULL), ECONNREFUSED,
	       "no proxy of names without names");
}

static bool keep_a(void *arg, const struct route_learned *d, const char *name)
{
	(void)arg;
	return name && !strcmp(name, "a.test") && d->lo == 22;
}

/* Questions with a port each: some are refused, and what is left is used. */
static void questions(struct lab *l)
{
	const struct sockaddr_in to = lab_to("198.18.0.1", 53);
	const uint64_t began = clock_ms();
	int fd[200], n = 0, may;

	lab_put(l, LAB_A,
		"{\"allow\":[{\"domain\":\"a.test\"}],\"limits\":"
		"{\"dns_per_s\":10}}");
	for (size_t i = 0; i < array_len(fd); i++) {
		fd[i] = netns_socket(l->a, AF_INET, SOCK_DGRAM, 0, NULL);
		if (connect(fd[i], (const void *)&to, sizeof(to)) < 0 ||
		    send(fd[i], "x", 1, 0) != 1)
			abort();
	}
	may = 45 + (int)(clock_ms() - began) / 50;
	for (size_t i = 0; i < array_len(fd); i++) {
		n += lab_wait(fd[i], POLLERR, 20);
		fd_close(fd[i]);
	}
	ok(n >= 200 - may && n <= 160,
	   "%d of 200 questions at once are refused, %d at least", n,
	   200 - may);
}

/* All from one port, which has had an answer: they share a socket with those
 * of all sandboxes. */
static void questions_of_one_port(struct lab *l)
{
	const struct sockaddr_in to = lab_to("198.18.0.1", 53);
	struct sockaddr_in from = {0};
	socklen_t len = sizeof(from);
	const uint64_t began = clock_ms();
	const int udp = l->socks.dns_udp;
	int fd = netns_socket(l->a, AF_INET, SOCK_DGRAM, 0, NULL), n = 0, may;
	char c;

	lab_put(l, LAB_A,
		"{\"allow\":[{\"domain\":\"a.test\"}],\"limits\":"
		"{\"dns_per_s\":5}}");
	while (recv(udp, &c, 1, MSG_DONTWAIT) >= 0)
		;
	ok(!connect(fd, (const void *)&to, sizeof(to)) &&
		   send(fd, "q", 1, 0) == 1 && lab_wait(udp, POLLIN, 2000) &&
		   recvfrom(udp, &c, 1, 0, (void *)&from, &len) == 1 &&
		   sendto(udp, "a", 1, 0, (void *)&from, len) == 1 &&
		   gets(fd, "a"),
	   "a question is answered");
	for (int i = 0; i < 200; i++)
		(void)send(fd, "q", 1, 0);
	may = 20 + (int)(clock_ms() - began) / 100;
	while (lab_wait(udp, POLLIN, 50) && recv(udp, &c, 1, MSG_DONTWAIT) >= 0)
		n++;
	ok(n > 0 && n <= may, "%d of 200 more arrive, %d at most", n, may);
	fd_close(fd);
}

/* A number of the transit namespace's connection tracking. */
static int tracking(struct lab *l, const char *name)
{
	auto_netns int back = -1;
	auto_free char *text = NULL;
	char path[100];
	size_t len;

	snprintf(path, sizeof(path), "/proc/sys/net/netfilter/nf_conntrack_%s",
		 name);
	if (netns_enter(l->transit, &back, NULL) < 0 ||
	    fd_read_file(AT_FDCWD, path, 64, &text, &len, NULL) < 0)
		abort();
	return atoi(text);
}

/* A question from each of the ports from ${at} on, below ${end}. */
static void ask_from(struct lab *l, unsigned at, unsigned end)
{
	const struct sockaddr_in to = lab_to("198.18.0.1", 53);
	struct sockaddr_in from = lab_to("0.0.0.0", 0);
	auto_netns int back = -1;
	int fd;

	if (netns_enter(l->a, &back, NULL) < 0)
		abort();
	for (; at < end; at++) {
		fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		from.sin_port = htons((uint16_t)at);
		if (bind(fd, (void *)&from, sizeof(from)) < 0)
			abort();
		(void)sendto(fd, "q", 1, 0, (const void *)&to, sizeof(to));
		fd_close(fd);
	}
}

/* However many a second it may ask, from however many ports. */
static void questions_remembered(struct lab *l)
{
	const int before = tracking(l, "count");
	int most = 0, now;

	is_int(tracking(l, "tcp_timeout_time_wait"), 10,
	       "a connection that has ended is not remembered for long");

	lab_put(l, LAB_A,
		"{\"allow\":[{\"domain\":\"a.test\"}],\"limits\":"
		"{\"dns_per_s\":100000}}");
	for (unsigned at = 1024; at < 30000; at += 100) {
		ask_from(l, at, at + 100);
		now = tracking(l, "count") - before;
		most = now > most ? now : most;
	}
	ok(most > 3400 && most <= 8192 + 8,
	   "of 29,000 questions at once %d are remembered", most);
	ok(strstr(last_log(l), "connections"), "the others are told (%s)", why);
}

static void names(struct lab *l)
{
	struct route_stats s;
	struct flow f;

	lab_put(l, LAB_A,
		"{\"allow\":[{\"domain\":\"*.test\",\"ports\":\"all\"}]}");
	is_int(lab_connect(l->a, "198.51.100.10", 22, NULL), ECONNREFUSED,
	       "an address is nothing without its name");
	is_int(learn(l, "a.test", "198.51.100.10", 22, 22, 60), 1, "resolved");
	f = tcp(l, "198.51.100.10", 22);
	is_int(lab_connect(l->a, "198.51.100.10", 23, NULL), ECONNREFUSED,
	       "for that port alone");
	is_int(learn(l, "b.test", "198.51.100.10", 22, 22, 600), 0,
	       "again, for longer");
	is_int(learn(l, "b.test", "198.51.100.10", 8000, 9000, 60), 1,
	       "a range");
	is_int(learn(l, "b.test", "198.51.100.10", 8500, 9500, 60), 0 + 1,
	       "one that overlaps");
	is_int(lab_connect(l->a, "198.51.100.10", 9400, NULL), ECONNREFUSED,
	       "allowed, but nobody listens");
	lab_helper(true);
	is_int(route_stats(l->r, LAB_A, &s, NULL), 0, "counters");
	lab_helper(false);
	is_int(s.learned, 2, "two destinations");
	ok(s.tx_packets > 0 && s.rx_packets > 0, "packets are counted");
	is_int(lab_put_keep(l, LAB_A,
			    "{\"allow\":[{\"domain\":\"a.test\",\"ports\":"
			    "[22]}]}",
			    keep_a, NULL),
	       1, "another policy");
	ok(both_ways(&f), "what it allows goes on");
	is_int(lab_connect(l->a, "198.51.100.10", 9400, NULL), ECONNREFUSED,
	       "the range is refused");
	ok(strstr(last_log(l), "policy"), "by the policy");
	flow_done(&f);
	is_int(lab_put(l, LAB_A, "{}"), 1, "nothing is kept");
	is_int(lab_connect(l->a, "198.51.100.10", 22, NULL), ECONNREFUSED,
	       "gone");
}

static void expiry(struct lab *l)
{
	struct flow f;

	lab_put(l, LAB_A,
		"{\"allow\":[{\"domain\":\"a.test\",\"ports\":"
		"[22]}]}");
	is_int(learn(l, "a.test", "198.51.100.10", 22, 22, 3), 1, "for 3 s");
	f = tcp(l, "198.51.100.10", 22);
	poll(NULL, 0, 3300);
	is_int(lab_connect(l->a, "198.51.100.10", 22, NULL), ECONNREFUSED,
	       "no new connection after it");
	ok(both_ways(&f), "one that exists goes on");
	is_int(learn(l, "a.test", "198.51.100.10", 22, 22, 60), 0 + 0,
	       "resolved again");
	is_int(lab_connect(l->a, "198.51.100.10", 22, NULL), 0, "works again");
	flow_done(&f);
}

static void bounded(struct lab *l)
{
	struct route_learned d[64];
	struct err e = {0};
	int r = 0, n = 0;

	for (int i = 0; r >= 0 && i < ROUTE_LEARN_MAX / 64 + 1; i++) {
		for (int k = 0; k < 64; k++) {
			d[k] = (struct route_learned){.proto = NETPOL_TCP,
						      .lo = 22,
						      .hi = 22};
			d[k].addr = netaddr_v4(
				htonl(0xc0000200u + (uint32_t)(i * 64 + k)));
		}
		lab_helper(true);
		r = route_learn(l->r, LAB_A, "a.test", d, 64, 60, &e);
		lab_helper(false);
		n += r > 0 ? r : 0;
	}
	is_int(r, -EDQUOT, "there is an end of it");
	ok(n <= ROUTE_LEARN_MAX && n > ROUTE_LEARN_MAX - 65, "at %d", n);
	is_int(lab_put(l, LAB_A, "{}"), 1, "all gone at once");
}

static void limits(struct lab *l)
{
	int srv = lab_server(l, SOCK_STREAM, "198.51.100.10", 5432);
	struct route_stats s;
	int fd[8], got = 0, r = 0, total = 0, peer, ms;
	uint64_t began;
	char block[65536];

	memset(fd, -1, sizeof(fd));
	memset(block, 0, sizeof(block));
	lab_put(l, LAB_A,
		"{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":[5432]}],"
		"\"limits\":{\"connections\":3}}");
	for (int i = 0; i < 8; i++)
		got += lab_connect(l->a, "198.51.100.10", 5432, &fd[i]) == 0;
	is_int(got, 3, "connections at a time");
	ok(strstr(last_log(l), "connections"), "told (%s)", why);
	for (int i = 0; i < 8; i++)
		if (fd[i] >= 0)
			fd_close(fd[i]);
	lab_put(l, LAB_A,
		"{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":[5432]}],"
		"\"limits\":{\"connections_per_s\":2}}");
	began = clock_ms();
	for (got = 0; total < 30; total++)
		got += lab_connect(l->a, "198.51.100.10", 5432, NULL) == 0;
	ms = (int)(clock_ms() - began);
	ok(got >= 4 && got <= 5 + 2 * ms / 1000,
	   "connections a second (%d of 30 in %d ms)", got, ms);
	lab_put(l, LAB_A,
		"{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":[5432]}],"
		"\"limits\":{\"bytes_mb\":1}}");
	while ((peer = accept4(srv, NULL, NULL, SOCK_CLOEXEC)) >= 0)
		fd_close(peer);
	is_int(lab_connect(l->a, "198.51.100.10", 5432, &fd[0]), 0, "quota");
	peer = lab_accept(srv);
	for (total = 0; total < 400;) {
		r = (int)send(fd[0], block, sizeof(block), MSG_NOSIGNAL);
		if (r < 0 && errno != EAGAIN)
			break;
		if (r < 0 && !lab_wait(fd[0], POLLOUT, 2000))
			break;
		while (recv(peer, block, sizeof(block), 0) > 0)
			;
		total++;
	}
	ok(r < 0 && errno == ECONNRESET, "used up");
	lab_helper(true);
	is_int(route_stats(l->r, LAB_A, &s, NULL), 0, "counters");
	ok(s.over_quota && s.tx_bytes + s.rx_bytes < 2 << 20,
	   "and known to be (%llu + %llu)", (unsigned long long)s.tx_bytes,
	   (unsigned long long)s.rx_bytes);
	lab_helper(false);
	fd_close(fd[0]);
	fd_close(peer);
	fd_close(srv);
}

/* A worker dies; its successor has the table, and no flow has noticed. */
static void taken_over(struct lab *l)
{
	struct flow f;

	lab_put(l, LAB_A, ALLOW_5432);
	lab_put(l, LAB_B, ALLOW_MORE);
	f = tcp(l, "198.51.100.10", 5432);
	lab_put(l, LAB_A,
		"{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":[5432]},"
		"{\"domain\":\"a.test\",\"ports\":[22]}]}");
	learn(l, "a.test", "198.51.100.10", 22, 22, 60);
	route_free(l->r);
	l->r = NULL;
	ok(both_ways(&f), "without a worker");
	is_int(lab_open(l), 0, "taken over");
	is_int(lab_put(l, LAB_A,
		       "{\"allow\":[{\"cidr\":\"198.51.100.10\",\"ports\":"
		       "[5432]},{\"domain\":\"a.test\",\"ports\":[22]}]}"),
	       0, "replayed: nothing to do");
	is_int(lab_put(l, LAB_B, ALLOW_MORE), 0, "nor for the other");
	ok(both_ways(&f), "flows as before");
	is_int(lab_put_keep(l, LAB_A,
			    "{\"allow\":[{\"domain\":\"a.test\",\"ports\":"
			    "[22]}]}",
			    keep_a, NULL),
	       1, "a change");
	is_int(lab_connect(l->a, "198.51.100.10", 22, NULL), ECONNREFUSED,
	       "what was learned before is known by name still");
	strcpy(why, "");
	is_int(lab_wait(l->socks.log, POLLIN, 0) &&
		       route_log(l->r, note, NULL, NULL) > 0 &&
		       strstr(why, ":22"),
	       0, "and was not refused");
	flow_done(&f);
	lab_helper(true);
	is_int(route_sweep(l->r, (uint32_t[]){LAB_A}, 1, NULL), 1, "sweep");
	is_int(route_sweep(l->r, (uint32_t[]){LAB_A}, 1, NULL), 0, "once");
	is_int(route_del(l->r, LAB_A, NULL), 0, "remove");
	is_int(route_del(l->r, LAB_A, NULL), 0, "remove again");
	lab_helper(false);
	is_int(lab_connect(l->a, "198.51.100.10", 22, NULL), ETIMEDOUT,
	       "the rules do not know it any more");
}

/* A batch that the kernel refuses changes nothing. */
static void refused(struct lab *l)
{
	struct flow f;
	int socket = l->socks.nft, bad;

	lab_put(l, LAB_A, ALLOW_5432);
	f = tcp(l, "198.51.100.10", 5432);
	bad = open("/dev/null", O_RDWR | O_CLOEXEC);
	dup3(bad, socket, O_CLOEXEC);
	fd_close(bad);
	ok(lab_put(l, LAB_A, "{}") < 0, "no way to the kernel");
	ok(both_ways(&f), "the flow goes on");
	flow_done(&f);
}

/*
 * The next on a slot has its address.  Nothing of the flows of the one before
 * may reach it, under whatever policy they began and whatever its own allows.
 */
static void successor(struct lab *l)
{
	char c;
	struct flow now, before;

	lab_put(l, LAB_A, ALLOW_5432);
	before = tcp(l, "198.51.100.10", 5432);
	ok(both_ways(&before), "a flow");
	lab_put(l, LAB_A, ALLOW_MORE);
	now = tcp(l, "198.51.100.10", 5555);
	ok(both_ways(&now), "and one of another policy, in which that rests");
	is_int(route_del(l->r, LAB_A, NULL), 0, "its sandbox ends");
	lab_put(l, LAB_A, "{\"default\":\"allow\"}");
	ok(send(before.peer, "x", 1, MSG_NOSIGNAL) == 1 &&
		   send(now.peer, "x", 1, MSG_NOSIGNAL) == 1,
	   "their peers go on");
	poll(NULL, 0, 700);
	is_int(recv(before.client, &c, 1, MSG_DONTWAIT), -1,
	       "to the next it means nothing");
	is_int(recv(now.client, &c, 1, MSG_DONTWAIT), -1, "nor the other");
	flow_done(&before);
	flow_done(&now);
}

/* Epochs of a sandbox are counted; where they begin anew all goes on. */
static void many_epochs(struct lab *l)
{
	struct flow f;
	int r = 0;

	lab_put(l, LAB_A, ALLOW_5432);
	f = tcp(l, "198.51.100.10", 5432);
	/* Past a part of them at least, wherever they began. */
	for (int i = 0; i < 4200 && r >= 0; i++)
		r = lab_put(l, LAB_A, i % 2 ? ALLOW_5432 : ALLOW_MORE);
	is_int(r, 1, "4,200 changes of policy");
	is_int(lab_put(l, LAB_A, ALLOW_MORE), 1, "and one more");
	ok(both_ways(&f), "a flow that all of them allow goes on");
	is_int(lab_put(l, LAB_A, "{}"), 1, "one that does not");
	is_int(send(f.client, "more", 4, MSG_NOSIGNAL), 4, "it goes on");
	is_int(fails(f.client), ECONNRESET, "and is reset");
	flow_done(&f);
}

int main(void)
{
	struct lab l;

	if (!lab_new(&l))
		return tap_done();
	basics(&l);
	epochs(&l);
	successor(&l);
	many_epochs(&l);
	datagrams(&l);
	redirects(&l);
	names(&l);
	expiry(&l);
	bounded(&l);
	limits(&l);
	questions(&l);
	questions_of_one_port(&l);
	questions_remembered(&l);
	taken_over(&l);
	refused(&l);
	lab_done(&l);
	return tap_done();
}
