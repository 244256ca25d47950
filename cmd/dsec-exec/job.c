/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "job.h"
#include "job_file.h"
#include "life/output.h"
#include "life/recover.h"
#include "life/recover_child.h"
#include "wire/record.h"

/* A supervisor that is being made, or has too much to do, gets so long. */
#define CONNECT_MS 10000
#define RECOVER_MS 60000 /* for a supervisor to be there again */
#define RETRY_MS   20
/* The kill of a command that was given up gets so long to be confirmed. */
#define KILL_MS 1000

static bool is_op(const struct job *j, const char *op)
{
	return !strcmp(json_str(j->req, "op"), op);
}

static void unwatch(struct job *j)
{
	if (j->watching)
		loop_del(j->loop, &j->source);
	j->watching = false;
}

/* The last thing that happens to a job: it may be gone afterwards. */
static void finish(struct job *j, json_t *rec)
{
	unwatch(j);
	loop_timer_set(j->loop, &j->deadline, 0);
	loop_timer_set(j->loop, &j->retry, 0);
	recovery_free(steal_ptr(j->recovery));
	if (rec && *j->exec && !json_object_get(rec, "exec"))
		json_object_set_new(rec, "exec", json_string(j->exec));
	j->ops->done(j->arg, j, rec);
	json_decref(rec);
}

static void fail(struct job *j, const struct err *why)
{
	finish(j, record_error(j->req, why));
}

/* It failed, unless it had failed before for a better reason. */
static void lose(struct job *j, const struct err *why)
{
	fail(j, j->ending ? &j->why : why);
}

static int watch(struct job *j, struct err *e);

static int kill_command(struct job *j, struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = json_pack_or(&req, e, "{s:s, s:s, s:s, s:s}", "id", "kill", "op",
			 "signal", "exec", j->exec, "signal", "SIGKILL");
	if (r == 0)
		r = ctl_send(j->ctl, req, NULL, 0, e);
	return r == 0 ? watch(j, e) : r;
}

int job_names_id(json_t *req, const struct ctl *ctl, struct err *e)
{
	if (json_object_set_new(req, "sandbox", json_string(ctl_id(ctl))) < 0)
		return err_sys(e, ENOMEM, "request");
	return 0;
}

/* The supervisor's record as ours: the ids of the request, and what it says. */
static json_t *answer(struct job *j, json_t *from, struct err *e)
{
	json_t *rec = record_ok(j->req), *v;
	const char *key;
	int r = 0;

	if (!rec) {
		err_sys(e, ENOMEM, "record");
		return NULL;
	}
	json_object_set_new(rec, "sandbox", json_string(ctl_id(j->ctl)));
	json_object_foreach(from, key, v)
		if (strcmp(key, "id") && !json_object_get(rec, key))
			r |= json_object_set(rec, key, v);
	/* Where it came from stays last. */
	v = json_object_get(rec, "in");
	if (v) {
		json_incref(v);
		json_object_del(rec, "in");
		json_object_set_new(rec, "in", v);
	}
	if (r == 0)
		return rec;
	json_decref(rec);
	err_sys(e, ENOMEM, "record");
	return NULL;
}

static void tell_started(struct job *j)
{
	json_t *rec = NULL;

	if (!json_object_get(j->req, "stdin") && !json_flag(j->req, "tty"))
		return;
	if (json_pack_or(&rec, NULL, "{s:O, s:s, s:s, s:s}", "id",
			 json_object_get(j->req, "id"), "sandbox",
			 ctl_id(j->ctl), "event", "started", "exec",
			 j->exec) < 0)
		return;
	j->ops->event(j->arg, rec);
	json_decref(rec);
}

static int on_started(struct job *j, const json_t *rec, struct err *e)
{
	snprintf(j->exec, sizeof(j->exec), "%s", json_str(rec, "exec"));
	if (j->ending)
		return kill_command(j, e);
	tell_started(j);
	return 0;
}

static bool is_detached_start(const struct job *j, const json_t *rec)
{
	return is_op(j, "exec") && !*j->exec && !json_flag(j->req, "detach") &&
	       !json_object_get(rec, "outcome");
}

/* It was started without us, because its input comes by other requests. */
static int follow(struct job *j, const json_t *rec, struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = on_started(j, rec, e);
	if (r == 0)
		r = json_pack_or(&req, e, "{s:s, s:s}", "op", "wait", "exec",
				 j->exec);
	if (r == 0)
		r = ctl_send(j->ctl, req, NULL, 0, e);
	return r == 0 ? watch(j, e) : r;
}

/* The supervisor has too many at once; nothing was begun. */
static bool try_later(struct job *j, const struct err *e)
{
	if (strcmp(e->code, "busy") || j->ending || *j->exec ||
	    clock_ms() >= j->give_up_ms)
		return false;
	unwatch(j);
	ctl_free(j->ctl);
	j->ctl = NULL;
	loop_timer_set(j->loop, &j->retry,
		       clock_ms() + (e->retry_after_ms ? e->retry_after_ms
						       : RETRY_MS));
	return true;
}

/* 1: the job is over, or begins anew. */
static int on_final(struct job *j, json_t *from)
{
	struct err e = {0};
	json_t *rec;
	int r;

	if (record_to_err(from, &e) < 0) {
		if (try_later(j, &e))
			return 1;
		lose(j, &e);
		return 1;
	}
	if (j->ending && json_object_get(from, "outcome")) {
		fail(j, &j->why);
		return 1;
	}
	if (is_detached_start(j, from)) {
		if (follow(j, from, &e) == 0)
			return 0;
		lose(j, &e);
		return 1;
	}
	rec = answer(j, from, &e);
	r = rec ? 0 : -ENOMEM;
	if (r == 0 && json_object_get(rec, "outcome") &&
	    (is_op(j, "exec") || is_op(j, "attach")))
		r = output_add(j->tree, ctl_id(j->ctl), j->req, rec, &e);
	else if (r == 0 && is_op(j, "output"))
		r = output_read(j->tree, ctl_id(j->ctl), j->req, rec, &e);
	if (r < 0) {
		json_decref(rec);
		fail(j, &e);
		return 1;
	}
	finish(j, rec);
	return 1;
}

/* 1: the job is over (and may be gone). */
static int on_record(struct job *j, struct ctl_record *r, struct err *e)
{
	if (r->final) {
		if (!strcmp(json_str(r->rec, "id"), "kill"))
			return 0;
		return on_final(j, r->rec);
	}
	if (strcmp(json_str(r->rec, "event"), "started"))
		return 0;
	return on_started(j, r->rec, e);
}

static void on_ctl(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct job *j = s->arg;
	struct err e = {0};
	int r = 0;

	(void)l;
	if (events & EPOLLOUT)
		r = ctl_flush(j->ctl, &e);
	while (r == 0) {
		auto_ctl_record struct ctl_record rec = {0};

		r = ctl_next(j->ctl, &rec, &e);
		if (r == 0)
			r = on_record(j, &rec, &e);
	}
	if (r == 1)
		return;
	if (r == -EAGAIN)
		r = watch(j, &e);
	if (r < 0)
		lose(j, &e);
}

static int watch(struct job *j, struct err *e)
{
	uint32_t events = EPOLLIN | (ctl_pending(j->ctl) ? EPOLLOUT : 0);
	int r;

	if (j->watching)
		return loop_mod(j->loop, &j->source, events, e);
	r = loop_add(j->loop, &j->source, ctl_fd(j->ctl), events, on_ctl, j, e);
	j->watching = r == 0;
	return r;
}

static int send_request(struct job *j, struct err *e)
{
	auto_json json_t *line = NULL;
	int r;

	/* The supervisor knows what is running; the files hold the rest. */
	if (is_op(j, "output"))
		r = json_pack_or(&line, e, "{s:s}", "op", "list-execs");
	else
		r = op_request(j->req, &line, e);
	if (r < 0)
		return r;
	if (is_op(j, "wait"))
		json_object_del(line, "timeout_ms");
	/* Its input comes by other requests: the supervisor holds it. */
	if (!strcmp(json_str(j->req, "stdin"), "pipe"))
		json_object_set_new(line, "detach", json_true());
	r = ctl_send(j->ctl, line, NULL, 0, e);
	return r < 0 ? r : watch(j, e);
}

static void on_recovered(void *arg, const struct err *why)
{
	struct job *j = arg;

	j->recovery = NULL;
	if (why && strcmp(why->code, "busy")) {
		lose(j, why);
		return;
	}
	j->recovered = !why;
	j->give_up_ms = clock_ms() + CONNECT_MS;
	loop_timer_set(j->loop, &j->retry, clock_ms() + (why ? RETRY_MS : 0));
}

/* A sandbox on the disk gets a supervisor, while others are served. */
static int bring_back(struct job *j, struct err *e)
{
	char id[BOX_ID_LEN + 1];
	int r = recover_find_any(j->tree, json_str(j->req, "sandbox"), id, e);

	j->give_up_ms = clock_ms() + RECOVER_MS;
	return r < 0 ? r
		     : recovery_new(j->loop, j->tree, id, on_recovered, j,
				    &j->recovery, e);
}

static void connect_now(struct job *j)
{
	struct err e = {0};
	int r;

	r = ctl_open(j->tree, json_str(j->req, "sandbox"),
		     CTL_NONBLOCK | CTL_NO_RECOVER, &j->ctl, &e);
	if (r == -ESTALE && !j->recovered && (r = bring_back(j, &e)) == 0)
		return;
	/* Out of descriptors: those of other requests come back. */
	if ((r == -EBUSY || r == -EMFILE) && clock_ms() < j->give_up_ms) {
		loop_timer_set(j->loop, &j->retry, clock_ms() + RETRY_MS);
		return;
	}
	if (r == 0)
		r = job_names_id(j->req, j->ctl, &e);
	if (r == 0)
		r = send_request(j, &e);
	if (r < 0)
		fail(j, &e);
}

static void on_retry(struct loop *l, struct loop_timer *t)
{
	(void)l;
	connect_now(t->arg);
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;
	struct err e = {0};

	(void)l;
	if (j->ending) {
		fail(j, &j->why);
		return;
	}
	err_set(&e, -ETIMEDOUT, "deadline", "the request was not done in time");
	job_end(j, &e);
}

struct job *job_new(const struct job *like, json_t *req)
{
	struct job *j = calloc(1, sizeof(*j));
	int64_t ms = json_int(req, "deadline_ms", 0);
	int64_t wait = json_int(req, "timeout_ms", 0);

	if (!j)
		return NULL;
	*j = *like;
	j->req = req;
	j->child_fd = -1;
	j->lines.fd = -1;
	j->deadline = (struct loop_timer){.fn = on_deadline, .arg = j};
	j->retry = (struct loop_timer){.fn = on_retry, .arg = j};
	if (is_op(j, "wait") && wait > 0 && (ms == 0 || wait < ms))
		ms = wait;
	if (ms > 0)
		loop_timer_set(j->loop, &j->deadline,
			       clock_ms() + (uint64_t)ms);
	return j;
}

void job_free(struct job *j)
{
	if (!j)
		return;
	unwatch(j);
	loop_timer_set(j->loop, &j->deadline, 0);
	loop_timer_set(j->loop, &j->retry, 0);
	job_file_stop(j);
	ctl_free(j->ctl);
	json_decref(j->req);
	free(j);
}

void job_start(struct job *j)
{
	struct err e = {0};

	j->running = true;
	if (file_is_op(json_str(j->req, "op"))) {
		if (job_file_start(j, finish, &e) < 0)
			fail(j, &e);
		return;
	}
	j->give_up_ms = clock_ms() + CONNECT_MS;
	connect_now(j);
}

void job_end(struct job *j, const struct err *why)
{
	struct err e = {0};

	if (j->ending)
		return;
	j->ending = true;
	j->why = *why;
	/* Only a command that is ours is killed, and only where it is. */
	if (!j->ctl || !is_op(j, "exec")) {
		fail(j, why);
		return;
	}
	loop_timer_set(j->loop, &j->deadline, clock_ms() + KILL_MS);
	if (*j->exec && kill_command(j, &e) < 0)
		fail(j, why);
}
