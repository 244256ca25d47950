/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "box/inherit.h"
#include "box/spec.h"
#include "life/recover.h"
#include "fork.h"

#define KEY_AGAIN_MS 50
#define MADE	     "made.json" /* of a snapshot: for what, and how it went */

static const char *const ops[] = {"fork", "list", "inspect", "remove"};

/* --- what is asked for --------------------------------------------------- */

static int op_of(const json_t *req, enum op *ret, struct err *e)
{
	const char *op = json_str(req, "op");

	for (size_t i = 0; i < array_len(ops); i++)
		if (!strcmp(*op ? op : "fork", ops[i])) {
			*ret = (enum op)i;
			return 0;
		}
	return err_set(e, -EINVAL, "bad_value",
		       "'op' is not fork, list, inspect or remove");
}

/* Fields that say something with one op say nothing with another. */
static int check_fields(const json_t *req, enum op op, struct err *e)
{
	static const char *const always[] = {"id",  "in",	   "op",
					     "key", "deadline_ms", "project"};
	const char *key;
	json_t *v;

	if (op == OP_FORK)
		return 0;
	json_object_foreach((json_t *)(uintptr_t)req, key, v) {
		bool fits = op != OP_LIST && !strcmp(key, "snapshot");

		for (size_t i = 0; i < array_len(always); i++)
			fits = fits || !strcmp(key, always[i]);
		if (!fits)
			return err_set(e, -EINVAL, "bad_value",
				       "'%s' says nothing with op %s", key,
				       ops[op]);
	}
	return op == OP_LIST ? 0 : field_need(req, "snapshot", e);
}

static int check_fork(const json_t *req, struct err *e)
{
	bool sandbox = json_object_get(req, "sandbox");
	bool from = json_object_get(req, "from");
	bool named = json_object_get(req, "snapshot");

	if (sandbox == from)
		return err_set(e, -EINVAL,
			       sandbox ? "bad_value" : "missing_field",
			       sandbox ? "'sandbox' and 'from' exclude each "
					 "other"
				       : "'sandbox' is missing, or a snapshot: "
					 "'from'");
	if (from && named)
		return err_set(e, -EINVAL, "bad_value",
			       "'snapshot' names one that is taken of a "
			       "'sandbox'");
	if (json_flag(req, "replace") && !named)
		return err_set(e, -EINVAL, "bad_value",
			       "'replace' without 'snapshot'");
	if (json_int(req, "count", 1) == 0 && !named)
		return err_set(e, -EINVAL, "bad_value",
			       "'count' 0 makes nothing without 'snapshot'");
	if (sandbox && json_object_get(req, "project"))
		return err_set(e, -EINVAL, "bad_value",
			       "'project' is the sandbox's own");
	return inherit_check(req, e);
}

static int check(const json_t *req, enum op *ret_op, struct err *e)
{
	const char *project = json_str(req, "project");
	int r = op_of(req, ret_op, e);

	if (r == 0)
		r = check_fields(req, *ret_op, e);
	if (r == 0 && *project && !spec_is_project(project))
		r = err_set(e, -EINVAL, "bad_value",
			    "'project' is not a path of names such as "
			    "root/rl/job-42");
	if (r == 0 && *ret_op == OP_FORK)
		r = check_fork(req, e);
	return r;
}

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	(void)l;
	request_stop(t->arg, "deadline");
}

int request_new(struct app *app, json_t *req, struct err *e)
{
	int64_t deadline = json_int(req, "deadline_ms", 0);
	const char *project = json_str(req, "project");
	struct request *r, **p;
	enum op op = OP_FORK;
	int res;

	res = check(req, &op, e);
	if (res < 0)
		return res;
	r = calloc(1, sizeof(*r));
	if (!r)
		return err_sys(e, ENOMEM, "request");
	r->app = app;
	r->req = req;
	r->op = op;
	r->snap = SNAP_INIT;
	r->key = KEY_INIT;
	r->began_ms = clock_ms();
	r->keep = op == OP_FORK && json_object_get(req, "snapshot");
	r->count = (unsigned)json_int(req, "count", r->keep ? 0 : 1);
	r->deadline = (struct loop_timer){.fn = on_deadline, .arg = r};
	snprintf(r->project, sizeof(r->project), "%s",
		 *project ? project : "root");
	for (p = &app->requests; *p; p = &(*p)->next_one)
		;
	*p = r;
	app->nrequests++;
	if (deadline > 0)
		loop_timer_set(app->loop, &r->deadline,
			       r->began_ms + (uint64_t)deadline);
	return 0;
}

void request_free(struct request *r)
{
	struct request **p;

	for (p = &r->app->requests; *p != r; p = &(*p)->next_one)
		;
	*p = r->next_one;
	r->app->nrequests--;
	loop_timer_set(r->app->loop, &r->deadline, 0);
	loop_timer_set(r->app->loop, &r->again, 0);
	snap_close(&r->snap);
	key_done(&r->key);
	json_decref(r->req);
	json_decref(r->spec);
	json_decref(r->taken);
	json_decref(r->records);
	free(r);
}

/* --- records ------------------------------------------------------------- */

static void keep_record(struct request *r, json_t *rec)
{
	if (r->records && rec)
		json_array_append(r->records, rec);
}

static void answer(struct request *r, json_t *rec)
{
	keep_record(r, rec);
	app_answer(r->app, rec);
}

/* The request as a whole, or (index >= 0) one copy. */
static void fail(struct request *r, int index, const struct err *why)
{
	auto_json json_t *rec = NULL;
	struct err own = *why;

	r->failed = true;
	if (r->stopped) {
		err_set(&own, -ECANCELED, r->stopped,
			"the request was ended: %s", r->stopped);
		own.infra = false;
	}
	rec = record_error(r->req, &own);
	if (rec && index >= 0) {
		/* There it would be the copy, which there is none of. */
		json_object_del(rec, "sandbox");
		json_object_set_new(rec, "parent",
				    json_string(json_str(r->spec, "sandbox")));
		json_object_set_new(rec, "index", json_integer(index));
	}
	app_fail(r->app, json_incref(rec), &own);
}

static void end(struct request *r)
{
	auto_json json_t *all = NULL;
	struct err e = {0};

	r->phase = PHASE_ENDED;
	if (r->key.lock < 0 || r->failed)
		return;
	all = json_pack("{s:O}", "records", r->records);
	/* What was done stands, even when it cannot be kept. */
	if (key_end(&r->key, all, &e) < 0)
		log_err(&e);
}

/* --- phases -------------------------------------------------------------- */

static void on_dropped(struct request *r, unsigned index, json_t *rec,
		       const struct err *why)
{
	json_t *ok;

	(void)index;
	if (r->op == OP_REMOVE && why) {
		fail(r, -1, why);
	} else if (r->op == OP_REMOVE) {
		ok = record_ok(r->req);
		if (ok)
			json_object_update(ok, rec);
		answer(r, ok);
	} else if (why) {
		log_err(why); /* a sweep removes it */
	}
	end(r);
}

/* The snapshot goes, unless it was kept; then that was all. */
static void drop(struct request *r)
{
	struct err e = {0};

	if (r->snap.dir < 0 || r->keep || !*r->source) {
		end(r);
		return;
	}
	r->phase = PHASE_DROP;
	if (work_start(r, 0, drop_snapshot, on_dropped, &e) < 0)
		on_dropped(r, 0, NULL, &e);
}

static void on_copied(struct request *r, unsigned index, json_t *rec,
		      const struct err *why)
{
	json_t *ok;

	if (why) {
		fail(r, (int)index, why);
		return;
	}
	ok = record_ok(r->req);
	if (ok) {
		json_object_set_new(ok, "index", json_integer(index));
		json_object_update(ok, rec);
	}
	answer(r, ok);
}

/* As many as there is room for. */
static void copy(struct request *r)
{
	struct err e = {0};

	while (r->next < r->count && !r->stopped &&
	       r->app->nworkers < r->app->jobs_max) {
		unsigned i = r->next++;

		if (work_start(r, i, make_copy, on_copied, &e) < 0)
			fail(r, (int)i, &e);
	}
	while (r->stopped && r->next < r->count)
		fail(r, (int)r->next++, &e);
	if (r->next == r->count && r->running == 0)
		drop(r);
}

static int put_kept(struct request *r, json_t *rec)
{
	static const char *const keys[] = {"bytes",
					   "layer",
					   "processes",
					   "frozen_ms",
					   "engine_frozen_ms",
					   "warnings"};
	json_t *v;

	for (size_t i = 0; i < array_len(keys); i++) {
		v = json_object_get(r->taken, keys[i]);
		if (v && json_object_set(rec, keys[i], v) < 0)
			return -1;
	}
	json_object_del(rec, "sandbox");
	if (json_object_set_new(rec, "parent", json_string(r->source)) < 0 ||
	    json_object_set_new(rec, "snapshot", json_string(r->snap.id)) < 0)
		return -1;
	return json_object_set_new(rec, "name",
				   json_sprintf("%s/%s", r->project,
						json_str(r->req, "snapshot")));
}

/* It has its name: that is the record, or an event before those of copies. */
static void tell_kept(struct request *r, bool again)
{
	json_t *rec = record_ok(r->req);

	if (rec && put_kept(r, rec) < 0) {
		json_decref(rec);
		rec = NULL;
	}
	if (rec && again)
		json_object_set_new(rec, "repeated", json_true());
	if (rec && r->count > 0) {
		json_object_del(rec, "ok");
		json_object_set_new(rec, "event", json_string("snapshot"));
	}
	answer(r, rec);
}

/* The one whose name it got goes by itself: what is used by a restore now is
 * swept later. */
static void drop_old(struct request *r, const char *old)
{
	auto_snap struct snap s = SNAP_INIT;

	if (*old && snap_open(&r->app->tree, r->project, old, SNAP_ALONE, &s,
			      NULL) == 0)
		(void)snap_remove(&r->app->tree, &r->app->creator.pool, &s,
				  NULL);
}

/* Before it has its name: whoever finds the name taken sees for what. */
static int put_made(const struct request *r, struct err *e)
{
	auto_json json_t *made = NULL;
	int res;

	if (r->key.lock < 0)
		return 0;
	res = json_pack_or(&made, e, "{s:O, s:O}", "request", r->key.request,
			   "taken", r->taken);
	return res < 0 ? res
		       : json_write_file(r->snap.dir, MADE, made,
					 FD_REPLACE_SYNC, e);
}

static int keep_snapshot(struct request *r, struct err *e)
{
	char old[BOX_ID_LEN + 1] = "";
	int res;

	if (!r->keep)
		return 0;
	res = put_made(r, e);
	if (res < 0)
		return res;
	res = snap_keep(&r->app->tree, &r->snap, r->project,
			json_str(r->req, "snapshot"),
			json_flag(r->req, "replace"), old, e);
	if (res < 0)
		return res;
	drop_old(r, old);
	tell_kept(r, false);
	return 0;
}

/* What it is a snapshot of, and what its taking said. */
static int know(struct request *r, json_t *taken, struct err *e)
{
	auto_json json_t *manifest = NULL;
	int res = snap_manifest(&r->app->tree, r->snap.id, &manifest, e);

	if (res < 0)
		return res;
	r->taken = json_incref(taken);
	r->spec = json_deep_copy(json_object_get(manifest, "spec"));
	return 0;
}

static void on_taken(struct request *r, unsigned index, json_t *rec,
		     const struct err *why)
{
	struct err e = {0};
	int res = 0;

	(void)index;
	if (why)
		e = *why;
	else
		res = snap_share(&r->app->tree, &r->snap, &e);
	if (!why && res == 0)
		res = know(r, rec, &e);
	if (!why && res == 0)
		res = keep_snapshot(r, &e);
	if (why || res < 0) {
		fail(r, -1, &e);
		r->keep = false;
		drop(r);
		return;
	}
	r->phase = PHASE_COPY;
}

/* --- the beginning ------------------------------------------------------- */

/* What the one who has the name was made for, if it is this very request: its
 * dsec-fork died before all was done. */
static json_t *made_before(const struct request *r, const struct snap *s)
{
	json_t *made = NULL;

	if (r->key.lock < 0 || json_read_file(s->dir, MADE, &made, NULL) < 0 ||
	    json_equal(json_object_get(made, "request"), r->key.request))
		return made;
	json_decref(made);
	return NULL;
}

/* A name that is taken is told before anybody is stopped. */
static int read_name(struct request *r, struct err *e)
{
	const char *word = json_str(r->req, "snapshot");
	auto_snap struct snap s = SNAP_INIT;
	auto_json json_t *made = NULL;
	int res = snap_name_check(r->project, word, e);

	if (res < 0 ||
	    snap_open(&r->app->tree, r->project, word, SNAP_USE, &s, NULL) < 0)
		return res;
	made = made_before(r, &s);
	if (made) {
		r->snap = s;
		s.dir = -1;
		return know(r, json_object_get(made, "taken"), e);
	}
	return json_flag(r->req, "replace")
		       ? 0
		       : err_set(e, -EEXIST, "exists",
				 "there is a snapshot '%s/%s'", r->project,
				 word);
}

/* Whose snapshot it is to be. */
static int read_source(struct request *r, struct err *e)
{
	auto_json json_t *spec = NULL;
	int res;

	res = recover_find_any(&r->app->tree, json_str(r->req, "sandbox"),
			       r->source, e);
	if (res < 0)
		return res;
	if (spec_read(&r->app->tree, r->source, &spec, NULL) < 0)
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "there is no sandbox '%s'", r->source);
	snprintf(r->project, sizeof(r->project), "%s",
		 json_str(spec, "project"));
	return r->keep ? read_name(r, e) : 0;
}

static int begin_fork(struct request *r, struct err *e)
{
	const char *from = json_str(r->req, "from");
	int res;

	if (*from) {
		r->phase = PHASE_COPY;
		return snaps_open(r, from, e);
	}
	r->memory = !json_flag(r->req, "fs_only");
	res = read_source(r, e);
	if (res == 0 && r->taken) { /* before, and named */
		tell_kept(r, true);
		r->phase = PHASE_COPY;
		return 0;
	}
	if (res == 0)
		res = snap_new(&r->app->tree, &r->snap, e);
	if (res < 0)
		return res;
	r->phase = PHASE_SNAP;
	res = work_start(r, 0, take_snapshot, on_taken, e);
	if (res < 0)
		(void)snap_remove(&r->app->tree, &r->app->creator.pool,
				  &r->snap, NULL);
	return res;
}

static int begin_remove(struct request *r, struct err *e)
{
	int res = snap_open(&r->app->tree, r->project,
			    json_str(r->req, "snapshot"), SNAP_ALONE, &r->snap,
			    e);

	r->phase = PHASE_DROP;
	return res < 0 ? res : work_start(r, 0, drop_snapshot, on_dropped, e);
}

static int inspect(struct request *r, struct err *e)
{
	auto_json json_t *more = NULL;
	json_t *rec;
	int res = snaps_inspect(r, &more, e);

	if (res < 0)
		return res;
	rec = record_ok(r->req);
	if (rec)
		json_object_update(rec, more);
	answer(r, rec);
	return 0;
}

static int begin(struct request *r, struct err *e)
{
	int res = 0;

	if (!r->app->opened && r->op != OP_LIST && r->op != OP_INSPECT) {
		res = creator_open(&r->app->tree, &r->app->creator, e);
		r->app->opened = res == 0;
	}
	if (res < 0)
		return res;
	switch (r->op) {
	case OP_FORK:
		return begin_fork(r, e);
	case OP_REMOVE:
		return begin_remove(r, e);
	case OP_LIST:
		res = snaps_list(r, e);
		break;
	case OP_INSPECT:
		res = inspect(r, e);
		break;
	}
	if (res == 0)
		end(r);
	return res;
}

/* The records of the first request with this key, once more. */
static void repeat(struct request *r, const json_t *first)
{
	json_t *records = json_object_get(first, "records"), *rec;
	size_t i;

	json_array_foreach(records, i, rec) {
		json_t *again = json_deep_copy(rec);

		if (again) {
			json_object_set_new(again, "repeated", json_true());
			json_object_set(again, "id",
					json_object_get(r->req, "id"));
		}
		app_answer(r->app, again);
	}
	r->phase = PHASE_ENDED;
}

static void on_key_again(struct loop *l, struct loop_timer *t)
{
	struct request *r = t->arg;

	(void)l;
	app_pump(r->app);
}

static void start(struct request *r)
{
	auto_json json_t *first = NULL;
	struct err e = {0};
	int res;

	res = key_begin(&r->key, &r->app->tree, r->req, KEY_NO_WAIT, &first,
			&e);
	if (res == -EAGAIN) {
		r->again = (struct loop_timer){.fn = on_key_again, .arg = r};
		loop_timer_set(r->app->loop, &r->again,
			       clock_ms() + KEY_AGAIN_MS);
		return;
	}
	if (res == 1) {
		repeat(r, first);
		return;
	}
	if (res == 0 && r->key.lock >= 0)
		r->records = json_array();
	if (res == 0)
		res = begin(r, &e);
	if (res == 0)
		return;
	fail(r, -1, &e);
	end(r);
}

void request_go(struct request *r)
{
	if (r->phase == PHASE_WAIT && !r->again.at_ms)
		start(r);
	if (r->phase == PHASE_COPY)
		copy(r);
}

void request_stop(struct request *r, const char *code)
{
	const struct err none = {0};

	if (r->stopped || r->phase == PHASE_DROP || r->phase == PHASE_ENDED)
		return;
	r->stopped = code;
	work_stop(r);
	if (r->phase == PHASE_WAIT) {
		fail(r, -1, &none);
		end(r);
	}
	app_pump(r->app);
}
