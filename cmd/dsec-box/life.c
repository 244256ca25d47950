/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "life/teardown.h"
#include "exec.h"
#include "left.h"
#include "life.h"
#include "measure.h"
#include "pause.h"
#include "record.h"
#include "relay.h"
#include "session.h"
#include "state.h"
#include "wire/exit.h"

#define KILL_WAIT_MS  2000
#define GRACE_MS      2000
#define POLL_MS	      10
#define UNKILLABLE_MS 10000 /* then who waits for the end is told */

static const char *state_name(enum box_state state)
{
	static const char *const names[] = {
		[BOX_RUNNING] = "running",
		[BOX_PAUSED] = "paused",
		[BOX_STOPPING] = "stopping",
		[BOX_STOPPED] = "stopped",
	};

	return names[state];
}

const char *life_outcome(const char *word)
{
	for (size_t i = 0; i < exit_outcomes_len; i++)
		if (!strcmp(exit_outcomes[i].outcome, word))
			return exit_outcomes[i].outcome;
	return "killed";
}

json_t *life_state_record(const struct box *b)
{
	json_t *rec = json_pack("{s:s, s:s, s:I, s:I}", "sandbox", b->id,
				"state", state_name(b->state), "since_ms",
				(json_int_t)b->since_ms, "generation",
				(json_int_t)b->generation);

	if (!rec)
		return NULL;
	if (b->state == BOX_PAUSED)
		json_object_set_new(rec, "level", json_string(pause_level(b)));
	if (b->outcome)
		json_object_set_new(rec, "outcome", json_string(b->outcome));
	return rec;
}

void life_tell(struct ask *a)
{
	json_t *rec = life_state_record(a->box);

	if (!rec)
		return;
	json_object_set_new(rec, "event", json_string("state"));
	ask_event(a, rec, NULL, 0);
}

/* Watchers may lose their connection while they are told. */
static void tell_all(struct box *b)
{
	struct ask *next;

	for (struct ask *a = b->watchers; a; a = next) {
		next = a->wait_next;
		if (!a->conn->dead)
			life_tell(a);
	}
}

static void add_pids(const struct box *b, json_t *rec)
{
	if (b->init_pid > 0)
		json_object_set_new(rec, "init_pid", json_integer(b->init_pid));
	json_object_set_new(rec, "supervisor_pid", json_integer(getpid()));
}

void life_write_state(struct box *b)
{
	auto_json json_t *rec = life_state_record(b);

	if (!rec)
		return;
	add_pids(b, rec);
	state_write(b, rec);
}

void life_set_state(struct box *b, enum box_state state)
{
	b->state = state;
	b->since_ms = clock_wall_ms();
	life_write_state(b);
	tell_all(b);
}

/* Timers. */

static bool is_active(const struct box *b)
{
	return b->nexecs > 0 || relay_active(b);
}

static void on_idle(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	(void)l;
	if (!is_active(b))
		life_end(b, "ttl_idle", GRACE_MS);
}

static void on_absolute(struct loop *l, struct loop_timer *t)
{
	(void)l;
	life_end(t->arg, "ttl_absolute", GRACE_MS);
}

static void on_paused(struct loop *l, struct loop_timer *t)
{
	(void)l;
	life_end(t->arg, "ttl_paused", 0);
}

static void arm_idle(struct box *b)
{
	uint64_t at = 0;

	if (b->ttl.idle && b->state == BOX_RUNNING && !is_active(b))
		at = box_real(b, b->active_at + b->ttl.idle);
	loop_timer_set(b->loop, &b->idle_timer, at);
}

void life_quiet(struct box *b)
{
	b->active_at = box_now(b);
	arm_idle(b);
	box_busy(b);
}

/* Its lifetime counts from its making, whatever was paused meanwhile. */
static void arm_absolute(struct box *b)
{
	uint64_t now = clock_wall_ms(), age = 0, at = 1;

	if (!b->ttl.absolute)
		return;
	if (now > b->created_ms)
		age = now - b->created_ms;
	if (age < b->ttl.absolute)
		at = clock_ms() + b->ttl.absolute - age;
	loop_timer_set(b->loop, &b->absolute_timer, at);
}

static void on_init(struct loop *l, struct loop_source *s, uint32_t events);

int life_again(struct box *b, struct err *e)
{
	b->idle_timer.fn = on_idle;
	b->absolute_timer.fn = on_absolute;
	b->paused_timer.fn = on_paused;
	b->idle_timer.arg = b->absolute_timer.arg = b->paused_timer.arg = b;
	arm_absolute(b);
	arm_idle(b);
	pause_expire(b);
	if (!b->init_pid)
		return 0;
	return loop_add(b->loop, &b->init_src, b->init_fd, EPOLLIN, on_init, b,
			e);
}

int life_start(struct box *b, struct err *e)
{
	b->active_at = box_now(b);
	life_set_state(b, BOX_RUNNING);
	return life_again(b, e);
}

int life_stopped(const struct box *b, struct err *e)
{
	err_set(e, -ESHUTDOWN, "stopped", "the sandbox is %s%s%s",
		state_name(b->state), b->outcome ? ": " : "",
		b->outcome ? b->outcome : "");
	if (e && b->outcome)
		e->infra = record_infra(b->outcome);
	return -ESHUTDOWN;
}

int life_watch(struct ask *a, const json_t *req, struct err *e)
{
	(void)req;
	(void)e;
	ask_wait(a, &a->box->watchers);
	life_tell(a);
	return 1;
}

int life_inspect_record(struct box *b, json_t **ret, struct err *e)
{
	auto_json json_t *rec = life_state_record(b);
	auto_json json_t *spec = NULL;
	struct cgroup_stats st;
	int r;

	r = box_spec(b, &spec, e);
	if (r < 0)
		return r;
	box_stats(b, &st);
	if (!rec || json_object_update(spec, rec) < 0)
		return err_sys(e, ENOMEM, "inspect");
	json_object_set_new(spec, "created_ms",
			    json_integer((json_int_t)b->created_ms));
	add_pids(b, spec);
	json_object_set_new(spec, "memory_bytes",
			    json_integer((json_int_t)st.memory_bytes));
	json_object_set_new(spec, "memory_peak_bytes",
			    json_integer((json_int_t)st.memory_peak_bytes));
	json_object_set_new(spec, "cpu_ms",
			    json_integer((json_int_t)(st.cpu_us / 1000)));
	json_object_set_new(spec, "pids", json_integer(st.pids));
	json_object_set_new(spec, "execs", json_integer(b->nexecs));
	json_object_set_new(spec, "relays", json_integer(b->nrelays));
	json_object_set_new(spec, "idle_ms",
			    json_integer(is_active(b)
						 ? 0
						 : (json_int_t)(box_now(b) -
								b->active_at)));
	*ret = steal_ptr(spec);
	return 0;
}

int life_inspect(struct ask *a, const json_t *req, struct err *e)
{
	json_t *rec;
	int r;

	/* On the disk, nothing of it is in memory. */
	if (json_flag(req, "pss") && a->box->init_pid > 0)
		return measure_inspect(a, e);
	r = life_inspect_record(a->box, &rec, e);
	if (r < 0)
		return r;
	if (json_flag(req, "pss")) {
		json_object_set_new(rec, "pss_bytes", json_integer(0));
		json_object_set_new(rec, "rss_bytes", json_integer(0));
		json_object_set_new(rec, "swap_bytes", json_integer(0));
	}
	ask_answer(a, rec);
	return 1;
}

/* The end. */

/* What is recorded of it. */
static json_t *death_record(struct box *b)
{
	struct cgroup_stats st;
	json_t *rec, *spec = NULL;

	box_stats(b, &st);
	rec = json_pack("{s:s, s:b, s:I, s:I, s:I, s:I, s:I, s:I}", "outcome",
			b->outcome, "infra", record_infra(b->outcome),
			"generation", (json_int_t)b->generation, "created_ms",
			(json_int_t)b->created_ms, "ended_ms",
			(json_int_t)clock_wall_ms(), "memory_peak_bytes",
			(json_int_t)st.memory_peak_bytes, "cpu_ms",
			(json_int_t)(st.cpu_us / 1000), "oom_kills",
			(json_int_t)st.oom_kills);
	if (rec && box_spec(b, &spec, NULL) == 0 &&
	    json_object_get(spec, "name"))
		json_object_set(rec, "name", json_object_get(spec, "name"));
	json_decref(spec);
	return rec;
}

/* Its own files may be what fills the disk: once more when they are gone. */
static void keep_death(struct box *b, json_t *death)
{
	json_t *spec = NULL;

	if (box_spec(b, &spec, NULL) == 0)
		json_object_set_new(death, "spec", spec);
	b->death = json_incref(death);
}

/* What has ended must not come back, even if we are killed in a moment. */
static void forget_checkpoint(struct box *b)
{
	char path[PATH_MAX];

	if (teardown_kept(&b->tree, b->id) &&
	    ckpt_dir(&b->tree, b->id, path, NULL) == 0)
		(void)!ckpt_forget(path, NULL);
}

/* Nothing of it runs any more: say so, and take it apart. */
static void over(struct box *b)
{
	auto_json json_t *death = NULL;

	loop_timer_set(b->loop, &b->grace_timer, 0);
	loop_timer_set(b->loop, &b->poll_timer, 0);
	pause_abort(b);
	forget_checkpoint(b);
	/* On record before anybody hears of it. */
	death = death_record(b);
	if (death && teardown_record(&b->tree, b->id, death, NULL) < 0)
		keep_death(b, death);
	relay_end(b);
	left_drop_all(b);
	session_abandon_all(b);
	while (b->execs)
		exec_abandon(b->execs, b->outcome);
	teardown_name(&b->tree, b->id);
	life_set_state(b, BOX_STOPPED);
	measure_abort(b);
	while (b->stop_asks)
		ask_answer(b->stop_asks, life_state_record(b));
	while (b->watchers)
		ask_answer(b->watchers, life_state_record(b));
	while (b->holders)
		ask_answer(b->holders, life_state_record(b));
	box_end(b);
}

static bool reaped(struct box *b)
{
	siginfo_t si = {0};

	if (waitid(P_PIDFD, (id_t)b->init_fd, &si, WEXITED | WNOHANG) < 0)
		return errno == ECHILD; /* not ours: then it is gone */
	return si.si_pid != 0;
}

/* pid 1 is gone: the kernel has ended all of the sandbox with it. */
static void on_init(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct box *b = s->arg;
	uint64_t oom_seen = b->oom_seen;
	struct cgroup_stats st;

	(void)events;
	if (!reaped(b))
		return;
	loop_del(l, s);
	exec_reports(b);
	if (b->state == BOX_PAUSED) {
		pause_over(b);
		b->state = BOX_STOPPING;
	}
	if (!b->outcome) {
		box_stats(b, &st);
		b->outcome = st.oom_kills > oom_seen ? "oom" : "died";
	}
	over(b);
}

static void kill_init(struct box *b)
{
	struct cgroup_root *cgroups;

	syscall(SYS_pidfd_send_signal, b->init_fd, SIGKILL, NULL, 0);
	/* What is frozen may have to be told by its group. */
	if (b->paused_at && box_cgroups(b, &cgroups, NULL) == 0)
		cgroup_kill(cgroups, b->id, NULL, KILL_WAIT_MS, NULL, NULL);
}

/* It should be dead long ago.  It is watched on; who waits is told. */
static void on_unkillable(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;
	struct err e;

	err_set(&e, -ETIMEDOUT, "timeout",
		"a process of the sandbox cannot be killed yet");
	e.infra = true;
	while (b->stop_asks)
		ask_fail(b->stop_asks, &e);
	kill_init(b);
	loop_timer_set(l, t, clock_ms() + UNKILLABLE_MS);
}

static void kill_now(struct box *b)
{
	loop_timer_set(b->loop, &b->poll_timer, 0);
	b->grace_timer.fn = on_unkillable;
	b->grace_timer.arg = b;
	loop_timer_set(b->loop, &b->grace_timer, clock_ms() + UNKILLABLE_MS);
	kill_init(b);
}

static void on_grace(struct loop *l, struct loop_timer *t)
{
	(void)l;
	kill_now(t->arg);
}

/* How many processes there are besides pid 1. */
static unsigned others_left(struct box *b)
{
	struct cgroup_stats st;

	box_stats(b, &st);
	return st.pids > 1 ? st.pids - 1 : 0;
}

static void on_poll(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	if (others_left(b) == 0)
		kill_now(b);
	else
		loop_timer_set(l, t, clock_ms() + POLL_MS);
}

/* SIGTERM to all but pid 1, which takes no signal from inside or out. */
static void ask_nicely(struct box *b, unsigned grace_ms)
{
	struct cgroup_root *cgroups;

	if (box_cgroups(b, &cgroups, NULL) < 0) {
		kill_now(b);
		return;
	}
	cgroup_signal(cgroups, b->id, NULL, SIGTERM, NULL);
	cgroup_signal(cgroups, b->id, NULL, SIGCONT, NULL);
	b->grace_timer.fn = on_grace;
	b->poll_timer.fn = on_poll;
	b->grace_timer.arg = b->poll_timer.arg = b;
	loop_timer_set(b->loop, &b->grace_timer, clock_ms() + grace_ms);
	loop_timer_set(b->loop, &b->poll_timer, clock_ms() + POLL_MS);
}

void life_end(struct box *b, const char *outcome, unsigned grace_ms)
{
	bool frozen = b->state == BOX_PAUSED;

	if (b->state == BOX_STOPPED)
		return;
	if (b->state == BOX_STOPPING) {
		/* An impatient second one shortens the grace of the first. */
		if (grace_ms == 0 && b->grace_timer.fn == on_grace)
			kill_now(b);
		return;
	}
	loop_timer_set(b->loop, &b->idle_timer, 0);
	loop_timer_set(b->loop, &b->absolute_timer, 0);
	loop_timer_set(b->loop, &b->paused_timer, 0);
	if (frozen) /* paused_at stays: kill_init() has to know */
		b->paused_total += clock_ms() - b->paused_at;
	b->outcome = outcome;
	for (struct exec *x = b->execs; x; x = x->next)
		if (!x->gone && !x->cause)
			x->cause = outcome;
	life_set_state(b, BOX_STOPPING);
	pause_abort(b);
	if (!b->init_pid) { /* nothing of it is left but files */
		over(b);
		return;
	}
	if (frozen || grace_ms == 0 || others_left(b) == 0)
		kill_now(b);
	else
		ask_nicely(b, grace_ms);
}

int life_stop(struct ask *a, const json_t *req, struct err *e)
{
	int64_t grace = json_int(req, "grace_ms", GRACE_MS);
	struct box *b = a->box;

	(void)e;
	if (b->state == BOX_STOPPED) {
		ask_answer(a, life_state_record(b));
		return 1;
	}
	ask_wait(a, &b->stop_asks);
	life_end(b, "killed", (unsigned)grace);
	return 1;
}
