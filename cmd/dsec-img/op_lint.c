/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/residue_scan.h"
#include "opened.h"

struct linting {
	struct img_ctx *c;
	const struct digest *layer; /* of an environment */
	json_t *rules;		    /* findings of each */
	uint64_t findings, entries;
};

static int count(struct linting *l, const char *rule)
{
	json_int_t n = json_int(l->rules, rule, 0);

	l->findings++;
	return json_object_set_new(l->rules, rule, json_integer(n + 1));
}

static int on_entry(void *arg, struct err *e)
{
	struct linting *l = arg;

	return img_progress(l->c, l->entries++, 0, "lint entries", e);
}

static int on_finding(void *arg, const char *rule, const char *path,
		      const char *detail, struct err *e)
{
	struct linting *l = arg;
	json_t *rec;

	rec = json_pack("{s:s}", "rule", rule);
	if (!rec || count(l, rule) < 0 ||
	    json_set_bytes(rec, "path", path, strlen(path)) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "record");
	}
	if (*detail)
		json_object_set_new(rec, "detail", json_string(detail));
	if (l->layer)
		json_object_set_new(rec, "layer", json_digest(l->layer));
	return img_event(l->c, "finding", rec, e);
}

/* Each by itself: what a higher layer hides is inside all the same. */
static int lint_layer(struct linting *l, const struct opened *o, size_t i,
		      struct err *e)
{
	auto_fstree struct fstree *t = NULL;
	auto_reader struct blob_reader *reader = NULL;
	int r;

	r = opened_tree(o, i, &t, e);
	if (r == 0)
		r = opened_reader(o, t, &reader, e);
	if (r < 0)
		return r;
	l->layer = o->env ? &o->layers[i] : NULL;
	return scan_tree(t, reader, on_finding, on_entry, l, e);
}

int op_lint(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	struct linting l = {.c = c, .rules = json_object()};
	auto_opened struct opened o = {0};
	int r;

	r = l.rules ? opened_init(c, json_str(req, "name"), &o, e)
		    : err_sys(e, ENOMEM, "lint");
	for (size_t i = 0; i < o.n && r == 0; i++)
		r = lint_layer(&l, &o, i, e);
	json_object_set_new(answer, "findings",
			    json_integer((json_int_t)l.findings));
	json_object_set_new(answer, "rules", l.rules);
	if (r == 0 && l.findings > 0 && json_flag(req, "strict"))
		c->status = exit_join(c->status, EXIT_NO);
	return r;
}
