/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "place_cmd.h"

/* A double that is more than any machine has, and exact. */
#define AMOUNT_MAX 1e15

static uint64_t amount(const json_t *obj, const char *key, double unit)
{
	double v = json_number_value(json_object_get(obj, key)) * unit;

	return v >= AMOUNT_MAX ? (uint64_t)AMOUNT_MAX
	       : v > 0	       ? (uint64_t)(v + 0.5)
			       : 0;
}

static struct admit_amounts amounts(const json_t *obj)
{
	return (struct admit_amounts){
		.memory_mb = amount(obj, "memory_mb", 1),
		.cpu_milli = amount(obj, "cpu_cores", 1000),
		.disk_mb = amount(obj, "disk_mb", 1),
		.pids = amount(obj, "pids", 1),
		.sandboxes = amount(obj, "sandboxes", 1),
	};
}

/* Letters that need no quoting in a record. */
static bool is_name(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz"
			     "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

	return n > 0 && n <= PLACE_NAME_MAX && !s[n];
}

/* Features under construction: text of all, and where each begins. */
struct features {
	struct buf text;
	size_t at[PLACE_FEATURES_MAX];
	const char *list[PLACE_FEATURES_MAX];
	size_t n;
};

static int add(struct features *f, const char *kind, const char *a,
	       const char *b, struct err *e)
{
	if (f->n == PLACE_FEATURES_MAX)
		return err_set(e, -EINVAL, "bad_value",
			       "more than %d backends, capabilities, labels "
			       "and users",
			       PLACE_FEATURES_MAX);
	f->at[f->n++] = f->text.len;
	if (buf_addf(&f->text, "%s:%s%s%s", kind, a, b ? "=" : "", b ? b : "") <
		    0 ||
	    buf_add(&f->text, "", 1) < 0)
		return err_sys(e, ENOMEM, "report");
	return 0;
}

static int add_list(struct features *f, const char *kind, const json_t *list,
		    struct err *e)
{
	const json_t *v;
	int r = 0;
	size_t i;

	json_array_foreach(list, i, v)
		if (r == 0 && json_is_string(v))
			r = add(f, kind, json_string_value(v), NULL, e);
	return r;
}

static int add_map(struct features *f, const json_t *map, struct err *e)
{
	const char *key;
	json_t *v;
	int r = 0;

	json_object_foreach((json_t *)(uintptr_t)map, key, v)
		if (r == 0 && json_is_string(v))
			r = add(f, "label", key, json_string_value(v), e);
	return r;
}

static int traits(struct features *f, const json_t *rec, struct err *e)
{
	int r;

	r = add_list(f, "backend", json_object_get(rec, "backends"), e);
	if (r == 0)
		r = add_list(f, "capability",
			     json_object_get(rec, "capabilities"), e);
	if (r == 0)
		r = add_list(f, "user", json_object_get(rec, "reserved_for"),
			     e);
	if (r == 0)
		r = add_map(f, json_object_get(rec, "labels"), e);
	for (size_t i = 0; i < f->n; i++)
		f->list[i] = f->text.data + f->at[i];
	return r;
}

static void numbers(struct place_report *r, const json_t *rec, uint64_t now_ms)
{
	json_t *users = json_object_get(rec, "users");
	const json_t *free_mb = json_object_get(rec, "memory_available_mb");
	int64_t at = json_int(rec, "at_ms", (int64_t)now_ms);

	*r = (struct place_report){
		.at_ms = at > 0 ? (uint64_t)at : 0,
		.limit = amounts(json_object_get(rec, "limit")),
		.held = amounts(json_object_get(rec, "held")),
		.memory_total_mb = amount(rec, "memory_total_mb", 1),
		.memory_available_mb = free_mb ? amount(rec,
							"memory_available_mb",
							1)
					       : UINT64_MAX,
		.memory_reserve_mb = amount(rec, "memory_reserve_mb", 1),
		.draining = json_flag(rec, "draining"),
		.unhealthy = json_flag(rec, "unhealthy"),
		.pressed = json_flag(rec, "pressed"),
		.users = (unsigned)json_object_size(users),
	};
	if (r->users == 1)
		r->user = json_object_iter_key(json_object_iter(users));
}

int report_take(struct place *p, const json_t *rec, uint64_t now_ms,
		struct err *e)
{
	const char *name = json_str(rec, "node");
	struct place_traits t = {0};
	struct features f = {.n = 0};
	struct place_report rep;
	unsigned node;
	int r;

	if (!is_name(name))
		return err_set(e, -EBADMSG, "bad_value",
			       "a report: 'node' is not a name");
	r = traits(&f, rec, e);
	if (r == 0) {
		t.features = f.list;
		t.n = f.n;
		t.isolated = !strcmp(json_str(rec, "isolation"), "user");
		r = place_node(p, name, &t, now_ms, &node, e);
	}
	if (r == 0) {
		numbers(&rep, rec, now_ms);
		place_report(p, node, &rep, now_ms);
	}
	buf_done(&f.text);
	return r < 0 ? err_wrap(e, r, "the report of '%s'", name) : 0;
}
