/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "node.h"
#include "node_keeper.h"
#include "wire/record.h"

#define ERRANDS_MAX 8192 /* of all workers */

/* One that is false asks for nothing. */
bool errand_net_looks(const json_t *req)
{
	return json_is_true(json_object_get(req, "show")) ||
	       json_is_true(json_object_get(req, "denied")) ||
	       json_is_string(json_object_get(req, "explain"));
}

bool errand_repeats(const json_t *req)
{
	static const char *const read_only[] = {"output",  "list-execs",
						"wait",	   "read",
						"list",	   "stat",
						"inspect", "ls",
						"du",	   "lint",
						"diff",	   "verify"};
	const char *program = json_str(req, "program");
	const char *op = json_str(req, "op");

	if (json_object_get(req, "key") || !strcmp(program, "pause") ||
	    !strcmp(program, "ps"))
		return true;
	if (!strcmp(program, "net"))
		return errand_net_looks(req);
	for (size_t i = 0; i < array_len(read_only); i++)
		if (!strcmp(read_only[i], op))
			return true;
	return false;
}

/* --- the end ------------------------------------------------------------- */

static void leave_channel(struct errand *c)
{
	if (!c->channel)
		return;
	*c->pprev = c->next;
	if (c->next)
		c->next->pprev = c->pprev;
	c->channel = NULL;
}

static void errand_free(struct errand *c)
{
	struct keeper *k = c->keeper;

	leave_channel(c);
	loop_timer_set(k->loop, &c->soon, 0);
	json_decref(c->req);
	json_decref(c->line);
	json_decref(c->page);
	free(c);
	k->nerrands--;
	keeper_settled(k);
}

void errand_tell(struct errand *c, const json_t *rec)
{
	if (c->channel)
		keeper_send(c->channel, c->n, rec, NULL);
}

void errand_answer(struct errand *c, const json_t *rec)
{
	auto_json json_t *own = errand_own_words(c, rec);

	errand_tell(c, own ? own : rec);
	errand_free(c);
}

void errand_fail(struct errand *c, const struct err *why)
{
	auto_json json_t *rec = record_error(c->req, why);

	c->keeper->refused++;
	errand_answer(c, rec);
}

void errand_drop(struct errand *c)
{
	/* What was begun is finished, but for what is a wait alone. */
	leave_channel(c);
	if (c->auditing) {
		c->stopped = true;
		return;
	}
	if (c->relay) {
		relay_free(c->relay);
	} else if (c->once) {
		once_free(c->once);
		c->keeper->nonce--;
	} else if (c->walk || c->nparts) {
		return; /* goes on, and ends by itself */
	} else if (c->filter && c->which == FILTER_WAIT) {
		(void)coproc_cancel(c->filter);
		return; /* its answer comes, or came */
	} else if (c->filter) {
		if (!errand_repeats(c->req) || json_object_get(c->req, "key"))
			return;
		coproc_drop(c->filter);
	}
	errand_free(c);
}

/* --- records of one request ---------------------------------------------- */

void errand_count(struct errand *c)
{
	auto_json json_t *rec = NULL;

	rec = c->failed ? record_error(c->req, &c->first) : record_ok(c->req);
	if (rec) {
		json_object_set_new(rec, "count",
				    json_integer((json_int_t)c->count));
		json_object_set_new(rec, "failed",
				    json_integer((json_int_t)c->failed));
		if (json_object_get(c->req, "next"))
			json_object_set(rec, "next",
					json_object_get(c->req, "next"));
	}
	errand_answer(c, rec);
}

static void tell_record(struct errand *c, json_t *rec)
{
	auto_json json_t *ev = NULL;

	if (json_pack_or(&ev, NULL, "{ss sO}", "event", "record", "record",
			 rec) == 0)
		errand_tell(c, ev);
}

void errand_record(struct errand *c, json_t *rec)
{
	struct err e = {0};

	c->count++;
	if (record_to_err(rec, &e) < 0 && c->failed++ == 0)
		c->first = e;
	if (!json_object_get(rec, "sandbox") && json_object_size(rec) <= 3 &&
	    json_object_get(rec, "count")) {
		c->count--; /* that there is none */
		return;
	}
	json_object_del(rec, "id");
	if (c->page)
		(void)json_object_set(c->page, json_str(rec, "sandbox"), rec);
	else
		tell_record(c, rec);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void errand_page(struct errand *c)
{
	const char *after = json_str(c->req, "after"), *key;
	int64_t limit = json_int(c->req, "limit", 0);
	size_t n = json_object_size(c->page), i = 0, told = 0;
	auto_free const char **ids = calloc(n + 1, sizeof(*ids));
	json_t *v;

	c->count = 0;
	if (!ids)
		return;
	json_object_foreach(c->page, key, v)
		ids[i++] = key;
	qsort(ids, n, sizeof(*ids), by_text);
	for (i = 0; i < n && told < (size_t)limit; i++) {
		if (strcmp(ids[i], after) <= 0)
			continue;
		tell_record(c, json_object_get(c->page, ids[i]));
		told++;
	}
	c->count = (unsigned)told;
	if (i < n && told > 0)
		json_object_set_new(c->req, "next", json_string(ids[i - 1]));
}

/* --- lines of a worker --------------------------------------------------- */

static struct errand **bucket_of(struct channel *ch, int64_t n)
{
	return &ch->errands[(uint64_t)n % ERRAND_BUCKETS];
}

struct errand *errand_find(struct channel *ch, int64_t n)
{
	struct errand *c = *bucket_of(ch, n);

	while (c && c->n != n)
		c = c->next;
	return c;
}

static void cancel(struct errand *c)
{
	struct err e = {0};

	err_set(&e, -ECANCELED, "cancelled", "the request was cancelled");
	if (c->auditing) {
		c->stopped = true;
	} else if (c->relay) {
		relay_cancel(c->relay, &e);
	} else if (c->filter) {
		(void)coproc_cancel(c->filter);
	} else if (c->once) {
		once_free(c->once);
		c->once = NULL;
		c->keeper->nonce--;
		errand_fail(c, &e);
	} else {
		walk_cancel(c);
	}
}

/* What the worker says of who asks is held against what we know of him. */
static int check_who(struct keeper *k, const char *who, const char *within,
		     enum auth_op needs, struct err *e)
{
	const struct auth_who *w;

	if (!auth_project_ok(within))
		return err_set(e, -EACCES, "permission", "no project");
	if (!strncmp(who, "dsec://control/", 15) || needs == AUTH_NONE)
		return 0;
	w = auth_find(k->auth, who);
	if (!w)
		return err_set(e, -EACCES, "permission",
			       "'%.128s' has no binding here", who);
	if (!(w->ops & needs))
		return err_set(e, -EACCES, "permission",
			       "'%.128s' may not '%s'", who, auth_word(needs));
	if (!auth_within(within, w->project))
		return err_set(e, -EACCES, "permission",
			       "'%.128s' may nothing in '%.128s'", who, within);
	return 0;
}

/*
 * Keys are each caller's own: what one has asked under a word tells nothing to
 * another who asks under the same, and does not stand in his way.
 */
static int own_key(struct errand *c, const json_t *line, struct err *e)
{
	const char *key = json_str(c->req, "key");
	const char *who = json_str(line, "as");
	auto_buf struct buf b = {0};
	char hex[HASH_SHA256_HEX + 1];

	if (!*key)
		return 0;
	if (!*who)
		who = json_str(line, "who");
	if (buf_addf(&b, "%s\n%s", who, key) < 0)
		return err_sys(e, ENOMEM, "request");
	hash_sha256(b.data, b.len, hex);
	return json_object_set_new(c->req, "key", json_string(hex)) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

static int check_request(struct keeper *k, struct errand *c, const json_t *obj,
			 struct err *e)
{
	const char *within = json_str(obj, "within"), *word;
	char id[BOX_ID_LEN + 1];
	int r;

	r = auth_needs(c->req, &c->needs, e);
	if (r == 0)
		r = check_who(k, json_str(obj, "who"), within, c->needs, e);
	if (r == 0)
		r = auth_narrow(c->req, within, e);
	if (r == 0)
		r = own_key(c, obj, e);
	if (r == 0)
		r = find_snapshot(k, c->req, "from", within, e);
	if (r == 0)
		r = find_snapshot(k, c->req, "snapshot", within, e);
	word = json_str(c->req, "sandbox");
	if (r < 0 || !*word)
		return r;
	r = find_sandbox(k, word, within, id, e);
	if (r == 0 &&
	    json_object_set_new(c->req, "sandbox", json_string(id)) < 0)
		r = err_sys(e, ENOMEM, "request");
	return r;
}

static struct errand *errand_new(struct channel *ch, int64_t n,
				 const json_t *req)
{
	struct errand *c = calloc(1, sizeof(*c)), **bucket = bucket_of(ch, n);

	if (!c)
		return NULL;
	c->req = json_copy((json_t *)(uintptr_t)req);
	if (!c->req) {
		free(c);
		return NULL;
	}
	c->keeper = ch->keeper;
	c->channel = ch;
	c->n = n;
	c->program = json_str(c->req, "program");
	c->next = *bucket;
	c->pprev = bucket;
	if (c->next)
		c->next->pprev = &c->next;
	*bucket = c;
	c->keeper->nerrands++;
	c->keeper->asked++;
	return c;
}

void errand_go(struct errand *c)
{
	struct err e = {0};
	int r = 0;

	if (c->stopped)
		r = err_set(&e, -ECANCELED, "cancelled",
			    "the request was cancelled");
	if (r == 0)
		r = route(c, &e);
	if (r < 0)
		errand_fail(c, &e);
}

static void refuse(struct channel *ch, int64_t n, const char *code,
		   const char *why)
{
	struct err e = {0};
	auto_json json_t *rec = NULL;

	err_set(&e, -EBUSY, code, "%s", why);
	e.retry_after_ms = 500;
	rec = record_error(NULL, &e);
	keeper_send(ch, n, rec, NULL);
}

static void take_request(struct channel *ch, int64_t n, const json_t *obj)
{
	const json_t *req = json_object_get(obj, "req");
	struct keeper *k = ch->keeper;
	struct err e = {0};
	struct errand *c;
	int r;

	if (k->nerrands >= ERRANDS_MAX) {
		refuse(ch, n, "busy", "too many requests are under way here");
		return;
	}
	c = json_is_object(req) ? errand_new(ch, n, req) : NULL;
	if (!c) {
		refuse(ch, n, "no_memory", "request");
		return;
	}
	c->line = json_incref((json_t *)(uintptr_t)obj);
	r = check_request(k, c, obj, &e);
	if (r < 0)
		keeper_deny(c, &e);
	if (r == 0)
		r = keeper_audit(c, &e);
	if (r < 0)
		errand_fail(c, &e);
	else if (r == 0)
		errand_go(c);
}

/* A terminal in place of one that died with a pause to disk. */
static void ask_tty(struct channel *ch, int64_t n)
{
	struct errand *c = errand_find(ch, n);
	auto_json json_t *rec = NULL;
	struct err e = {0};

	err_set(&e, -ENOENT, "exec_unknown", "no such terminal");
	if (c && c->relay && relay_tty(c->relay, &e) == 0)
		return;
	rec = record_error(NULL, &e);
	if (!rec)
		return;
	json_object_del(rec, "ok");
	json_object_set_new(rec, "event", json_string("tty"));
	keeper_send(ch, n, rec, NULL);
}

void errand_line(struct channel *ch, const json_t *obj)
{
	int64_t n = json_int(obj, "n", -1), other;
	struct errand *c;

	if (n >= 0) {
		take_request(ch, n, obj);
		return;
	}
	if (json_object_get(obj, "denied"))
		keeper_note(ch->keeper, obj);
	other = json_int(obj, "cancel", -1);
	c = other >= 0 ? errand_find(ch, other) : NULL;
	if (c)
		cancel(c);
	other = json_int(obj, "drop", -1);
	c = other >= 0 ? errand_find(ch, other) : NULL;
	if (c)
		errand_drop(c);
	other = json_int(obj, "tty", -1);
	if (other >= 0)
		ask_tty(ch, other);
}
