/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box/recorder.h"
#include "box/result.h"
#include "life/output.h"
#include "serve/relay_priv.h"
#include "wire/exit.h"
#include "wire/record.h"

#define CONNECT_MS 10000
#define RECOVER_MS 60000 /* for a supervisor to be there again */
#define RETRY_MS   20
#define KILL_MS	   1000		/* to be confirmed */
#define SAID_MAX   (256 * 1024) /* what a file helper may say */

static void stop_watching(struct relay *r)
{
	if (r->watching)
		loop_del(r->loop, &r->src);
	r->watching = false;
	if (r->said_fd >= 0) {
		loop_del(r->loop, &r->said_src);
		fd_close(steal_fd(&r->said_fd));
	}
	loop_timer_set(r->loop, &r->deadline, 0);
	loop_timer_set(r->loop, &r->retry, 0);
	recovery_free(steal_ptr(r->recovery));
}

void relay_free(struct relay *r)
{
	if (!r)
		return;
	stop_watching(r);
	ctl_free(r->ctl);
	buf_done(&r->said);
	json_decref(r->req);
	json_decref(r->line);
	json_decref(r->end);
	json_decref(r->want);
	free(r);
}

/* The last thing that happens. */
static void finish(struct relay *r, json_t *rec, const struct err *why)
{
	if (r->over)
		return;
	r->over = true;
	stop_watching(r);
	r->ops->done(r->arg, rec, rec ? NULL : why);
	relay_free(r);
}

static void fail(struct relay *r, const struct err *why)
{
	finish(r, NULL, r->cancelling ? &r->why : why);
}

static int watch(struct relay *r, struct err *e);

static int kill_command(struct relay *r, struct err *e)
{
	auto_json json_t *req = NULL;
	int rc;

	rc = json_pack_or(&req, e, "{ss ss ss ss}", "id", "kill", "op",
			  "signal", "exec", r->exec, "signal", "SIGKILL");
	if (rc == 0)
		rc = ctl_send(r->ctl, req, NULL, 0, e);
	return rc == 0 ? watch(r, e) : rc;
}

void relay_cancel(struct relay *r, const struct err *why)
{
	struct err e = {0};

	if (r->cancelling || r->over)
		return;
	r->cancelling = true;
	r->why = *why;
	/* Only what it started itself is killed, and only where it is. */
	if (!r->ctl || r->op != RELAY_EXEC) {
		loop_timer_set(r->loop, &r->deadline, clock_ms());
		return;
	}
	loop_timer_set(r->loop, &r->deadline, clock_ms() + KILL_MS);
	if (*r->exec && kill_command(r, &e) < 0)
		loop_timer_set(r->loop, &r->deadline, clock_ms());
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct relay *r = t->arg;
	struct err e = {0};

	(void)l;
	if (r->cancelling) {
		finish(r, NULL, &r->why);
		return;
	}
	err_set(&e, -ETIMEDOUT, "deadline", "the request was not done in time");
	relay_cancel(r, &e);
}

/* --- the end ------------------------------------------------------------- */

/* A record of the supervisor or its helper, with the ids that we know it by. */
static json_t *answer(const struct relay *r, json_t *from, struct err *e)
{
	auto_json json_t *rec = record_ok(r->req);
	auto_json json_t *more = json_copy(from);

	json_object_del(more, "id");
	if (rec && more && json_object_update_missing(rec, more) == 0)
		return steal_ptr(rec);
	err_sys(e, ENOMEM, "record");
	return NULL;
}

/* What the file helper says at the end of its stderr is the result; its exit
 * status alone tells where it could not say any. */
static json_t *file_result(struct relay *r, struct err *e)
{
	auto_json json_t *said = NULL;
	char *last = NULL, *next;
	int status;

	if (record_to_err(r->end, e) < 0)
		return NULL;
	for (char *p = r->said.data; p && *p; p = next) {
		next = strchr(p, '\n');
		if (next)
			*next++ = '\0';
		if (*p)
			last = p;
	}
	if (last && json_parse(last, strlen(last), &said, NULL) == 0) {
		return record_to_err(said, e) < 0 ? NULL : answer(r, said, e);
	}
	if (result_of_helper(r->end, &status, e) < 0)
		return NULL;
	err_set(e, -EIO, "internal", "the file operation ended without result");
	status -= HELPER_EXIT_BASE;
	if (status >= 0 && status < (int)exit_codes_len)
		e->code = exit_codes[status].code;
	return NULL;
}

static void file_end(struct relay *r)
{
	auto_json json_t *rec = NULL;
	struct err e = {0};

	if (!r->end || r->said_fd >= 0)
		return; /* the other half is to come */
	rec = file_result(r, &e);
	finish(r, rec, &e);
}

static void on_said(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay *r = s->arg;
	char data[4096];
	ssize_t n;

	(void)events;
	n = read(s->fd, data, sizeof(data));
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n > 0 && r->said.len + (size_t)n <= SAID_MAX &&
	    buf_add(&r->said, data, (size_t)n) == 0)
		return;
	loop_del(l, s);
	fd_close(steal_fd(&r->said_fd));
	file_end(r);
}

/* Nothing was begun: the supervisor has too much to do. */
static bool try_later(struct relay *r, const struct err *e)
{
	if (strcmp(e->code, "busy") || r->cancelling || r->started ||
	    clock_ms() >= r->give_up_ms)
		return false;
	if (r->watching)
		loop_del(r->loop, &r->src);
	r->watching = false;
	ctl_free(r->ctl);
	r->ctl = NULL;
	loop_timer_set(r->loop, &r->retry,
		       clock_ms() + (e->retry_after_ms ? e->retry_after_ms
						       : RETRY_MS));
	return true;
}

/* A command that was started without us is waited for. */
static int follow(struct relay *r, struct ctl_record *cr, struct err *e)
{
	auto_json json_t *req = NULL;
	int rc;

	rc = relay_started(r, cr, e);
	if (rc == 0)
		rc = json_pack_or(&req, e, "{si ss ss}", "id", 1, "op", "wait",
				  "exec", r->exec);
	if (rc == 0)
		rc = ctl_send(r->ctl, req, NULL, 0, e);
	return rc;
}

/* 1: it is over. */
static int on_final(struct relay *r, struct ctl_record *cr)
{
	auto_json json_t *rec = NULL;
	struct err e = {0};
	int rc;

	rc = record_to_err(cr->rec, &e);
	if (rc < 0 && try_later(r, &e))
		return 1;
	if (r->op == RELAY_FILE && r->started) {
		r->end = json_incref(cr->rec);
		if (rc < 0 && r->said_fd < 0)
			fail(r, &e);
		else
			file_end(r);
		return 1;
	}
	if (rc < 0 || r->cancelling) {
		fail(r, &e);
		return 1;
	}
	if (r->op == RELAY_EXEC && !r->started &&
	    !json_is_true(json_object_get(r->req, "detach")) &&
	    !json_object_get(cr->rec, "outcome")) {
		if (follow(r, cr, &e) == 0)
			return 0;
		fail(r, &e);
		return 1;
	}
	if (r->op == RELAY_ATTACH && r->streams && !r->started &&
	    relay_replay(r, cr->rec, &e) < 0) {
		fail(r, &e);
		return 1;
	}
	rec = answer(r, cr->rec, &e);
	if (rec && !r->streams && r->op != RELAY_WAIT &&
	    json_object_get(rec, "outcome") &&
	    output_add(r->tree, ctl_id(r->ctl), r->req, rec, &e) < 0) {
		fail(r, &e);
		return 1;
	}
	finish(r, rec, &e);
	return 1;
}

static int on_event(struct relay *r, struct ctl_record *cr, struct err *e)
{
	const char *event = json_str(cr->rec, "event");
	int rc = 0;

	if (!strcmp(event, "started") || !strcmp(event, "connected"))
		rc = relay_started(r, cr, e);
	if (rc == 0 && r->cancelling && *r->exec)
		rc = kill_command(r, e);
	return rc;
}

int relay_tty(struct relay *r, struct err *e)
{
	const char *exec = *r->exec ? r->exec : json_str(r->req, "exec");
	auto_json json_t *req = NULL;
	int rc;

	if (!r->ctl || !*exec)
		return err_set(e, -ENOENT, "exec_unknown", "no such terminal");
	rc = json_pack_or(&req, e, "{ss ss ss s[]}", "id", "tty", "op",
			  "attach", "exec", exec, "attach");
	if (rc == 0)
		rc = ctl_send(r->ctl, req, NULL, 0, e);
	return rc == 0 ? watch(r, e) : rc;
}

/* That terminal; or why not.  At the command's end there is nothing to tell. */
static int on_tty(struct relay *r, struct ctl_record *cr, struct err *e)
{
	json_t *error = json_object_get(cr->rec, "error");
	auto_json json_t *rec = NULL;
	struct relay_fds f = {0};
	int rc;

	if (cr->final && !error)
		return 0;
	rc = json_pack_or(&rec, e, "{ss}", "event", "tty");
	if (rc < 0)
		return rc;
	if (error)
		json_object_set(rec, "error", error);
	f.fds[0] = ctl_take_fd(cr, "tty");
	f.names[0] = "tty";
	f.n = f.fds[0] >= 0;
	r->ops->event(r->arg, rec, &f);
	if (f.n)
		fd_close(f.fds[0]);
	return 0;
}

static int on_record(struct relay *r, struct ctl_record *cr, struct err *e)
{
	if (!strcmp(json_str(cr->rec, "id"), "tty"))
		return on_tty(r, cr, e);
	if (!cr->final)
		return on_event(r, cr, e);
	if (json_is_string(json_object_get(cr->rec, "id")))
		return 0; /* of the kill */
	return on_final(r, cr);
}

static void on_ctl(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay *r = s->arg;
	struct err e = {0};
	int rc = 0;

	(void)l;
	if (events & EPOLLOUT)
		rc = ctl_flush(r->ctl, &e);
	while (rc == 0) {
		auto_ctl_record struct ctl_record cr = {0};

		rc = ctl_next(r->ctl, &cr, &e);
		if (rc == 0)
			rc = on_record(r, &cr, &e);
	}
	if (rc == 1)
		return;
	if (rc == -EAGAIN)
		rc = watch(r, &e);
	if (rc < 0)
		fail(r, &e);
}

static int watch(struct relay *r, struct err *e)
{
	uint32_t events = EPOLLIN | (ctl_pending(r->ctl) ? EPOLLOUT : 0);
	int rc;

	if (r->watching)
		return loop_mod(r->loop, &r->src, events, e);
	rc = loop_add(r->loop, &r->src, ctl_fd(r->ctl), events, on_ctl, r, e);
	r->watching = rc == 0;
	return rc;
}

/* --- the beginning ------------------------------------------------------- */

static void on_recovered(void *arg, const struct err *why)
{
	struct relay *r = arg;

	r->recovery = NULL;
	if (why && strcmp(why->code, "busy")) {
		fail(r, why);
		return;
	}
	r->recovered = !why;
	r->give_up_ms = clock_ms() + CONNECT_MS;
	loop_timer_set(r->loop, &r->retry, clock_ms() + (why ? RETRY_MS : 0));
}

/* It takes its time, and others have theirs meanwhile. */
static int bring_back(struct relay *r, struct err *e)
{
	int rc = recovery_new(r->loop, r->tree, json_str(r->req, "sandbox"),
			      on_recovered, r, &r->recovery, e);

	r->give_up_ms = clock_ms() + RECOVER_MS;
	return rc;
}

static void on_retry(struct loop *l, struct loop_timer *t)
{
	struct relay *r = t->arg;
	const char *id = json_str(r->req, "sandbox");
	struct err e = {0};
	int rc;

	rc = ctl_open(r->tree, id, CTL_NONBLOCK | CTL_NO_RECOVER, &r->ctl, &e);
	if (rc == -ESTALE && !r->recovered && (rc = bring_back(r, &e)) == 0)
		return;
	/* One that is being made, or has too many; or out of descriptors. */
	if ((rc == -EBUSY || rc == -EMFILE) && clock_ms() < r->give_up_ms) {
		loop_timer_set(l, t, clock_ms() + RETRY_MS);
		return;
	}
	if (rc == 0)
		rc = ctl_send(r->ctl, r->line, NULL, 0, &e);
	if (rc == 0)
		rc = watch(r, &e);
	if (rc < 0)
		fail(r, &e);
}

int relay_new(struct loop *l, const struct tree *t, const json_t *req,
	      const struct relay_ops *ops, void *arg, struct relay **ret,
	      struct err *e)
{
	struct relay *r = calloc(1, sizeof(*r));
	int64_t ms, wait;
	int rc;

	if (!r)
		return err_sys(e, ENOMEM, "request");
	r->loop = l;
	r->tree = t;
	r->ops = ops;
	r->arg = arg;
	r->said_fd = -1;
	r->req = json_copy((json_t *)(uintptr_t)req);
	rc = r->req ? relay_check(r, e) : err_sys(e, ENOMEM, "request");
	if (rc < 0) {
		relay_free(r);
		return rc;
	}
	ms = json_int(req, "deadline_ms", 0);
	wait = r->op == RELAY_WAIT ? json_int(req, "timeout_ms", 0) : 0;
	if (wait > 0 && (ms == 0 || wait < ms))
		ms = wait;
	r->deadline = (struct loop_timer){.fn = on_deadline, .arg = r};
	r->retry = (struct loop_timer){.fn = on_retry, .arg = r};
	r->give_up_ms = clock_ms() + CONNECT_MS;
	if (ms > 0)
		loop_timer_set(l, &r->deadline, clock_ms() + (uint64_t)ms);
	loop_timer_set(l, &r->retry, clock_ms());
	*ret = r;
	return 0;
}

/* --- what it brings ------------------------------------------------------ */

static void put_fd(struct relay_fds *f, const char *name, int *fd)
{
	if (*fd < 0)
		return;
	if (f->n == RELAY_FDS_MAX) {
		fd_close(steal_fd(fd));
		return;
	}
	f->names[f->n] = name;
	f->fds[f->n++] = steal_fd(fd);
}

static const char *const part_names[2][3] = {
	{"stdout.0", "stdout.1", "stdout.2"},
	{"stderr.0", "stderr.1", "stderr.2"},
};
static const char *const outputs[2] = {"stdout", "stderr"};
static const char *const offsets[2] = {"stdout_offset", "stderr_offset"};

/* Of what was written before it was attached, that from the offset on. */
static int add_before(struct relay *r, uint64_t live, int i, json_t *rec,
		      struct relay_fds *f, struct err *e)
{
	auto_close int dir = -1;
	uint64_t want = (uint64_t)json_int(r->req, offsets[i], (int64_t)live);
	struct output_stream s = {.stream = outputs[i], .exec = r->exec};
	struct output_parts p = {0};
	json_t *list;
	int rc;

	if (want > live)
		return err_set(e, -EBADMSG, "bad_value",
			       "'%s' is beyond the %llu bytes there are",
			       offsets[i], (unsigned long long)live);
	dir = output_dir(r->tree, ctl_id(r->ctl), r->exec, e);
	if (dir < 0)
		return dir;
	s.dir = dir;
	rc = output_parts(&s, want, live, &p, e);
	if (rc < 0)
		return rc;
	list = json_array();
	json_object_set_new(json_object_get(rec, "parts"), outputs[i], list);
	for (unsigned n = 0; n < p.n; n++) {
		json_array_append_new(list,
				      json_pack("[I, I]",
						(json_int_t)p.part[n].at,
						(json_int_t)p.part[n].len));
		put_fd(f, part_names[i][n], &p.part[n].fd);
	}
	/* What is not kept is behind the head: there it begins later. */
	if (want >= RECORDER_HEAD) {
		want += p.lost;
		p.lost = 0;
	}
	json_object_set_new(rec, offsets[i], json_integer((json_int_t)want));
	if (p.lost > 0) {
		char key[32];

		snprintf(key, sizeof(key), "%s_lost", outputs[i]);
		json_object_set_new(rec, key, json_integer((json_int_t)p.lost));
	}
	output_parts_done(&p);
	return 0;
}

static int take_outputs(struct relay *r, struct ctl_record *cr, json_t *rec,
			struct relay_fds *f, struct err *e)
{
	int rc = 0, fd;

	if (r->op == RELAY_ATTACH)
		json_object_set_new(rec, "parts", json_object());
	for (int i = 0; i < 2 && rc == 0; i++) {
		fd = ctl_take_fd(cr, outputs[i]);
		if (fd < 0)
			continue;
		if (r->op == RELAY_ATTACH)
			rc = add_before(r,
					(uint64_t)json_int(cr->rec, offsets[i],
							   0),
					i, rec, f, e);
		put_fd(f, outputs[i], &fd);
	}
	return rc;
}

static void take_other(struct ctl_record *cr, struct relay_fds *f,
		       const char *name)
{
	int fd = ctl_take_fd(cr, name);

	put_fd(f, name, &fd);
}

/* A file helper's own words are ours; of what it reads and writes one is the
 * caller's, the other is closed. */
static int take_file(struct relay *r, struct ctl_record *cr,
		     struct relay_fds *f, struct err *e)
{
	auto_close int in = ctl_take_fd(cr, "stdin");
	auto_close int out = ctl_take_fd(cr, "stdout");
	const char *op = json_str(r->req, "op");
	bool writes = !strcmp(op, "put") || !strcmp(op, "write");

	r->said_fd = ctl_take_fd(cr, "stderr");
	if (in < 0 || out < 0 || r->said_fd < 0)
		return err_set(e, -EBADMSG, "internal",
			       "the supervisor started no file helper");
	fcntl(r->said_fd, F_SETFL, O_NONBLOCK);
	if (writes)
		put_fd(f, "stdin", &in);
	else
		put_fd(f, "stdout", &out);
	return loop_add(r->loop, &r->said_src, r->said_fd, EPOLLIN, on_said, r,
			e);
}

static void drop_fds(struct relay_fds *f)
{
	for (size_t i = 0; i < f->n; i++)
		if (f->fds[i] >= 0)
			fd_close(f->fds[i]);
	f->n = 0;
}

static void name_streams(json_t *rec, const struct relay_fds *f)
{
	json_t *names = json_array();
	bool tty = false;

	for (size_t i = 0; i < f->n; i++)
		tty |= !strcmp(f->names[i], "tty");
	for (size_t i = 0; i < f->n; i++) {
		if (strchr(f->names[i], '.'))
			continue;
		/* A terminal's output is the terminal's, to who looks on. */
		if (tty && strcmp(f->names[i], "tty"))
			continue;
		json_array_append_new(names, json_string(f->names[i]));
	}
	json_object_set_new(rec, "streams", names);
}

static bool is_wanted(const struct relay *r, const char *name)
{
	json_t *one;
	size_t i;

	json_array_foreach(r->want, i, one)
		if (!strcmp(json_string_value(one), name))
			return true;
	return r->want == NULL;
}

int relay_replay(struct relay *r, const json_t *end, struct err *e)
{
	static const char *const bytes[2] = {"stdout_bytes", "stderr_bytes"};
	auto_json json_t *rec = NULL;
	struct relay_fds f = {0};
	int rc;

	snprintf(r->exec, sizeof(r->exec), "%s", json_str(end, "exec"));
	rc = json_pack_or(&rec, e, "{sO ss ss s{} s[]}", "sandbox",
			  json_object_get(r->req, "sandbox"), "event",
			  "started", "exec", r->exec, "parts", "streams");
	for (int i = 0; rc == 0 && i < 2; i++) {
		if (!is_wanted(r, outputs[i]))
			continue;
		json_array_append_new(json_object_get(rec, "streams"),
				      json_string(outputs[i]));
		/* From its start, where it is not said. */
		if (!json_object_get(r->req, offsets[i]))
			json_object_set_new(r->req, offsets[i],
					    json_integer(0));
		rc = add_before(r, (uint64_t)json_int(end, bytes[i], 0), i, rec,
				&f, e);
	}
	if (rc == 0)
		r->ops->event(r->arg, rec, &f);
	drop_fds(&f);
	return rc;
}

int relay_started(struct relay *r, struct ctl_record *cr, struct err *e)
{
	auto_json json_t *rec = NULL;
	struct relay_fds f = {0};
	json_t *v;
	int rc;

	snprintf(r->exec, sizeof(r->exec), "%s", json_str(cr->rec, "exec"));
	rc = json_pack_or(&rec, e, "{sO ss ss}", "sandbox",
			  json_object_get(r->req, "sandbox"), "event",
			  "started", "exec", r->exec);
	if (rc < 0)
		return rc;
	if (!*r->exec)
		json_object_del(rec, "exec");
	v = json_object_get(cr->rec, "address");
	if (v)
		json_object_set(rec, "address", v);
	if (r->op == RELAY_FILE) {
		rc = take_file(r, cr, &f, e);
	} else {
		rc = take_outputs(r, cr, rec, &f, e);
		take_other(cr, &f, "stdin");
		take_other(cr, &f, "tty");
		take_other(cr, &f, "socket");
	}
	if (rc < 0) {
		drop_fds(&f);
		return rc;
	}
	r->started = true;
	if (f.n > 0)
		name_streams(rec, &f);
	r->ops->event(r->arg, rec, &f);
	drop_fds(&f);
	return 0;
}
