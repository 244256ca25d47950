/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "exec.h"
#include "left.h"
#include "life.h"
#include "ops.h"
#include "reexec.h"
#include "reexec_priv.h"
#include "session_priv.h"

#define STATE_MAX (64 * 1024 * 1024)

/* Reading what reexec.c wrote, which is one of us: types are right. */

static uint64_t get(const json_t *j, const char *key)
{
	return (uint64_t)json_int(j, key, 0);
}

/* A descriptor that was passed on; close-on-exec again. */
static int get_fd(const json_t *j, const char *key)
{
	int fd = (int)json_int(j, key, -1);

	if (fd >= 0)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static char *get_str(const json_t *j, const char *key)
{
	const char *s = json_string_value(json_object_get(j, key));

	return s ? strdup(s) : NULL;
}

static struct conn *find_conn(struct box *b, uint64_t id)
{
	for (struct conn *c = b->conns; c; c = c->next)
		if (c->id == id && !c->dead)
			return c;
	return NULL;
}

static void load_ask(struct box *b, const json_t *j, struct ask **list)
{
	struct conn *c = find_conn(b, get(j, "conn"));
	struct ask *a;

	if (!c || ask_new(c, json_object_get(j, "echo"), &a, NULL) < 0)
		return;
	a->repeated = json_flag(j, "repeated");
	a->starter = json_flag(j, "starter");
	snprintf(a->exec, sizeof(a->exec), "%s", json_str(j, "exec"));
	a->key = get_str(j, "key");
	a->key_hash = get(j, "hash");
	if (list)
		ask_wait(a, list);
	ops_deadline(a, get(j, "deadline"));
}

static void load_asks(struct box *b, const json_t *j, struct ask **list)
{
	for (size_t i = json_array_size(j); i-- > 0;)
		load_ask(b, json_array_get(j, i), list);
}

static int load_conns(struct box *b, const json_t *j, struct err *e)
{
	size_t i;
	json_t *v;
	int r;

	json_array_foreach((json_t *)(uintptr_t)j, i, v) {
		auto_free char *in = NULL;
		int fd = get_fd(v, "fd");
		struct conn *c;
		size_t len = 0;

		r = conn_adopt(b, &fd, &c, e);
		if (r < 0)
			return r;
		c->id = get(v, "id");
		c->in.line = get(v, "line");
		c->in.skipping = json_flag(v, "skipping");
		r = json_get_bytes(v, "in", &in, &len, e);
		if (r == 1 && jsonl_feed(&c->in, in, len) < 0)
			return err_sys(e, ENOMEM, "connection");
		if (r < 0)
			return r;
	}
	return 0;
}

static int load_stream(struct exec *x, int i, const json_t *j, struct err *e)
{
	struct stream *s = &x->out[i];
	json_t *v;
	size_t k;
	int r;

	s->rec.bytes = get(j, "bytes");
	s->rec.dropped = get(j, "dropped");
	json_array_foreach(json_object_get(j, "readers"), k, v) {
		int fd = get_fd(v, "fd");
		struct recorder_reader *p;

		r = recorder_add(&s->rec, &fd, json_flag(v, "lossy"),
				 get(v, "id"), e);
		if (r < 0)
			return r;
		p = &s->rec.readers[s->rec.nreaders - 1];
		p->ahead = get(v, "ahead");
		p->lost = get(v, "lost");
	}
	s->ended = json_flag(j, "ended");
	return 0;
}

static void load_exec_end(struct exec *x, const json_t *j)
{
	x->asked_signal = (int)get(j, "asked_signal");
	x->ended_ms = get(j, "ended_ms");
	x->ended_at = get(j, "ended_at");
	x->left_killed = (unsigned)get(j, "left_killed");
	x->report = (struct init_report){
		.pid = (int32_t)get(j, "r_pid"),
		.status = (int32_t)get(j, "r_status"),
		.utime_us = get(j, "r_utime"),
		.stime_us = get(j, "r_stime"),
		.maxrss_kb = get(j, "r_maxrss"),
	};
	x->gone = json_flag(j, "gone");
	x->lost = json_flag(j, "lost");
	x->session_ended = json_flag(j, "session_ended");
}

static void load_exec_rest(struct exec *x, const json_t *j)
{
	x->stdin_fd = get_fd(j, "stdin_fd");
	x->stdin_ref = get_fd(j, "stdin_ref");
	x->tty_pipe = get_fd(j, "tty_pipe");
	x->leave = json_flag(j, "leave");
	x->tty = json_flag(j, "tty");
	x->timeout_at = get(j, "timeout_at");
	x->kill_at = get(j, "kill_at");
	x->grace_ms = (unsigned)get(j, "grace_ms");
	x->started_ms = get(j, "started_ms");
	x->started_at = get(j, "started_at");
	x->oom_before = get(j, "oom_before");
	x->step = json_int(j, "step", -1);
	x->key = get_str(j, "key");
	x->key_hash = get(j, "key_hash");
	x->script = get_str(j, "script");
	x->cause = json_object_get(j, "cause")
			   ? life_outcome(json_str(j, "cause"))
			   : NULL;
	for (int i = 0; i < 2; i++)
		x->has_out[i] = json_is_true(
			json_array_get(json_object_get(j, "has_out"),
				       (size_t)i));
	load_exec_end(x, j);
}

/* Its streams again.  Those of a session's command come with the session. */
static int load_exec_streams(struct exec *x, const json_t *j, struct err *e)
{
	const json_t *out = json_object_get(j, "out");
	int src[2], r = 0;

	for (int i = 0; r == 0 && i < 2; i++) {
		const json_t *s = json_array_get(out, (size_t)i);

		src[i] = (int)json_int(s, "src", -1);
		if (x->kind != EXEC_SESSION)
			get_fd(s, "src");
		r = load_stream(x, i, s, e);
	}
	if (r == 0 && x->kind == EXEC_COMMAND)
		r = exec_restream(x, src, e);
	return r;
}

static int load_exec(struct box *b, const json_t *j, struct err *e)
{
	struct exec *x = exec_new(b, (enum exec_kind)get(j, "kind"), e);
	struct entered en;
	int r = 0;

	if (!x)
		return e ? e->r : -ENOMEM;
	x->number = get(j, "number");
	snprintf(x->name, sizeof(x->name), "%s", json_str(j, "name"));
	load_exec_rest(x, j);
	en = (struct entered){
		.inner = (pid_t)get(j, "inner"),
		.pidfd = get_fd(j, "pidfd"),
		.tty = get_fd(j, "tty_fd"),
	};
	x->inner = en.inner;
	x->pidfd = en.pidfd;
	x->tty_fd = en.tty;
	x->leaf_made = json_flag(j, "leaf_made");
	if (x->pidfd >= 0 && !x->gone)
		r = exec_watch(x, &en, e);
	if (r == 0)
		r = load_exec_streams(x, j, e);
	if (r == 0 && x->tty_pipe >= 0)
		r = exec_tty(x, e);
	load_asks(b, json_object_get(j, "waiters"), &x->waiters);
	return r;
}

static void load_queue(struct session *s, const json_t *j)
{
	struct exec **end = &s->queue, *x;
	size_t i;
	json_t *v;

	json_array_foreach(json_object_get(j, "queue"), i, v) {
		x = exec_find(s->box, json_string_value(v));
		if (!x)
			continue;
		x->session = s;
		*end = x;
		end = &x->queued;
	}
	x = exec_find(s->box, json_str(j, "current"));
	if (x) {
		x->session = s;
		s->current = x;
	}
}

static int load_session(struct box *b, const json_t *j, struct err *e)
{
	const json_t *out = json_object_get(j, "out");
	struct session *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return err_sys(e, ENOMEM, "session");
	s->box = b;
	snprintf(s->name, sizeof(s->name), "%s", json_str(j, "name"));
	snprintf(s->shell, sizeof(s->shell), "%s", json_str(j, "shell"));
	snprintf(s->status_line, sizeof(s->status_line), "%s",
		 json_str(j, "line"));
	s->status_len = strlen(s->status_line);
	s->inner = (pid_t)get(j, "inner");
	s->pidfd = get_fd(j, "pidfd");
	s->script = get_fd(j, "script");
	s->status = get_fd(j, "status");
	for (size_t i = 0; i < 2; i++) {
		s->out[i] = (int)json_integer_value(json_array_get(out, i));
		fcntl(s->out[i], F_SETFD, FD_CLOEXEC);
	}
	s->seq = get(j, "seq");
	s->last = (int)get(j, "last");
	s->noise = get(j, "noise");
	s->ready = json_flag(j, "ready");
	s->ending = json_flag(j, "ending");
	s->dead = json_flag(j, "dead");
	s->next = b->sessions;
	b->sessions = s;
	b->nsessions++;
	load_queue(s, j);
	load_asks(b, json_object_get(j, "opener"), &s->opener);
	load_asks(b, json_object_get(j, "closers"), &s->closers);
	if (!s->ending)
		r = session_watch(s, e);
	if (r == 0 && s->current) {
		session_watch_idle(s, false);
		r = exec_restream(s->current, s->out, e);
	}
	return r;
}

/* The newest was written first: made last it is the first again. */
static int load_list(struct box *b, const json_t *list,
		     int (*fn)(struct box *, const json_t *, struct err *),
		     struct err *e)
{
	int r = 0;

	for (size_t i = json_array_size(list); r == 0 && i-- > 0;)
		r = fn(b, json_array_get(list, i), e);
	return r;
}

static int load_left(struct box *b, const json_t *j, struct err *e)
{
	int fd = get_fd(j, "fd");

	(void)e;
	if (fd >= 0)
		left_add(b, &fd, json_str(j, "leaf"));
	return 0;
}

static void load_box(struct box *b, const json_t *j)
{
	b->state = (enum box_state)get(j, "state");
	b->since_ms = get(j, "since_ms");
	b->paused_total = get(j, "paused_total");
	b->paused_at = get(j, "paused_at");
	b->active_at = get(j, "active_at");
	b->oom_seen = get(j, "oom_seen");
	b->helper_fd = get_fd(j, "helper_fd");
	b->next_exec = get(j, "next_exec");
	b->next_session = get(j, "next_session");
	b->next_helper = get(j, "next_helper");
	b->next_conn = get(j, "next_conn");
}

/* Those whose end was under way when all stopped. */
static void go_on(struct box *b)
{
	struct exec *next;

	for (struct exec *x = b->execs; x; x = next) {
		next = x->next;
		if (x->gone)
			exec_finish(x);
	}
	exec_timers(b, b->state == BOX_RUNNING);
	exec_reports(b);
}

int reexec_load(struct box *b, int fd, struct err *e)
{
	auto_close int state = fd;
	auto_free char *text = NULL;
	auto_json json_t *j = NULL;
	size_t len;
	int r;

	r = fd_read_all(state, STATE_MAX, &text, &len, e);
	if (r < 0)
		return r;
	j = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
	if (!j || json_int(j, "v", 0) != REEXEC_VERSION)
		return err_set(e, -EBADMSG, "internal",
			       "the state of another release");
	load_box(b, j);
	r = load_conns(b, json_object_get(j, "conns"), e);
	if (r == 0)
		r = load_list(b, json_object_get(j, "execs"), load_exec, e);
	if (r == 0)
		r = load_list(b, json_object_get(j, "sessions"), load_session,
			      e);
	if (r == 0)
		r = load_list(b, json_object_get(j, "left"), load_left, e);
	if (r < 0)
		return r;
	load_asks(b, json_object_get(j, "watchers"), &b->watchers);
	load_asks(b, json_object_get(j, "holders"), &b->holders);
	b->held = json_flag(j, "held");
	load_box(b, j); /* making things anew has moved the counters */
	r = life_again(b, e);
	if (r < 0)
		return r;
	go_on(b);
	/* Whoever held it may have gone while we were written down. */
	life_let_go(b);
	return 0;
}
