/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "serve/server_priv.h"
#include "wire/record.h"

#define LATE_MS	     1000 /* for who does it to say so itself */
#define BUSY_MS	     500
#define DEADLINE_MAX (7 * 86400 * 1000ll)

/* --- answers -------------------------------------------------------------- */

void call_event(struct call *k, json_t *rec)
{
	if (k->client && rec) {
		json_object_set(rec, "id", (json_t *)(uintptr_t)k->id);
		(void)conn_put(k->client->c, rec, NULL);
	}
	json_decref(rec);
}

static void forget(struct call *k)
{
	struct server *s = k->server;

	if (k->client) {
		*k->pprev = k->next;
		if (k->next)
			k->next->pprev = k->pprev;
		k->client->weight -= k->weight;
		conn_set_busy(k->client->c, --k->client->ncalls);
	}
	s->stats.weight -= k->weight;
	loop_timer_set(s->env->loop, &k->timer, 0);
	s->stats.calls--;
	json_decref(k->req);
	free(k);
}

/* Even without memory there is an answer. */
static void answer(struct client *cl, const json_t *id, json_t *rec)
{
	struct err e = {0};
	int r;

	if (rec)
		json_object_set(rec, "id", (json_t *)(uintptr_t)id);
	else
		err_sys(&e, ENOMEM, "answer");
	r = rec ? conn_put(cl->c, rec, &e) : -ENOMEM;
	if (r == -EMSGSIZE) {
		auto_json json_t *req = json_object();
		auto_json json_t *fail = NULL;

		if (req)
			json_object_set(req, "id", (json_t *)(uintptr_t)id);
		fail = record_error(req, &e);
		r = fail ? conn_put(cl->c, fail, NULL) : -ENOMEM;
	}
	if (r == -ENOMEM)
		conn_cut(cl->c, &e);
}

void call_end(struct call *k, json_t *rec)
{
	const struct server_conf *conf = &k->server->conf;

	if (conf->ops->ended)
		conf->ops->ended(conf->arg, k, rec);
	if (k->client)
		answer(k->client, k->id, rec);
	json_decref(rec);
	forget(k);
}

void call_fail(struct call *k, const struct err *why)
{
	call_end(k, record_error(k->req, why));
}

static void refuse(struct client *cl, const json_t *req, const struct err *why)
{
	auto_json json_t *rec = record_error(req, why);

	answer(cl, json_object_get(req, "id"), rec);
}

/* --- calls ---------------------------------------------------------------- */

static struct call *find(const struct client *cl, const json_t *id)
{
	struct call *k = cl->calls;

	while (k && !json_equal(k->id, id))
		k = k->next;
	return k;
}

static void tell_stop(struct call *k, enum call_stop how)
{
	struct server *s = k->server;

	loop_timer_set(s->env->loop, &k->timer, 0);
	if (k->told)
		return;
	k->told = true;
	s->conf.ops->stop(s->conf.arg, k, how);
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	(void)l;
	tell_stop(t->arg, CALL_LATE);
}

static void on_cancel(struct client *cl, json_t *req)
{
	struct call *k = find(cl, json_object_get(req, "cancel"));
	auto_json json_t *rec = record_ok(req);

	if (rec)
		json_object_set_new(rec, "cancelled", json_boolean(k != NULL));
	answer(cl, json_object_get(req, "id"), rec);
	if (k)
		tell_stop(k, CALL_CANCELLED);
}

/* May it begin? */
static int check(const struct client *cl, const json_t *req, struct err *e)
{
	const json_t *id = json_object_get(req, "id");
	const json_t *late = json_object_get(req, "deadline_ms");

	if (!frame_id_ok(id))
		return err_set(e, -EINVAL, "bad_value",
			       "'id': an integer, or a string of at most 128 "
			       "bytes");
	if (find(cl, id))
		return err_set(e, -EINVAL, "bad_value",
			       "'id' is that of a request under way");
	if (late && (!json_is_integer(late) || json_integer_value(late) < 1 ||
		     json_integer_value(late) > DEADLINE_MAX))
		return err_set(e, -EINVAL, "bad_value",
			       "'deadline_ms': 1 to %lld", DEADLINE_MAX);
	return 0;
}

/* Who has as much under way as he may can cancel some. */
static int check_room(const struct client *cl, struct err *e)
{
	struct server *s = cl->server;
	const struct server_limits *lim = &s->conf.limits;

	/* One request alone may be as large as a line can make it. */
	if (cl->ncalls < lim->requests && s->stats.calls < lim->calls &&
	    (cl->ncalls == 0 ||
	     (cl->weight + conn_weight(cl->c) <= SERVER_WEIGHT_ONE &&
	      s->stats.weight + conn_weight(cl->c) <= SERVER_WEIGHT_ALL)))
		return 0;
	s->stats.busy++;
	err_set(e, -EBUSY, "busy", "%u requests are under way",
		cl->ncalls < lim->requests && s->stats.calls >= lim->calls
			? s->stats.calls
			: cl->ncalls);
	if (e)
		e->retry_after_ms = BUSY_MS;
	return -EBUSY;
}

static void begin(struct client *cl, json_t *req)
{
	struct server *s = cl->server;
	struct call *k;
	int64_t late = json_int(req, "deadline_ms", 0);
	struct err e = {0};

	if (check_room(cl, &e) < 0) {
		refuse(cl, req, &e);
		return;
	}
	k = calloc(1, sizeof(*k));
	if (!k) {
		err_sys(&e, ENOMEM, "request");
		refuse(cl, req, &e);
		return;
	}
	*k = (struct call){.client = cl,
			   .server = s,
			   .req = json_incref(req),
			   .id = json_object_get(req, "id"),
			   .program = json_str(req, "program"),
			   .began_ms = clock_ms(),
			   .weight = conn_weight(cl->c),
			   .next = cl->calls,
			   .pprev = &cl->calls,
			   .timer = {.fn = on_late, .arg = k}};
	if (k->next)
		k->next->pprev = &k->next;
	cl->calls = k;
	s->stats.calls++;
	s->stats.requests++;
	s->stats.weight += k->weight;
	cl->weight += k->weight;
	conn_set_busy(cl->c, ++cl->ncalls);
	if (late > 0)
		loop_timer_set(s->env->loop, &k->timer,
			       k->began_ms + (uint64_t)late + LATE_MS);
	s->conf.ops->begin(s->conf.arg, k);
}

/* --- hello ---------------------------------------------------------------- */

static json_t *about(const struct server *s)
{
	json_t *rec = json_pack("{s:i, s:s, s:s}", "v", 1, "role", s->conf.role,
				"name", s->conf.name);

	if (rec && s->conf.capabilities)
		json_object_set(rec, "capabilities",
				(json_t *)(uintptr_t)s->conf.capabilities);
	return rec;
}

/* The token itself is kept nowhere. */
static int take_token(struct client *cl, json_t *req, struct err *e)
{
	static const char *const keys[] = {"program", "id", "v", "token",
					   "client"};
	const json_t *token = json_object_get(req, "token");
	const char *odd = json_unknown(req, keys, array_len(keys));

	if (odd)
		return err_set(e, -EINVAL, "unknown_field",
			       "unknown field '%.64s'", odd);
	if (json_int(req, "v", 1) != 1)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "this is version 1");
	if (!token)
		return 0;
	if (json_string_length(token) < 16 || json_string_length(token) > 4096)
		return err_set(e, -EINVAL, "bad_value",
			       "'token': a string of 16 to 4096 bytes");
	hash_sha256(json_string_value(token), json_string_length(token),
		    cl->token_sha256);
	explicit_bzero((void *)(uintptr_t)json_string_value(token),
		       json_string_length(token));
	return 0;
}

static void on_hello(struct client *cl, json_t *req)
{
	struct server *s = cl->server;
	const struct server_ops *ops = s->conf.ops;
	auto_json json_t *rec = NULL;
	auto_json json_t *self = NULL;
	struct err e = {0};
	int r = take_token(cl, req, &e);

	if (r == 0 && *cl->token_sha256 && ops->may)
		r = ops->may(s->conf.arg, cl, &e);
	if (r < 0) {
		conn_reject(cl->c, json_object_get(req, "id"), &e);
		return;
	}
	rec = record_ok(req);
	self = about(s);
	if (rec && self)
		json_object_update(rec, self);
	answer(cl, json_object_get(req, "id"), rec);
}

/* --- clients -------------------------------------------------------------- */

/* As if this one request had been on a connection that is gone. */
static void on_leave(struct client *cl, const json_t *id)
{
	struct call *k = find(cl, id);

	if (!k)
		return;
	*k->pprev = k->next;
	if (k->next)
		k->next->pprev = k->pprev;
	cl->weight -= k->weight;
	conn_set_busy(cl->c, --cl->ncalls);
	k->client = NULL;
	tell_stop(k, CALL_LEFT);
}

static void on_line(void *arg, struct conn *c, json_t *obj)
{
	struct client *cl = arg;
	const char *event = json_str(obj, "event");
	struct err e = {0};

	cl->lines++;
	/* Records are no requests, and other events that belong to no stream
	 * tell nothing. */
	if (!strcmp(event, "leave"))
		on_leave(cl, json_object_get(obj, "id"));
	if (*event || json_object_get(obj, "ok"))
		return;
	if (!json_object_get(obj, "id"))
		json_object_set_new(obj, "id",
				    json_integer((json_int_t)cl->lines));
	if (check(cl, obj, &e) < 0) {
		if (!frame_id_ok(json_object_get(obj, "id")))
			json_object_del(obj, "id");
		refuse(cl, obj, &e);
	} else if (json_object_get(obj, "cancel")) {
		on_cancel(cl, obj);
	} else if (!strcmp(json_str(obj, "program"), "hello")) {
		on_hello(cl, obj);
	} else {
		begin(cl, obj);
	}
	(void)c;
}

static void on_up(void *arg, struct conn *c)
{
	struct client *cl = arg;
	struct server *s = cl->server;
	auto_json json_t *hello = about(s);
	struct err e = {0};

	cl->who = *conn_peer(c);
	tls_ident_uri(&cl->who, cl->uri);
	server_resume(s);
	if (s->conf.ops->may && s->conf.ops->may(s->conf.arg, cl, &e) < 0) {
		conn_reject(c, NULL, &e);
		return;
	}
	if (hello)
		json_object_set_new(hello, "event", json_string("hello"));
	(void)conn_put(c, hello, NULL);
}

static void on_gone(void *arg, struct conn *c, const struct err *why)
{
	struct client *cl = arg;
	struct server *s = cl->server;
	struct call *k;

	if (!conn_peer(c) && why->r < 0 && s->conf.ops->refused)
		s->conf.ops->refused(s->conf.arg, why);
	while ((k = cl->calls)) {
		cl->calls = k->next;
		if (k->next)
			k->next->pprev = &cl->calls;
		k->client = NULL;
		tell_stop(k, CALL_LEFT);
	}
	if (s->conf.ops->left)
		s->conf.ops->left(s->conf.arg, cl);
	*cl->pprev = cl->next;
	if (cl->next)
		cl->next->pprev = cl->pprev;
	s->stats.clients--;
	s->leaving -= cl->put_out;
	free(cl);
	server_resume(s);
}

static const struct conn_ops conn_ops = {
	.up = on_up,
	.line = on_line,
	.gone = on_gone,
};

int server_take(struct server *s, int *fd, struct err *e)
{
	struct client *cl = calloc(1, sizeof(*cl));
	const struct conn_conf conf = {.server = true,
				       .ops = &conn_ops,
				       .arg = cl};
	int r;

	if (!cl) {
		fd_close(steal_fd(fd));
		return err_sys(e, ENOMEM, "connection");
	}
	cl->server = s;
	cl->since_ms = clock_ms();
	r = conn_open(s->env, &conf, fd, &cl->c, e);
	if (r < 0) {
		free(cl);
		return r;
	}
	cl->next = s->clients;
	if (cl->next)
		cl->next->pprev = &cl->next;
	s->clients = cl;
	cl->pprev = &s->clients;
	s->stats.clients++;
	return 0;
}

void server_each(struct server *s, void (*fn)(void *arg, struct client *cl),
		 void *arg)
{
	for (struct client *cl = s->clients; cl; cl = cl->next)
		fn(arg, cl);
}

struct server_stats server_stats(const struct server *s)
{
	return s->stats;
}
