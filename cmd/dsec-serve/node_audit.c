/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "node_keeper.h"

#define RETRY_MS 50   /* while the keeper before us has the log */
#define LATER_MS 1000 /* where it cannot be opened */
#define HOLD_MS	 5000 /* for that, requests wait */

/* What is done to a sandbox's inside is in the log's file before it is done,
 * and synced behind it; what makes, ends and changes sandboxes waits for the
 * disk. */
enum weight {
	WEIGHT_NONE,
	WEIGHT_WRITTEN,
	WEIGHT_DURABLE,
};

static bool is_one_of(const char *word, const char *const *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(list[i], word))
			return true;
	return false;
}

static enum weight weight_of(const struct errand *c)
{
	static const char *const looks[] = {"attach",	  "wait",  "output",
					    "list-execs", "read",  "list",
					    "stat",	  "watch", "get",
					    "inspect"};
	const char *op = json_str(c->req, "op");

	switch (c->needs) {
	case AUTH_RUN:
	case AUTH_PAUSE:
	case AUTH_IMG_WRITE:
	case AUTH_DRAIN:
		return WEIGHT_DURABLE;
	case AUTH_FORK:
		return is_one_of(op, looks, array_len(looks)) ? WEIGHT_NONE
							      : WEIGHT_DURABLE;
	case AUTH_NET:
		return errand_net_looks(c->req) ? WEIGHT_NONE : WEIGHT_DURABLE;
	case AUTH_EXEC:
	case AUTH_FILE:
	case AUTH_CONNECT:
		return is_one_of(op, looks, array_len(looks)) ? WEIGHT_NONE
							      : WEIGHT_WRITTEN;
	default:
		return WEIGHT_NONE;
	}
}

static const char *or_null(const char *s)
{
	return *s ? s : NULL;
}

/* ${line} as it came from a worker, ${req} as it is understood here. */
static int add_line(struct keeper *k, const json_t *line, const json_t *req,
		    const char *code, struct audit_wait *w, struct err *e)
{
	const json_t *id = json_object_get(line, "id");
	const json_t *asked = json_object_get(line, "req");
	const char *as = json_str(line, "as");
	char number[32] = "";
	struct audit_entry entry = {
		.who = or_null(*as ? as : json_str(line, "who")),
		.request = or_null(json_str(line, "id")),
		.req = or_null(json_str(line, "rid")),
		.program = or_null(json_str(req, "program")),
		.op = or_null(json_str(req, "op")),
		.sandbox = or_null(json_str(req, "sandbox")),
		.project = or_null(json_str(req, "project")),
		.task = or_null(json_str(req, "task")),
		.key = or_null(json_str(asked, "key")),
		.decision = code ? AUDIT_DENY : AUDIT_ALLOW,
		.code = code,
		.at_ms = clock_wall_ms(),
	};

	if (json_is_integer(id)) {
		snprintf(number, sizeof(number), "%lld",
			 (long long)json_integer_value(id));
		entry.request = number;
	}
	return audit_add(k->audit, &entry, w, e);
}

static int add(struct errand *c, const char *code, struct audit_wait *w,
	       struct err *e)
{
	return add_line(c->keeper, c->line, c->req, code, w, e);
}

/* Nothing is done that is not in the log. */
static void on_logged(struct audit_wait *w, int r, const struct err *why)
{
	struct errand *c = w->arg;

	c->auditing = false;
	if (r < 0)
		errand_fail(c, why);
	else
		errand_go(c);
}

/* 1: errand_go() or errand_fail() comes. */
static int enter(struct errand *c, struct err *e)
{
	int r;

	c->wait_audit = (struct audit_wait){
		.fn = on_logged,
		.arg = c,
		.written = weight_of(c) == WEIGHT_WRITTEN,
	};
	c->auditing = true;
	r = add(c, NULL, &c->wait_audit, e);
	if (r == 0)
		return 1;
	c->auditing = false;
	return r;
}

static int taken_over(struct err *e)
{
	err_set(e, -EBUSY, "busy", "another keeper takes over");
	e->retry_after_ms = 50;
	return -EBUSY;
}

int keeper_audit(struct errand *c, struct err *e)
{
	struct keeper *k = c->keeper;

	if (weight_of(c) == WEIGHT_NONE)
		return 0;
	if (k->audit)
		return enter(c, e);
	if (k->retiring)
		return taken_over(e);
	/* Until the log is ours. */
	c->auditing = c->held = true;
	c->since_ms = clock_ms();
	c->next_held = NULL;
	*k->held_end = c;
	k->held_end = &c->next_held;
	return 1;
}

void keeper_deny(struct errand *c, const struct err *why)
{
	if (c->keeper->audit && weight_of(c) != WEIGHT_NONE &&
	    add(c, why->code, NULL, NULL) < 0)
		log_info("a refusal could not be written to the audit log");
}

void keeper_note(struct keeper *k, const json_t *line)
{
	const char *code = json_str(line, "denied");

	if (k->audit && *code &&
	    add_line(k, line, json_object_get(line, "req"), code, NULL, NULL) <
		    0)
		log_info("a refusal could not be written to the audit log");
}

/* --- the log ------------------------------------------------------------- */

static struct errand *held_pop(struct keeper *k)
{
	struct errand *c = k->held;

	k->held = c->next_held;
	if (!k->held)
		k->held_end = &k->held;
	c->held = c->auditing = false;
	return c;
}

static void let_in(struct keeper *k)
{
	struct err e = {0};
	struct errand *c;

	while (k->held && k->audit) {
		c = held_pop(k);
		if (enter(c, &e) < 0)
			errand_fail(c, &e);
	}
}

static void turn_away(struct keeper *k, const struct err *why)
{
	while (k->held && clock_ms() - k->held->since_ms > HOLD_MS)
		errand_fail(held_pop(k), why);
}

static void on_again(struct loop *l, struct loop_timer *t)
{
	struct keeper *k = t->arg;
	struct err e = {0};
	char path[PATH_MAX];
	int r;

	r = tree_path(path, &e, "%s/serve", k->tree.lib);
	if (r == 0)
		r = fd_mkdir_p(path, 0700, &e);
	if (r == 0)
		r = tree_path(path, &e, "%s/serve/audit.jsonl", k->tree.lib);
	if (r == 0)
		r = audit_open(path, l, &k->audit, &e);
	if (r == 0) {
		if (audit_torn(k->audit))
			log_info("the audit log had a torn end of %llu bytes",
				 (unsigned long long)audit_torn(k->audit));
		let_in(k);
		return;
	}
	if (r != -EBUSY)
		log_info("no audit log: %s", e.msg);
	e.retry_after_ms = LATER_MS;
	turn_away(k, &e);
	loop_timer_set(l, t, clock_ms() + (r == -EBUSY ? RETRY_MS : LATER_MS));
}

void keeper_audit_open(struct keeper *k)
{
	k->held_end = &k->held;
	k->audit_again = (struct loop_timer){.fn = on_again, .arg = k};
	on_again(k->loop, &k->audit_again);
}

void keeper_audit_close(struct keeper *k)
{
	struct err e = {0};

	loop_timer_set(k->loop, &k->audit_again, 0);
	/* It will not be ours: who waited for that is told. */
	(void)taken_over(&e);
	while (k->held)
		errand_fail(held_pop(k), &e);
	if (k->audit)
		audit_close(steal_ptr(k->audit));
}
