/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box/reapply.h"
#include "exec.h"
#include "life.h"
#include "ops.h"
#include "pause.h"
#include "relay.h"
#include "wire/field.h"
#include "worker.h"

#define FREEZE_MS   2000
#define THAW_MS	    5000
#define PREFETCH_MS 60000

static const char *const levels[] = {
	[BOX_FREEZE] = "freeze",
	[BOX_RECLAIM] = "reclaim",
	[BOX_DISK] = "disk",
};

const char *pause_level(const struct box *b)
{
	return levels[b->level];
}

static int level_of(const json_t *req, enum box_level *ret, struct err *e)
{
	const char *word = json_str(req, "level");

	*ret = BOX_FREEZE;
	if (!*word)
		return 0;
	for (size_t i = 0; i < array_len(levels); i++)
		if (!strcmp(word, levels[i])) {
			*ret = (enum box_level)i;
			return 0;
		}
	return err_set(e, -EBADMSG, "bad_value",
		       "'level': \"freeze\", \"reclaim\" or \"disk\"");
}

static bool is_over(const struct box *b)
{
	return b->state == BOX_STOPPING || b->state == BOX_STOPPED;
}

/* Something of it is under way that others have to wait for. */
static bool is_busy(const struct box *b)
{
	return b->job || b->waking;
}

/* Parked requests. */

static int park(struct ask *a, json_t *req, bool awake)
{
	/* Its deadline runs since it was read. */
	json_object_del(req, "deadline_ms");
	if (a->req != req) {
		json_decref(a->req);
		a->req = json_incref(req);
	}
	a->awake = awake;
	ask_wait(a, &a->box->parked);
	return 1;
}

static void take_up(struct ask *a)
{
	auto_json json_t *req = steal_ptr(a->req);

	ask_unwait(a);
	a->awake = false;
	ops_take(a, req);
}

/* Each may park itself again behind another that began something. */
void pause_unpark(struct box *b)
{
	struct ask *a;

	while (b->parked && !is_busy(b)) {
		for (a = b->parked; a->wait_next; a = a->wait_next)
			;
		take_up(a);
	}
	if (!is_busy(b))
		relay_awake(b);
}

void pause_refuse(struct box *b, const struct err *why)
{
	struct ask *next;

	for (struct ask *a = b->parked; a; a = next) {
		next = a->wait_next;
		if (a->awake)
			ask_fail(a, why);
	}
	relay_refuse(b, why);
	pause_unpark(b);
}

/* Freezing and thawing. */

void pause_over(struct box *b)
{
	/* Where the clock began anew meanwhile, it wraps and is right. */
	if (b->paused_at)
		b->paused_total += clock_ms() - b->paused_at;
	b->paused_at = 0;
}

void pause_expire(struct box *b)
{
	uint64_t spent = clock_wall_ms() - b->paused_wall, left = 1;

	if (!b->ttl.paused || b->held || b->state != BOX_PAUSED)
		return;
	if (clock_wall_ms() < b->paused_wall)
		spent = 0;
	if (spent < b->ttl.paused)
		left = b->ttl.paused - spent;
	loop_timer_set(b->loop, &b->paused_timer, clock_ms() + left);
}

/* Restored leaves are frozen one by one. */
static int thaw_leaf(const struct cgroup_root *root, const char *id,
		     const char *leaf, void *arg, struct err *e)
{
	(void)arg;
	return cgroup_leaf_freeze(root, id, leaf, false, THAW_MS, e);
}

int pause_cpu(struct box *b, bool limited, struct err *e)
{
	auto_json json_t *spec = NULL;
	struct cgroup_root *cgroups;
	int r;

	if (b->cpu_free == !limited)
		return 0;
	r = box_cgroups(b, &cgroups, e);
	if (r == 0 && limited)
		r = box_spec(b, &spec, e);
	if (r == 0)
		r = reapply_cpu(cgroups, b->id, spec, e);
	if (r == 0)
		b->cpu_free = !limited;
	return r;
}

static int thaw_groups(struct box *b, struct err *e)
{
	struct cgroup_root *cgroups;
	int r = pause_cpu(b, true, e);

	if (r < 0)
		return r;
	if (b->level == BOX_RECLAIM || b->leaves_frozen)
		r = box_cgroups(b, &cgroups, e);
	if (r == 0 && b->level == BOX_RECLAIM)
		r = cgroup_swap_allow(cgroups, b->id, false, e);
	if (r == 0)
		r = box_freeze(b, false, THAW_MS, e);
	if (r == 0 && b->leaves_frozen)
		r = cgroup_each_leaf(cgroups, b->id, thaw_leaf, NULL, e);
	if (r == 0)
		b->leaves_frozen = false;
	return r;
}

static void on_prefetched(struct worker *w, const json_t *rec,
			  const struct err *why)
{
	struct box *b = w->box;

	(void)rec;
	(void)why;
	free(steal_ptr(b->prefetch));
}

/* Its memory comes back by itself; this makes it come sooner. */
static void prefetch(struct box *b)
{
	const char *const argv[] = {"dsec-ckpt", "prefetch", b->id, NULL};
	struct worker *w = b->prefetch ? NULL : calloc(1, sizeof(*w));

	if (!w)
		return;
	w->box = b;
	w->on_end = on_prefetched;
	if (worker_start(w, argv, -1, PREFETCH_MS, NULL) < 0)
		free(w);
	else
		b->prefetch = w;
}

int pause_thaw(struct box *b, struct err *e)
{
	enum box_level level = b->level;
	struct err resumed = {0};
	int r;

	r = thaw_groups(b, e);
	if (r < 0)
		return err_wrap(e, r, "resume");
	err_set(&resumed, -EBUSY, "busy", "the sandbox was resumed");
	loop_timer_set(b->loop, &b->paused_timer, 0);
	pause_over(b);
	b->held = false;
	b->level = BOX_FREEZE;
	life_set_state(b, BOX_RUNNING);
	life_quiet(b);
	exec_timers(b, true);
	if (level == BOX_RECLAIM)
		prefetch(b);
	while (b->holders)
		ask_fail(b->holders, &resumed);
	return 0;
}

int pause_freeze(struct box *b, struct err *e)
{
	int r;

	r = box_freeze(b, true, FREEZE_MS, e);
	if (r < 0) {
		/* Not half frozen: it runs, whatever went wrong. */
		box_freeze(b, false, THAW_MS, NULL);
		return err_wrap(e, r, "pause");
	}
	b->paused_at = clock_ms();
	b->paused_wall = clock_wall_ms();
	b->level = BOX_FREEZE;
	loop_timer_set(b->loop, &b->idle_timer, 0);
	exec_timers(b, false);
	life_set_state(b, BOX_PAUSED);
	pause_expire(b);
	return 0;
}

int pause_wake(struct box *b, struct err *e)
{
	if (is_over(b))
		return life_stopped(b, e);
	if (is_busy(b))
		return 1;
	if (b->state == BOX_RUNNING)
		return 0;
	if (b->level != BOX_DISK)
		return pause_thaw(b, e);
	disk_wake(b);
	return 1;
}

int pause_awake(struct ask *a, json_t *req, struct err *e)
{
	struct box *b = a->box;

	int r = pause_wake(b, e);

	return r == 1 ? park(a, req, true) : r;
}

int pause_awake_for(struct ask *a, json_t *req, const char *key, struct err *e)
{
	int r = field_need(req, key, e);

	return r < 0 ? r : pause_awake(a, req, e);
}

/* The ops. */

/* What the spec knows beforehand; the rest is found out by trying. */
static int check_spec(struct box *b, struct err *e)
{
	auto_json json_t *spec = NULL;
	int r;

	r = box_spec(b, &spec, e);
	if (r < 0 || !json_is_false(json_object_get(spec, "checkpointable")))
		return r;
	return err_set(e, -EOPNOTSUPP, "not_checkpointable",
		       "the sandbox cannot be checkpointed: %s",
		       json_str(spec, "checkpointable_why"));
}

int pause_op_pause(struct ask *a, json_t *req, struct err *e)
{
	struct job_want want = {0};
	struct box *b = a->box;
	int r;

	r = level_of(req, &want.level, e);
	if (r < 0)
		return r;
	if (is_over(b))
		return life_stopped(b, e);
	if (is_busy(b))
		return park(a, req, false);
	if (want.level > BOX_FREEZE &&
	    (b->state != BOX_PAUSED || b->level < want.level)) {
		if (want.level == BOX_DISK)
			r = check_spec(b, e);
		return r < 0 ? r : job_start(a, &want, e);
	}
	if (b->state == BOX_RUNNING)
		r = pause_freeze(b, e);
	if (r < 0)
		return r;
	if (b->held) { /* it outlasts those who hold it */
		b->held = false;
		b->paused_wall = clock_wall_ms();
		pause_expire(b);
	}
	ask_answer(a, life_state_record(b));
	return 1;
}

int pause_op_resume(struct ask *a, json_t *req, struct err *e)
{
	int r = pause_awake(a, req, e);

	if (r != 0)
		return r;
	ask_answer(a, life_state_record(a->box));
	return 1;
}

int pause_op_hold(struct ask *a, json_t *req, struct err *e)
{
	struct box *b = a->box;
	int r = 0;

	if (is_over(b))
		return life_stopped(b, e);
	if (is_busy(b))
		return park(a, req, false);
	if (b->state == BOX_PAUSED && b->level == BOX_DISK)
		return pause_awake(a, req, e);
	if (b->state == BOX_RUNNING) {
		r = pause_freeze(b, e);
		b->held = r == 0;
		/* Whoever holds it is there, and lets go. */
		loop_timer_set(b->loop, &b->paused_timer, 0);
	}
	if (r < 0)
		return r;
	ask_wait(a, &b->holders);
	life_tell(a);
	return 1;
}

int pause_op_snapshot(struct ask *a, json_t *req, struct err *e)
{
	struct job_want want = {
		.snapshot = true,
		.id = json_str(req, "snapshot"),
		.fs_only = json_flag(req, "fs_only"),
	};
	struct box *b = a->box;
	int r;

	r = field_need(req, "snapshot", e);
	if (r < 0)
		return r;
	if (!tree_is_id(want.id))
		return err_set(e, -EBADMSG, "bad_value",
			       "'snapshot' is not the id of one");
	if (is_over(b))
		return life_stopped(b, e);
	if (is_busy(b))
		return park(a, req, false);
	/* A layer alone may as well be copied without processes. */
	if (b->state == BOX_PAUSED && b->level == BOX_DISK && !want.fs_only)
		return pause_awake(a, req, e);
	if (!want.fs_only)
		r = check_spec(b, e);
	return r < 0 ? r : job_start(a, &want, e);
}

void pause_deserted(struct box *b)
{
	struct err e;

	job_deserted(b);
	/* Where that fails it stays paused, and the next operation tries. */
	if (b->held && !b->holders && b->state == BOX_PAUSED && !b->job)
		pause_thaw(b, &e);
}

void pause_abort(struct box *b)
{
	struct err e = {0};

	life_stopped(b, &e);
	if (b->prefetch) {
		worker_kill(b->prefetch);
		free(steal_ptr(b->prefetch));
	}
	job_abort(b, &e);
	b->waking = false;
	loop_timer_set(b->loop, &b->wake_timer, 0);
	while (b->parked)
		ask_fail(b->parked, &e);
	relay_refuse(b, &e);
}
