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

static void place(struct job *j);

static void refused(struct job *j, const struct err *why)
{
	j->refusal = *why;
	if (j->tries < TRIES)
		place(j);
	else
		job_fail(j, &j->refusal);
}

static void avoid(struct job *j, const char *code)
{
	if (!j->avoid)
		j->avoid = json_array();
	if (j->avoid)
		json_array_append_new(j->avoid, json_string(code));
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
		placer_end(j->c, j->placement, "taken");
		job_final(j, rec);
		return;
	}
	if (!is_refusal(&e)) {
		placer_end(j->c, j->placement, "given-up");
		job_final(j, rec);
		return;
	}
	placer_end(j->c, j->placement,
		   strcmp(e.code, "draining") ? "refused" : "draining");
	avoid(j, code);
	refused(j, &e);
}

static void ask_node(struct job *j, struct member *m)
{
	static const struct query_ops ops = {on_event, on_end, job_lost};
	struct err e = {0};
	char code[CODE_LEN + 1];

	memcpy(code, m->code, sizeof(code));
	if (query_new(m, j->req, &ops, j, &j->ask, &e) == 0)
		return;
	placer_end(j->c, j->placement, "given-up");
	if (e.r == -EMSGSIZE) {
		job_fail(j, &e);
		return;
	}
	avoid(j, code);
	refused(j, &e);
}

/* --- the placer's
 * --------------------------------------------------------------- */

static bool on_placed(void *arg, json_t *rec)
{
	struct job *j = arg;
	struct member *m;
	struct err e = {0};

	if (!json_is_boolean(json_object_get(rec, "ok")))
		return false;
	j->placing = NULL;
	if (record_to_err(rec, &e) < 0) {
		/* What a node said is nearer to the truth. */
		job_fail(j, j->tries > 1 ? &j->refusal : &e);
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
	avoid(j, json_str(rec, "node"));
	refused(j, &e);
	return true;
}

static void on_no_placer(void *arg, const struct err *why)
{
	struct job *j = arg;

	j->placing = NULL;
	job_fail(j, why);
}

static void place(struct job *j)
{
	static const char *const fields[] =
		{"backend",	  "cpu_cores_limit",  "memory_limit_mb",
		 "disk_limit_mb", "pids_limit",	      "user",
		 "node_labels",	  "node_capabilities"};
	static const struct coproc_ops ops = {on_placed, on_no_placer};
	const json_t *given = json_object_get(j->call->req, "avoid");
	json_t *req = json_object();
	struct err e = {0};
	int r = -ENOMEM;

	for (size_t i = 0; req && i < array_len(fields); i++)
		if (json_object_get(j->call->req, fields[i]))
			json_object_set(req, fields[i],
					json_object_get(j->call->req,
							fields[i]));
	if (j->avoid || given)
		json_object_set(req, "avoid",
				j->avoid ? j->avoid
					 : (json_t *)(uintptr_t)given);
	j->tries++;
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

/* All nodes have said whether they know the key. */
static void on_key_looked(struct job *j)
{
	json_t *one = json_array_get(j->found, 0);
	struct member *m = member_by_code(j->c, json_str(one, "node"));
	struct err e = {0};

	if (m) {
		job_to(j, m);
	} else if (json_array_size(j->missing) > 0) {
		err_set(&e, -EHOSTUNREACH, "node_away",
			"node %s may have made it, and cannot be asked now",
			json_string_value(json_array_get(j->missing, 0)));
		e.infra = true;
		e.retry_after_ms = 1000;
		job_fail(j, &e);
	} else {
		run_again(j);
	}
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
	json_t *req;

	if (!json_is_true(json_object_get(j->call->req, "again")) || !*key)
		return false;
	if (set_random(j->req, "attempt") < 0)
		return false;
	req = json_pack("{s:s, s:s, s:s, s:O, s:O, s:O, s:O}", "program", "run",
			"op", "key", "key", key, "attempt",
			json_object_get(j->req, "attempt"), "caller",
			json_object_get(j->req, "caller"), "within",
			json_object_get(j->req, "within"), "req",
			json_object_get(j->req, "req"));
	if (!req)
		return false;
	many_begin(j, req, true, on_key_looked);
	json_decref(req);
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

void run_begin(struct job *j)
{
	static const char *const ours[] = {"node_labels", "node_capabilities",
					   "avoid", "again", "attempt"};
	struct err e = {0};

	for (size_t i = 0; i < array_len(ours); i++)
		json_object_del(j->req, ours[i]);
	if (check_backend(j, &e) < 0) {
		job_fail(j, &e);
		return;
	}
	make_key(j);
	if (!look_for_key(j))
		run_again(j);
}

void run_again(struct job *j)
{
	struct coproc_stats st;

	coproc_stats(j->c->place, &st);
	if (!st.pid || st.pid != j->c->place_pid) {
		j->waits = true;
		return;
	}
	place(j);
}

void run_stop(struct job *j)
{
	if (j->placing)
		coproc_drop(steal_ptr(j->placing));
	j->waits = false;
}
