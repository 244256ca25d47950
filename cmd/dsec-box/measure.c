/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life.h"
#include "measure.h"
#include "worker.h"

#define LIMIT_MS 60000

/* ${got}: the numbers, or NULL. */
static void answer_all(struct box *b, const json_t *got)
{
	static const char *const keys[] = {"pss_bytes", "rss_bytes",
					   "swap_bytes"};
	struct err e = {0};

	loop_timer_set(b->loop, &b->measure_timer, 0);
	while (b->measure_asks) {
		json_t *rec = NULL, *v;

		if (life_inspect_record(b, &rec, &e) < 0) {
			ask_fail(b->measure_asks, &e);
			continue;
		}
		for (size_t i = 0; i < array_len(keys); i++)
			if ((v = json_object_get(got, keys[i])))
				json_object_set(rec, keys[i], v);
		ask_answer(b->measure_asks, rec);
	}
}

static void on_end(struct worker *w, const json_t *rec, const struct err *why)
{
	struct box *b = w->box;

	(void)why;
	answer_all(b, rec);
	free(steal_ptr(b->measure));
}

static void on_timer(struct loop *l, struct loop_timer *t)
{
	(void)l;
	answer_all(t->arg, NULL);
}

static int start(struct box *b, struct err *e)
{
	const char *const argv[] = {"dsec-ckpt", "pss", b->id, NULL};
	struct worker *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return err_sys(e, ENOMEM, "inspect");
	w->box = b;
	w->on_end = on_end;
	r = worker_start(w, argv, -1, LIMIT_MS, e);
	if (r < 0)
		free(w);
	else
		b->measure = w;
	return r;
}

int measure_inspect(struct ask *a, struct err *e)
{
	struct box *b = a->box;
	int r = b->measure ? 0 : start(b, e);

	if (r < 0)
		return r;
	if (!b->measure_asks) {
		b->measure_timer.fn = on_timer;
		b->measure_timer.arg = b;
		loop_timer_set(b->loop, &b->measure_timer,
			       clock_ms() + MEASURE_MS);
	}
	ask_wait(a, &b->measure_asks);
	return 1;
}

void measure_abort(struct box *b)
{
	answer_all(b, NULL);
	if (b->measure)
		kill(-b->measure->pid, SIGKILL);
}
