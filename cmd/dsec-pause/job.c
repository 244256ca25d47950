/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life/recover.h"
#include "life/recover_child.h"
#include "life/teardown.h"
#include "pause.h"

/* A supervisor that says nothing for so long (beyond the grace) hangs. */
#define PATIENCE_MS 30000
/* Memory that goes to a disk or comes from one takes its time. */
#define HEAVY_PATIENCE_MS (15 * 60 * 1000)

static const char *const words[] = {"pause", "resume", "stop"};

static void job_free(struct job *j)
{
	struct app *app = j->app;
	struct job **p;

	for (p = &app->jobs; *p != j; p = &(*p)->next)
		;
	*p = j->next;
	app->njobs--;
	app->nheavy -= j->heavy;
	loop_del(app->loop, &j->source);
	loop_timer_set(app->loop, &j->again, 0);
	loop_timer_set(app->loop, &j->deadline, 0);
	loop_timer_set(app->loop, &j->force, 0);
	ctl_free(j->ctl);
	recovery_free(j->recovery);
	if (j->pidfd >= 0)
		fd_close(j->pidfd);
	json_decref(j->req);
	free(j);
	app_pump(app);
}

void job_fail(struct job *j, const struct err *why)
{
	app_fail(j->app, j->req, why);
	job_free(j);
}

static bool is_envelope(const char *key)
{
	static const char *const keys[] = {"id", "sandbox", "ok",
					   "in", "fds",	    "spec"};

	for (size_t i = 0; i < array_len(keys); i++)
		if (!strcmp(key, keys[i]))
			return true;
	return false;
}

/* A record of the supervisor's need not say whose fault the end was. */
static void add_infra(json_t *rec)
{
	const char *outcome = json_str(rec, "outcome");

	if (!*outcome || json_object_get(rec, "infra"))
		return;
	for (size_t i = 0; i < exit_outcomes_len; i++)
		if (!strcmp(outcome, exit_outcomes[i].outcome))
			json_object_set_new(rec, "infra",
					    json_boolean(
						    exit_outcomes[i].infra));
}

void job_done(struct job *j, const json_t *from)
{
	json_t *rec = record_ok(j->req);
	json_t *all = (json_t *)(uintptr_t)from;
	const char *key;
	json_t *v;

	if (rec && j->op == OP_STOP)
		json_object_set_new(rec, "state", json_string("stopped"));
	json_object_foreach(all, key, v)
		if (rec && !is_envelope(key))
			json_object_set(rec, key, v);
	add_infra(rec);
	app_answer(j->app, rec);
	job_free(j);
}

static void on_again(struct loop *l, struct loop_timer *t)
{
	(void)l;
	job_start(t->arg);
}

void job_again(struct job *j, unsigned after_ms)
{
	if (j->source.fn)
		loop_del(j->app->loop, &j->source);
	ctl_free(j->ctl);
	j->ctl = NULL;
	loop_timer_set(j->app->loop, &j->again, clock_ms() + after_ms);
}

static int patience_ms(const struct job *j)
{
	return j->op == OP_STOP || (j->op == OP_PAUSE && !j->heavy)
		       ? PATIENCE_MS
		       : HEAVY_PATIENCE_MS;
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;
	struct err e = {0};

	(void)l;
	if (j->own_deadline)
		err_set(&e, -ETIMEDOUT, "deadline",
			"deadline_ms passed before sandbox %s was done", j->id);
	else
		err_set(&e, -ETIMEDOUT, "timeout",
			"sandbox %s did not answer within %d s", j->id,
			patience_ms(j) / 1000);
	e.infra = !j->own_deadline;
	job_fail(j, &e);
}

/* The request's own time began when it was read; ours begins when it is told
 * to the supervisor. */
static void set_deadline(struct job *j)
{
	int64_t ms = json_int(j->req, "deadline_ms", 0);

	if (j->own_deadline)
		return;
	j->own_deadline = ms > 0;
	if (ms <= 0)
		ms = patience_ms(j) + j->grace_ms;
	loop_timer_set(j->app->loop, &j->deadline, clock_ms() + (uint64_t)ms);
}

static enum op op_of(const json_t *req)
{
	const char *op = json_str(req, "op");

	for (size_t i = 0; i < array_len(words); i++)
		if (!strcmp(op, words[i]))
			return (enum op)i;
	return OP_PAUSE;
}

int job_new(struct app *app, json_t *req, const char *id, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j)), **p;

	if (!j || json_object_set_new(req, "sandbox", json_string(id)) < 0) {
		free(j);
		return err_sys(e, ENOMEM, "sandbox %s", id);
	}
	j->app = app;
	j->req = req;
	memcpy(j->id, id, sizeof(j->id));
	j->op = op_of(req);
	j->grace_ms = json_int(req, "grace_ms", GRACE_MS);
	j->pidfd = -1;
	j->again = (struct loop_timer){.fn = on_again, .arg = j};
	j->deadline = (struct loop_timer){.fn = on_deadline, .arg = j};
	j->force = (struct loop_timer){.arg = j};
	for (p = &app->jobs; *p; p = &(*p)->next)
		;
	*p = j;
	app->njobs++;
	if (json_int(req, "deadline_ms", 0) > 0)
		set_deadline(j);
	return 0;
}

static void job_lost_once(struct job *j)
{
	j->lost_once = true;
	job_again(j, 0);
}

/* What a failure to reach the supervisor means for what was asked. */
static void unreachable(struct job *j, const struct err *why)
{
	bool stop = j->op == OP_STOP;

	if (!strcmp(why->code, "busy"))
		job_again(j, why->retry_after_ms ? why->retry_after_ms : 20);
	else if (!strcmp(why->code, "no_fds") && j->app->njobs > 1)
		job_again(j, 20); /* when another has given its one back */
	else if (stop && !strcmp(why->code, "stopped"))
		stop_ended(j, why);
	else if (stop && !strcmp(why->code, "one_shot"))
		stop_one_shot(j);
	else if (stop && recover_waits(&j->app->tree, j->id))
		stop_kept(j);
	else if (!strcmp(why->code, "supervisor_lost") && !j->lost_once &&
		 teardown_kept(&j->app->tree, j->id))
		job_lost_once(j); /* it gets another, once */
	else if (!strcmp(why->code, "supervisor_lost"))
		stop_lost(j, why);
	else
		job_fail(j, why);
}

static void on_record(struct job *j, const json_t *rec)
{
	struct err why = {0};

	if (record_to_err(rec, &why) == 0)
		job_done(j, rec);
	else
		unreachable(j, &why);
}

static void on_socket(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct job *j = s->arg;
	struct err e = {0};
	int r = 0;

	if (events & EPOLLOUT) {
		r = ctl_flush(j->ctl, &e);
		if (r == 0)
			r = loop_mod(l, s,
				     EPOLLIN | (ctl_pending(j->ctl) ? EPOLLOUT
								    : 0U),
				     &e);
	}
	while (r == 0) {
		auto_ctl_record struct ctl_record rec = {0};

		r = ctl_next(j->ctl, &rec, &e);
		if (r < 0 || !rec.final)
			continue;
		on_record(j, rec.rec);
		return;
	}
	if (r != -EAGAIN)
		unreachable(j, &e);
}

static const char *level_of(const struct job *j)
{
	const char *level = json_str(j->req, "level");

	return *level ? level : "reclaim";
}

static int send_request(struct job *j, struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = json_pack_or(&req, e, "{s:i, s:s}", "id", 1, "op", words[j->op]);
	if (r < 0)
		return r;
	if (j->op == OP_STOP)
		json_object_set_new(req, "grace_ms", json_integer(j->grace_ms));
	if (j->op == OP_PAUSE)
		json_object_set_new(req, "level", json_string(level_of(j)));
	r = ctl_send(j->ctl, req, NULL, 0, e);
	if (r < 0)
		return r;
	return loop_add(j->app->loop, &j->source, ctl_fd(j->ctl),
			EPOLLIN | (ctl_pending(j->ctl) ? EPOLLOUT : 0U),
			on_socket, j, e);
}

static bool is_on_disk(const struct job *j)
{
	auto_json json_t *state = NULL;
	char path[PATH_MAX];

	return tree_path(path, NULL, "%s/sb/%s/state.json", j->app->tree.run,
			 j->id) == 0 &&
	       json_read_file(AT_FDCWD, path, &state, NULL) == 0 &&
	       !strcmp(json_str(state, "level"), "disk");
}

bool job_may_start(struct job *j)
{
	bool heavy = (j->op == OP_PAUSE && strcmp(level_of(j), "freeze")) ||
		     (j->op == OP_RESUME && is_on_disk(j));

	if (heavy && j->app->nheavy >= j->app->heavy_max)
		return false;
	j->heavy = heavy;
	j->app->nheavy += heavy;
	return true;
}

static void on_recovered(void *arg, const struct err *why)
{
	struct job *j = arg;

	j->recovery = NULL;
	if (why)
		unreachable(j, why);
	else
		job_again(j, 0);
}

void job_start(struct job *j)
{
	struct err e = {0};
	int r;

	j->started = true;
	set_deadline(j);
	r = ctl_open(&j->app->tree, j->id, CTL_NONBLOCK | CTL_NO_RECOVER,
		     &j->ctl, &e);
	if (r == -ESTALE) {
		r = recovery_new(j->app->loop, &j->app->tree, j->id,
				 on_recovered, j, &j->recovery, &e);
		if (r == 0)
			return;
	}
	if (r == 0)
		r = send_request(j, &e);
	if (r < 0)
		unreachable(j, &e);
}
