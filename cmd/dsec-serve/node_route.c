/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "box/key.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/proc.h"
#include "node.h"
#include "node_keeper.h"
#include "wire/record.h"

#define ONCE_MAX 16
#define IDLE_MS	 120000 /* a filter that nobody needed for so long */

enum { PATH_PS = FILTERS };

/* --- filters ------------------------------------------------------------- */

static const struct {
	const char *program;
	unsigned window;
	bool cancels;
	const char *args[3];
} filters[FILTERS] = {
	[FILTER_RUN] = {"dsec-run", 64, true, {NULL}},
	[FILTER_EXEC] = {"dsec-exec", 1024, true, {"--jobs", "1024", NULL}},
	[FILTER_PAUSE] = {"dsec-pause", 256, true, {NULL}},
	[FILTER_FORK] = {"dsec-fork", 32, true, {NULL}},
	[FILTER_NET] = {"dsec-net", 128, true, {NULL}},
	[FILTER_WAIT] = {"dsec-ps", 4096, true, {"--wait", NULL}},
	[FILTER_IMG] = {"dsec-img", 16, false, {NULL}},
	[FILTER_ADMIT] = {"dsec-admit", 64, false, {NULL}},
};

static void note(const char *text)
{
	log_info("%s", text);
}

static const char *path_of(struct keeper *k, unsigned i, const char *program,
			   struct err *e)
{
	if (!*k->paths[i] &&
	    proc_program(program, k->paths[i], sizeof(k->paths[i]), e) < 0)
		return NULL;
	return k->paths[i];
}

/* The words live as long as the keeper. */
static const char *const *words_of(struct keeper *k, enum filter which,
				   struct err *e)
{
	static const char *words[FILTERS][4];
	const char *path = path_of(k, which, filters[which].program, e);

	if (!path)
		return NULL;
	words[which][0] = path;
	memcpy(&words[which][1], filters[which].args,
	       sizeof(filters[which].args));
	return words[which];
}

int filter_of(struct keeper *k, enum filter which, struct coproc **ret,
	      struct err *e)
{
	struct coproc_conf conf = {
		.loop = k->loop,
		.window = filters[which].window,
		.queue_max = 4096,
		.idle_ms = IDLE_MS,
		.cancels = filters[which].cancels,
		.note = note,
	};
	int r = 0;

	if (!k->filters[which]) {
		conf.argv = words_of(k, which, e);
		if (!conf.argv)
			return -ENAMETOOLONG;
		r = coproc_new(&conf, &k->filters[which], e);
	}
	if (r == 0)
		*ret = k->filters[which];
	return r;
}

static void run_then_wait(struct errand *c, json_t *rec);

/* Whose sandboxes are here is the affair of who may all of them. */
static void complete_report(struct errand *c, json_t *rec)
{
	json_object_set_new(rec, "daemon", keeper_state(c->keeper));
	if (strcmp(json_str(c->line, "within"), "root"))
		auth_blank_report(rec);
}

static bool on_record(void *arg, json_t *rec)
{
	struct errand *c = arg;

	if (!json_is_boolean(json_object_get(rec, "ok"))) {
		json_object_del(rec, "id");
		errand_tell(c, rec);
		return false;
	}
	if (c->many) {
		errand_record(c, rec);
		/* What failed before any copy was begun is one record. */
		if (c->count < c->expected &&
		    (json_is_true(json_object_get(rec, "ok")) ||
		     json_object_get(rec, "index")))
			return false;
		c->filter = NULL;
		errand_count(c);
	} else if (c->channel && c->wait &&
		   json_is_true(json_object_get(rec, "ok"))) {
		c->filter = NULL;
		run_then_wait(c, rec);
	} else {
		c->filter = NULL;
		json_object_del(rec, "id");
		if (c->report)
			complete_report(c, rec);
		errand_answer(c, rec);
	}
	return true;
}

static void on_failed(void *arg, const struct err *why)
{
	struct errand *c = arg;

	c->filter = NULL;
	errand_fail(c, why);
}

/* What is the wire's own no program knows. */
static json_t *for_program(const struct errand *c)
{
	json_t *req = json_copy(c->req);

	json_object_del(req, "program");
	json_object_del(req, "id");
	json_object_del(req, "cancel");
	return req;
}

int route_filter(struct errand *c, enum filter which, struct err *e)
{
	static const struct coproc_ops ops = {on_record, on_failed};
	auto_json json_t *req = for_program(c);
	struct coproc *p;
	int r;

	if (!req)
		return err_sys(e, ENOMEM, "request");
	if (which == FILTER_WAIT)
		json_object_del(req, "op");
	if (c->wait)
		json_object_del(req, "wait");
	r = filter_of(c->keeper, which, &p, e);
	c->which = which;
	return r < 0 ? r
		     : coproc_ask(p, req,
				  errand_repeats(c->req) ? COPROC_AGAIN : 0,
				  &ops, c, &c->filter, e);
}

/* --- supervisors --------------------------------------------------------- */

static void on_event(void *arg, json_t *rec, struct relay_fds *fds)
{
	struct errand *c = arg;

	if (c->channel)
		keeper_send(c->channel, c->n, rec, fds);
}

static void on_done(void *arg, json_t *rec, const struct err *why)
{
	struct errand *c = arg;

	c->relay = NULL;
	if (rec) {
		json_object_del(rec, "id");
		errand_answer(c, rec);
	} else {
		errand_fail(c, why);
	}
}

static const struct relay_ops relay_ops = {on_event, on_done};

static int route_relay(struct errand *c, const json_t *req, struct err *e)
{
	return relay_new(c->keeper->loop, &c->keeper->tree, req, &relay_ops, c,
			 &c->relay, e);
}

/* The launch is done; its first command goes on without the launcher. */
static void run_then_wait(struct errand *c, json_t *rec)
{
	auto_json json_t *req = NULL;
	const json_t *kb = json_object_get(c->req, "inline_kb");
	const char *exec = json_str(rec, "exec");
	struct err e = {0};
	int r;

	/* Of a snapshot's copy it comes after those of the source. */
	r = json_pack_or(&req, &e, "{ss ss sO ss}", "program", "exec", "op",
			 "attach", "sandbox", json_object_get(rec, "sandbox"),
			 "exec", *exec ? exec : "e0");
	if (r == 0 && kb)
		json_object_set(req, "inline_kb", (json_t *)(uintptr_t)kb);
	/* Who cancels, or asked for fields that are wrong, learns its name. */
	json_object_set(c->req, "sandbox", json_object_get(rec, "sandbox"));
	if (r == 0)
		r = route_relay(c, req, &e);
	if (r < 0)
		errand_fail(c, &e);
}

/* --- programs that are run once ------------------------------------------ */

static void on_once(void *arg, json_t *rec)
{
	struct errand *c = arg;

	if (!json_is_boolean(json_object_get(rec, "ok"))) {
		json_object_del(rec, "id");
		errand_tell(c, rec);
	} else if (c->many) {
		errand_record(c, rec);
	} else {
		/* The one record, kept in place of the request. */
		json_object_del(rec, "id");
		json_object_set(c->req, "record", rec);
	}
	if (c->channel && keeper_full(c->channel))
		keeper_hold(c->channel, c->once);
}

static void on_once_end(void *arg, int status)
{
	struct errand *c = arg;
	json_t *rec = json_object_get(c->req, "record");
	struct err e = {0};

	c->once = NULL;
	c->keeper->nonce--;
	if (rec) {
		errand_answer(c, rec);
	} else if (c->many && status >= 0) {
		if (c->page)
			errand_page(c);
		errand_count(c);
	} else {
		err_set(&e, -EPIPE, "helper_lost",
			"the program ended before it answered (status %d)",
			status);
		e.infra = true;
		e.retry_after_ms = 100;
		errand_fail(c, &e);
	}
}

static int route_once(struct errand *c, const char *const *argv, struct err *e)
{
	static const struct once_ops ops = {on_once, on_once_end};
	struct keeper *k = c->keeper;
	int r;

	if (k->nonce >= ONCE_MAX) {
		err_set(e, -EBUSY, "busy", "%u lists are being made", k->nonce);
		e->retry_after_ms = 200;
		return -EBUSY;
	}
	r = once_new(k->loop, argv, &ops, c, &c->once, e);
	if (r == 0)
		k->nonce++;
	return r;
}

/* A field of the request as "--flag=VALUE", in ${text}. */
struct words {
	const char *argv[48];
	char text[16384];
	size_t n, used;
};

static int add_word(struct words *w, const char *flag, const char *value,
		    struct err *e)
{
	size_t room = sizeof(w->text) - w->used;
	int n = snprintf(w->text + w->used, room, "%s%s", flag, value);

	if (n < 0 || (size_t)n >= room || w->n + 2 > array_len(w->argv))
		return err_set(e, -E2BIG, "too_large",
			       "the selector is too long");
	w->argv[w->n++] = w->text + w->used;
	w->argv[w->n] = NULL;
	w->used += (size_t)n + 1;
	return 0;
}

static int add_selector(struct words *w, const json_t *req, struct err *e)
{
	const char *key;
	char label[4096];
	json_t *v;
	int r = 0;

	if (*json_str(req, "task"))
		r = add_word(w, "--task=", json_str(req, "task"), e);
	if (r == 0 && *json_str(req, "project"))
		r = add_word(w, "--project=", json_str(req, "project"), e);
	json_object_foreach(json_object_get(req, "labels"), key, v) {
		if (r < 0)
			break;
		if (!json_is_string(v) ||
		    snprintf(label, sizeof(label), "%s=%s", key,
			     json_string_value(v)) >= (int)sizeof(label))
			r = err_set(e, -EBADMSG, "bad_value", "'labels'");
		else
			r = add_word(w, "--label=", label, e);
	}
	return r;
}

static int check_keys(const json_t *req, const char *const *keys, size_t n,
		      struct err *e)
{
	const char *key = json_unknown(req, keys, n);

	return key ? err_set(e, -EBADMSG, "unknown_field",
			     "'%.64s' is no field of this request", key)
		   : 0;
}

static int route_ps(struct errand *c, struct err *e)
{
	static const char *const keys[] = {"program",	 "id",	  "op",
					   "sandbox",	 "task",  "project",
					   "labels",	 "limit", "after",
					   "all",	 "stats", "key",
					   "deadline_ms"};
	const char *op = json_str(c->req, "op");
	const char *sandbox = json_str(c->req, "sandbox");
	struct words w = {0};
	int r;

	if (!strcmp(op, "wait"))
		return route_filter(c, FILTER_WAIT, e);
	r = check_keys(c->req, keys, array_len(keys), e);
	if (r < 0)
		return r;
	if (*op && strcmp(op, "list") && strcmp(op, "inspect") &&
	    strcmp(op, "watch"))
		return err_set(e, -EBADMSG, "bad_value",
			       "'op' is '%.32s': list, inspect, wait or watch",
			       op);
	if (!path_of(c->keeper, PATH_PS, "dsec-ps", e))
		return -ENAMETOOLONG;
	r = add_word(&w, "", c->keeper->paths[PATH_PS], e);
	if (r == 0)
		r = add_word(&w, "--json", "", e);
	if (r == 0 && !strcmp(op, "watch"))
		r = add_word(&w, "--watch", "", e);
	if (r == 0 && json_is_true(json_object_get(c->req, "all")))
		r = add_word(&w, "--all", "", e);
	if (r == 0 && json_is_true(json_object_get(c->req, "stats")))
		r = add_word(&w, "--stats", "", e);
	if (r == 0)
		r = *sandbox ? add_word(&w, "", sandbox, e)
			     : add_selector(&w, c->req, e);
	c->many = !*sandbox;
	if (json_int(c->req, "limit", 0) > 0 && !(c->page = json_object()))
		r = err_sys(e, ENOMEM, "request");
	return r < 0 ? r : route_once(c, w.argv, e);
}

/* The node's report, with what the daemon has to say of itself. */
static int route_report(struct errand *c, struct err *e)
{
	static const char *const keys[] = {"program", "id", "op", "key",
					   "deadline_ms"};
	int r = check_keys(c->req, keys, array_len(keys), e);

	if (r == 0 &&
	    json_object_set_new(c->req, "op", json_string("report")) < 0)
		r = err_sys(e, ENOMEM, "request");
	c->report = true;
	return r < 0 ? r : route_filter(c, FILTER_ADMIT, e);
}

/* New sandboxes are refused by admission; nothing else changes. */
static int route_drain(struct errand *c, struct err *e)
{
	static const char *const keys[] = {"program", "id", "on", "key",
					   "deadline_ms"};
	const json_t *on = json_object_get(c->req, "on");
	const char *op = json_is_false(on) ? "undrain" : "drain";
	int r = check_keys(c->req, keys, array_len(keys), e);

	if (r == 0 && on && !json_is_boolean(on))
		r = err_set(e, -EBADMSG, "bad_value", "'on' is no boolean");
	json_object_del(c->req, "on");
	if (r == 0 && json_object_set_new(c->req, "op", json_string(op)) < 0)
		r = err_sys(e, ENOMEM, "request");
	return r < 0 ? r : route_filter(c, FILTER_ADMIT, e);
}

/* --- the way of each ----------------------------------------------------- */

static int route_fork(struct errand *c, struct err *e)
{
	const char *op = json_str(c->req, "op");
	bool fork = !*op || !strcmp(op, "fork");
	bool named = json_object_get(c->req, "snapshot");
	int64_t count = json_int(c->req, "count", named ? 0 : 1);

	c->many = fork && count > 1;
	c->expected = count > 0 && count <= 100000 ? (unsigned)count : 1;
	return route_filter(c, FILTER_FORK, e);
}

/* Who does not know what became of a request asks where it is known; where it
 * is not, it is not to be done any more but by this attempt. */
static int find_key(const struct errand *c, struct err *e)
{
	const char *key = json_str(c->req, "key");
	const char *attempt = json_str(c->req, "attempt");
	bool known = false;
	int r = 0;

	if (!*key || strlen(key) > 128)
		return err_set(e, -EBADMSG, "bad_value", "'key'");
	if (*attempt)
		r = key_fence(&c->keeper->tree, key, attempt, &known, e);
	else
		known = key_known(&c->keeper->tree, key);
	if (r < 0)
		return r;
	return known ? err_set(e, -EEXIST, "exists", "the key is known")
		     : err_set(e, -ENOENT, "not_found", "no such key");
}

static int route_run(struct errand *c, struct err *e)
{
	if (!strcmp(json_str(c->req, "op"), "key"))
		return find_key(c, e);
	json_object_del(c->req, "again"); /* the key says it here */
	c->wait = json_is_true(json_object_get(c->req, "wait"));
	if (c->wait && !json_object_get(c->req, "command"))
		return err_set(e, -EBADMSG, "missing_field",
			       "'wait' needs a 'command'");
	return route_filter(c, FILTER_RUN, e);
}

/* A selector's are many, each with a request of its own. */
static int route_selected(struct errand *c, enum filter which, struct err *e)
{
	return json_object_get(c->req, "sandbox") ? route_filter(c, which, e)
						  : walk_start(c, which, e);
}

static int route_exec(struct errand *c, struct err *e)
{
	if (!json_object_get(c->req, "sandbox"))
		return err_set(e, -EBADMSG, "missing_field",
			       "'sandbox' is missing");
	return relay_takes(c->req) ? route_relay(c, c->req, e)
				   : route_filter(c, FILTER_EXEC, e);
}

int route(struct errand *c, struct err *e)
{
	const char *p = c->program;

	if (!strcmp(p, "exec") || !strcmp(p, "file"))
		return route_exec(c, e);
	if (!strcmp(p, "run"))
		return route_run(c, e);
	if (!strcmp(p, "pause"))
		return route_selected(c, FILTER_PAUSE, e);
	if (!strcmp(p, "net"))
		return route_selected(c, FILTER_NET, e);
	if (!strcmp(p, "fork"))
		return route_fork(c, e);
	if (!strcmp(p, "ps"))
		return route_ps(c, e);
	if (!strcmp(p, "img"))
		return route_filter(c, FILTER_IMG, e);
	if (!strcmp(p, "report") || !strcmp(p, "admit"))
		return route_report(c, e);
	if (!strcmp(p, "drain"))
		return route_drain(c, e);
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "a node does not answer '%.32s'", p);
}
