/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "node.h"
#include "node_worker.h"
#include "wire/record.h"

#define PATIENCE_MS 15000 /* for a keeper to come back */
#define WAITING_MAX 4096
#define BRIEF_MAX   512		      /* of a text that goes to the audit log */
#define AHEAD_MAX   (8 * 1024 * 1024) /* that a keeper has not taken yet */

/* --- jobs ---------------------------------------------------------------- */

static struct job *job_find(const struct worker *w, int64_t n)
{
	struct job *j = w->jobs[(uint64_t)n % JOB_BUCKETS];

	while (j && j->n != n)
		j = j->next;
	return j;
}

static void bucket_put(struct job *j)
{
	struct job **b = &j->worker->jobs[(uint64_t)j->n % JOB_BUCKETS];

	j->next = *b;
	j->pprev = b;
	if (j->next)
		j->next->pprev = &j->next;
	*b = j;
}

static void bucket_take(struct job *j)
{
	*j->pprev = j->next;
	if (j->next)
		j->next->pprev = j->pprev;
}

static void job_free(struct job *j)
{
	struct worker *w = j->worker;

	bucket_take(j);
	if (j->waiting)
		w->nwaiting--;
	flows_stop(j);
	loop_timer_set(w->loop, &j->soon, 0);
	json_decref(j->line);
	json_decref(j->final);
	free(j);
}

/* The end, with ${rec}, which is taken over. */
static void job_end(struct job *j, json_t *rec)
{
	struct call *k = j->call;

	job_free(j);
	k->arg = NULL;
	call_end(k, rec);
}

static void job_fail(struct job *j, const struct err *why)
{
	struct call *k = j->call;

	job_free(j);
	k->arg = NULL;
	call_fail(k, why);
}

static void tell(struct keeping *kp, const char *what, int64_t n)
{
	auto_json json_t *line = NULL;

	if (kp && json_pack_or(&line, NULL, "{sI}", what, (json_int_t)n) == 0)
		(void)keeping_send(kp, line, NULL);
}

static void set_waiting(struct job *j, bool on)
{
	if (j->waiting == on)
		return;
	j->waiting = on;
	j->worker->nwaiting += on ? 1 : -1;
	j->since_ms = clock_ms();
}

/* To the keeper that is there, or it waits for one.  "too_large": never. */
static int job_send(struct job *j, struct err *e)
{
	struct keeping *kp = j->worker->keepings;
	int r = kp ? keeping_send(kp, j->line, e) : -EPIPE;

	j->keeping = r == 0 ? kp : NULL;
	set_waiting(j, r < 0 && r != -EMSGSIZE);
	return r == -EMSGSIZE ? r : 0;
}

static void job_send_or_fail(struct job *j)
{
	struct err e = {0};

	if (job_send(j, &e) < 0)
		job_fail(j, &e);
}

/* --- who asks ------------------------------------------------------------ */

struct asker {
	const char *who, *within, *as;
	unsigned ops;
};

/* A control asks for somebody, within what that one may. */
static int asker_of(const struct worker *w, const struct call *k,
		    struct asker *ret, struct err *e)
{
	const struct client *cl = k->client;
	const struct auth_who *who;

	if (cl->who.kind == TLS_CONTROL) {
		*ret = (struct asker){cl->uri, json_str(k->req, "within"),
				      json_str(k->req, "caller"), AUTH_ALL};
		return auth_project_ok(ret->within)
			       ? 0
			       : err_set(e, -EBADMSG, "missing_field",
					 "a control says 'within' what");
	}
	who = binding_of(w->auth, cl);
	if (!who)
		return err_set(e, -EACCES, "permission",
			       "%s has no binding on this node", cl->uri);
	for (const char *const *key =
		     (const char *const[]){"within", "caller", "req", NULL};
	     *key; key++)
		if (json_object_get(k->req, *key))
			return err_set(e, -EBADMSG, "unknown_field",
				       "'%s' is a control's to say", *key);
	*ret = (struct asker){who->uri, who->project, who->uri, who->ops};
	return 0;
}

/* What was turned away here goes to the keeper's audit log. */
static void note_denied(struct worker *w, const struct client *cl,
			const json_t *req, const struct err *why)
{
	static const char *const keys[] = {"program", "op",   "sandbox",
					   "project", "task", "key"};
	json_t *line = NULL, *brief;

	if (!w->keepings || strcmp(why->code, "permission") ||
	    json_pack_or(&line, NULL, "{ss ss sO* s{}}", "denied", why->code,
			 "who", cl->uri, "id", json_object_get(req, "id"),
			 "req") < 0)
		return;
	brief = json_object_get(line, "req");
	for (size_t i = 0; i < array_len(keys); i++) {
		json_t *v = json_object_get(req, keys[i]);

		if (json_is_string(v) && json_string_length(v) <= BRIEF_MAX)
			json_object_set(brief, keys[i], v);
	}
	(void)keeping_send(w->keepings, line, NULL);
	json_decref(line);
}

static int may(void *arg, struct client *cl, struct err *e)
{
	const struct worker *w = arg;

	/* Who has no binding may yet say a token. */
	if (cl->who.kind == TLS_CONTROL || cl->who.kind == TLS_CLIENT) {
		if (binding_token_ok(w->auth, cl))
			return 0;
		err_set(e, -EACCES, "permission", "no such token");
		note_denied(arg, cl, NULL, e);
		return -EACCES;
	}
	return err_set(e, -EACCES, "permission",
		       "%s is neither a client nor a control", cl->uri);
}

/* --- requests ------------------------------------------------------------ */

static json_t *line_of(const struct job *j, const struct asker *who,
		       const json_t *from)
{
	static const char *const wire[] = {"id", "within", "caller", "req",
					   "token"};
	json_t *req = json_copy((json_t *)(uintptr_t)from), *line = NULL;

	if (!req)
		return NULL;
	for (size_t i = 0; i < array_len(wire); i++)
		json_object_del(req, wire[i]);
	(void)json_pack_or(&line, NULL, "{sI ss ss ss sO so}", "n",
			   (json_int_t)j->n, "who", who->who, "within",
			   who->within, "as", who->as, "id",
			   json_object_get(from, "id"), "req", req);
	if (line && json_object_get(from, "req"))
		json_object_set(line, "rid", json_object_get(from, "req"));
	return line;
}

static void on_soon(struct loop *l, struct loop_timer *t);

static int job_new(struct worker *w, struct call *k, const struct asker *who,
		   struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));

	if (!j)
		return err_sys(e, ENOMEM, "request");
	j->worker = w;
	j->call = k;
	j->n = w->next_n++;
	j->soon = (struct loop_timer){.fn = on_soon, .arg = j};
	j->line = line_of(j, who, k->req);
	if (!j->line) {
		free(j);
		return err_sys(e, ENOMEM, "request");
	}
	bucket_put(j);
	if (job_send(j, e) < 0) {
		job_free(j);
		return -EMSGSIZE;
	}
	k->arg = j;
	return 0;
}

/* Is there room for one more at the keeper? */
static int check_room(const struct worker *w, struct err *e)
{
	const struct keeping *kp = w->keepings;

	if (w->nwaiting >= WAITING_MAX)
		err_set(e, -EBUSY, "busy", "the node is starting");
	else if (kp && kp->chan.out.len > AHEAD_MAX)
		err_set(e, -EBUSY, "busy", "the node has much to read");
	else
		return 0;
	e->retry_after_ms = 500;
	return -EBUSY;
}

static int check(struct worker *w, struct call *k, struct err *e)
{
	struct asker who = {0};
	enum auth_op needs;
	int r;

	r = auth_needs(k->req, &needs, e);
	if (r == 0)
		r = asker_of(w, k, &who, e);
	if (r == 0 && needs != AUTH_NONE && !(who.ops & needs))
		r = err_set(e, -EACCES, "permission", "%s may not '%s'",
			    who.who, auth_word(needs));
	if (r < 0)
		note_denied(w, k->client, k->req, e);
	if (r == 0)
		r = check_room(w, e);
	return r < 0 ? r : job_new(w, k, &who, e);
}

static const char *within(const struct call *k)
{
	const struct job *j = k->arg;

	return j ? json_str(j->line, "within") : NULL;
}

static void let_go(void *arg, struct client *cl)
{
	static const char line[] = "{\"program\":\"hello\",\"op\":\"cut\"}";
	struct worker *w = arg;
	auto_json json_t *req = NULL;
	struct err e = {0};

	if (cl->who.kind != TLS_CLIENT || !conn_peer(cl->c) ||
	    binding_holds(w->auth, cl, within))
		return;
	err_set(&e, -EACCES, "permission", "%s may not any more", cl->uri);
	if (json_parse(line, strlen(line), &req, NULL) == 0)
		note_denied(w, cl, req, &e);
	conn_reject(cl->c, NULL, &e);
}

void serve_recheck(struct worker *w)
{
	if (w->server)
		server_each(w->server, let_go, w);
}

static void begin(void *arg, struct call *k)
{
	struct worker *w = arg;
	struct err e = {0};

	if (!strcmp(k->program, "ping"))
		call_end(k, record_ok(NULL));
	else if (check(w, k, &e) < 0)
		call_fail(k, &e);
}

static void stop(void *arg, struct call *k, enum call_stop how)
{
	struct job *j = k->arg;
	struct err e = {0};

	(void)arg;
	if (!j)
		return;
	if (how == CALL_LEFT) {
		/* Commands go on; who comes back asks for them by name. */
		tell(j->keeping, "drop", j->n);
		job_end(j, NULL);
		return;
	}
	flows_stop(j);
	if (how == CALL_CANCELLED && (j->keeping || j->final) && !j->connect) {
		tell(j->keeping, "cancel", j->n);
		if (j->final)
			job_flowed(j);
		return;
	}
	tell(j->keeping, "drop", j->n);
	if (how == CALL_LATE)
		err_set(&e, -ETIMEDOUT, "deadline",
			"the request was not done in time");
	else
		err_set(&e, -ECANCELED, "cancelled",
			"the request was cancelled");
	job_fail(j, &e);
}

static void ended(void *arg, const struct call *k, const json_t *rec)
{
	struct worker *w = arg;

	watch_ended(w->watch, k, rec);
}

static void refused(void *arg, const struct err *why)
{
	struct worker *w = arg;

	watch_refused(w->watch, &w->refusals, why);
}

const struct server_ops serve_ops = {
	.may = may,
	.begin = begin,
	.stop = stop,
	.ended = ended,
	.refused = refused,
};

/* --- answers ------------------------------------------------------------- */

/* All of its output has been sent; or, of a connection, both ways are over. */
static void on_soon(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;
	bool open = false;

	(void)l;
	for (struct flow *f = j->flows; f; f = f->next)
		open |= !f->over;
	if (j->connect && !open && !j->final) {
		tell(j->keeping, "drop", j->n);
		job_end(j, record_ok(NULL));
	} else if (j->final && j->nout == 0) {
		job_end(j, steal_ptr(j->final));
	}
}

void job_flowed(struct job *j)
{
	loop_timer_set(j->worker->loop, &j->soon, clock_ms());
}

static void on_started(struct job *j, json_t *rec, struct chan_msg *m)
{
	struct err e = {0};

	snprintf(j->exec, sizeof(j->exec), "%s", json_str(rec, "exec"));
	snprintf(j->sandbox, sizeof(j->sandbox), "%s",
		 json_str(rec, "sandbox"));
	if (j->asked_end)
		return; /* told by the keeper before */
	if (!j->call->client) {
		tell(j->keeping, "drop", j->n);
		job_end(j, NULL);
		return;
	}
	if (flows_start(j, rec, m, &e) < 0) {
		tell(j->keeping, "drop", j->n);
		job_fail(j, &e);
		return;
	}
	json_object_del(rec, "parts");
	call_event(j->call, json_incref(rec));
	flows_go(j);
}

bool job_asks_tty(struct job *j)
{
	if (!j->keeping || !*j->exec || j->final)
		return false;
	tell(j->keeping, "tty", j->n);
	return true;
}

static void on_tty(struct job *j, json_t *rec, struct chan_msg *m)
{
	auto_close int fd = chan_take(m, "tty");
	auto_json json_t *fail = NULL;
	struct err e = {0};

	if (m->lost) {
		err_sys(&e, EMFILE, "the terminal");
		fail = record_error(NULL, &e);
		rec = fail;
	}
	flows_tty(j, &fd, json_object_get(rec, "error"));
}

void job_answer(struct worker *w, struct chan_msg *m)
{
	json_t *rec = json_object_get(m->obj, "rec");
	struct job *j = job_find(w, json_int(m->obj, "n", -1));

	if (!j || !json_is_object(rec))
		return;
	j->began = true;
	if (json_is_boolean(json_object_get(rec, "ok"))) {
		if (j->nout > 0 || j->connect) {
			flows_end_input(j);
			json_decref(j->final);
			j->final = json_incref(rec);
			if (j->connect)
				job_end(j, json_incref(rec));
			return;
		}
		job_end(j, json_incref(rec));
	} else if (!strcmp(json_str(rec, "event"), "started")) {
		on_started(j, rec, m);
	} else if (!strcmp(json_str(rec, "event"), "tty")) {
		on_tty(j, rec, m);
	} else {
		call_event(j->call, json_incref(rec));
	}
}

/* --- when a keeper is gone ----------------------------------------------- */

/* How did the command end?  It is the next keeper's to find out. */
static int ask_end(struct job *j)
{
	json_t *req = NULL, *old = json_object_get(j->line, "req");
	const json_t *kb = json_object_get(old, "inline_kb");
	bool live = j->flows != NULL;

	if (json_pack_or(&req, NULL, "{ss ss ss ss}", "program", "exec", "op",
			 live ? "wait" : "attach", "sandbox", j->sandbox,
			 "exec", j->exec) < 0)
		return -ENOMEM;
	if (!live && kb)
		json_object_set(req, "inline_kb", (json_t *)(uintptr_t)kb);
	json_object_set_new(j->line, "req", req);
	j->asked_end = true;
	return 0;
}

static bool repeats(const struct job *j)
{
	const json_t *req = json_object_get(j->line, "req");
	const char *program = json_str(req, "program");

	if (j->began)
		return false;
	/* Of those that a selector names some are done, and told. */
	if (!strcmp(program, "pause") && !json_object_get(req, "sandbox"))
		return json_object_get(req, "key");
	return errand_repeats(req) || !strcmp(program, "report") ||
	       !strcmp(program, "drain") ||
	       !strcmp(json_str(req, "op"), "attach");
}

static void job_lost(struct job *j)
{
	struct err e = {0};

	j->keeping = NULL; /* it is about to be freed */
	if (j->final || j->connect)
		return; /* only bytes are to come; needs none */
	if ((*j->exec && ask_end(j) == 0) || repeats(j)) {
		job_send_or_fail(j);
		return;
	}
	err_set(&e, -EPIPE, "helper_lost",
		"the node's keeper ended before it answered");
	e.retry_after_ms = 200;
	e.infra = true;
	job_fail(j, &e);
}

void jobs_lost(struct worker *w, struct keeping *kp)
{
	for (size_t i = 0; i < JOB_BUCKETS; i++)
		for (struct job *j = w->jobs[i], *next; j; j = next) {
			next = j->next;
			if (j->keeping == kp)
				job_lost(j);
		}
}

void jobs_send(struct worker *w)
{
	for (size_t i = 0; i < JOB_BUCKETS; i++)
		for (struct job *j = w->jobs[i], *next; j; j = next) {
			next = j->next;
			if (j->waiting)
				job_send_or_fail(j);
		}
}

void jobs_expire(struct worker *w)
{
	uint64_t now = clock_ms();
	struct err e = {0};

	err_set(&e, -EPIPE, "helper_lost", "the node has no keeper");
	e.retry_after_ms = 1000;
	e.infra = true;
	for (size_t i = 0; i < JOB_BUCKETS; i++)
		for (struct job *j = w->jobs[i], *next; j; j = next) {
			next = j->next;
			if (j->waiting && now - j->since_ms > PATIENCE_MS)
				job_fail(j, &e);
		}
}
