/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "exec.h"
#include "left.h"
#include "outer.h"
#include "pause.h"
#include "reexec_priv.h"
#include "relay.h"
#include "session_priv.h"

/* Writing down.  Descriptors keep their numbers. */

static json_t *save_ask(const struct ask *a)
{
	json_t *j = json_pack("{s:I, s:O, s:b, s:b, s:s, s:I}", "conn",
			      (json_int_t)a->conn->id, "echo", a->echo,
			      "repeated", a->repeated, "starter", a->starter,
			      "exec", a->exec, "deadline",
			      (json_int_t)a->deadline.at_ms);

	if (j && a->req) {
		json_object_set(j, "req", a->req);
		json_object_set_new(j, "awake", json_boolean(a->awake));
	}
	if (j && a->key) {
		json_object_set_new(j, "key", json_string(a->key));
		json_object_set_new(j, "hash",
				    json_integer((json_int_t)a->key_hash));
	}
	return j;
}

json_t *reexec_save_asks(const struct ask *list)
{
	json_t *j = json_array();

	for (; list; list = list->wait_next)
		json_array_append_new(j, save_ask(list));
	return j;
}

static json_t *save_stream(const struct stream *s, bool copy)
{
	const struct recorder *r = &s->rec;
	json_t *readers = json_array();

	for (unsigned i = 0; !copy && i < r->nreaders; i++)
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

static void put_fd(json_t *j, const char *key, int fd)
{
	json_object_set_new(j, key, json_integer(fd));
}

static bool is_reaped(int pidfd)
{
	return syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) < 0 &&
	       errno == ESRCH;
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
	json_object_set_new(j, "finishing", json_boolean(x->finishing));
	json_object_set_new(j, "lost", json_boolean(x->lost));
	json_object_set_new(j, "session_ended", json_boolean(x->session_ended));
}

/* Bytes for its stdin that it has not taken. */
static json_t *save_input(const struct exec *x, bool copy)
{
	json_t *list = json_array();

	for (const struct exec_input *in = x->input; in; in = in->next) {
		json_t *j = json_pack("{s:b, s:o}", "close", in->close, "asks",
				      copy ? json_array()
					   : reexec_save_asks(in->list));

		json_set_b64(j, "data", in->data + in->done,
			     in->len - in->done);
		json_array_append_new(list, j);
	}
	return list;
}

/*
 * In a copy.  The client that feeds its stdin is not there: we do.  Our side of
 * its terminal is not either, what stands there is.  A process that is reaped
 * and not reported yet has no descriptor.
 */
static int no_clients(const struct exec *x, json_t *j, struct err *e)
{
	bool open = x->stdin_ref >= 0 && outer_stdin_open(x->stdin_ref);
	auto_free char *data = NULL;
	size_t len = 0;
	int r;

	if (x->stdin_ref >= 0) {
		put_fd(j, "stdin_ref", -1);
		put_fd(j, "stdin_fd", open ? x->stdin_ref : -1);
	}
	if (x->gone || is_reaped(x->pidfd))
		put_fd(j, "pidfd", -1);
	if (!x->tty)
		return 0;
	put_fd(j, "tty_pipe", -1);
	put_fd(json_array_get(json_object_get(j, "out"), 0), "src", -1);
	if (x->out[0].rec.src < 0)
		return 0;
	r = outer_peek(x->out[0].rec.src, &data, &len, e);
	if (r == 0 && data && json_set_b64(j, "tty_pending", data, len) < 0)
		r = err_sys(e, ENOMEM, "state");
	return r;
}

static json_t *save_exec(const struct exec *x, bool copy)
{
	json_t *j = json_pack(
		"{s:i, s:s, s:I, s:i, s:i, s:b, s:b, s:b, s:[bb], s:[oo], "
		"s:i, s:i, s:i, s:i, s:o}",
		"kind", (int)x->kind, "name", x->name, "number",
		(json_int_t)x->number, "inner", (int)x->inner, "pidfd",
		x->pidfd, "leaf_made", x->leaf_made, "leave", x->leave, "tty",
		x->tty, "has_out", x->has_out[0], x->has_out[1], "out",
		save_stream(&x->out[0], copy), save_stream(&x->out[1], copy),
		"tty_fd", x->tty_fd, "tty_pipe", x->tty_pipe, "stdin_fd",
		x->stdin_fd, "stdin_ref", x->stdin_ref, "waiters",
		copy ? json_array() : reexec_save_asks(x->waiters));

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
	json_object_set_new(j, "input", save_input(x, copy));
	save_exec_end(x, j);
	return j;
}

static json_t *save_session(const struct session *s, bool copy)
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
		      "queue", queue, "opener",
		      copy ? json_array() : reexec_save_asks(s->opener),
		      "closers",
		      copy ? json_array() : reexec_save_asks(s->closers));
	if (!j)
		return NULL;
	if (s->current)
		put_str(j, "current", s->current->name);
	/* What is no text is nonsense and not missed. */
	put_str(j, "line", s->status_line);
	json_set_b64(j, "text", s->text.data ? s->text.data : "", s->text.len);
	if (copy && is_reaped(s->pidfd))
		put_fd(j, "pidfd", -1);
	return j;
}

static json_t *save_conn(const struct conn *c)
{
	size_t from = c->in.used;
	json_t *j = json_pack("{s:i, s:I, s:I, s:b, s:o}", "fd", c->src.fd,
			      "id", (json_int_t)c->id, "line",
			      (json_int_t)c->in.line, "skipping",
			      c->in.skipping, "out", conn_save_out(c));

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

static json_t *save_conns(const struct box *b)
{
	json_t *conns = json_array();

	for (const struct conn *c = b->conns; c; c = c->next)
		if (!c->dead)
			json_array_append_new(conns, save_conn(c));
	return conns;
}

static json_t *save_execs(const struct box *b, bool copy, struct err *e)
{
	json_t *list = json_array(), *j;

	for (const struct exec *x = b->execs; list && x; x = x->next) {
		if (copy && x->kind == EXEC_FILE)
			continue;
		j = save_exec(x, copy);
		if (j && copy && no_clients(x, j, e) < 0) {
			json_decref(j);
			json_decref(list);
			return NULL;
		}
		json_array_append_new(list, j);
	}
	return list;
}

static json_t *save_sessions(const struct box *b, bool copy)
{
	json_t *list = json_array();

	for (const struct session *s = b->sessions; s; s = s->next)
		json_array_append_new(list, save_session(s, copy));
	return list;
}

static void save_life(const struct box *b, json_t *j)
{
	put_str(j, "level", pause_level(b));
	put(j, "since_ms", b->since_ms);
	put(j, "paused_total", b->paused_total);
	put(j, "paused_at", b->paused_at);
	put(j, "paused_wall", b->paused_wall);
	put(j, "active_at", b->active_at);
	put(j, "oom_seen", b->oom_seen);
	put(j, "past_cpu_us", b->past_cpu_us);
	put(j, "past_peak_bytes", b->past_peak_bytes);
	put(j, "next_exec", b->next_exec);
	put(j, "next_session", b->next_session);
	put(j, "next_helper", b->next_helper);
	put(j, "next_conn", b->next_conn);
	json_object_set_new(j, "leaves_frozen", json_boolean(b->leaves_frozen));
}

/* Those who wait, and what is kept for them. */
static void save_clients(const struct box *b, json_t *j)
{
	json_t *keep = json_array();

	put_fd(j, "helper_fd", b->helper_fd);
	json_object_set_new(j, "conns", save_conns(b));
	json_object_set_new(j, "watchers", reexec_save_asks(b->watchers));
	json_object_set_new(j, "holders", reexec_save_asks(b->holders));
	json_object_set_new(j, "parked", reexec_save_asks(b->parked));
	json_object_set_new(j, "held", json_boolean(b->held));
	if (b->nports > 0 || relay_active(b))
		json_object_set_new(j, "relay", relay_save(b));
	for (size_t i = 0; i < b->nkeep; i++)
		json_array_append_new(keep, json_integer(b->keep[i]));
	json_object_set_new(j, "keep", keep);
	if (b->table)
		json_object_set(j, "fds", b->table);
}

json_t *reexec_save(struct box *b, bool copy, struct err *e)
{
	json_t *execs = save_execs(b, copy, e), *j;

	if (!execs)
		return NULL;
	j = json_pack("{s:i, s:s, s:i, s:b, s:o, s:o, s:o}", "v",
		      REEXEC_VERSION, "sandbox", b->id, "state", (int)b->state,
		      "checkpoint", copy, "sessions", save_sessions(b, copy),
		      "execs", execs, "left", save_left(b));
	if (!j) {
		err_sys(e, ENOMEM, "state");
		return NULL;
	}
	save_life(b, j);
	if (!copy)
		save_clients(b, j);
	return j;
}
