/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "control.h"
#include "wire/record.h"

/* --- jobs --------------------------------------------------------------------
 */

static void job_free(struct job *j)
{
	run_stop(j);
	many_stop(j);
	pipes_stop(j);
	if (j->ask)
		query_drop(steal_ptr(j->ask));
	*j->pprev = j->next;
	if (j->next)
		j->next->pprev = j->pprev;
	j->call->arg = NULL;
	json_decref(j->req);
	json_decref(j->avoid);
	json_decref(j->final);
	json_decref(j->found);
	json_decref(j->missing);
	json_decref(j->lost);
	free(j);
}

void job_end(struct job *j, json_t *rec)
{
	struct call *k = j->call;

	job_free(j);
	call_end(k, rec);
}

void job_fail(struct job *j, const struct err *why)
{
	struct call *k = j->call;
	struct err copy = *why; /* it may be the job's */

	job_free(j);
	call_fail(k, &copy);
}

static int job_new(struct control *c, struct call *k, struct job **ret,
		   struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));

	if (j)
		j->req = json_copy(k->req);
	if (!j || !j->req) {
		free(j);
		return err_sys(e, ENOMEM, "request");
	}
	j->c = c;
	j->call = k;
	j->next = c->jobs;
	j->pprev = &c->jobs;
	if (j->next)
		j->next->pprev = &j->next;
	c->jobs = j;
	k->arg = j;
	*ret = j;
	return 0;
}

/* --- one node
 * ------------------------------------------------------------------ */

void job_final(struct job *j, json_t *rec)
{
	json_t *own = json_copy(rec);

	if (!own) {
		job_end(j, NULL);
		return;
	}
	pipes_finish(j);
	if (pipes_over(j))
		job_end(j, own);
	else
		j->final = own;
}

static void on_event(void *arg, struct query *a, json_t *rec)
{
	struct job *j = arg;
	struct err e = {0};

	if (json_object_get(rec, "streams") && !j->cancelled &&
	    pipes_start(j, rec, &e) < 0) {
		query_cancel(a);
		job_fail(j, &e);
		return;
	}
	json_object_del(rec, "id");
	call_event(j->call, json_incref(rec));
}

static void on_end(void *arg, struct query *a, json_t *rec)
{
	struct job *j = arg;

	(void)a;
	j->ask = NULL;
	job_final(j, rec);
}

void job_gone(struct job *j, const struct err *why)
{
	json_t *rec;

	if (strcmp(why->code, "node_lost") || strcmp(j->call->program, "ps") ||
	    strcmp(json_str(j->req, "op"), "wait")) {
		job_fail(j, why);
		return;
	}
	rec = record_ok(j->call->req);
	if (rec) {
		json_object_set_new(rec, "state", json_string("stopped"));
		json_object_set_new(rec, "outcome", json_string("node-lost"));
		json_object_set_new(rec, "infra", json_true());
	}
	job_end(j, rec);
}

void job_cancelled(struct job *j)
{
	struct err e = {0};

	err_set(&e, -ECANCELED, "cancelled", "the request was cancelled");
	job_fail(j, &e);
}

void job_unsure(struct job *j)
{
	struct err e = {0};

	err_set(&e, -EHOSTUNREACH, "node_away", "its node is not known yet");
	e.retry_after_ms = 1000;
	e.infra = true;
	job_fail(j, &e);
}

void job_lost(void *arg, struct query *a)
{
	struct job *j = arg;
	struct err e = {0};

	member_gone(a->m, &e);
	j->ask = NULL;
	job_gone(j, &e);
}

void job_to(struct job *j, struct member *m)
{
	static const struct query_ops ops = {on_event, on_end, job_lost};
	struct err e = {0};

	if (query_new(m, j->req, &ops, j, &j->ask, &e) < 0)
		job_gone(j, &e);
}

/* --- nodes -------------------------------------------------------------------
 */

static json_t *report_for(const struct auth_who *who, json_t *report)
{
	json_t *own;

	if (!strcmp(who->project, "root"))
		return json_incref(report);
	own = json_copy(report);
	auth_blank_report(own);
	return own;
}

/* ${who} NULL: a peer, who asks for no reports. */
static void nodes_begin(struct control *c, struct call *k,
			const struct auth_who *who)
{
	json_t *rec = record_ok(k->req), *ev;
	struct member *m = NULL;
	unsigned n = 0;

	while ((m = member_node(c, m))) {
		/* What they tell us they need not hear from us. */
		if (!who && !m->said)
			continue;
		ev = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I}", "event",
			       "node", "name", m->name, "address", m->address,
			       "code", m->code, "state",
			       member_state_word(member_state(m)), "seen_ms",
			       (json_int_t)(clock_ms() - m->seen_ms));
		if (ev && m->report && who)
			json_object_set_new(ev, "report",
					    report_for(who, m->report));
		call_event(k, ev);
		n++;
	}
	if (rec)
		json_object_set_new(rec, "count", json_integer(n));
	call_end(k, rec);
}

/* Of one node that is named, or (any) of a live one. */
static void by_node(struct job *j, bool any)
{
	const char *name = json_str(j->call->req, "node");
	struct member *m = *name ? member_by_name(j->c, name) : NULL, *o = NULL;
	struct err e = {0};

	json_object_del(j->req, "node");
	if (!m && *name)
		m = member_by_code(j->c, name);
	while (any && !*name && !m && (o = member_node(j->c, o)))
		if (member_state(o) == MEMBER_LIVE)
			m = o;
	if (m) {
		job_to(j, m);
		return;
	}
	if (*name)
		err_set(&e, -ENOENT, "not_found", "no node '%.64s'", name);
	else if (any)
		err_set(&e, -EHOSTUNREACH, "node_away", "no node is live");
	else
		err_set(&e, -EINVAL, "missing_field", "'node' is missing");
	e.retry_after_ms = any && !*name ? 1000 : 0;
	job_fail(j, &e);
}

/* --- requests
 * ------------------------------------------------------------------ */

static bool is_list(const struct job *j)
{
	const char *op = json_str(j->req, "op");

	return !strcmp(j->call->program, "ps") && (!*op || !strcmp(op, "list"));
}

/* What any node can do as well as another. */
static bool is_anybodys(const struct job *j)
{
	const char *program = j->call->program;

	return !strcmp(program, "img") ||
	       (!strcmp(program, "fork") &&
		strcmp(json_str(j->req, "op"), "list"));
}

/* By what it is about. */
static void route(struct job *j)
{
	bool node = json_object_get(j->req, "node") ||
		    !strcmp(j->call->program, "drain");

	if (!strcmp(j->call->program, "run"))
		run_begin(j);
	else if (node && !json_object_get(j->req, "sandbox"))
		by_node(j, false);
	else if (find_begin(j))
		return;
	else if (is_anybodys(j))
		by_node(j, true);
	else if (is_list(j))
		list_begin(j);
	else
		many_begin(j);
}

static int may(const struct control *c, const struct call *k,
	       const struct auth_who **ret, struct err *e)
{
	static const char *const ours[] = {"caller", "within", "req"};
	const struct auth_who *who = binding_of(c->auth, k->client);
	enum auth_op op;
	int r;

	if (!who)
		return err_set(e, -EACCES, "permission",
			       "%s has no binding here", k->client->uri);
	for (size_t i = 0; i < array_len(ours); i++)
		if (json_object_get(k->req, ours[i]))
			return err_set(e, -EINVAL, "unknown_field",
				       "unknown field '%s'", ours[i]);
	r = auth_needs(k->req, &op, e);
	if (r < 0)
		return r;
	if (op != AUTH_NONE && !(who->ops & op))
		return err_set(e, -EACCES, "permission", "%s may not '%s'",
			       who->uri, auth_word(op));
	*ret = who;
	return 0;
}

/* What nodes are told beside the request. */
static int add_who(struct job *j, const struct auth_who *who, struct err *e)
{
	struct control *c = j->c;
	char req[64];

	snprintf(req, sizeof(req), "%s-%llu", c->run_id,
		 (unsigned long long)++c->seq);
	if (json_object_set_new(j->req, "caller", json_string(who->uri)) < 0 ||
	    json_object_set_new(j->req, "within", json_string(who->project)) <
		    0 ||
	    json_object_set_new(j->req, "req", json_string(req)) < 0)
		return err_sys(e, ENOMEM, "request");
	return 0;
}

static int begin(struct control *c, struct call *k, struct err *e)
{
	const struct auth_who *who = NULL;
	struct job *j = NULL;
	int r = may(c, k, &who, e);

	if (r == 0 && !strcmp(k->program, "nodes")) {
		nodes_begin(c, k, who);
		return 0;
	}
	if (r == 0)
		r = job_new(c, k, &j, e);
	if (r < 0)
		return r;
	r = auth_narrow(j->req, who->project, e);
	if (r == 0)
		r = add_who(j, who, e);
	if (r == 0)
		route(j);
	else
		job_free(j);
	return r;
}

static void on_begin(void *arg, struct call *k)
{
	struct control *c = arg;
	struct err e = {0};

	if (k->client->who.kind == TLS_CONTROL &&
	    !strcmp(k->program, "nodes")) {
		nodes_begin(c, k, NULL);
	} else if (begin(c, k, &e) < 0) {
		control_audit_denied(c, k, &e);
		call_fail(k, &e);
	}
}

static void on_stop(void *arg, struct call *k, enum call_stop how)
{
	struct job *j = k->arg;
	struct err e = {0};

	(void)arg;
	if (how != CALL_LEFT && j->ask)
		query_cancel(j->ask);
	if (how == CALL_CANCELLED && (j->ask || j->final)) {
		/* Of its output no more is passed on. */
		j->cancelled = true;
		pipes_stop(j);
		if (j->final)
			job_end(j, steal_ptr(j->final));
		return;
	}
	if (how != CALL_LATE) {
		job_cancelled(j);
		return;
	}
	err_set(&e, -ECANCELED, "deadline", "deadline_ms passed");
	job_fail(j, &e);
}

static void on_ended(void *arg, const struct call *k, const json_t *rec)
{
	struct control *c = arg;

	watch_ended(c->watch, k, rec);
}

static void on_refused(void *arg, const struct err *why)
{
	struct control *c = arg;

	watch_refused(c->watch, &c->refusals, why);
}

/* A token that is nobody's is not taken; a certificate without a binding may
 * bring one. */
static int on_come(void *arg, struct client *cl, struct err *e)
{
	struct control *c = arg;

	if (binding_token_ok(c->auth, cl))
		return 0;
	control_audit_client(c, cl, NULL);
	return err_set(e, -EACCES, "permission", "the token has no binding");
}

static const char *within(const struct call *k)
{
	const struct job *j = k->arg;

	return j ? json_str(j->req, "within") : NULL;
}

/* Whose binding was taken away, or made narrower, is cut off from what he
 * began. */
static void let_go(void *arg, struct client *cl)
{
	struct control *c = arg;
	struct err e = {0};

	if (cl->who.kind != TLS_CLIENT || binding_holds(c->auth, cl, within))
		return;
	err_set(&e, -EACCES, "permission", "%s may not any more", cl->uri);
	control_audit_client(c, cl, "cut");
	conn_reject(cl->c, NULL, &e);
}

void control_recheck(struct control *c)
{
	if (c->server)
		server_each(c->server, let_go, c);
}

const struct server_ops control_ops = {
	.may = on_come,
	.begin = on_begin,
	.stop = on_stop,
	.ended = on_ended,
	.refused = on_refused,
};
