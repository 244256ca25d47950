/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "exec.h"
#include "left.h"
#include "outer.h"
#include "pause.h"
#include "life.h"
#include "ops.h"
#include "reexec.h"
#include "reexec_priv.h"
#include "relay.h"
#include "session_priv.h"

#define STATE_MAX (64 * 1024 * 1024)

/* Reading what save.c wrote, which is one of us: types are right. */

/* Are there processes? */
static bool is_alive(const struct box *b)
{
	return b->init_pid > 0;
}

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
	a->req = json_incref(json_object_get(j, "req"));
	a->awake = json_flag(j, "awake");
	if (list)
		ask_wait(a, list);
	ops_deadline(a, get(j, "deadline"));
}

void reexec_load_asks(struct box *b, const json_t *j, struct ask **list)
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
		if (r >= 0 && conn_load_out(c, json_object_get(v, "out")) < 0)
			r = err_sys(e, ENOMEM, "connection");
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
	x->finishing = json_flag(j, "finishing");
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

/* The pipe on our side of a terminal, which a checkpoint has not. */
static int tty_again(struct exec *x, const json_t *j, int *ret_src,
		     struct err *e)
{
	auto_free char *data = NULL;
	size_t len = 0;
	int p[2], r;

	r = json_get_bytes(j, "tty_pending", &data, &len, e);
	if (r >= 0)
		r = stream_pipe(p, e);
	if (r < 0)
		return r;
	*ret_src = p[0];
	x->tty_pipe = p[1];
	/* It fits: it stood in one of the same size. */
	if (len > 0 && write(p[1], data, len) < 0)
		return err_sys(e, errno, "pipe of a terminal");
	return 0;
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
		if (i == 0 && x->tty && src[0] < 0 && !json_flag(s, "ended"))
			r = tty_again(x, j, &src[0], e);
		if (r == 0)
			r = load_stream(x, i, s, e);
	}
	if (r == 0 && x->kind == EXEC_COMMAND)
		r = exec_restream(x, src, e);
	return r;
}

/* Of a process that is dead, where there is none of the very one. */
static int dead_pidfd(struct err *e)
{
	pid_t pid = fork();
	int fd;

	if (pid == 0)
		_exit(0);
	if (pid < 0)
		return err_sys(e, errno, "process");
	fd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (fd < 0)
		err_sys(e, errno, "process");
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	return fd;
}

static int load_input(struct box *b, struct exec *x, const json_t *j,
		      struct err *e)
{
	size_t i;
	json_t *v;
	int r;

	json_array_foreach(json_object_get(j, "input"), i, v) {
		struct exec_input *in;
		char *data = NULL;
		size_t len = 0;

		r = json_get_bytes(v, "data", &data, &len, e);
		if (r < 0)
			return r;
		r = exec_input_add(x, data, len, json_flag(v, "close"), &in, e);
		if (r < 0)
			return r;
		reexec_load_asks(b, json_object_get(v, "asks"), &in->list);
	}
	exec_input_run(x);
	return 0;
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
	if (is_alive(b) && x->kind == EXEC_COMMAND && !x->gone &&
	    en.pidfd < 0) {
		x->pidfd = en.pidfd = dead_pidfd(e);
		r = en.pidfd < 0 ? en.pidfd : 0;
	}
	if (r == 0 && is_alive(b) && x->pidfd >= 0 && !x->gone)
		r = exec_watch(x, &en, e);
	x->leaf_made = json_flag(j, "leaf_made");
	if (r == 0)
		r = load_exec_streams(x, j, e);
	if (r == 0 && is_alive(b) && x->tty_pipe >= 0)
		r = exec_tty(x, e);
	if (r == 0)
		r = load_input(b, x, j, e);
	reexec_load_asks(b, json_object_get(j, "waiters"), &x->waiters);
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

/* Of its script, what was not written yet. */
static int load_text(struct session *s, const json_t *j, struct err *e)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r;

	r = json_get_bytes(j, "text", &text, &len, e);
	if (r < 0)
		return r;
	if (len > 0 && buf_add(&s->text, text, len) < 0)
		return err_sys(e, ENOMEM, "session");
	session_push(s);
	return 0;
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
	reexec_load_asks(b, json_object_get(j, "opener"), &s->opener);
	reexec_load_asks(b, json_object_get(j, "closers"), &s->closers);
	if (is_alive(b) && !s->ending && s->pidfd < 0)
		s->pidfd = dead_pidfd(e);
	if (!s->ending)
		r = is_alive(b) && s->pidfd < 0 ? -EMFILE : session_watch(s, e);
	if (r == 0 && s->current) {
		session_watch_idle(s, false);
		r = exec_restream(s->current, s->out, e);
	}
	return r < 0 ? r : load_text(s, j, e);
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

static enum box_level level_of(const json_t *j)
{
	const char *word = json_str(j, "level");

	if (!strcmp(word, "disk"))
		return BOX_DISK;
	return !strcmp(word, "reclaim") ? BOX_RECLAIM : BOX_FREEZE;
}

static void load_box(struct box *b, const json_t *j)
{
	b->state = (enum box_state)get(j, "state");
	b->level = level_of(j);
	b->since_ms = get(j, "since_ms");
	b->paused_total = get(j, "paused_total");
	b->paused_at = get(j, "paused_at");
	b->paused_wall = get(j, "paused_wall");
	if (b->state == BOX_PAUSED && !b->paused_wall)
		b->paused_wall = b->since_ms;
	b->active_at = get(j, "active_at");
	b->oom_seen = get(j, "oom_seen");
	b->past_cpu_us = get(j, "past_cpu_us");
	b->past_peak_bytes = get(j, "past_peak_bytes");
	b->next_exec = get(j, "next_exec");
	b->next_session = get(j, "next_session");
	b->next_helper = get(j, "next_helper");
	b->next_conn = get(j, "next_conn");
	b->leaves_frozen = json_flag(j, "leaves_frozen");
}

static int load_keep(struct box *b, const json_t *j, struct err *e)
{
	size_t n = json_array_size(j);

	if (n == 0 || b->keep)
		return 0;
	b->keep = calloc(n, sizeof(*b->keep));
	if (!b->keep)
		return err_sys(e, ENOMEM, "descriptors");
	for (size_t i = 0; i < n; i++) {
		b->keep[i] = (int)json_integer_value(json_array_get(j, i));
		fcntl(b->keep[i], F_SETFD, FD_CLOEXEC);
	}
	b->nkeep = n;
	return 0;
}

/* Those whose end was under way when all stopped. */
static void go_on(struct box *b)
{
	struct exec *next;

	for (struct exec *x = b->execs; x; x = next) {
		next = x->next;
		if (x->gone && (is_alive(b) || x->finishing))
			exec_finish(x);
	}
	exec_timers(b, b->state == BOX_RUNNING);
	exec_reports(b);
}

/* Is it a pidfd already?  Else there are no processes yet. */
static bool has_init(void)
{
	auto_free char *text = NULL;
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", BOX_FD_INIT);
	return fd_read_file(AT_FDCWD, path, 4096, &text, NULL, NULL) == 0 &&
	       strstr(text, "\nPid:");
}

int reexec_read(struct box *b, int fd, json_t **ret, struct err *e)
{
	auto_close int state = fd;
	auto_free char *text = NULL;
	json_t *j;
	size_t len;
	int r;

	r = fd_read_all(state, STATE_MAX, &text, &len, e);
	if (r < 0)
		return r;
	fd_close(steal_fd(&state));
	j = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
	if (!j || json_int(j, "v", 0) < REEXEC_OLDEST ||
	    json_int(j, "v", 0) > REEXEC_VERSION) {
		json_decref(j);
		return err_set(e, -EBADMSG, "internal",
			       "the state of another release");
	}
	if (json_flag(j, "checkpoint") && !has_init())
		r = outer_make(b, json_object_get(j, "fds"), e);
	if (r < 0) {
		json_decref(j);
		return r;
	}
	*ret = j;
	return 0;
}

static int load_things(struct box *b, const json_t *j, struct err *e)
{
	int r;

	b->helper_fd = get_fd(j, "helper_fd");
	r = load_conns(b, json_object_get(j, "conns"), e);
	if (r == 0)
		r = load_list(b, json_object_get(j, "execs"), load_exec, e);
	if (r == 0)
		r = load_list(b, json_object_get(j, "sessions"), load_session,
			      e);
	if (r == 0)
		r = load_list(b, json_object_get(j, "left"), load_left, e);
	if (r == 0)
		r = load_keep(b, json_object_get(j, "keep"), e);
	if (r < 0)
		return r;
	reexec_load_asks(b, json_object_get(j, "watchers"), &b->watchers);
	reexec_load_asks(b, json_object_get(j, "holders"), &b->holders);
	reexec_load_asks(b, json_object_get(j, "parked"), &b->parked);
	b->held = json_flag(j, "held");
	if (json_object_get(j, "relay"))
		return relay_load(b, json_object_get(j, "relay"), e);
	return json_flag(j, "checkpoint") ? relay_again(b, e) : 0;
}

/* What has become of the processes meanwhile. */
static void settle(struct box *b, const json_t *j)
{
	bool copy = json_flag(j, "checkpoint");

	if (b->level == BOX_DISK || copy)
		b->table = json_incref(json_object_get(j, "fds"));
	if (copy && is_alive(b))
		disk_back(b, true);
	else if (copy)
		life_write_state(b);
	else if (json_flag(j, "waking") && is_alive(b))
		disk_back(b, false);
	else if (json_flag(j, "waking"))
		disk_failed(b, json_object_get(j, "resume_error"));
}

int reexec_load(struct box *b, const json_t *j, struct err *e)
{
	int r;

	load_box(b, j);
	r = load_things(b, j, e);
	if (r < 0)
		return r;
	load_box(b, j); /* making things anew has moved the counters */
	r = life_again(b, e);
	if (r < 0)
		return r;
	go_on(b);
	settle(b, j);
	disk_sweep(b); /* the program before may have had no time for it */
	/* Whoever held it may have gone while we were written down. */
	pause_deserted(b);
	return 0;
}
