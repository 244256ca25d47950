/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "place_cmd.h"
#include "wire/record.h"

static int out_of_memory(struct err *e)
{
	return err_sys(e, ENOMEM, "answer");
}

int filter_answer(struct filter *f, const json_t *rec, struct err *e)
{
	auto_free char *text = rec ? json_dumps(rec, JSON_COMPACT) : NULL;

	if (!text || buf_add(&f->out, text, strlen(text)) < 0 ||
	    buf_add(&f->out, "\n", 1) < 0)
		return out_of_memory(e);
	return 0;
}

/* The time of a line: what it says, or now. */
static uint64_t time_of(const json_t *line)
{
	int64_t at = json_int(line, "at_ms", -1);

	return at >= 0 ? (uint64_t)at : clock_ms();
}

/* --- a create request ------------------------------------------------------
 */

/* What a request asks for in the words of place.h. */
struct wish {
	struct place_request q;
	const char *needs[PLACE_FEATURES_MAX];
	const char *avoid[PLACE_AVOID_MAX], *among[PLACE_AMONG_MAX];
	size_t at[PLACE_FEATURES_MAX];
	struct buf text;
};

static int need(struct wish *w, const char *kind, const char *a, const char *b,
		struct err *e)
{
	if (w->q.nneeds == PLACE_FEATURES_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "more than %d labels and capabilities",
			       PLACE_FEATURES_MAX);
	w->at[w->q.nneeds++] = w->text.len;
	if (buf_add(&w->text, kind, strlen(kind)) < 0 ||
	    buf_add(&w->text, a, strlen(a)) < 0 ||
	    (b && buf_add(&w->text, "=", 1) < 0) ||
	    (b && buf_add(&w->text, b, strlen(b)) < 0) ||
	    buf_add(&w->text, "", 1) < 0)
		return out_of_memory(e);
	return 0;
}

static int needs(struct wish *w, const json_t *req, struct err *e)
{
	const char *backend = json_str(req, "backend"), *key;
	const json_t *caps = json_object_get(req, "node_capabilities"), *c;
	json_t *labels = json_object_get(req, "node_labels"), *v;
	size_t i;
	int r;

	r = need(w, "backend:", *backend ? backend : "container", NULL, e);
	json_array_foreach(caps, i, c)
		if (r == 0)
			r = need(w, "capability:", json_string_value(c), NULL,
				 e);
	json_object_foreach(labels, key, v)
		if (r == 0)
			r = need(w, "label:", key, json_string_value(v), e);
	for (i = 0; i < w->q.nneeds; i++)
		w->needs[i] = w->text.data + w->at[i];
	w->q.needs = w->needs;
	return r;
}

/* A list of nodes, into ${ret}[max]. */
static int names(const json_t *req, const char *key, size_t max,
		 const char **ret, size_t *ret_n, struct err *e)
{
	const json_t *list = json_object_get(req, key), *v;
	size_t i;

	if (json_array_size(list) > max)
		return err_set(e, -EBADMSG, "bad_value",
			       "'%s' names more than %zu nodes", key, max);
	json_array_foreach(list, i, v)
		ret[i] = json_string_value(v);
	*ret_n = json_array_size(list);
	return 0;
}

static int wish_of(struct wish *w, const json_t *req, struct err *e)
{
	const json_t *cpu = json_object_get(req, "cpu_cores_limit");
	int r;

	w->text.len = 0;
	w->q = (struct place_request){
		.ask =
			{
				.memory_mb = (uint64_t)
					json_int(req, "memory_limit_mb", 512),
				.cpu_milli = cpu ? (uint64_t)(json_number_value(
								      cpu) *
								      1000 +
							      0.5)
						 : 1000,
				.disk_mb = (uint64_t)
					json_int(req, "disk_limit_mb", 0),
				.pids = (uint64_t)json_int(req, "pids_limit",
							   1024),
				.sandboxes = 1,
			},
		.user = json_str(req, "user"),
		.avoid = w->avoid,
		.among = w->among,
		.now_ms = time_of(req),
		.k = (unsigned)json_int(req, "k", 0),
	};
	r = needs(w, req, e);
	if (r == 0)
		r = names(req, "avoid", PLACE_AVOID_MAX, w->avoid, &w->q.navoid,
			  e);
	return r < 0 ? r
		     : names(req, "among", PLACE_AMONG_MAX, w->among,
			     &w->q.namong, e);
}

/* For people: 0.6, not 0.6000000000000001. */
static double rounded(double load)
{
	return round(load * 10000) / 10000;
}

static int set_candidates(const struct filter *f, json_t *rec,
			  const struct place_choice *c, struct err *e)
{
	json_t *list = json_array(), *one = NULL;

	if (!list || json_object_set_new(rec, "candidates", list) < 0)
		return out_of_memory(e);
	for (unsigned i = 0; i < c->ncandidates; i++) {
		const struct place_candidate *n = &c->candidates[i];

		if (json_pack_or(&one, e, "{s:s, s:f, s:I}", "node",
				 place_name(f->place, n->node), "load",
				 rounded(n->load), "in_flight",
				 (json_int_t)n->in_flight) < 0 ||
		    json_array_append_new(list, one) < 0)
			return out_of_memory(e);
	}
	return 0;
}

static int set_left_out(json_t *rec, const unsigned *counts, struct err *e)
{
	json_t *obj = json_object();

	if (!obj || json_object_set_new(rec, "left_out", obj) < 0)
		return out_of_memory(e);
	for (unsigned i = PLACE_FIT + 1; i < PLACE_WHY_LEN; i++)
		if (counts[i] &&
		    json_object_set_new(obj, place_why_word((enum place_why)i),
					json_integer(counts[i])) < 0)
			return out_of_memory(e);
	return 0;
}

static int explain(const struct filter *f, json_t *rec,
		   const struct place_choice *c, const unsigned *counts,
		   struct err *e)
{
	const char *why = c->ncandidates > 1
				  ? "the least loaded of the candidates"
				  : "the only candidate";
	int r;

	if (json_object_set_new(rec, "why", json_string(why)) < 0 ||
	    json_object_set_new(rec, "nodes",
				json_integer(place_count(f->place))) < 0 ||
	    json_object_set_new(rec, "fit", json_integer(counts[PLACE_FIT])) <
		    0)
		return out_of_memory(e);
	r = set_candidates(f, rec, c, e);
	return r < 0 ? r : set_left_out(rec, counts, e);
}

/* Nearly every answer: written without making a record first. */
static int answer_quick(struct filter *f, json_t *id,
			const struct place_choice *c, struct err *e)
{
	auto_free char *text = NULL;
	char number[24];

	if (json_is_integer(id))
		snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT,
			 json_integer_value(id));
	else
		text = json_dumps(id, JSON_ENCODE_ANY);
	if ((!json_is_integer(id) && !text) ||
	    buf_addf(&f->out,
		     "{\"id\":%s,\"ok\":true,\"node\":\"%s\","
		     "\"placement\":%" PRIu64 ",\"load\":%.4f}\n",
		     text ? text : number, place_name(f->place, c->node),
		     c->placement, c->candidates[c->chosen].load) < 0)
		return out_of_memory(e);
	return 0;
}

static int answer_choice(struct filter *f, json_t *req,
			 const struct place_choice *c, const unsigned *counts,
			 struct err *e)
{
	auto_json json_t *rec = NULL;
	int r = 0;

	if (!counts && !json_object_get(req, "in"))
		return answer_quick(f, json_object_get(req, "id"), c, e);
	rec = record_ok(req);
	if (!rec ||
	    json_object_set_new(rec, "node",
				json_string(place_name(f->place, c->node))) <
		    0 ||
	    json_object_set_new(rec, "placement",
				json_integer((json_int_t)c->placement)) < 0 ||
	    json_object_set_new(rec, "load",
				json_real(rounded(
					c->candidates[c->chosen].load))) < 0)
		return out_of_memory(e);
	if (counts)
		r = explain(f, rec, c, counts, e);
	return r < 0 ? r : filter_answer(f, rec, e);
}

static int op_place(struct filter *f, json_t *req, struct err *e)
{
	bool tell = f->explain || json_flag(req, "explain");
	unsigned counts[PLACE_WHY_LEN];
	struct place_choice c;
	struct wish w;
	int r;

	w.text = (struct buf){0};
	r = wish_of(&w, req, e);
	if (r == 0 && tell)
		place_explain(f->place, &w.q, counts);
	if (r == 0)
		r = place_choose(f->place, &w.q, &c, e);
	if (r == 0)
		r = answer_choice(f, req, &c, tell ? counts : NULL, e);
	buf_done(&w.text);
	return r;
}

/* --- other operations ------------------------------------------------------
 */

static int op_done(struct filter *f, json_t *req, struct err *e)
{
	static const char *const ends[] = {
		[PLACE_END_TAKEN] = "taken",
		[PLACE_END_REFUSED] = "refused",
		[PLACE_END_DRAINING] = "draining",
		[PLACE_END_GIVEN_UP] = "given-up",
	};
	auto_json json_t *rec = NULL;
	const char *end = json_str(req, "end");
	size_t i = 0;
	bool known;
	int r;

	r = field_need(req, "placement", e);
	if (r == 0)
		r = field_need(req, "end", e);
	if (r < 0)
		return r;
	while (i < array_len(ends) && strcmp(end, ends[i]))
		i++;
	if (i == array_len(ends))
		return err_set(e, -EBADMSG, "bad_value",
			       "'end' is taken, refused, draining or given-up");
	known = place_done(f->place, (uint64_t)json_int(req, "placement", 0),
			   (enum place_end)i, time_of(req));
	rec = record_ok(req);
	if (!rec || json_object_set_new(rec, "known", json_boolean(known)) < 0)
		return out_of_memory(e);
	return filter_answer(f, rec, e);
}

static int op_forget(struct filter *f, json_t *req, struct err *e)
{
	auto_json json_t *rec = NULL;
	int node, r;

	r = field_need(req, "node", e);
	if (r < 0)
		return r;
	node = place_find(f->place, json_str(req, "node"));
	if (node >= 0)
		place_forget(f->place, (unsigned)node);
	rec = record_ok(req);
	if (!rec ||
	    json_object_set_new(rec, "known", json_boolean(node >= 0)) < 0)
		return out_of_memory(e);
	return filter_answer(f, rec, e);
}

static int tell_node(struct filter *f, json_t *req, unsigned node,
		     uint64_t now_ms, struct err *e)
{
	auto_json json_t *rec = NULL;
	struct place_view v;
	int r;

	place_look(f->place, node, now_ms, &v);
	r = json_pack_or(
		&rec, e,
		"{s:O, s:s, s:s, s:b, s:b, s:b, s:b, s:I, s:f, s:I, s:I, s:I}",
		"id", json_object_get(req, "id"), "event", "node", "node",
		v.name, "fresh", v.fresh, "draining", v.draining, "unhealthy",
		v.unhealthy, "pressed", v.pressed, "at_ms", (json_int_t)v.at_ms,
		"load", rounded(v.load), "sandboxes",
		(json_int_t)v.held.sandboxes, "in_flight",
		(json_int_t)v.placements, "memory_in_flight_mb",
		(json_int_t)v.in_flight.memory_mb);
	return r < 0 ? r : filter_answer(f, rec, e);
}

static int op_nodes(struct filter *f, json_t *req, struct err *e)
{
	unsigned n = place_count(f->place);
	auto_json json_t *rec = NULL;
	uint64_t now = time_of(req);
	int r = 0;

	for (unsigned i = 0; r == 0 && i < n; i++)
		r = tell_node(f, req, place_nth(f->place, i), now, e);
	if (r < 0)
		return r;
	rec = record_ok(req);
	if (!rec || json_object_set_new(rec, "count", json_integer(n)) < 0)
		return out_of_memory(e);
	return filter_answer(f, rec, e);
}

static const struct op {
	const char *name;
	int (*fn)(struct filter *f, json_t *req, struct err *e);
} ops[] = {
	{"place", op_place},
	{"done", op_done},
	{"forget", op_forget},
	{"nodes", op_nodes},
};

static int dispatch(struct filter *f, json_t *req, struct err *e)
{
	const char *op = json_str(req, "op");

	if (!*op)
		return op_place(f, req, e);
	for (size_t i = 0; i < array_len(ops); i++)
		if (!strcmp(op, ops[i].name))
			return ops[i].fn(f, req, e);
	return err_set(e, -EBADMSG, "bad_value",
		       "'op' is place, done, forget or nodes");
}

/* 1: it was a report, and is taken. */
static int try_report(struct filter *f, const char *text, size_t len,
		      json_t **ret_rec, struct err *e)
{
	json_t *rec = NULL;
	int r;

	/* Requests, which are nearly all there is, do not say ok. */
	if (!memmem(text, len, "\"ok\"", 4) ||
	    json_parse(text, len, &rec, NULL) < 0)
		return 0;
	*ret_rec = rec;
	if (!json_is_true(json_object_get(rec, "ok")) ||
	    !json_is_object(json_object_get(rec, "limit")))
		return 0;
	r = report_take(f->place, rec, time_of(rec), e);
	return r < 0 ? r : 1;
}

int filter_line(struct filter *f, const char *text, size_t len, uint64_t line,
		struct err *e)
{
	auto_json json_t *req = NULL, *rec = NULL, *report = NULL;
	const struct record_line l = {text, len, line};
	enum record_kind kind;
	struct err why = {0};
	int r;

	r = try_report(f, text, len, &report, &why);
	if (r > 0)
		return 0;
	if (r < 0) {
		req = json_pack("{s:I}", "id", (json_int_t)line);
	} else {
		r = record_take(&l, f->table->rows, f->table->nfields,
				f->defaults, &kind, &req, &why);
		if (r == 0 && kind == RECORD_PASS) {
			r = filter_answer(f, req, e);
			return r < 0 ? r : 1;
		}
		if (r == 0)
			r = dispatch(f, req, &why);
	}
	if (r == 0)
		return 0;
	rec = record_error(req, &why);
	r = filter_answer(f, rec, e);
	return r < 0 ? r : 1;
}
