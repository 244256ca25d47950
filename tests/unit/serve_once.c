/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that are run once: records in their order, held and let go on, and
 * an end for each. */
#include <stdlib.h>

#include "../tap.h"
#include "base/clock.h"
#include "serve/once.h"

static struct loop *l;

struct seen {
	struct once *o;
	int records, hold_at, free_at;
	int64_t last;
	int status; /* -2: not ended */
	bool ordered;
};

static void on_record(void *arg, json_t *rec)
{
	struct seen *s = arg;
	int64_t n = json_int(rec, "n", -1);

	s->ordered &= n == s->last + 1;
	s->last = n;
	s->records++;
	if (s->records == s->hold_at)
		once_hold(s->o, true);
	if (s->records == s->free_at) {
		once_free(s->o);
		loop_stop(l, 0);
	}
}

static void on_end(void *arg, int status)
{
	struct seen *s = arg;

	s->status = status;
	loop_stop(l, 0);
}

static const struct once_ops ops = {on_record, on_end};

static void begin(struct seen *s, const char *script)
{
	const char *const argv[] = {"/bin/sh", "-c", script, NULL};

	s->last = 0;
	s->status = -2;
	s->ordered = true;
	if (once_new(l, argv, &ops, s, &s->o, NULL) < 0)
		abort();
}

static void on_late(struct loop *loop, struct loop_timer *t)
{
	(void)t;
	loop_stop(loop, 0);
}

/* Until it ends, or for so long. */
static void turn(unsigned ms)
{
	struct loop_timer t = {.fn = on_late};

	loop_timer_set(l, &t, clock_ms() + ms);
	loop_run(l, NULL);
	loop_timer_set(l, &t, 0);
}

static void wait_for(const struct seen *s, int records)
{
	for (int i = 0; i < 600 && s->records < records; i++)
		turn(50);
}

#define COUNT                                                                  \
	"i=0; while [ $i -lt 5000 ]; do i=$((i+1)); echo \"{\\\"n\\\":$i}\";"  \
	"done; exit 3"

static void test_all(void)
{
	struct seen s = {0};

	begin(&s, COUNT);
	turn(30000);
	is_int(s.records, 5000, "all of its records");
	ok(s.ordered, "in their order");
	is_int(s.status, 3, "and its exit status");
}

/* What is held is held at that record, whatever was read or written since. */
static void test_hold(void)
{
	struct seen s = {.hold_at = 10};

	begin(&s, COUNT);
	wait_for(&s, 10);
	turn(200);
	is_int(s.records, 10, "no more come while it is held");
	is_int(s.status, -2, "nor its end");
	once_hold(s.o, false);
	turn(30000);
	is_int(s.records, 5000, "all the others afterwards");
	ok(s.ordered, "in their order");
	is_int(s.status, 3, "and the end");
}

/* Lines that were read with the one it was held at make no event any more. */
static void test_let_go(void)
{
	struct seen s = {.hold_at = 1};

	begin(&s,
	      "printf '{\"n\":1}\\n{\"n\":2}\\n{\"n\":3}\\n'; exec sleep 60");
	wait_for(&s, 1);
	is_int(s.records, 1, "one of three");
	once_hold(s.o, false);
	wait_for(&s, 3);
	is_int(s.records, 3, "the others, though it says no more");
	once_free(s.o);
}

static void test_ends(void)
{
	struct seen s = {0};

	begin(&s, "echo nonsense; exec sleep 60");
	turn(30000);
	is_int(s.status, -1, "nonsense ends it");
	begin(&s, "kill -9 $$");
	turn(30000);
	is_int(s.status, -1, "a signal");
	s = (struct seen){.free_at = 2};
	begin(&s, COUNT);
	turn(30000);
	is_int(s.records, 2, "freed from its own record");
	is_int(s.status, -2, "it tells no end");
}

int main(void)
{
	if (loop_new(&l, NULL) < 0)
		abort();
	test_all();
	test_hold();
	test_let_go();
	test_ends();
	loop_free(l);
	return tap_done();
}
