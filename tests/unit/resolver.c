/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <unistd.h>

#include "../tap.h"
#include "net/resolver.h"
#include "upstream.h"

static struct loop *loop;

struct asked {
	struct resolver_wait w;
	struct resolver_result res;
	unsigned times;
};

static void on_result(struct resolver_wait *w,
		      const struct resolver_result *res)
{
	struct asked *a = w->arg;

	a->res = *res;
	a->times++;
	loop_stop(loop, 0);
}

/* Ask and wait for the result; its status. */
static int ask(struct resolver *r, const char *name, sa_family_t family,
	       struct asked *a)
{
	const struct resolver_result *known;
	int n;

	*a = (struct asked){.w = {.fn = on_result, .arg = a}};
	n = resolver_ask(r, name, family, &a->w, &known);
	if (n < 0)
		return n;
	if (n == 1)
		a->res = *known;
	else
		run_for(loop, 8000);
	if (n == 0 && a->times != 1)
		return -ETIMEDOUT;
	return (int)a->res.status;
}

static struct resolver *make(const struct upstream *us, size_t n)
{
	struct resolver_conf conf = {.try_ms = 100, .deadline_ms = 600};
	struct resolver *r = NULL;

	for (size_t i = 0; i < n; i++)
		memcpy(&conf.servers[i], &us[i].addr, sizeof(us[i].addr));
	conf.nservers = n;
	if (resolver_new(loop, &conf, &r, NULL) < 0)
		abort();
	return r;
}

static void test_answers(struct upstream *u)
{
	struct resolver *r = make(u, 1);
	struct resolver_stats st;
	struct asked a;
	uint64_t start;

	is_int(ask(r, "ok.test", AF_INET, &a), RESOLVER_OK, "an address");
	is_int(a.res.addrs.n, 1, "one");
	is_int(ntohl(a.res.addrs.v4[0].s_addr), 0xc0000201, "the right one");
	is_int(a.res.left_s, 60, "for its time");
	is_int(ask(r, "ok.test", AF_INET6, &a), RESOLVER_OK, "one of v6");
	is_int(a.res.addrs.v6[0].s6_addr[15], 1, "the right one");
	is_int(u->queries, 2, "a question for each");
	is_int(ask(r, "ok.test", AF_INET, &a), RESOLVER_OK, "asked again");
	is_int(u->queries, 2, "it is known");
	is_int(ask(r, "nx.test", AF_INET, &a), RESOLVER_NO_NAME, "no name");
	is_int(ask(r, "nx.test", AF_INET, &a), RESOLVER_NO_NAME, "known too");
	is_int(u->queries, 3, "from the cache");
	is_int(ask(r, "none.test", AF_INET, &a), RESOLVER_NONE, "no address");
	is_int(ask(r, "zero.test", AF_INET, &a), RESOLVER_OK, "TTL 0");
	is_int(a.res.left_s, 5, "is kept for a while");
	is_int(ask(r, "tc.test", AF_INET, &a), RESOLVER_OK, "over TCP");
	is_int(a.res.addrs.n, DNS_ADDRS_MAX, "as many as are used");
	is_int(u->over_tcp, 1, "one connection");
	is_int(ask(r, "chain.test", AF_INET, &a), RESOLVER_OK, "a chain");
	is_str(u->last, "ok.end.test", "is followed");
	is_int(a.res.left_s, 30, "with its lowest TTL");
	is_int(ask(r, "spoof.test", AF_INET, &a), RESOLVER_OK, "spoofed");
	is_int(ntohl(a.res.addrs.v4[0].s_addr), 0xc0000201, "in vain");
	u->queries = 0;
	is_int(ask(r, "loop1.test", AF_INET, &a), RESOLVER_FAILED, "no end");
	ok(u->queries < 12, "and soon given up (%u)", u->queries);
	start = clock_ms();
	is_int(ask(r, "fail.test", AF_INET, &a), RESOLVER_FAILED, "SERVFAIL");
	is_int(ask(r, "refuse.test", AF_INET, &a), RESOLVER_FAILED, "REFUSED");
	ok(clock_ms() - start < 400, "fail at once");
	is_int(ask(r, "drop.test", AF_INET, &a), RESOLVER_FAILED, "no answer");
	ok(clock_ms() - start < 2000, "fails in time");
	is_int(ask(r, "", AF_INET, &a), -EINVAL, "no name to ask for");
	resolver_stats(r, &st);
	is_int((long long)st.bad, 3, "answers to nobody are counted");
	is_int((long long)st.flight, 0, "nothing is out");
	resolver_free(r);
}

static void test_failover(struct upstream *u)
{
	struct upstream two[2] = {u[0], u[0]};
	struct resolver *r;
	struct asked a;
	uint64_t start;

	/* Nobody listens there. */
	two[0].addr.sin_port = htons(1);
	r = make(two, 2);
	start = clock_ms();
	is_int(ask(r, "ok.test", AF_INET, &a), RESOLVER_OK, "the other server");
	ok(clock_ms() - start < 90, "without waiting");
	is_int(ask(r, "ok2.test", AF_INET, &a), RESOLVER_OK, "again");
	resolver_free(r);

	/* A socket that does not answer. */
	two[0].udp = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	two[0].addr.sin_port = 0;
	bind(two[0].udp, (struct sockaddr *)&two[0].addr, sizeof(two[0].addr));
	getsockname(two[0].udp, (struct sockaddr *)&two[0].addr,
		    &(socklen_t){sizeof(two[0].addr)});
	r = make(two, 2);
	start = clock_ms();
	is_int(ask(r, "ok.test", AF_INET, &a), RESOLVER_OK, "the next one");
	ok(clock_ms() - start >= 90, "after a while");
	start = clock_ms();
	is_int(ask(r, "ok2.test", AF_INET, &a), RESOLVER_OK, "which stays");
	ok(clock_ms() - start < 90, "the first to be asked");
	resolver_free(r);
	fd_close(two[0].udp);

	r = make(u, 0);
	is_int(ask(r, "ok.test", AF_INET, &a), RESOLVER_FAILED, "no server");
	resolver_free(r);
}

static void test_waiting(struct upstream *u)
{
	const struct resolver_result *known;
	struct resolver *r = make(u, 1);
	struct resolver_stats st;
	struct asked a[3];

	u->queries = 0;
	for (int i = 0; i < 3; i++) {
		a[i] = (struct asked){.w = {.fn = on_result, .arg = &a[i]}};
		is_int(resolver_ask(r, "ok.test", AF_INET, &a[i].w, &known), 0,
		       "one waits");
	}
	resolver_cancel(r, &a[1].w);
	resolver_cancel(r, &a[1].w);
	run_for(loop, 5000);
	is_int(u->queries, 1, "one question for all");
	ok(a[0].times == 1 && a[2].times == 1, "both are told");
	is_int(a[1].times, 0, "who does not want to know is not");

	a[0].times = 0;
	is_int(resolver_ask(r, "drop.test", AF_INET, &a[0].w, &known), 0,
	       "one waits");
	is_int(resolver_ask(r, "drop.test", AF_INET, &a[1].w, &known), 0,
	       "another, too");
	resolver_cancel(r, &a[0].w);
	resolver_stats(r, &st);
	is_int((long long)st.flight, 1, "the question is out for one of them");
	resolver_cancel(r, &a[1].w);
	resolver_stats(r, &st);
	is_int((long long)st.flight, 0, "and over when nobody waits");
	is_int(resolver_ask(r, "drop.test", AF_INET, &a[0].w, &known), 0,
	       "one waits");
	resolver_free(r);
	is_int(a[0].times, 1, "and is told at the end");
	is_int(a[0].res.status, RESOLVER_FAILED, "that it failed");
}

/* Many names: the cache and what is out stay bounded. */
static void test_bounds(struct upstream *u)
{
	const struct resolver_result *known;
	struct resolver *r = make(u, 1);
	static struct asked a[RESOLVER_FLIGHT + 1];
	struct resolver_stats st;
	char name[32];
	int n = 0, got = 0;

	for (int i = 0; i <= RESOLVER_FLIGHT; i++) {
		a[i] = (struct asked){.w = {.fn = on_result, .arg = &a[i]}};
		snprintf(name, sizeof(name), "n%d.test", i);
		n = resolver_ask(r, name, AF_INET, &a[i].w, &known);
		if (n < 0)
			break;
		got++;
	}
	/* Descriptors may be fewer: then they fail one by one. */
	is_int(got, RESOLVER_FLIGHT, "so many are out");
	is_int(n, -EBUSY, "and no more");
	for (int i = 0; i < 2000; i++) {
		resolver_stats(r, &st);
		if (!st.flight)
			break;
		run_for(loop, 100);
	}
	is_int((long long)st.flight, 0, "all come back");
	for (int i = 0; i < RESOLVER_CACHE + 200; i++) {
		struct asked one;

		snprintf(name, sizeof(name), "c%d.test", i);
		if (ask(r, name, AF_INET, &one) != RESOLVER_OK)
			ok(false, "%s", name);
	}
	resolver_stats(r, &st);
	is_int((long long)st.entries, RESOLVER_CACHE, "the cache is bounded");
	u->queries = 0;
	snprintf(name, sizeof(name), "c%d.test", RESOLVER_CACHE + 199);
	ask(r, name, AF_INET, &a[0]);
	is_int(u->queries, 0, "and has the newest");
	ask(r, "c0.test", AF_INET, &a[0]);
	is_int(u->queries, 1, "not the oldest");
	resolver_free(r);
}

static void test_conf(void)
{
	static const struct {
		const char *text;
		sa_family_t family;
		unsigned port;
	} cases[] = {
		{"192.0.2.1", AF_INET, 53},
		{"192.0.2.1:5353", AF_INET, 5353},
		{"2001:db8::1", AF_INET6, 53},
		{"[2001:db8::1]", AF_INET6, 53},
		{"[2001:db8::1]:99", AF_INET6, 99},
		{"192.0.2.1:0", 0, 0},
		{"192.0.2.1:65536", 0, 0},
		{"192.0.2.1:53x", 0, 0},
		{"192.0.2", 0, 0},
		{"[2001:db8::1", 0, 0},
		{"[2001:db8::1]x", 0, 0},
		{"dns.example", 0, 0},
		{"", 0, 0},
	};
	struct sockaddr_storage s;
	struct resolver_conf conf = {0};
	char path[] = "/tmp/resolv-XXXXXX";
	static const char text[] = "# one\nsearch x\nnameserver 192.0.2.1\n"
				   "nameserver\t2001:db8::1 # two\n"
				   "nameserver\nnameservers 192.0.2.3\n"
				   "nameserver fe80::1%eth0\n"
				   "nameserver 192.0.2.2";
	int fd = mkstemp(path);

	for (size_t i = 0; i < array_len(cases); i++) {
		bool good = resolver_server(cases[i].text, &s);

		ok(good == (cases[i].family != 0) &&
			   (!good ||
			    (s.ss_family == cases[i].family &&
			     ntohs(((struct sockaddr_in *)&s)->sin_port) ==
				     cases[i].port)),
		   "server '%s'", cases[i].text);
	}
	fd_write_all(fd, text, sizeof(text) - 1, NULL);
	fd_close(fd);
	is_int(resolver_conf_file(path, &conf, NULL), 0, "a resolv.conf");
	is_int((long long)conf.nservers, 3, "has three");
	unlink(path);
	is_int(resolver_conf_file(path, &conf, NULL), -ENOENT, "none");
}

int main(void)
{
	struct upstream u;

	if (loop_new(&loop, NULL) < 0)
		return 1;
	upstream_start(&u, loop);
	test_answers(&u);
	test_failover(&u);
	test_waiting(&u);
	test_bounds(&u);
	test_conf();
	upstream_stop(&u);
	loop_free(loop);
	return tap_done();
}
