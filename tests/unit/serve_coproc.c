/* SPDX-License-Identifier: Apache-2.0 */
/* Coprocesses: every request has an answer, whatever the program does. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "../tap.h"
#include "base/clock.h"
#include "serve/coproc.h"

#define SH(script)                                                             \
	(const char *const[])                                                  \
	{                                                                      \
		"/bin/sh", "-c", script, NULL                                  \
	}

/* Answers each line by its id; what it does beside is up to the request. */
static const char server[] =
	"while read -r l; do"
	" id=${l##*\\\"id\\\":}; id=${id%%[,\\}]*};"
	" case $l in"
	" *\\\"die\\\"*) kill -9 $$ ;;"
	" *\\\"once\\\"*) [ -e \"$DIED\" ] || { : >\"$DIED\"; kill -9 $$; }"
	";; *\\\"silent\\\"*) continue ;;"
	" *\\\"noise\\\"*) echo nonsense; continue ;;"
	" *\\\"event\\\"*) echo \"{\\\"id\\\":$id,\\\"event\\\":\\\"e\\\"}\" ;;"
	" esac;"
	" echo \"{\\\"id\\\":$id,\\\"ok\\\":true,\\\"pid\\\":$$}\";"
	"done";

struct asked {
	int records, events, failed;
	const char *code;
	bool retry;
	int64_t pid;
};

static struct loop *l;
static unsigned left;

static void one_less(void)
{
	if (--left == 0)
		loop_stop(l, 0);
}

static bool on_record(void *arg, json_t *rec)
{
	struct asked *a = arg;

	if (!json_object_get(rec, "ok")) {
		a->events++;
		return false;
	}
	a->records++;
	a->pid = json_int(rec, "pid", 0);
	one_less();
	return true;
}

static void on_failed(void *arg, const struct err *why)
{
	struct asked *a = arg;

	a->failed++;
	a->code = why->code;
	a->retry = why->retry_after_ms > 0;
	one_less();
}

static const struct coproc_ops ops = {on_record, on_failed};

static struct coproc *make(const char *const *argv, unsigned window,
			   unsigned queue, unsigned idle_ms)
{
	struct coproc_conf conf = {.loop = l,
				   .argv = argv,
				   .window = window,
				   .queue_max = queue,
				   .idle_ms = idle_ms,
				   .cancels = true};
	struct coproc *c;

	if (coproc_new(&conf, &c, NULL) < 0)
		abort();
	return c;
}

static struct coproc_call *ask(struct coproc *c, struct asked *a,
			       const char *what, unsigned ms, unsigned flags)
{
	auto_json json_t *req = json_object();
	struct coproc_call *call = NULL;
	struct err e = {0};

	*a = (struct asked){0};
	json_object_set_new(req, what, json_true());
	if (ms)
		json_object_set_new(req, "deadline_ms", json_integer(ms));
	left++;
	if (coproc_ask(c, req, flags, &ops, a, &call, &e) < 0) {
		on_failed(a, &e);
		return NULL;
	}
	return call;
}

static bool failed(const struct asked *a, const char *code)
{
	return a->failed == 1 && a->records == 0 && !strcmp(a->code, code);
}

static void run(void)
{
	if (left > 0)
		loop_run(l, NULL);
}

static void test_many(void)
{
	struct coproc *c = make(SH(server), 16, 1000, 0);
	static struct asked a[500];
	struct coproc_stats s;
	int good = 0;

	coproc_stats(c, &s);
	is_int(s.pid, 0, "not started before it is needed");
	for (int i = 0; i < 500; i++)
		ask(c, &a[i], "x", 0, 0);
	coproc_stats(c, &s);
	is_int(s.running + s.waiting, 500, "all are accounted for");
	run();
	for (int i = 0; i < 500; i++)
		good += a[i].records == 1 && a[i].failed == 0;
	is_int(good, 500, "one answer for each of 500, 16 at a time");
	ask(c, &a[0], "event", 0, 0);
	run();
	ok(a[0].events == 1 && a[0].records == 1, "an event before the answer");
	coproc_stats(c, &s);
	ok(s.running == 0 && s.waiting == 0 && s.restarts == 0, "nothing left");
	coproc_free(c);
}

static void test_dies(void)
{
	struct coproc *c = make(SH(server), 16, 1000, 0);
	struct coproc_stats s;
	struct asked a[4];

	ask(c, &a[0], "x", 0, 0);
	ask(c, &a[1], "die", 0, 0);
	ask(c, &a[2], "silent", 0, 0);
	run();
	ok(a[0].records + a[0].failed == 1, "one answer, if it died or not");
	ok(failed(&a[1], "helper_lost") && a[1].retry,
	   "what it died of is typed, and when to try again is said");
	ok(failed(&a[2], "helper_lost"), "and what was under way");
	ask(c, &a[3], "x", 0, 0);
	run();
	is_int(a[3].records, 1, "the next is answered by a new one");
	coproc_stats(c, &s);
	is_int(s.restarts, 1, "one restart");
	ok(s.lost >= 2, "what was lost is counted");

	/* It reads, or has a key: asked again without anybody noticing. */
	ask(c, &a[0], "once", 0, COPROC_AGAIN);
	ask(c, &a[1], "x", 0, COPROC_AGAIN);
	run();
	ok(a[0].records == 1 && a[1].records == 1, "asked again");
	/* But not for ever. */
	ask(c, &a[0], "die", 0, COPROC_AGAIN);
	run();
	ok(failed(&a[0], "helper_lost"), "what ends it each time is given up");
	ask(c, &a[0], "noise", 0, 0);
	run();
	ok(failed(&a[0], "helper_lost"), "nonsense ends it");
	coproc_free(c);
}

static void test_missing(void)
{
	const char *const argv[] = {"/nonexistent/program", NULL};
	struct coproc *c = make(argv, 4, 10, 0);
	struct asked a;

	ask(c, &a, "x", 0, 0);
	run();
	ok(failed(&a, "helper_lost") && a.retry, "a program that is not there");
	coproc_free(c);
}

static void test_bounds(void)
{
	struct coproc *c = make(SH(server), 2, 3, 0);
	struct coproc_call *call[6];
	struct asked a[6];

	/* Two of them are with it once it runs. */
	call[0] = ask(c, &a[0], "silent", 300, 0);
	call[1] = ask(c, &a[1], "silent", 0, 0);
	ask(c, &a[2], "silent", 100, 0);
	ask(c, &a[3], "x", 0, 0);
	ok(failed(&a[3], "busy") && a[3].retry, "no more than may wait");
	left -= 2; /* of those that are silent */
	(void)call;
	run();
	ok(failed(&a[2], "deadline"), "a deadline counts while it waits");
	left += 2;
	is_int(coproc_cancel(call[1]), 1, "a cancel is passed on");
	coproc_free(c);
	ok(failed(&a[1], "helper_lost") && failed(&a[0], "helper_lost"),
	   "at the end everybody is told");
	left = 0;
}

static void test_drop(void)
{
	struct coproc *c = make(SH(server), 1, 10, 0);
	struct coproc_call *call;
	struct asked a, b;

	call = ask(c, &a, "x", 0, 0);
	coproc_drop(call);
	left--;
	call = ask(c, &a, "x", 0, 0);
	is_int(coproc_cancel(call), 1, "one that waits is cancelled");
	ok(failed(&a, "cancelled"), "and told so");
	ask(c, &b, "x", 0, 0);
	run();
	ok(b.records == 1 && a.records == 0, "others are not touched");
	coproc_free(c);
}

static void on_time(struct loop *loop, struct loop_timer *t)
{
	(void)t;
	loop_stop(loop, 0);
}

static void spin(unsigned ms)
{
	struct loop_timer t = {.fn = on_time};

	loop_timer_set(l, &t, clock_ms() + ms);
	loop_run(l, NULL);
	loop_timer_set(l, &t, 0);
}

static void test_idle(void)
{
	struct coproc *c = make(SH(server), 4, 10, 50);
	uint64_t until = clock_ms() + 5000;
	struct coproc_stats s;
	struct asked a;

	ask(c, &a, "x", 0, 0);
	run();
	do {
		spin(20);
		coproc_stats(c, &s);
	} while (s.pid != 0 && clock_ms() < until);
	is_int(s.pid, 0, "let go when nobody needs it");
	is_int(s.restarts, 0, "which is no failure");
	ask(c, &a, "x", 0, 0);
	run();
	is_int(a.records, 1, "and started again");
	coproc_free(c);
}

/* What it was asked comes back in pieces of a few bytes, and is more than the
 * pipes hold at once. */
static const char mirror[] =
	"while read -r l; do"
	" id=${l##*\\\"id\\\":}; id=${id%%[,\\}]*};"
	" printf '{\"id\":%d,\"ok\":true,\"said\":%s}\\n' \"$id\" \"$l\";"
	"done | dd bs=7 2>/dev/null";

struct said {
	struct asked a;
	char *pad;
	bool same;
};

static bool on_said(void *arg, json_t *rec)
{
	struct said *s = arg;

	s->same = !strcmp(json_str(json_object_get(rec, "said"), "pad"),
			  s->pad);
	return on_record(&s->a, rec);
}

static void test_pieces(size_t size, unsigned n)
{
	static const struct coproc_ops said_ops = {on_said, on_failed};
	struct coproc *c = make(SH(mirror), 64, 1000, 0);
	struct said *s = calloc(n, sizeof(*s));
	unsigned good = 0;

	for (unsigned i = 0; i < n; i++) {
		auto_json json_t *req = json_object();
		struct coproc_call *call;
		size_t len = size + i;

		s[i].pad = malloc(len + 1);
		memset(s[i].pad, 'a' + (int)(i % 26), len);
		s[i].pad[len] = '\0';
		json_object_set_new(req, "pad", json_string(s[i].pad));
		left++;
		if (coproc_ask(c, req, 0, &said_ops, &s[i], &call, NULL) < 0)
			abort();
	}
	run();
	for (unsigned i = 0; i < n; i++) {
		good += s[i].same && s[i].a.records == 1 && !s[i].a.failed;
		free(s[i].pad);
	}
	ok(good == n, "%u requests of %zu bytes and more, in pieces", n, size);
	free(s);
	coproc_free(c);
}

int main(void)
{
	char died[] = "/tmp/serve-coproc.XXXXXX";
	int fd = mkstemp(died);

	if (fd < 0 || loop_new(&l, NULL) < 0)
		abort();
	close(fd);
	unlink(died);
	setenv("DIED", died, 1);
	signal(SIGPIPE, SIG_IGN);
	test_many();
	test_dies();
	test_missing();
	test_bounds();
	test_drop();
	test_idle();
	test_pieces(0, 300);
	test_pieces(60000, 12);
	unlink(died);
	loop_free(l);
	return tap_done();
}
