/* SPDX-License-Identifier: Apache-2.0 */
/* Two sockets joined: bytes, ends, resets, budgets, and what is left. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <sys/socket.h>
#include <unistd.h>
#include <netinet/in.h>

#include "../tap.h"
#include "base/clock.h"
#include "net/pump.h"

struct pair {
	struct loop *loop;
	struct pump_pool *pool;
	struct pump *pump;
	int a, b;  /* the far ends */
	int ended; /* enum pump_end, -1: not yet */
	uint64_t up, down, stop_at;
	struct loop_timer timer;
	void (*step)(struct pair *p);
};

/* A TCP connection: splice() behaves otherwise on other sockets. */
static void tcp_pair(int s[2])
{
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (bind(l, (void *)&a, len) < 0 || listen(l, 1) < 0 ||
	    getsockname(l, (void *)&a, &len) < 0)
		abort();
	s[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(s[0], (void *)&a, len) < 0)
		abort();
	s[1] = accept4(l, NULL, NULL, SOCK_CLOEXEC);
	fcntl(s[0], F_SETFL, O_NONBLOCK);
	fcntl(s[1], F_SETFL, O_NONBLOCK);
	close(l);
}

static void on_done(void *arg, enum pump_end why)
{
	struct pair *p = arg;

	p->ended = (int)why;
	p->pump = NULL;
}

static bool on_count(void *arg, bool up, size_t bytes)
{
	struct pair *p = arg;

	*(up ? &p->up : &p->down) += bytes;
	return !p->stop_at || p->up + p->down < p->stop_at;
}

static const struct pump_ops ops = {on_done, on_count};

static void on_tick(struct loop *l, struct loop_timer *t)
{
	struct pair *p = t->arg;

	p->step(p);
	loop_timer_set(l, t, clock_ms() + 1);
}

static void pair_new(struct pair *p, struct pump_bucket *up, uint64_t idle_ms)
{
	struct pump_conf conf = {.ops = &ops,
				 .arg = p,
				 .up = up,
				 .idle_ms = idle_ms};
	struct err e = {0};
	int s[2];

	*p = (struct pair){.ended = -1};
	is_int(loop_new(&p->loop, &e), 0, "a loop");
	is_int(pump_pool_new(p->loop, &p->pool, &e), 0, "a pool");
	conf.pool = p->pool;
	tcp_pair(s);
	p->a = s[0];
	conf.a = s[1];
	tcp_pair(s);
	p->b = s[0];
	conf.b = s[1];
	is_int(pump_new(&conf, &p->pump, &e), 0, "a pump");
	p->timer = (struct loop_timer){.fn = on_tick, .arg = p};
}

static void run(struct pair *p, void (*step)(struct pair *))
{
	struct err e = {0};

	p->step = step;
	loop_timer_set(p->loop, &p->timer, clock_ms());
	loop_run(p->loop, &e);
	loop_timer_set(p->loop, &p->timer, 0);
}

static void pair_done(struct pair *p)
{
	pump_cut(p->pump);
	pump_pool_free(p->pool);
	loop_free(p->loop);
	fd_close(p->a);
	fd_close(p->b);
}

/* --- half-close ------------------------------------------------------------
 */

static int phase;

static void half_step(struct pair *p)
{
	char c[8];

	if (phase == 0 && write(p->a, "abc", 3) == 3) {
		shutdown(p->a, SHUT_WR);
		phase = 1;
	} else if (phase == 1 && read(p->b, c, 8) == 3) {
		phase = 2;
	} else if (phase == 2 && read(p->b, c, 8) == 0) {
		phase = 3;
		if (write(p->b, "defg", 4) != 4)
			abort();
	} else if (phase == 3 && read(p->a, c, 8) == 4) {
		phase = 4;
		shutdown(p->b, SHUT_WR);
	} else if (phase == 4 && read(p->a, c, 8) == 0) {
		phase = 5;
	} else if (phase == 5 && p->ended >= 0) {
		loop_stop(p->loop, 0);
	}
}

static void test_half(void)
{
	struct pair p;

	pair_new(&p, NULL, 0);
	phase = 0;
	run(&p, half_step);
	is_int(p.ended, PUMP_CLOSED, "each end is passed on");
	is_int((long long)p.up * 10 + (long long)p.down, 34, "and counted");
	pair_done(&p);
}

/* --- much, with a slow reader ----------------------------------------------
 */

#define MUCH (8 * 1024 * 1024)

static size_t sent, got, lead;
static unsigned char wrong;

static void much_step(struct pair *p)
{
	static unsigned char buf[65536];
	ssize_t n;

	for (int i = 0; i < 16 && sent < MUCH; i++) {
		size_t want = MUCH - sent;

		for (size_t k = 0; k < sizeof(buf); k++)
			buf[k] = (unsigned char)((sent + k) * 7 >> 3);
		n = write(p->a, buf, want < sizeof(buf) ? want : sizeof(buf));
		if (n <= 0)
			break;
		sent += (size_t)n;
	}
	lead = sent - got > lead ? sent - got : lead;
	n = read(p->b, buf, 50000);
	for (ssize_t k = 0; k < n; k++)
		wrong |= buf[k] ^ (unsigned char)((got + (size_t)k) * 7 >> 3);
	got += n > 0 ? (size_t)n : 0;
	if (got == MUCH)
		loop_stop(p->loop, 0);
}

static void test_much(void)
{
	struct pair p;

	pair_new(&p, NULL, 0);
	sent = got = lead = 0;
	run(&p, much_step);
	is_int(wrong, 0, "every byte, in order");
	is_int((long long)p.up, MUCH, "all counted");
	ok(p.pump != NULL && p.ended < 0, "it goes on");
	pair_done(&p);
}

/* --- resets -----------------------------------------------------------------
 */

static void wait_end(struct pair *p)
{
	if (p->ended >= 0)
		loop_stop(p->loop, 0);
}

static int reads_reset(int fd)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	char c;

	poll(&pfd, 1, 1000);
	return read(fd, &c, 1) < 0 && errno == ECONNRESET;
}

static void test_reset(void)
{
	struct pair p;
	int fd;

	pair_new(&p, NULL, 0);
	fd = p.a;
	p.a = dup(p.b);
	pump_reset(fd);
	run(&p, wait_end);
	is_int(p.ended, PUMP_RESET, "a reset is passed on");
	ok(reads_reset(p.b), "as one");
	pair_done(&p);

	pair_new(&p, NULL, 0);
	pump_cut(p.pump);
	p.pump = NULL;
	ok(reads_reset(p.a) && reads_reset(p.b), "a cut resets both");
	is_int(p.ended, -1, "and calls nobody");
	pair_done(&p);
}

static void stop_step(struct pair *p)
{
	char buf[1000] = {0};

	if (p->ended >= 0)
		loop_stop(p->loop, 0);
	else if (write(p->a, buf, sizeof(buf)) < 0 && errno != EAGAIN)
		loop_stop(p->loop, 0);
}

static void test_stop(void)
{
	struct pair p;

	pair_new(&p, NULL, 0);
	p.stop_at = 5000;
	run(&p, stop_step);
	is_int(p.ended, PUMP_STOP, "who counts may stop it");
	pair_done(&p);

	pair_new(&p, NULL, 60);
	run(&p, wait_end);
	is_int(p.ended, PUMP_IDLE, "idle for too long");
	pair_done(&p);
}

/* --- a budget ----------------------------------------------------------------
 */

#define RATE (1024 * 1024)

static void rate_step(struct pair *p)
{
	static char buf[65536];

	while (write(p->a, buf, sizeof(buf)) > 0)
		;
	for (ssize_t n; (n = read(p->b, buf, sizeof(buf))) > 0;)
		got += (size_t)n;
	if (got >= RATE / 2)
		loop_stop(p->loop, 0);
}

static void test_rate(void)
{
	struct pump_bucket b = {0};
	struct pair p;
	uint64_t t;

	pair_new(&p, &b, 0);
	pump_bucket_rate(p.pool, &b, RATE);
	got = 0;
	t = clock_ms();
	run(&p, rate_step);
	t = clock_ms() - t;
	ok(t > 300 && t < 3000, "half a second's bytes in %d ms", (int)t);
	pump_bucket_rate(p.pool, &b, 0);
	got = 0;
	t = clock_ms();
	run(&p, rate_step);
	ok(clock_ms() - t < 300, "without limit at once");
	pair_done(&p);
}

/* Both ways shut while bytes wait for a slow reader: no spinning. */
static uint64_t until;

static void spin_step(struct pair *p)
{
	static char buf[65536];

	if (phase == 0) {
		while (write(p->a, buf, sizeof(buf)) > 0)
			;
		if (clock_ms() > until - 300) {
			shutdown(p->a, SHUT_WR);
			phase = 1;
		}
	}
	if (clock_ms() > until)
		loop_stop(p->loop, 0);
}

static void test_spin(void)
{
	struct timespec t = {0};
	struct pair p;
	long ms;

	pair_new(&p, NULL, 0);
	shutdown(p.b, SHUT_WR);
	until = clock_ms() + 600;
	phase = 0;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	ms = -(t.tv_sec * 1000 + t.tv_nsec / 1000000);
	run(&p, spin_step);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	ms += t.tv_sec * 1000 + t.tv_nsec / 1000000;
	ok(p.ended < 0, "it waits for the reader");
	ok(ms < 200, "and does not spin (%ld ms)", ms);
	pair_done(&p);
}

int main(void)
{
	test_half();
	test_much();
	test_reset();
	test_stop();
	test_rate();
	test_spin();
	return tap_done();
}
