/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "exec.h"
#include "left.h"
#include "reexec.h"
#include "reexec_priv.h"
#include "session_priv.h"

#define RETRY_MS 20

/* Writing down.  Descriptors keep their numbers. */

static json_t *save_ask(const struct ask *a)
{
	json_t *j = json_pack("{s:I, s:O, s:b, s:b, s:s, s:I}", "conn",
			      (json_int_t)a->conn->id, "echo", a->echo,
			      "repeated", a->repeated, "starter", a->starter,
			      "exec", a->exec, "deadline",
			      (json_int_t)a->deadline.at_ms);

	if (j && a->key) {
		json_object_set_new(j, "key", json_string(a->key));
		json_object_set_new(j, "hash",
				    json_integer((json_int_t)a->key_hash));
	}
	return j;
}

static json_t *save_asks(const struct ask *list)
{
	json_t *j = json_array();

	for (; list; list = list->wait_next)
		json_array_append_new(j, save_ask(list));
	return j;
}

static json_t *save_stream(const struct stream *s)
{
	const struct recorder *r = &s->rec;
	json_t *readers = json_array();

	for (unsigned i = 0; i < r->nreaders; i++)
		json_array_append_new(readers,
				      json_pack("{s:i, s:b, s:I, s:I, s:I}",
						"fd", r->readers[i].fd, "lossy",
						r->readers[i].lossy, "id",
						(json_int_t)r->readers[i].id,
						"ahead",
						(json_int_t)r->readers[i].ahead,
						"lost",
						(json_int_t)r->readers[i]
							.lost));
	return json_pack("{s:i, s:I, s:I, s:b, s:o}", "src", r->src, "bytes",
			 (json_int_t)r->bytes, "dropped",
			 (json_int_t)r->dropped, "ended", s->ended, "readers",
			 readers);
}

static void put(json_t *j, const char *key, uint64_t v)
{
	json_object_set_new(j, key, json_integer((json_int_t)v));
}

static void put_str(json_t *j, const char *key, const char *v)
{
	if (v)
		json_object_set_new(j, key, json_string(v));
}

static void save_exec_end(const struct exec *x, json_t *j)
{
	put_str(j, "cause", x->cause);
	put(j, "asked_signal", (uint64_t)x->asked_signal);
	put(j, "ended_ms", x->ended_ms);
	put(j, "ended_at", x->ended_at);
	put(j, "left_killed", x->left_killed);
	put(j, "r_pid", (uint64_t)x->report.pid);
	put(j, "r_status", (uint64_t)x->report.status);
	put(j, "r_utime", x->report.utime_us);
	put(j, "r_stime", x->report.stime_us);
	put(j, "r_maxrss", x->report.maxrss_kb);
	json_object_set_new(j, "gone", json_boolean(x->gone));
	json_object_set_new(j, "lost", json_boolean(x->lost));
	json_object_set_new(j, "session_ended", json_boolean(x->session_ended));
}

static json_t *save_exec(const struct exec *x)
{
	json_t *j = json_pack(
		"{s:i, s:s, s:I, s:i, s:i, s:b, s:b, s:b, s:[bb], s:[oo], "
		"s:i, s:i, s:i, s:i, s:o}",
		"kind", (int)x->kind, "name", x->name, "number",
		(json_int_t)x->number, "inner", (int)x->inner, "pidfd",
		x->pidfd, "leaf_made", x->leaf_made, "leave", x->leave, "tty",
		x->tty, "has_out", x->has_out[0], x->has_out[1], "out",
		save_stream(&x->out[0]), save_stream(&x->out[1]), "tty_fd",
		x->tty_fd, "tty_pipe", x->tty_pipe, "stdin_fd", x->stdin_fd,
		"stdin_ref", x->stdin_ref, "waiters", save_asks(x->waiters));

	if (!j)
		return NULL;
	put(j, "timeout_at", x->timeout_at);
	put(j, "kill_at", x->kill_at);
	put(j, "grace_ms", x->grace_ms);
	put(j, "started_ms", x->started_ms);
	put(j, "started_at", x->started_at);
	put(j, "oom_before", x->oom_before);
	put(j, "step", (uint64_t)x->step);
	put(j, "key_hash", x->key_hash);
	put_str(j, "key", x->key);
	put_str(j, "script", x->script);
	put_str(j, "session", x->session ? session_name(x->session) : NULL);
	save_exec_end(x, j);
	return j;
}

static json_t *save_session(const struct session *s)
{
	json_t *queue = json_array(), *j;

	for (const struct exec *x = s->queue; x; x = x->queued)
		json_array_append_new(queue, json_string(x->name));
	j = json_pack("{s:s, s:i, s:i, s:i, s:i, s:[ii], s:I, s:i, s:I, s:s, "
		      "s:b, s:b, s:b, s:o, s:o, s:o}",
		      "name", s->name, "inner", (int)s->inner, "pidfd",
		      s->pidfd, "script", s->script, "status", s->status, "out",
		      s->out[0], s->out[1], "seq", (json_int_t)s->seq, "last",
		      s->last, "noise", (json_int_t)s->noise, "shell", s->shell,
		      "ready", s->ready, "ending", s->ending, "dead", s->dead,
		      "queue", queue, "opener", save_asks(s->opener), "closers",
		      save_asks(s->closers));
	if (!j)
		return NULL;
	if (s->current)
		put_str(j, "current", s->current->name);
	/* What is no text is nonsense and not missed. */
	put_str(j, "line", s->status_line);
	return j;
}

static json_t *save_conn(const struct conn *c)
{
	size_t from = c->in.used;
	json_t *j = json_pack("{s:i, s:I, s:I, s:b}", "fd", c->src.fd, "id",
			      (json_int_t)c->id, "line", (json_int_t)c->in.line,
			      "skipping", c->in.skipping);

	if (j && c->in.buf.len > from &&
	    json_set_bytes(j, "in", c->in.buf.data + from,
			   c->in.buf.len - from) < 0) {
		json_decref(j);
		return NULL;
	}
	return j;
}

static json_t *save_left(const struct box *b)
{
	json_t *j = json_array();

	for (const struct left *l = b->left; l; l = l->next)
		json_array_append_new(j, json_pack("{s:i, s:s}", "fd", l->fd,
						   "leaf", l->leaf));
	return j;
}

static json_t *save(const struct box *b)
{
	json_t *conns = json_array(), *sessions = json_array();
	json_t *execs = json_array(), *j;

	for (const struct conn *c = b->conns; c; c = c->next)
		if (!c->dead)
			json_array_append_new(conns, save_conn(c));
	for (const struct session *s = b->sessions; s; s = s->next)
		json_array_append_new(sessions, save_session(s));
	for (const struct exec *x = b->execs; x; x = x->next)
		json_array_append_new(execs, save_exec(x));
	j = json_pack("{s:i, s:i, s:i, s:o, s:o, s:o, s:o}", "v",
		      REEXEC_VERSION, "state", (int)b->state, "helper_fd",
		      b->helper_fd, "conns", conns, "sessions", sessions,
		      "execs", execs, "watchers", save_asks(b->watchers));
	if (!j)
		return NULL;
	json_object_set_new(j, "left", save_left(b));
	json_object_set_new(j, "holders", save_asks(b->holders));
	json_object_set_new(j, "held", json_boolean(b->held));
	put(j, "since_ms", b->since_ms);
	put(j, "paused_total", b->paused_total);
	put(j, "paused_at", b->paused_at);
	put(j, "active_at", b->active_at);
	put(j, "oom_seen", b->oom_seen);
	put(j, "next_exec", b->next_exec);
	put(j, "next_session", b->next_session);
	put(j, "next_helper", b->next_helper);
	put(j, "next_conn", b->next_conn);
	return j;
}

/* Is something half way through that is not written down? */
static bool unsettled(const struct box *b)
{
	if (b->state != BOX_RUNNING && b->state != BOX_PAUSED)
		return true;
	if (conn_pending(b))
		return true;
	for (const struct exec *x = b->execs; x; x = x->next)
		if (x->input)
			return true;
	for (const struct session *s = b->sessions; s; s = s->next)
		if (s->text.len > 0)
			return true;
	return false;
}

/* Every descriptor of ours over the exec, or (on false) no more. */
static void pass(const json_t *j, bool on)
{
	static const char *const keys[] = {
		"fd",	    "src",	 "pidfd",  "tty_fd", "tty_pipe",
		"stdin_fd", "stdin_ref", "script", "status", "helper_fd",
	};
	const char *key;
	size_t i;
	json_t *v;

	if (json_is_array(j)) {
		json_array_foreach((json_t *)(uintptr_t)j, i, v)
			pass(v, on);
		return;
	}
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		if (json_is_array(v) ||
		    (json_is_object(v) && strcmp(key, "echo")))
			pass(v, on);
		for (i = 0; json_is_integer(v) && i < array_len(keys); i++)
			if (!strcmp(keys[i], key) && json_integer_value(v) > 2)
				fcntl((int)json_integer_value(v), F_SETFD,
				      on ? 0 : FD_CLOEXEC);
	}
}

static void pass_all(const struct box *b, const json_t *j, int memfd, bool on)
{
	const int own[] = {b->claim_fd, b->listen_fd, b->report_fd, b->init_fd,
			   memfd};

	pass(j, on);
	for (const struct session *s = b->sessions; s; s = s->next)
		for (int i = 0; i < 2; i++)
			fcntl(s->out[i], F_SETFD, on ? 0 : FD_CLOEXEC);
	for (size_t i = 0; i < array_len(own); i++)
		fcntl(own[i], F_SETFD, on ? 0 : FD_CLOEXEC);
}

static int write_down(const json_t *j, struct err *e)
{
	auto_free char *text = json_dumps(j, JSON_COMPACT);
	auto_close int fd = -1;
	int r;

	if (!text)
		return err_sys(e, ENOMEM, "state");
	fd = memfd_create("dsec-box", MFD_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "state");
	r = fd_write_all(fd, text, strlen(text), e);
	if (r < 0)
		return r;
	if (lseek(fd, 0, SEEK_SET) < 0)
		return err_sys(e, errno, "state");
	return steal_fd(&fd);
}

static int reexec(struct box *b, struct err *e)
{
	auto_json json_t *j = save(b);
	char path[PATH_MAX], state[16];
	const char *const argv[] = {"dsec-box", "--state", state, b->id, NULL};
	auto_close int fd = -1;
	int r;

	if (!j)
		return err_sys(e, ENOMEM, "state");
	r = proc_libexec("dsec-box", path, sizeof(path), e);
	if (r < 0)
		return r;
	fd = write_down(j, e);
	if (fd < 0)
		return fd;
	snprintf(state, sizeof(state), "%d", fd);
	pass_all(b, j, fd, true);
	execv(path, (char *const *)(uintptr_t)argv);
	r = err_sys(e, errno, "execute '%s'", path);
	pass_all(b, j, fd, false);
	return r;
}

static void on_soon(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	if (b->state == BOX_STOPPING || b->state == BOX_STOPPED)
		return;
	if (unsettled(b))
		loop_timer_set(l, t, clock_ms() + RETRY_MS);
	else
		(void)reexec(b, NULL); /* it did not work: we go on */
}

void reexec_soon(struct box *b)
{
	b->reexec_timer.fn = on_soon;
	b->reexec_timer.arg = b;
	loop_timer_set(b->loop, &b->reexec_timer, clock_ms());
}
