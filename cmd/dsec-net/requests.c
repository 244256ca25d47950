/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "life/recover.h"
#include "net.h"

#define JOBS_WAITING 256 /* taken and not begun */

/* --- records ------------------------------------------------------------- */

void app_answer(struct app *app, json_t *rec)
{
	struct err e = {0};
	int r;

	r = rec ? record_write(STDOUT_FILENO, rec, &e)
		: err_sys(&e, ENOMEM, "record");
	json_decref(rec);
	if (r == 0)
		return;
	/* Nobody reads: what was asked for goes on, but no more is begun. */
	app->status = EXIT_STDOUT_LOST;
	app->ended = true;
	if (app->input)
		input_hold(app->input, true);
}

void app_fail(struct app *app, const json_t *req, const struct err *why)
{
	app->status = exit_join(app->status, exit_of(why));
	app_answer(app, record_error(req, why));
}

/* --- jobs ---------------------------------------------------------------- */

void job_end(struct job *j)
{
	struct app *app = j->app;
	struct job **p;

	for (p = &app->jobs; *p != j; p = &(*p)->next)
		;
	*p = j->next;
	app->njobs--;
	loop_timer_set(app->loop, &j->deadline, 0);
	json_decref(j->req);
	free(j);
	app_pump(app);
}

static void tell(struct job *j, const struct err *why)
{
	if (!j->told)
		app_fail(j->app, j->req, why);
	j->told = true;
	/* What has begun is not left half done. */
	if (!j->worker)
		job_end(j);
	else
		app_pump(j->app);
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;
	struct err e = {0};

	(void)l;
	err_set(&e, -ETIMEDOUT, "deadline",
		"deadline_ms passed before sandbox %s was done", j->id);
	tell(j, &e);
}

/* Takes ${req} over on success. */
static int job_new(struct app *app, json_t *req, const char *id, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j)), **p;
	int64_t ms = json_int(req, "deadline_ms", 0);

	if (!j || json_object_set_new(req, "sandbox", json_string(id)) < 0) {
		free(j);
		return err_sys(e, ENOMEM, "request");
	}
	j->app = app;
	j->req = req;
	memcpy(j->id, id, sizeof(j->id));
	j->deadline = (struct loop_timer){.fn = on_deadline, .arg = j};
	if (ms > 0)
		loop_timer_set(app->loop, &j->deadline,
			       clock_ms() + (uint64_t)ms);
	for (p = &app->jobs; *p; p = &(*p)->next)
		;
	*p = j;
	app->njobs++;
	return 0;
}

/* --- requests ------------------------------------------------------------ */

static int check_op(const json_t *req, struct err *e)
{
	static const char *const ops[] = {"phase",    "replace", "merge",
					  "deny_all", "show",	 "explain",
					  "denied"};
	const char *first = NULL;
	const json_t *v;

	for (size_t i = 0; i < array_len(ops); i++) {
		v = json_object_get(req, ops[i]);
		if (!v || json_is_false(v))
			continue;
		if (first)
			return err_set(e, -EBADMSG, "bad_value",
				       "'%s' and '%s': one of them", first,
				       ops[i]);
		first = ops[i];
		if ((!strcmp(first, "replace") || !strcmp(first, "merge")) &&
		    !json_is_object(v))
			return err_set(e, -EBADMSG, "bad_value",
				       "'%s' is not an object", first);
	}
	if (!first)
		return err_set(e, -EBADMSG, "missing_field",
			       "what to do is missing: 'phase', 'replace', "
			       "'merge', 'deny_all', 'show', 'explain' or "
			       "'denied'");
	return 0;
}

static int check_target(const json_t *req, struct err *e)
{
	struct select sel;

	select_from(&sel, req);
	if (!json_object_get(req, "sandbox") && !select_narrows(&sel))
		return err_set(e, -EBADMSG, "missing_field",
			       "'sandbox' is missing, or a selector: 'task', "
			       "'project', 'labels'");
	if (json_object_get(req, "sandbox") && select_narrows(&sel))
		return err_set(e, -EBADMSG, "bad_value",
			       "'sandbox' and a selector exclude each other");
	return 0;
}

/* Begin what ${req} asks for, which is taken over. */
static int begin(struct app *app, json_t *req, struct err *e)
{
	const char *name = json_str(req, "sandbox");
	char id[BOX_ID_LEN + 1];
	int r;

	r = check_op(req, e);
	if (r == 0)
		r = check_target(req, e);
	if (r < 0)
		return r;
	if (*name) {
		r = recover_find_any(&app->tree, name, id, e);
		return r < 0 ? r : job_new(app, req, id, e);
	}
	select_from(&app->walk.sel, req);
	r = select_open(&app->tree, &app->walk.sel, &app->walk.at, e);
	if (r < 0)
		return r;
	app->walk.req = req;
	app->walk.found = 0;
	return 0;
}

static void take(struct app *app, json_t *req)
{
	struct err e = {0};

	if (begin(app, req, &e) == 0)
		return;
	app_fail(app, req, &e);
	json_decref(req);
}

static void walk_end(struct app *app, const struct err *why)
{
	struct walk *w = &app->walk;
	json_t *rec;

	if (why) {
		app_fail(app, w->req, why);
	} else if (w->found == 0) {
		rec = record_ok(w->req);
		if (rec)
			json_object_set_new(rec, "count", json_integer(0));
		app_answer(app, rec);
	}
	select_close(w->at);
	json_decref(w->req);
	*w = (struct walk){0};
	app_pump(app); /* what waited for it */
}

static void cancel(struct app *app, json_t *req)
{
	const json_t *id = json_object_get(req, "cancel");
	struct job *j, *next;
	struct err why = {0};
	json_t *rec;
	bool any = false;

	err_set(&why, -ECANCELED, "cancelled", "the request was cancelled");
	if (app->walk.at &&
	    json_equal(json_object_get(app->walk.req, "id"), id)) {
		walk_end(app, &why);
		any = true;
	}
	for (j = app->jobs; j; j = next) {
		next = j->next;
		if (j->told || !json_equal(json_object_get(j->req, "id"), id))
			continue;
		tell(j, &why);
		any = true;
	}
	rec = record_ok(req);
	if (rec)
		json_object_set_new(rec, "cancelled", json_boolean(any));
	app_answer(app, rec);
	json_decref(req);
}

static bool full(const struct app *app)
{
	return app->walk.at || app->njobs >= app->jobs_max;
}

static void on_line(void *arg, struct input_line *line)
{
	struct app *app = arg;
	struct err e = {0};

	if (line->bad) {
		app_fail(app, line->req, line->bad);
		json_decref(line->req);
	} else if (line->kind == RECORD_PASS) {
		record_to_err(line->req, &e);
		app->status = exit_join(app->status, exit_of(&e));
		app_answer(app, line->req);
	} else if (json_object_get(line->req, "cancel")) {
		cancel(app, line->req);
	} else {
		take(app, line->req);
	}
	if (full(app))
		input_hold(app->input, true);
	app_pump(app);
}

static void on_end(void *arg, const struct err *why)
{
	struct app *app = arg;

	app->ended = true;
	if (why) {
		log_err(why);
		app->status = exit_join(app->status, exit_of(why));
	}
	app_pump(app);
}

/* --- what runs ----------------------------------------------------------- */

static void walk_on(struct app *app)
{
	struct walk *w = &app->walk;
	char id[BOX_ID_LEN + 1];
	struct err e = {0};
	json_t *req;
	int r;

	while (w->at && app->njobs < app->jobs_max) {
		auto_json json_t *claim = NULL;

		r = select_next(w->at, id, &claim, &e);
		if (r <= 0) {
			walk_end(app, r < 0 ? &e : NULL);
			return;
		}
		w->found++;
		req = json_copy(w->req);
		r = req ? job_new(app, req, id, &e)
			: err_sys(&e, ENOMEM, "sandbox %s", id);
		if (r < 0) {
			app_fail(app, w->req, &e);
			json_decref(req);
		}
	}
}

static void words_on(struct app *app)
{
	while (!app->input && !app->ended && !full(app)) {
		if (app->next_word == json_array_size(app->words))
			app->ended = true;
		else
			take(app,
			     json_incref(json_array_get(app->words,
							app->next_word++)));
	}
}

/* An earlier one of the same sandbox comes first. */
static bool waits(const struct app *app, const struct job *j)
{
	for (const struct job *k = app->jobs; k != j; k = k->next)
		if (!strcmp(k->id, j->id))
			return true;
	return false;
}

/* A file of ours is read: nobody need be asked. */
static void tell_denied(struct job *j)
{
	struct err e = {0};

	if (denied_tell(&j->app->tree, j->req, &e) < 0)
		tell(j, &e);
	else
		job_end(j);
}

static void start_jobs(struct app *app)
{
	struct job *j, *next;
	struct err e = {0};
	int r;

	for (j = app->jobs; j; j = next) {
		next = j->next;
		if (j->worker || waits(app, j))
			continue;
		if (json_is_true(json_object_get(j->req, "denied"))) {
			tell_denied(j);
			continue;
		}
		r = worker_give(j, &e);
		if (r == 0)
			break;
		if (r < 0)
			tell(j, &e);
	}
}

/* What goes on though its request was answered already is not waited for. */
static bool all_told(const struct app *app)
{
	for (const struct job *j = app->jobs; j; j = j->next)
		if (!j->told)
			return false;
	return true;
}

static void on_pump(struct loop *l, struct loop_timer *t)
{
	struct app *app = t->arg;

	words_on(app);
	walk_on(app);
	start_jobs(app);
	if (app->input && !app->ended && !full(app))
		input_hold(app->input, false);
	if (app->ended && all_told(app) && !app->walk.at)
		loop_stop(l, 0);
}

void app_pump(struct app *app)
{
	if (!app->pump.at_ms)
		loop_timer_set(app->loop, &app->pump, clock_ms());
}

/* --- the whole ----------------------------------------------------------- */

static int check_words(struct app *app, struct err *e)
{
	json_t *req;
	size_t i;
	int r;

	json_array_foreach(app->words, i, req) {
		json_object_update_missing(req, app->defaults);
		r = field_check(net_fields, net_fields_len, req, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int take_lines(struct app *app, struct err *e)
{
	static const struct input_ops ops = {on_line, on_end};
	struct input_from from = {
		.fd = STDIN_FILENO,
		.fields = net_fields,
		.nfields = net_fields_len,
		.defaults = app->defaults,
		.ops = &ops,
		.arg = app,
	};

	if (input_wanted("ids or a selector", e) < 0)
		return -EINVAL;
	return input_new(app->loop, &from, &app->input, e);
}

static int serve_all(struct app *app, struct err *e)
{
	struct select sel;
	int r;

	select_from(&sel, app->defaults);
	if (json_array_size(app->words) == 0 && select_narrows(&sel))
		json_array_append_new(app->words, json_pack("{s:i}", "id", 1));
	r = json_array_size(app->words) > 0 ? check_words(app, e)
					    : take_lines(app, e);
	if (r < 0)
		return r;
	app_pump(app);
	return loop_run(app->loop, e);
}

int requests_run(struct app *app, struct err *e)
{
	int r = loop_new(&app->loop, e);

	if (r < 0)
		return r;
	app->jobs_max = app->workers_max + JOBS_WAITING;
	app->pump = (struct loop_timer){.fn = on_pump, .arg = app};
	r = serve_all(app, e);
	workers_end(app);
	input_free(app->input);
	loop_free(app->loop);
	return r;
}
