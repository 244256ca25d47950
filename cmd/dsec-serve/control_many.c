/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "control.h"
#include "wire/record.h"

#define LIST_MAX 100000 /* records that are kept to be sorted */
#define LIST_BYTES                                                             \
	(8 * 1024 * 1024) /* of a list, that its client has not taken */

/* One node of those that are asked. */
struct part {
	struct part *next;
	struct job *j;
	struct query *ask; /* NULL: it is over */
	bool keep;
};

static void tell_record(struct job *j, json_t *record)
{
	call_event(j->call, json_pack("{s:s, s:O}", "event", "record", "record",
				      record));
}

/* The record of one sandbox, or what a node says of itself. */
static void take_record(struct part *p, const struct query *a, json_t *record)
{
	struct job *j = p->j;

	if (!p->keep) {
		tell_record(j, record);
	} else if (json_array_size(j->found) >= LIST_MAX) {
		j->more = true;
	} else {
		json_t *kept = json_pack("{s:O, s:s}", "record", record, "node",
					 a->m->name);

		if (kept)
			json_array_append_new(j->found, kept);
	}
}

static void on_event(void *arg, struct query *a, json_t *rec)
{
	struct part *p = arg;
	json_t *record = json_object_get(rec, "record");

	if (!strcmp(json_str(rec, "event"), "record") &&
	    json_is_object(record)) {
		take_record(p, a, record);
	} else if (!p->keep) {
		json_object_del(rec, "id");
		call_event(p->j->call, json_incref(rec));
	}
}

static void failed(struct job *j, const struct err *why, unsigned n)
{
	if (j->failed == 0)
		j->first = *why;
	j->failed += n;
}

static void missing(struct job *j, const struct member *m,
		    const struct err *why)
{
	if (j->failed == 0 && !j->missing)
		j->first = *why;
	if (!j->missing)
		j->missing = json_array();
	if (j->missing)
		json_array_append_new(j->missing, json_string(m->name));
}

/* It is not waited for; what it had is not there, which is said. */
static void skip(struct job *j, const struct member *m)
{
	if (j->failed == 0 && !j->missing && !j->lost)
		member_gone(m, &j->first);
	if (!j->lost)
		j->lost = json_array();
	if (j->lost)
		json_array_append_new(j->lost, json_string(m->name));
}

static void forget_parts(struct job *j)
{
	struct part *p;

	while ((p = j->parts)) {
		j->parts = p->next;
		if (p->ask)
			query_drop(p->ask);
		free(p);
	}
}

/* One is over, or all have been asked. */
static void over(struct job *j)
{
	if (--j->pending > 0)
		return;
	forget_parts(j);
	j->parts_end(j);
}

/* Asked whether it has something, a node has not. */
static bool is_unknown(const struct err *e)
{
	return !strcmp(e->code, "not_found") ||
	       !strcmp(e->code, "sandbox_unknown") ||
	       !strcmp(e->code, "snapshot_unknown");
}

static void take_end(struct part *p, const struct query *a, json_t *rec)
{
	struct job *j = p->j;
	struct err e = {0};
	int64_t count = json_int(rec, "count", -1);
	int64_t bad = json_int(rec, "failed", 0);

	if (count >= 0) { /* of several, which came as events */
		j->count += (unsigned)count;
		j->plain |= !json_object_get(rec, "failed");
		j->more |= json_object_get(rec, "next") != NULL;
		if (record_to_err(rec, &e) < 0)
			failed(j, &e, bad > 0 ? (unsigned)bad : 1);
	} else if (record_to_err(rec, &e) == 0) {
		json_object_del(rec, "id");
		j->count++;
		take_record(p, a, rec);
	} else if (p->keep && !strcmp(e.code, "exists")) {
		take_record(p, a, rec); /* asked whether it is known, it is */
	} else if (!p->keep || !is_unknown(&e)) {
		failed(j, &e, 1);
	}
}

static void on_end(void *arg, struct query *a, json_t *rec)
{
	struct part *p = arg;

	p->ask = NULL;
	take_end(p, a, rec);
	over(p->j);
}

static void on_lost(void *arg, struct query *a)
{
	struct part *p = arg;
	struct err e = {0};

	p->ask = NULL;
	member_gone(a->m, &e);
	missing(p->j, a->m, &e);
	over(p->j);
}

static int ask_one(struct job *j, struct member *m, json_t *req, bool keep,
		   struct err *e)
{
	static const struct query_ops ops = {on_event, on_end, on_lost};
	struct part *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return err_sys(e, ENOMEM, "request");
	*p = (struct part){.next = j->parts, .j = j, .keep = keep};
	j->parts = p;
	r = query_new(m, req, &ops, p, &p->ask, e);
	if (r == 0)
		j->pending++;
	return r;
}

static void ask_all(struct job *j, json_t *req, struct member *only, bool keep,
		    void (*fn)(struct job *j))
{
	struct member *m = NULL;
	struct err e = {0};
	int r;

	j->parts_end = fn;
	j->count = j->failed = 0;
	json_decref(j->found);
	json_decref(j->missing);
	json_decref(j->lost);
	j->found = json_array();
	j->missing = j->lost = NULL;
	j->asked = 0;
	j->pending = 1;
	while ((m = member_node(j->c, m))) {
		if (only && m != only)
			continue;
		if (!only && member_state(m) == MEMBER_LOST) {
			skip(j, m);
			continue;
		}
		j->asked++;
		r = ask_one(j, m, req, keep, &e);
		if (r == -EMSGSIZE || r == -ENOMEM) {
			job_fail(j, &e);
			return;
		}
		if (r < 0)
			missing(j, m, &e);
	}
	over(j);
}

void many_stop(struct job *j)
{
	forget_parts(j);
}

struct member *many_found(const struct job *j, size_t i)
{
	return member_by_name(j->c,
			      json_str(json_array_get(j->found, i), "node"));
}

void many_to(struct job *j)
{
	struct member *m = many_found(j, 0);

	if (m)
		job_to(j, m);
	else
		job_unsure(j);
}

void many_look(struct job *j, json_t *req, struct member *only,
	       void (*fn)(struct job *j))
{
	static const char *const who[] = {"caller", "within", "req"};
	struct err e = {0};

	for (size_t i = 0; req && i < array_len(who); i++)
		json_object_set(req, who[i], json_object_get(j->req, who[i]));
	if (req) {
		ask_all(j, req, only, true, fn);
		json_decref(req);
		return;
	}
	err_sys(&e, ENOMEM, "request");
	job_fail(j, &e);
}

/* Of nobody there is an answer: then that is it, whatever was asked. */
static size_t unheard(const struct job *j)
{
	size_t away = json_array_size(j->missing);

	return away == j->asked ? away + json_array_size(j->lost) : 0;
}

/* Their sandboxes are not among what is told. */
static void name_missing(const struct job *j, json_t *rec)
{
	json_t *names = json_array();

	if (names && j->missing)
		json_array_extend(names, j->missing);
	if (names && j->lost)
		json_array_extend(names, j->lost);
	if (json_array_size(names) > 0)
		json_object_set(rec, "missing", names);
	if (j->lost)
		json_object_set(rec, "lost", j->lost);
	json_decref(names);
}

/* The end of what all were asked; ${next}: of a page, the last of more. */
static void told(struct job *j, size_t count, size_t bad, const char *next)
{
	json_t *rec = bad ? record_error(j->call->req, &j->first)
			  : record_ok(j->call->req);

	if (rec) {
		json_object_set_new(rec, "count",
				    json_integer((json_int_t)count));
		if (bad || !j->plain)
			json_object_set_new(rec, "failed",
					    json_integer((json_int_t)bad));
		if (next)
			json_object_set_new(rec, "next", json_string(next));
		name_missing(j, rec);
	}
	job_end(j, rec);
}

static void many_told(struct job *j)
{
	size_t away = json_array_size(j->missing), all = unheard(j);

	told(j, j->count, j->failed + (all ? all : away), NULL);
}

void many_begin(struct job *j)
{
	ask_all(j, j->req, NULL, false, many_told);
}

/* --- lists by pages
 * ------------------------------------------------------------ */

static const char *sandbox_of(const json_t *kept)
{
	return json_str(json_object_get(kept, "record"), "sandbox");
}

static int by_sandbox(const void *a, const void *b)
{
	return strcmp(sandbox_of(*(json_t *const *)a),
		      sandbox_of(*(json_t *const *)b));
}

static int check_page(const struct job *j, struct err *e)
{
	const json_t *limit = json_object_get(j->req, "limit");
	const json_t *after = json_object_get(j->req, "after");

	if (limit && (!json_is_integer(limit) || json_integer_value(limit) < 1))
		return err_set(e, -EINVAL, "bad_value",
			       "'limit' is not a number of records");
	if (after && !json_is_string(after))
		return err_set(e, -EINVAL, "bad_value",
			       "'after' is not a sandbox");
	return 0;
}

/* Each node has a page of its own, of as many, and no more than can be kept of
 * all of them: what is first of all is in those. */
static void share_limit(struct job *j)
{
	int64_t limit = json_int(j->req, "limit", 0), nodes = 1;
	const struct member *m = NULL;

	while ((m = member_node(j->c, m)))
		nodes++;
	if (limit > LIST_MAX / nodes)
		json_object_set_new(j->req, "limit",
				    json_integer(LIST_MAX / nodes));
}

/* From behind ${after}, ${limit} at the most; their number, and the last of
 * them where there are more. */
static size_t tell_page(struct job *j, json_t **list, size_t n,
			const char **ret_next)
{
	const char *after = json_str(j->req, "after");
	int64_t limit = json_int(j->req, "limit", LIST_MAX);
	const struct conn *c = j->call->client->c;
	size_t told = 0, i = 0;

	while (i < n && *after && strcmp(sandbox_of(list[i]), after) <= 0)
		i++;
	for (; i < n && (int64_t)told < limit && conn_unsent(c) < LIST_BYTES;
	     i++, told++)
		tell_record(j, json_object_get(list[i], "record"));
	*ret_next = (i < n || j->more) && told > 0 ? sandbox_of(list[i - 1])
						   : NULL;
	return told;
}

static void list_told(struct job *j)
{
	size_t n = json_array_size(j->found);
	auto_free json_t **list = calloc(n + 1, sizeof(json_t *));
	const char *next = NULL;
	struct err e = {0};
	json_t *v;
	size_t i;

	if (!list) {
		err_sys(&e, ENOMEM, "list");
		job_fail(j, &e);
		return;
	}
	json_array_foreach(j->found, i, v)
		list[i] = v;
	qsort(list, n, sizeof(json_t *), by_sandbox);
	n = tell_page(j, list, n, &next);
	/* Who did not ask for a page would take it for all. */
	if (next && !json_object_get(j->req, "limit")) {
		err_set(&e, -E2BIG, "too_large",
			"there are more than %zu: ask by pages, with 'limit'",
			n);
		job_fail(j, &e);
		return;
	}
	told(j, n, j->failed + unheard(j), next);
}

void list_begin(struct job *j)
{
	struct err e = {0};

	if (check_page(j, &e) < 0) {
		job_fail(j, &e);
		return;
	}
	share_limit(j);
	ask_all(j, j->req, NULL, true, list_told);
}
