/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "node.h"
#include "node_keeper.h"
#include "wire/record.h"

#define AT_ONCE 64

/* One sandbox of many. */
struct part {
	struct part *next, **pprev;
	struct errand *errand;
	struct coproc_call *filter;
	char id[BOX_ID_LEN + 1];
};

static void part_free(struct part *p)
{
	*p->pprev = p->next;
	if (p->next)
		p->next->pprev = p->pprev;
	p->errand->nparts--;
	free(p);
}

static void walk_stop(struct errand *c)
{
	if (c->walk)
		select_close(steal_ptr(c->walk));
}

/* By way of the loop: what ends one is inside of what began it. */
static void go_on(struct errand *c)
{
	loop_timer_set(c->keeper->loop, &c->soon, 1);
}

static bool on_record(void *arg, json_t *rec)
{
	struct part *p = arg;
	struct errand *c = p->errand;

	if (!json_is_boolean(json_object_get(rec, "ok")))
		return false;
	json_object_set_new(rec, "sandbox", json_string(p->id));
	errand_record(c, rec);
	part_free(p);
	go_on(c);
	return true;
}

static void on_failed(void *arg, const struct err *why)
{
	struct part *p = arg;
	struct errand *c = p->errand;
	auto_json json_t *rec = json_pack("{s:s}", "sandbox", p->id);
	auto_json json_t *bad = record_error(rec, why);

	if (bad)
		errand_record(c, bad);
	part_free(p);
	go_on(c);
}

static int ask_one(struct errand *c, const char *id, struct err *e)
{
	static const struct coproc_ops ops = {on_record, on_failed};
	static const char *const not_his[] = {"program", "id",	   "task",
					      "project", "labels", "key"};
	auto_json json_t *req = json_copy(c->req);
	struct coproc *f;
	struct part *p;
	int r;

	p = calloc(1, sizeof(*p));
	if (!req || !p) {
		free(p);
		return err_sys(e, ENOMEM, "request");
	}
	for (size_t i = 0; i < array_len(not_his); i++)
		json_object_del(req, not_his[i]);
	json_object_set_new(req, "sandbox", json_string(id));
	memcpy(p->id, id, sizeof(p->id));
	p->errand = c;
	r = filter_of(c->keeper, c->which, &f, e);
	if (r == 0)
		r = coproc_ask(f, req,
			       errand_repeats(c->req) ? COPROC_AGAIN : 0, &ops,
			       p, &p->filter, e);
	if (r < 0) {
		free(p);
		return r;
	}
	p->next = c->parts;
	p->pprev = &c->parts;
	if (p->next)
		p->next->pprev = &p->next;
	c->parts = p;
	c->nparts++;
	return 0;
}

static void on_soon(struct loop *l, struct loop_timer *t)
{
	struct errand *c = t->arg;
	char id[BOX_ID_LEN + 1];
	struct err e = {0};
	int r = 1;

	(void)l;
	while (c->walk && c->nparts < AT_ONCE) {
		json_t *claim = NULL;

		r = select_next(c->walk, id, &claim, &e);
		json_decref(claim);
		if (r > 0)
			r = ask_one(c, id, &e) < 0 ? -EIO : 1;
		if (r <= 0)
			walk_stop(c);
	}
	if (r < 0 && c->failed++ == 0)
		c->first = e;
	if (!c->walk && c->nparts == 0)
		errand_count(c);
}

void walk_cancel(struct errand *c)
{
	struct part *next;
	struct err e = {0};

	err_set(&e, -ECANCELED, "cancelled", "the request was cancelled");
	walk_stop(c);
	if (c->failed++ == 0)
		c->first = e;
	for (struct part *p = c->parts; p; p = next) {
		next = p->next;
		(void)coproc_cancel(p->filter);
	}
	go_on(c);
}

int walk_start(struct errand *c, enum filter which, struct err *e)
{
	int r;

	select_from(&c->select, c->req);
	r = select_open(&c->keeper->tree, &c->select, &c->walk, e);
	if (r < 0)
		return r;
	c->many = true;
	c->which = which;
	c->soon = (struct loop_timer){.fn = on_soon, .arg = c};
	go_on(c);
	return 0;
}
