/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/cleanup.h"
#include "item.h"

struct list {
	struct img_ctx *c;
	const struct store *s;
	struct dset named;
	unsigned count;
};

/* One that cannot be read is listed all the same: somebody must mend it. */
static int describe(const struct list *l, const struct digest *d, json_t *rec,
		    struct err *e)
{
	auto_item struct item it = {0};
	struct err why = {0};
	int r;

	r = item_load(l->s, d, &it, &why);
	if (r == 0)
		r = item_describe(l->s, &it, rec, &why);
	if (r == 0)
		return 0;
	if (r == -ENOMEM) {
		*e = why;
		return r;
	}
	if (json_object_set_new(rec, "digest", json_digest(d)) < 0 ||
	    json_object_set_new(rec, "damaged", json_string(why.msg)) < 0)
		return err_sys(e, ENOMEM, "answer");
	return 0;
}

static int list_one(struct list *l, const char *name, const struct digest *d,
		    int64_t made_ms, struct err *e)
{
	auto_json json_t *rec = json_object();
	int r;

	if (!rec ||
	    (name && json_object_set_new(rec, "name", json_string(name)) < 0))
		return err_sys(e, ENOMEM, "answer");
	r = describe(l, d, rec, e);
	if (r < 0)
		return r;
	if (name && made_ms)
		json_object_set_new(rec, "created_ms", json_integer(made_ms));
	l->count++;
	return img_event(l->c, "image", steal_ptr(rec), e);
}

static int list_unnamed(void *arg, const struct digest *d, struct err *e)
{
	struct list *l = arg;

	return dset_has(&l->named, d) ? 0 : list_one(l, NULL, d, 0, e);
}

int op_ls(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	const char *match = json_str(req, "match");
	auto_tags struct tags tags = {0};
	struct list l = {.c = c};
	int r;

	r = img_store(c, false, &l.s, e);
	if (r == 0)
		r = tags_load(l.s, &tags, e);
	for (size_t i = 0; r == 0 && i < tags.n; i++) {
		const struct tag *t = &tags.at[i];

		r = img_progress(c, i, tags.n, "list", e);
		if (r == 0)
			r = dset_add(&l.named, &t->digest, 1, e);
		if (r == 0 && tags_match(t->name, match))
			r = list_one(&l, t->name, &t->digest, t->made_ms, e);
	}
	if (r == 0 && json_flag(req, "digests"))
		r = store_manifests(l.s, list_unnamed, &l, e);
	dset_done(&l.named);
	if (r == 0 &&
	    json_object_set_new(answer, "count", json_integer(l.count)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}
