/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "exec.h"
#include "repeat.h"

/* Keys that do not change what is asked for, but who asks and how the answer
 * is wanted: who lost it asks again for the command's name alone. */
static const char *const apart[] = {
	"id",	       "sandbox", "in",	    "key",
	"deadline_ms", "detach",  "attach", "lossy",
};

uint64_t repeat_hash(const json_t *req)
{
	auto_json json_t *copy = json_copy((json_t *)(uintptr_t)req);
	auto_free char *text = NULL;
	uint64_t h = 0xcbf29ce484222325;

	if (!copy)
		return 0;
	for (size_t i = 0; i < array_len(apart); i++)
		json_object_del(copy, apart[i]);
	text = json_dumps(copy, JSON_COMPACT | JSON_SORT_KEYS);
	for (const char *p = text; p && *p; p++)
		h = (h ^ (unsigned char)*p) * 0x100000001b3;
	return h;
}

static int steps(struct box *b, struct err *e)
{
	if (b->steps)
		return 0;
	return journal_open(b->lib_fd, "steps.jsonl", "step", &b->steps, e);
}

static int keys(struct box *b, struct err *e)
{
	if (b->keys)
		return 0;
	return journal_open(b->lib_fd, "keys.jsonl", "key", &b->keys, e);
}

/* 1: the ask has its answer, 0: no such line. */
static int answer_line(struct ask *a, json_t *line)
{
	json_t *rec = json_object_get(line, "record");

	a->repeated = true;
	ask_answer(a, json_incref(rec));
	json_decref(line);
	return 1;
}

/* It runs: who wanted only its name has it, others wait. */
static int join(struct ask *a, struct exec *x, const json_t *req)
{
	a->repeated = true;
	if (json_flag(req, "detach"))
		ask_answer(a, json_pack("{s:s}", "exec", x->name));
	else
		ask_wait(a, &x->waiters);
	return 1;
}

static int check_step(struct ask *a, const json_t *req, struct err *e)
{
	int64_t step = json_int(req, "step", -1);
	struct box *b = a->box;
	json_t *line = NULL;
	char name[32];
	int r;

	for (struct exec *x = b->execs; x; x = x->next)
		if (x->step == step)
			return join(a, x, req);
	r = steps(b, e);
	if (r < 0)
		return r;
	snprintf(name, sizeof(name), "%" PRId64, step);
	r = journal_find(b->steps, name, &line, e);
	return r == 1 ? answer_line(a, line) : r;
}

static int conflict(const char *key, struct err *e)
{
	return err_set(e, -EEXIST, "key_conflict",
		       "key '%s' was used for a different request", key);
}

static int check_key(struct ask *a, const json_t *req, struct err *e)
{
	const char *key = json_str(req, "key");
	uint64_t hash = repeat_hash(req);
	struct box *b = a->box;
	json_t *line = NULL;
	char text[24];
	int r;

	for (struct exec *x = b->execs; x; x = x->next) {
		if (!x->key || strcmp(x->key, key))
			continue;
		if (x->key_hash != hash)
			return conflict(key, e);
		return join(a, x, req);
	}
	r = keys(b, e);
	if (r == 0)
		r = journal_find(b->keys, key, &line, e);
	if (r != 1)
		return r;
	snprintf(text, sizeof(text), "%016" PRIx64, hash);
	if (strcmp(json_str(line, "hash"), text)) {
		json_decref(line);
		return conflict(key, e);
	}
	return answer_line(a, line);
}

int repeat_check(struct ask *a, const json_t *req, struct err *e)
{
	int r = 0;

	if (json_object_get(req, "key"))
		r = check_key(a, req, e);
	if (r == 0 && json_object_get(req, "step"))
		r = check_step(a, req, e);
	return r;
}

static int keep(struct journal *j, const char *name, json_t *line,
		struct err *e)
{
	if (!line)
		return err_sys(e, ENOMEM, "keep the record");
	return journal_add(j, name, line, e);
}

int repeat_keep(struct box *b, int64_t step, const char *key, uint64_t hash,
		const json_t *rec, struct err *e)
{
	json_t *r0 = (json_t *)(uintptr_t)rec;
	auto_json json_t *sl = NULL, *kl = NULL;
	char text[32];
	int r = 0;

	if (step >= 0) {
		sl = json_pack("{s:I, s:O}", "step", (json_int_t)step, "record",
			       r0);
		snprintf(text, sizeof(text), "%" PRId64, step);
		r = steps(b, e);
		if (r == 0)
			r = keep(b->steps, text, sl, e);
	}
	if (key) {
		int rk;

		snprintf(text, sizeof(text), "%016" PRIx64, hash);
		kl = json_pack("{s:s, s:s, s:O}", "key", key, "hash", text,
			       "record", r0);
		rk = keys(b, r == 0 ? e : NULL);
		if (rk == 0)
			rk = keep(b->keys, key, kl, r == 0 ? e : NULL);
		if (r == 0)
			r = rk;
	}
	return r;
}
