/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "control.h"
#include "wire/exit.h"
#include "wire/record.h"

/* A create: place it, ask the node, and place it elsewhere when that one
 * refuses. */

#define AVOID_MAX 16 /* nodes that who asks names */
#define AMONG_MAX 64 /* ... that are told to the placer */

static void refused(struct job *j, const char *code, const struct err *why)
{
	json_array_append_new(j->avoid, json_string(code));
	j->refusal = *why;
	if (j->cancelled)
		job_cancelled(j);
	else if (j->tries < TRIES)
		run_again(j);
	else
		job_fail(j, &j->refusal);
}

/* --- the node's answer -------------------------------------------------------
 */

/* It may be taken elsewhere. */
static bool is_refusal(const struct err *why)
{
	return exit_of(why) == EXIT_TRY_AGAIN && strcmp(why->code, "deadline");
}

static void on_event(void *arg, struct query *a, json_t *rec)
{
	struct job *j = arg;

	(void)a;
	json_object_del(rec, "id");
	call_event(j->call, json_incref(rec));
}

static void on_end(void *arg, struct query *a, json_t *rec)
{
	struct job *j = arg;
	struct err e = {0};
	char code[CODE_LEN + 1];

	memcpy(code, a->m->code, sizeof(code));
	j->ask = NULL;
	if (record_to_err(rec, &e) == 0) {
		placer_end(j, "taken");
		job_final(j, rec);
		return;
	}
	if (!is_refusal(&e)) {
		placer_end(j, "given-up");
		job_final(j, rec);
		return;
	}
	placer_end(j, strcmp(e.code, "draining") ? "refused" : "draining");
	refused(j, code, &e);
}

static void ask_node(struct job *j, struct member *m)
{
	static const struct query_ops ops = {on_event, on_end, job_lost};
	struct err e = {0};
	char code[CODE_LEN + 1];

	memcpy(code, m->code, sizeof(code));
	if (query_new(m, j->req, &ops, j, &j->ask, &e) == 0)
		return;
	placer_end(j, "given-up");
	if (e.r == -EMSGSIZE)
		job_fail(j, &e);
	else
		refused(j, code, &e);
}

/* --- the placer's
 * --------------------------------------------------------------- */

static void not_placed(struct job *j, const struct err *why)
{
	if (j->placer != placer_told(j->c)) {
		/* It was another, that did not know the nodes. */
		j->tries--;
		run_again(j);
		return;
	}
	/* What a node said is nearer to the truth. */
	job_fail(j, j->tries > 1 ? &j->refusal : why);
}

static bool on_placed(void *arg, json_t *rec)
{
	struct job *j = arg;
	struct member *m;
	struct err e = {0};

	if (!json_is_boolean(json_object_get(rec, "ok")))
		return false;
	j->placing = NULL;
	if (record_to_err(rec, &e) < 0) {
		not_placed(j, &e);
		return true;
	}
	j->placement = json_int(rec, "placement", 0);
	m = member_by_code(j->c, json_str(rec, "node"));
	if (m) {
		ask_node(j, m);
		return true;
	}
	err_set(&e, -EBUSY, "busy", "the node is not there any more");
	e.retry_after_ms = 500;
	refused(j, json_str(rec, "node"), &e);
	return true;
}

static void on_no_placer(void *arg, const struct err *why)
{
	struct job *j = arg;

	j->placing = NULL;
	job_fail(j, why);
}

/* Of a snapshot: those that have it. */
static json_t *among(const struct job *j)
{
	size_t n = json_array_size(j->found);
	json_t *list = json_array();
	const struct member *m;

	for (size_t i = 0; i < n && json_array_size(list) < AMONG_MAX; i++) {
		m = many_found(j, i);
		if (m && *m->code)
			json_array_append_new(list, json_string(m->code));
	}
	return list;
}

/* Its limits are the snapshot's, where it is made from one. */
static json_t *wish_of(const struct job *j)
{
	static const char *const fields[] =
		{"backend",	  "cpu_cores_limit",  "memory_limit_mb",
		 "disk_limit_mb", "pids_limit",	      "user",
		 "node_labels",	  "node_capabilities"};
	const json_t *like = json_object_get(json_array_get(j->found, 0),
					     "record");
	json_t *req = json_object(), *v;

	for (size_t i = 0; req && i < array_len(fields); i++) {
		v = json_object_get(j->call->req, fields[i]);
		if (!v)
			v = json_object_get(like, fields[i]);
		if (v)
			json_object_set(req, fields[i], v);
	}
	json_object_set(req, "avoid", j->avoid);
	if (json_array_size(j->found) > 0)
		json_object_set_new(req, "among", among(j));
	return req;
}

static void place(struct job *j)
{
	static const struct coproc_ops ops = {on_placed, on_no_placer};
	json_t *req = wish_of(j);
	struct err e = {0};
	int r = -ENOMEM;

	j->tries++;
	j->placer = placer_told(j->c);
	if (req)
		r = coproc_ask(j->c->place, req, COPROC_AGAIN, &ops, j,
			       &j->placing, &e);
	else
		err_sys(&e, ENOMEM, "request");
	json_decref(req);
	if (r < 0)
		job_fail(j, &e);
}

/* --- who asked before
 * ------------------------------------------------------------ */

static void begin(struct job *j)
{
	if (!find_among(j))
		run_again(j);
}

/* All nodes have said whether they know the key, but those that could not: one
 * of these may have made it. */
static void on_key_looked(struct job *j)
{
	if (json_array_size(j->found) > 0)
		many_to(j);
	else if (j->failed || j->missing)
		job_fail(j, &j->first);
	else
		begin(j);
}

/* A word that nobody else says. */
static int set_random(json_t *req, const char *field)
{
	unsigned char raw[16];
	char text[2 * sizeof(raw) + 1];

	if (getrandom(raw, sizeof(raw), 0) != sizeof(raw))
		return -EAGAIN;
	for (size_t i = 0; i < sizeof(raw); i++)
		snprintf(text + 2 * i, 3, "%02x", raw[i]);
	return json_object_set_new(req, field, json_string(text));
}

/* Where it is not known, nobody may do it from now on but this attempt: the
 * first one may be on its way still. */
static bool look_for_key(struct job *j)
{
	const char *key = json_str(j->req, "key");

	if (!json_is_true(json_object_get(j->call->req, "again")) || !*key)
		return false;
	if (set_random(j->req, "attempt") < 0)
		return false;
	many_look(j,
		  json_pack("{s:s, s:s, s:s, s:O}", "program", "run", "op",
			    "key", "key", key, "attempt",
			    json_object_get(j->req, "attempt")),
		  NULL, on_key_looked);
	return true;
}

/* So that whoever asks us once, asks a node once. */
static void make_key(struct job *j)
{
	if (!json_object_get(j->req, "key"))
		(void)set_random(j->req, "key");
}

static json_t *backends_of(const struct control *c)
{
	json_t *all = json_object(), *v;
	const struct member *m = NULL;
	size_t i;

	while (all && (m = member_node(c, m))) {
		if (member_state(m) != MEMBER_LIVE)
			continue;
		json_array_foreach(json_object_get(m->report, "backends"), i, v)
			if (json_is_string(v))
				json_object_set_new(all, json_string_value(v),
						    json_true());
	}
	return all;
}

/* What no node has is refused by its name, as a node would. */
static int check_backend(const struct job *j, struct err *e)
{
	auto_json json_t *all = backends_of(j->c);
	const char *want = json_str(j->req, "backend"), *key;
	char list[128] = "";
	size_t n = 0;
	json_t *v;

	if (!*want || json_object_size(all) == 0 || json_object_get(all, want))
		return 0;
	json_object_foreach(all, key, v)
		if (n < sizeof(list))
			n += (size_t)snprintf(list + n, sizeof(list) - n,
					      "%s%.16s", n ? ", " : "", key);
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "backend '%.32s' is not in this release: only %s", want,
		       list);
}

static int take_avoid(struct job *j, struct err *e)
{
	json_t *list = json_object_get(j->req, "avoid"), *v;
	bool good = !list || json_is_array(list);
	size_t i;

	json_array_foreach(list, i, v)
		good &= json_is_string(v);
	if (!good || json_array_size(list) > AVOID_MAX)
		return err_set(e, -EINVAL, "bad_value",
			       "'avoid' is not a list of at most %d nodes",
			       AVOID_MAX);
	j->avoid = list ? json_copy(list) : json_array();
	return j->avoid ? 0 : err_sys(e, ENOMEM, "request");
}

void run_begin(struct job *j)
{
	static const char *const ours[] = {"node_labels", "node_capabilities",
					   "avoid", "again", "attempt"};
	struct err e = {0};
	int r = take_avoid(j, &e);

	for (size_t i = 0; i < array_len(ours); i++)
		json_object_del(j->req, ours[i]);
	if (r == 0)
		r = check_backend(j, &e);
	if (r < 0) {
		job_fail(j, &e);
		return;
	}
	make_key(j);
	if (!look_for_key(j))
		begin(j);
}

void run_again(struct job *j)
{
	if (placer_told(j->c))
		place(j);
	else
		placer_wait(j);
}

void run_stop(struct job *j)
{
	if (j->placing)
		coproc_drop(steal_ptr(j->placing));
	placer_leave(j);
}
