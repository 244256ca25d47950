/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "exec.h"
#include "left.h"
#include "life.h"
#include "record.h"
#include "repeat.h"
#include "session.h"

#define KILL_WAIT_MS  1000
#define REPORT_MS     10000 /* how long a dead process's report may take */
#define REPORT_ROUNDS 64
#define TTY_LAST_MS   100 /* for output that a terminal still holds */
#define POLL_MS	      10

static void close_at(int *fd)
{
	if (*fd >= 0)
		fd_close(steal_fd(fd));
}

static void free_stream(struct exec *x, int i)
{
	int src = x->out[i].rec.src;

	stream_done(&x->out[i]);
	if (src < 0 || x->kind == EXEC_SESSION)
		return;
	if (x->left && !x->tty)
		left_add(x->box, &src, x->name);
	else
		fd_close(src);
}

void exec_free(struct exec *x)
{
	struct box *b = x->box;
	struct exec **p;

	for (p = &b->execs; *p != x; p = &(*p)->next)
		;
	*p = x->next;
	b->nexecs--;
	loop_timer_set(b->loop, &x->timeout, 0);
	loop_timer_set(b->loop, &x->kill, 0);
	loop_timer_set(b->loop, &x->late, 0);
	exec_input_drop(x);
	loop_del(b->loop, &x->pid_src);
	exec_tty_done(x);
	free_stream(x, 0);
	free_stream(x, 1);
	close_at(&x->pidfd);
	close_at(&x->stdin_fd);
	close_at(&x->stdin_ref);
	free(x->script);
	free(x->key);
	free(x);
}

static void answer_all(struct exec *x, json_t *rec)
{
	while (x->waiters)
		ask_answer(x->waiters, json_incref(rec));
}

/* A file operation that went wrong, or was ended with its client, was not done
 * and may be tried again with its key. */
static bool was_done(const json_t *rec)
{
	return !strcmp(json_str(rec, "outcome"), "exited") &&
	       json_int(rec, "exit_code", -1) == 0;
}

/* The record is kept and answered; the command is history. */
static void complete(struct exec *x)
{
	json_t *rec = exec_record(x);
	struct box *b = x->box;
	char file[40];

	if (rec && x->kind != EXEC_FILE) {
		snprintf(file, sizeof(file), "%s.json", x->name);
		if (repeat_keep(b, x->step, x->key, x->key_hash, rec, NULL) < 0)
			json_object_set_new(rec, "durable", json_false());
		if (json_write_file(b->out_fd, file, rec, 0, NULL) < 0)
			json_object_set_new(rec, "kept", json_false());
	} else if (rec && x->key && was_done(rec)) {
		repeat_keep(b, -1, x->key, x->key_hash, rec, NULL);
	}
	answer_all(x, rec);
	json_decref(rec);
	if (x->session)
		session_idle(x->session, x);
	exec_free(x);
	life_quiet(b);
}

void exec_settled(struct exec *x)
{
	if (x->holding || !x->finishing)
		return;
	if (x->out[0].ended && x->out[1].ended)
		complete(x);
}

/* What it left behind goes, or stays without us. */
static void sweep_leaf(struct exec *x)
{
	struct cgroup_root *cgroups;
	struct box *b = x->box;
	unsigned killed = 0;

	if (!x->leaf_made || box_cgroups(b, &cgroups, NULL) < 0)
		return;
	if (cgroup_leaf_remove(cgroups, b->id, x->name, NULL) == 0)
		return;
	if (x->leave) {
		x->left = true;
		return;
	}
	cgroup_kill(cgroups, b->id, x->name, KILL_WAIT_MS, &killed, NULL);
	x->left_killed = killed;
	cgroup_leaf_remove(cgroups, b->id, x->name, NULL);
}

static void empty_streams(struct exec *x)
{
	x->holding = true;
	stream_finish(&x->out[0]);
	stream_finish(&x->out[1]);
	x->holding = false;
	exec_settled(x);
}

static void on_tty_late(struct loop *l, struct loop_timer *t)
{
	struct exec *x = t->arg;

	(void)l;
	exec_tty_drain(x);
	empty_streams(x);
}

void exec_finish(struct exec *x)
{
	struct box *b = x->box;

	x->finishing = true;
	loop_timer_set(b->loop, &x->kill, 0);
	loop_timer_set(b->loop, &x->late, 0);
	sweep_leaf(x);
	if (x->tty && !exec_tty_drain(x)) {
		x->late.fn = on_tty_late;
		x->late.arg = x;
		loop_timer_set(b->loop, &x->late, clock_ms() + TTY_LAST_MS);
		return;
	}
	empty_streams(x);
}

static bool leaf_empty(struct exec *x)
{
	struct cgroup_root *cgroups;
	struct box *b = x->box;

	return !x->leaf_made || box_cgroups(b, &cgroups, NULL) < 0 ||
	       cgroup_leaf_count(cgroups, b->id, x->name) <= 0;
}

/* The others of a command that is being ended have their grace as well. */
static void on_grace(struct loop *l, struct loop_timer *t)
{
	struct exec *x = t->arg;

	if (leaf_empty(x) || !x->kill_at)
		exec_finish(x);
	else
		loop_timer_set(l, t, clock_ms() + POLL_MS);
}

void exec_gone(struct exec *x)
{
	struct box *b = x->box;

	if (x->gone)
		return;
	x->gone = true;
	x->ended_ms = clock_wall_ms();
	x->ended_at = box_now(b);
	x->timeout_at = 0;
	loop_timer_set(b->loop, &x->timeout, 0);
	loop_del(b->loop, &x->pid_src);
	if (x->kill_at && !leaf_empty(x)) {
		x->late.fn = on_grace;
		x->late.arg = x;
		loop_timer_set(b->loop, &x->late, clock_ms() + POLL_MS);
		return;
	}
	exec_finish(x);
}

/* Dead, and pid 1 does not say how.  While all is frozen it cannot. */
static void give_up(struct loop *l, struct loop_timer *t)
{
	struct exec *x = t->arg;
	struct box *b = x->box;
	char name[sizeof(x->name)];

	loop_timer_set(l, t, clock_ms() + REPORT_MS);
	if (b->state == BOX_PAUSED)
		return;
	memcpy(name, x->name, sizeof(name));
	exec_reports(b); /* may end and free it */
	x = exec_find(b, name);
	if (!x || x->gone)
		return;
	x->lost = true;
	exec_gone(x);
}

void exec_awaited(struct exec *x)
{
	/* Armed first: the report may be there, and free it. */
	x->late.fn = give_up;
	x->late.arg = x;
	loop_timer_set(x->box->loop, &x->late, clock_ms() + REPORT_MS);
	exec_reports(x->box);
}

static bool is_dead(int pidfd)
{
	struct pollfd pfd = {.fd = pidfd, .events = POLLIN};

	return poll(&pfd, 1, 0) == 1;
}

static void take_report(struct box *b, const struct init_report *rep)
{
	for (struct exec *x = b->execs; x; x = x->next)
		if (x->pidfd >= 0 && !x->gone && x->inner == rep->pid) {
			/* Numbers come again: only the dead are meant. */
			if (!is_dead(x->pidfd))
				return;
			x->report = *rep;
			exec_gone(x);
			return;
		}
	session_report(b, rep);
}

void exec_reports(struct box *b)
{
	struct init_report rep[16];
	ssize_t n;

	/* Whoever makes processes die faster than this waits for his turn. */
	for (int round = 0; round < REPORT_ROUNDS; round++) {
		n = read(b->report_fd, rep, sizeof(rep));
		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			loop_del(b->loop, &b->report_src);
		if (n < (ssize_t)sizeof(rep[0]))
			return;
		for (size_t i = 0; i < (size_t)n / sizeof(rep[0]); i++)
			take_report(b, &rep[i]);
	}
}

void exec_on_kill(struct loop *l, struct loop_timer *t)
{
	struct exec *x = t->arg;
	struct cgroup_root *cgroups;
	struct box *b = x->box;

	(void)l;
	x->kill_at = 0;
	if (box_cgroups(b, &cgroups, NULL) == 0)
		cgroup_kill(cgroups, b->id, x->name, KILL_WAIT_MS, NULL, NULL);
}

void exec_kill(struct exec *x, const char *cause, unsigned grace_ms)
{
	struct cgroup_root *cgroups;
	struct box *b = x->box;

	if (x->gone)
		return;
	if (!x->cause)
		x->cause = cause;
	if (x->kind == EXEC_SESSION) {
		if (session_forget(x->session, x))
			exec_abandon(x, cause);
		else
			session_kill(x->session, grace_ms);
		return;
	}
	if (grace_ms == 0) {
		exec_on_kill(b->loop, &x->kill);
		return;
	}
	if (box_cgroups(b, &cgroups, NULL) == 0) {
		cgroup_signal(cgroups, b->id, x->name, SIGTERM, NULL);
		cgroup_signal(cgroups, b->id, x->name, SIGCONT, NULL);
	}
	x->kill_at = box_now(b) + grace_ms;
	loop_timer_set(b->loop, &x->kill, box_real(b, x->kill_at));
}

void exec_timers(struct box *b, bool on)
{
	for (struct exec *x = b->execs; x; x = x->next) {
		uint64_t t = on && x->timeout_at && !x->gone
				     ? box_real(b, x->timeout_at)
				     : 0;
		uint64_t k = on && x->kill_at ? box_real(b, x->kill_at) : 0;

		loop_timer_set(b->loop, &x->timeout, t);
		loop_timer_set(b->loop, &x->kill, k);
	}
}

void exec_abandon(struct exec *x, const char *cause)
{
	if (!x->gone) {
		if (!x->cause)
			x->cause = cause;
		x->gone = true;
		x->ended_ms = clock_wall_ms();
		x->ended_at = box_now(x->box);
		x->report.status = SIGKILL;
	}
	/* Nobody is waited for any more. */
	for (int i = 0; i < 2; i++)
		for (unsigned k = 0; k < x->out[i].rec.nreaders; k++)
			x->out[i].rec.readers[k].lossy = true;
	x->kill_at = 0;
	loop_timer_set(x->box->loop, &x->kill, 0);
	loop_timer_set(x->box->loop, &x->late, 0);
	x->finishing = true;
	if (x->tty)
		exec_tty_drain(x);
	empty_streams(x);
}

void exec_drain(struct exec *x)
{
	x->holding = true;
	if (x->tty)
		exec_tty_empty(x);
	for (int i = 0; i < 2; i++)
		if (x->has_out[i] && x->out[i].rec.src >= 0)
			stream_drain(&x->out[i]);
	x->holding = false;
	exec_settled(x);
}

void exec_sleep(struct exec *x)
{
	loop_del(x->box->loop, &x->pid_src);
	exec_tty_sleep(x);
	if (!x->finishing)
		loop_timer_set(x->box->loop, &x->late, 0);
}

#define DESERTED_MS 1000

void exec_deserted(struct ask *a)
{
	struct exec *x;

	if (!a->starter || a->exec[0] != 'f')
		return;
	x = exec_find(a->box, a->exec);
	/* Its pipes ended too: it gets the time to remove what is half done. */
	if (x)
		exec_kill(x, "killed", DESERTED_MS);
}
