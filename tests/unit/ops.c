/* SPDX-License-Identifier: Apache-2.0 */
/* What monitoring asks: answers, bounds, loopback alone. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../tap.h"
#include "base/clock.h"
#include "serve/ops.h"

static const struct metric table[] = {
	{"dsec_up", "One.", METRIC_GAUGE, 0, {NULL}},
};
static struct metrics *metrics;
static const char *why_not;
static struct loop *loop;

static void refresh(void *arg)
{
	(void)arg;
	metrics_set(metrics, 0, NULL, 42);
}

static const char *unready(void *arg)
{
	(void)arg;
	return why_not;
}

static int dial(const struct ops *o)
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_port = htons((uint16_t)ops_port(o)),
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		abort();
	return fd;
}

static void stop(struct loop *l, struct loop_timer *t)
{
	(void)t;
	loop_stop(l, 0);
}

/* Let the daemon do what it has to. */
static void turn(unsigned ms)
{
	struct loop_timer t = {.fn = stop};

	loop_timer_set(loop, &t, clock_ms() + ms);
	loop_run(loop, NULL);
}

/* All that comes before the end. */
static const char *ask(const struct ops *o, const char *request)
{
	static char text[8192];
	int fd = dial(o);
	size_t len = 0;
	ssize_t n = 0;

	if (write(fd, request, strlen(request)) < 0)
		abort();
	for (unsigned i = 0; i < 200; i++) {
		turn(5);
		n = recv(fd, text + len, sizeof(text) - 1 - len, MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN))
			break;
		len += n > 0 ? (size_t)n : 0;
	}
	text[len] = '\0';
	close(fd);
	return n == 0 ? text : "no end";
}

static void like(const char *got, const char *begin, const char *end,
		 const char *what)
{
	size_t n = strlen(got), m = strlen(end);

	if (!ok(!strncmp(got, begin, strlen(begin)) && n >= m &&
			!strcmp(got + n - m, end),
		"%s", what))
		printf("# %s\n", got);
}

static void test_answers(struct ops *o)
{
	like(ask(o, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"),
	     "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4",
	     "# TYPE dsec_up gauge\ndsec_up 42\n", "metrics, as they are now");
	like(ask(o, "GET /healthz HTTP/1.0\n\n"), "HTTP/1.1 200 OK\r\n",
	     "\r\n\r\nok\n", "healthy");
	like(ask(o, "GET /readyz?x=1 HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK\r\n",
	     "ok\n", "ready");
	why_not = "no node has reported";
	like(ask(o, "GET /readyz HTTP/1.1\r\n\r\n"), "HTTP/1.1 503 ",
	     "no node has reported\n", "not ready, and why");
	like(ask(o, "GET /etc/passwd HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 ",
	     "/readyz\n", "nothing else");
	like(ask(o, "GET /metricsx HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 ",
	     "/readyz\n", "nor longer names");
	like(ask(o, "POST /metrics HTTP/1.1\r\n\r\nx=1"), "HTTP/1.1 405 ",
	     "only GET\n", "only GET");
}

static void test_bounds(struct ops *o)
{
	char big[6000];
	int fds[20];

	memset(big, 'x', sizeof(big) - 1);
	big[sizeof(big) - 1] = '\0';
	like(ask(o, big), "HTTP/1.1 405 ", "only GET\n", "a header too long");
	for (unsigned i = 0; i < 20; i++)
		fds[i] = dial(o);
	turn(50);
	for (unsigned i = 0; i < 20; i++)
		close(fds[i]);
	turn(50);
	like(ask(o, "GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK\r\n",
	     "ok\n", "after twenty that said nothing");
}

static double cpu_ms(void)
{
	return (double)clock() * 1000 / CLOCKS_PER_SEC;
}

/* Who cannot be accepted waits, and the daemon does not turn for it. */
static void test_no_fds(struct ops *o)
{
	struct rlimit was, none;
	int fd = dial(o), low;
	double cpu = cpu_ms();

	low = dup(fd);
	close(low); /* the lowest that is free */
	getrlimit(RLIMIT_NOFILE, &was);
	none = was;
	none.rlim_cur = (rlim_t)low;
	setrlimit(RLIMIT_NOFILE, &none);
	turn(400);
	cpu = cpu_ms() - cpu;
	setrlimit(RLIMIT_NOFILE, &was);
	if (!ok(cpu < 100, "without descriptors it rests"))
		printf("# %.0f ms of CPU in 400\n", cpu);
	close(fd);
	like(ask(o, "GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK\r\n",
	     "ok\n", "and answers when there are some");
}

static void test_addresses(void)
{
	static const char *const bad[] = {
		"0.0.0.0:9",   "10.0.0.1:9",  "127.0.0.1",
		"127.0.0.1:",  "127.0.0.1:x", "127.0.0.1:65536",
		"localhost:9", "[::]:9",      "",
		":9",	       "127.1:9",     "127.example:9",
	};
	struct ops_conf c = {.metrics = metrics};
	struct ops *o = NULL;
	struct err e = {0};

	for (size_t i = 0; i < array_len(bad); i++) {
		c.address = bad[i];
		is_int(ops_open(loop, &c, &o, &e), -EINVAL, bad[i]);
	}
	is_str(e.code, "configuration", "... for the operator");
}

int main(void)
{
	struct ops_conf c = {.address = "127.0.0.1:0",
			     .refresh = refresh,
			     .unready = unready};
	struct ops *o = NULL;

	if (loop_new(&loop, NULL) < 0 ||
	    metrics_new(table, 1, &metrics, NULL) < 0)
		abort();
	c.metrics = metrics;
	if (ops_open(loop, &c, &o, NULL) < 0)
		abort();
	test_answers(o);
	test_bounds(o);
	test_no_fds(o);
	test_addresses();
	ops_close(o);
	metrics_free(metrics);
	loop_free(loop);
	return tap_done();
}
