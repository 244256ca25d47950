/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "exec.h"
#include "life.h"
#include "outer.h"
#include "pause.h"
#include "reexec.h"
#include "worker.h"

#define LIMIT_MS  (15 * 60 * 1000) /* for a worker */
#define CANCEL_MS 10000		   /* for one that is to give up */
#define FILES_MS  3000 /* for file operations to end by themselves */
#define POLL_MS	  10
#define THAW_MS	  5000
#define RETRY_MS  2000 /* for what forbids it to pass by itself */

/*
 * A pause to BOX_RECLAIM or BOX_DISK, or a snapshot: dsec-ckpt does the work,
 * and says when the sandbox is to stand still and when it may go on.
 */
struct job {
	struct box *box;
	struct job_want want;
	char id[BOX_ID_LEN + 1]; /* of the snapshot */
	struct ask *asks;
	struct worker worker;
	bool was_running; /* so it is to run when this comes to nothing */
	bool told;	  /* the worker was told to go */
	bool cancelled;
	bool held;	   /* the worker freezes it, and may die of it */
	struct err broken; /* why it was ended by us */
	int state_fd;
	uint64_t frozen_at, frozen_ms;
	uint64_t files_until;
	struct loop_timer files_timer;
	uint64_t retry_until;
	struct loop_timer again;
};

static bool is_dump(const struct job *j)
{
	return j->want.snapshot || j->want.level == BOX_DISK;
}

/* The end of it; asks are left. */
static struct ask *detach(struct job *j, struct ask **list)
{
	struct box *b = j->box;

	worker_kill(&j->worker);
	(void)!pause_cpu(b, true, NULL);
	if (j->held)
		(void)!box_freeze(b, false, THAW_MS, NULL);
	loop_timer_set(b->loop, &j->files_timer, 0);
	loop_timer_set(b->loop, &j->again, 0);
	if (j->state_fd >= 0)
		fd_close(steal_fd(&j->state_fd));
	b->job = NULL;
	while (j->asks)
		ask_wait(j->asks, list);
	free(j);
	return *list;
}

static void fail_asks(struct ask **list, const struct err *why)
{
	while (*list)
		ask_fail(*list, why);
}

void job_abort(struct box *b, const struct err *why)
{
	struct ask *asks = NULL;

	if (!b->job)
		return;
	detach(b->job, &asks);
	fail_asks(&asks, why);
}

/* It may be complete, whatever ended the worker after that.  When the sandbox
 * runs on its layer is another, and nothing may come back from it. */
static void drop_checkpoint(struct box *b)
{
	char path[PATH_MAX];

	if (ckpt_dir(&b->tree, b->id, path, NULL) == 0)
		(void)!ckpt_remove(path, NULL);
}

/* It came to nothing: all is as it was before. */
static void fail(struct job *j, const struct err *why)
{
	struct cgroup_root *cgroups;
	struct box *b = j->box;
	bool run = j->was_running && b->state == BOX_PAUSED;
	struct ask *asks = NULL;
	struct err e = *why, no;

	if (j->cancelled)
		err_set(&e, -ECANCELED, "cancelled",
			"the request was cancelled");
	if (!is_dump(j) && b->level == BOX_FREEZE &&
	    box_cgroups(b, &cgroups, NULL) == 0)
		cgroup_swap_allow(cgroups, b->id, false, NULL);
	if (!j->want.snapshot && j->want.level == BOX_DISK)
		drop_checkpoint(b);
	detach(j, &asks);
	if (run && pause_thaw(b, &no) < 0)
		err_wrap(&e, e.r, "it is still paused (%s)", no.msg);
	fail_asks(&asks, &e);
	pause_expire(b);
	pause_deserted(b);
	pause_unpark(b);
}

/* What the worker told, beside the state. */
static json_t *answer_of(const struct job *j, const json_t *rec)
{
	json_t *out = j->want.snapshot ? json_object()
				       : life_state_record(j->box);
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)rec, key, v)
		if (strcmp(key, "ok") && !json_object_get(out, key))
			json_object_set(out, key, v);
	if (out && is_dump(j))
		json_object_set_new(out, "frozen_ms",
				    json_integer((json_int_t)j->frozen_ms));
	return out;
}

static void succeed(struct job *j, const json_t *rec)
{
	json_t *out = answer_of(j, rec);
	struct box *b = j->box;
	struct ask *asks = NULL;

	detach(j, &asks);
	while (asks)
		ask_answer(asks, json_incref(out));
	json_decref(out);
	pause_expire(b);
	pause_deserted(b);
	pause_unpark(b);
}

/* It stood still until now; it goes on, if it did before. */
static int go_on(struct job *j, struct err *e)
{
	struct box *b = j->box;
	int r = 0;

	if (!j->frozen_at)
		return 0;
	if (j->was_running && b->state == BOX_PAUSED)
		r = pause_thaw(b, e);
	if (r < 0)
		return r;
	j->frozen_ms = clock_ms() - j->frozen_at;
	j->frozen_at = 0;
	return 0;
}

static int reach_disk(struct job *j, struct err *e)
{
	struct box *b = j->box;
	int r = disk_enter(b, e);

	if (r == 0)
		j->frozen_ms = clock_ms() - j->frozen_at;
	return r;
}

static int start_dump(struct job *j, struct err *e);

static void on_again(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;
	struct err e = {0};

	(void)l;
	if (j->cancelled || start_dump(j, &e) < 0)
		fail(j, &e);
}

/* What forbids it passes by itself, when the sandbox runs: a vfork(), say.  Who
 * asked need not know. */
static bool try_again(struct job *j, const struct err *why)
{
	struct box *b = j->box;
	struct err no;

	if (!is_dump(j) || !j->was_running || j->cancelled ||
	    !why->retry_after_ms || clock_ms() >= j->retry_until ||
	    (b->state == BOX_PAUSED && pause_thaw(b, &no) < 0))
		return false;
	if (j->state_fd >= 0)
		fd_close(steal_fd(&j->state_fd));
	j->told = false;
	j->frozen_at = 0;
	j->again.fn = on_again;
	j->again.arg = j;
	loop_timer_set(b->loop, &j->again, clock_ms() + why->retry_after_ms);
	return true;
}

static void on_end(struct worker *w, const json_t *rec, const struct err *why)
{
	struct job *j = w->arg;
	struct box *b = j->box;
	struct err e = {0};
	int r = 0;

	if (j->broken.r < 0)
		why = &j->broken;
	if (why) {
		if (!try_again(j, why))
			fail(j, why);
		return;
	}
	if (j->cancelled || !j->told) {
		err_set(&e, -EPROTO, "internal",
			"dsec-ckpt was done before it began");
		fail(j, &e);
		return;
	}
	if (j->want.snapshot) {
		r = go_on(j, &e);
	} else if (j->want.level == BOX_DISK) {
		r = reach_disk(j, &e);
	} else {
		b->level = BOX_RECLAIM;
		life_set_state(b, BOX_PAUSED);
	}
	if (r < 0) {
		fail(j, &e);
		return;
	}
	if (j->held)
		j->frozen_ms = (uint64_t)json_int(rec, "frozen_ms", 0);
	j->held = false; /* it let go, or it would not be content */
	if (!j->want.snapshot)
		b->held = false; /* it outlasts those who hold it */
	succeed(j, rec);
}

/* To stand still, and what we know to be written down. */

static bool files_at_work(const struct box *b)
{
	for (const struct exec *x = b->execs; x; x = x->next)
		if (x->kind == EXEC_FILE && !x->finishing)
			return true;
	return false;
}

/*
 * The helper of a file operation has its pipes from a client and its program
 * from us: it cannot be in a checkpoint.  A pause ends those that last.
 */
static int end_files(struct job *j, struct err *e)
{
	struct cgroup_root *cgroups;
	struct box *b = j->box;
	struct exec *next;
	int r;

	if (!files_at_work(b))
		return 0;
	if (j->want.snapshot)
		return err_set(e, -EBUSY, "busy",
			       "a file operation is under way");
	r = box_cgroups(b, &cgroups, e);
	for (struct exec *x = b->execs; r == 0 && x; x = next) {
		next = x->next;
		if (x->kind != EXEC_FILE || x->finishing)
			continue;
		r = cgroup_kill(cgroups, b->id, x->name, 1000, NULL, e);
		if (r == 0)
			exec_abandon(x, "killed");
	}
	return r;
}

static int write_state(struct job *j, struct err *e)
{
	auto_json json_t *state = NULL;
	int r;

	r = reexec_copy(j->box, j->want.snapshot ? BOX_FREEZE : BOX_DISK,
			&state, e);
	if (r < 0)
		return r;
	return json_to_memfd(j->state_fd, state, e);
}

static int stand_still(struct job *j, struct err *e)
{
	struct box *b = j->box;
	int r = 0;

	if (is_dump(j) && !j->want.fs_only)
		r = pause_cpu(b, false, e);
	j->frozen_at = clock_ms();
	if (r == 0 && b->state == BOX_RUNNING)
		r = pause_freeze(b, e);
	/* Whoever waits for this is there. */
	loop_timer_set(b->loop, &b->paused_timer, 0);
	if (r < 0 || !is_dump(j) || j->want.fs_only)
		return r;
	r = end_files(j, e);
	if (r < 0)
		return r;
	outer_drain(b);
	return write_state(j, e);
}

static void begin(struct job *j)
{
	if (j->cancelled)
		return;
	if (stand_still(j, &j->broken) < 0) {
		kill(-j->worker.pid, SIGKILL); /* brings on_end() */
		return;
	}
	j->told = true;
	worker_say(&j->worker, "{\"go\":true}\n");
}

static void on_files(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;

	if (files_at_work(j->box) && clock_ms() < j->files_until)
		loop_timer_set(l, t, clock_ms() + POLL_MS);
	else
		begin(j);
}

static void on_ready(struct job *j, const json_t *rec)
{
	struct box *b = j->box;

	if (j->told)
		return;
	/* What takes but a moment needs none of us. */
	j->held = j->want.fs_only && b->state == BOX_RUNNING && !j->cancelled &&
		  json_flag(rec, "moment");
	if (j->held) {
		j->told = true;
		worker_say(&j->worker, "{\"go\":true,\"hold\":true}\n");
		return;
	}
	if (j->want.fs_only || b->state != BOX_RUNNING || !files_at_work(b)) {
		begin(j);
		return;
	}
	j->files_until = clock_ms() + FILES_MS;
	j->files_timer.fn = on_files;
	j->files_timer.arg = j;
	loop_timer_set(b->loop, &j->files_timer, clock_ms() + POLL_MS);
}

static void on_event(struct worker *w, const json_t *rec)
{
	const char *event = json_str(rec, "event");
	struct job *j = w->arg;

	if (!strcmp(event, "ready"))
		on_ready(j, rec);
	/* Where it cannot go on now, the end says so. */
	else if (!strcmp(event, "captured") && j->told && j->want.snapshot)
		(void)go_on(j, NULL);
}

static int start_dump(struct job *j, struct err *e)
{
	struct box *b = j->box;
	char to[PATH_MAX], init[16];
	const char *argv[14] = {"dsec-ckpt", "dump", "--to", to};
	size_t n = 4;
	int r;

	r = j->want.snapshot ? ckpt_snap_dir(&b->tree, j->id, to, e)
			     : ckpt_dir(&b->tree, b->id, to, e);
	if (r < 0)
		return r;
	snprintf(init, sizeof(init), "%d", b->init_pid);
	if (j->want.snapshot) {
		argv[n++] = "--layer";
		argv[n++] = j->id;
	} else {
		argv[n++] = "--durable";
	}
	if (j->want.fs_only) {
		argv[n++] = "--fs-only";
	} else {
		argv[n++] = "--init";
		argv[n++] = init;
		argv[n++] = "--state";
		argv[n++] = "3";
	}
	argv[n++] = b->id;
	j->state_fd = json_memfd(e);
	if (j->state_fd < 0)
		return j->state_fd;
	return worker_start(&j->worker, argv, j->state_fd, LIMIT_MS, e);
}

static int start_reclaim(struct job *j, struct err *e)
{
	const char *const argv[] = {"dsec-ckpt", "reclaim", j->box->id, NULL};
	int r = stand_still(j, e);

	j->told = true;
	return r < 0 ? r : worker_start(&j->worker, argv, -1, LIMIT_MS, e);
}

int job_start(struct ask *a, const struct job_want *want, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));
	struct box *b = a->box;
	struct err no;
	int r;

	if (!j)
		return err_sys(e, ENOMEM, "pause");
	j->box = b;
	j->want = *want;
	if (want->id)
		snprintf(j->id, sizeof(j->id), "%s", want->id);
	j->want.id = j->id;
	j->was_running = b->state == BOX_RUNNING;
	j->retry_until = clock_ms() + RETRY_MS;
	j->state_fd = -1;
	j->worker.box = b;
	j->worker.on_event = on_event;
	j->worker.on_end = on_end;
	j->worker.arg = j;
	b->job = j;
	r = is_dump(j) ? start_dump(j, e) : start_reclaim(j, e);
	if (r == 0) {
		a->job = true;
		ask_wait(a, &j->asks);
		return 1;
	}
	if (j->was_running && b->state == BOX_PAUSED)
		pause_thaw(b, &no);
	detach(j, &(struct ask *){NULL});
	return r;
}

void job_cancel(struct box *b)
{
	struct job *j = b->job;

	if (!j || j->cancelled)
		return;
	j->cancelled = true;
	if (!j->worker.running) { /* it was about to try again */
		loop_timer_set(b->loop, &j->again, clock_ms());
		return;
	}
	/* It gives up when it can do so cleanly; its end brings on_end(). */
	kill(j->told ? j->worker.pid : -j->worker.pid,
	     j->told ? SIGTERM : SIGKILL);
	/* An engine ended in the middle of its work may take processes of the
	 * sandbox along: it has the time it had. */
	if (!j->told || !is_dump(j))
		loop_timer_set(b->loop, &j->worker.limit,
			       clock_ms() + CANCEL_MS);
}

void job_deserted(struct box *b)
{
	if (b->job && b->job->want.snapshot && !b->job->asks)
		job_cancel(b);
}
