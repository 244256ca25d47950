/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/diff.h"
#include "opened.h"

struct differing {
	struct img_ctx *c;
	uint64_t added, removed, changed;
};

static json_t *words_of(unsigned what)
{
	static const char *const words[] = {
		"type",	   "mode",   "owner",  "mtime", "size",
		"content", "target", "device", "xattr", "links",
	};
	json_t *list = json_array();

	for (size_t i = 0; i < array_len(words); i++)
		if (what >> i & 1)
			json_array_append_new(list, json_string(words[i]));
	return list;
}

static int on_diff(void *arg, const char *path, const struct fsnode *a,
		   const struct fsnode *b, unsigned what, struct err *e)
{
	struct differing *d = arg;
	json_t *rec;

	d->added += !a;
	d->removed += !b;
	d->changed += a && b;
	rec = json_pack("{s:s}", "change",
			!a   ? "added"
			: !b ? "removed"
			     : "changed");
	if (!rec)
		return err_sys(e, ENOMEM, "record");
	if (a && b)
		json_object_set_new(rec, "what", words_of(what));
	if (json_set_bytes(rec, "path", path, strlen(path)) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "record");
	}
	return img_event(d->c, "diff", rec, e);
}

static int side(struct img_ctx *c, const char *name, struct opened *o,
		struct diff_side *s, struct err *e)
{
	int r;

	r = img_progress(c, 0, 0, "read the trees", e);
	if (r == 0)
		r = opened_init(c, name, o, e);
	if (r == 0)
		r = opened_merged(o, false, &s->tree, e);
	return r < 0 ? r : opened_reader(o, s->tree, &s->reader, e);
}

static void side_done(struct diff_side *s, struct opened *o)
{
	blob_reader_free(s->reader);
	fstree_free(s->tree);
	opened_done(o);
}

int op_diff(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	struct differing d = {.c = c};
	struct opened oa = {0}, ob = {0};
	struct diff_side a = {0}, b = {0};
	int r;

	r = side(c, json_str(req, "name"), &oa, &a, e);
	if (r == 0)
		r = side(c, json_str(req, "to"), &ob, &b, e);
	if (r == 0)
		r = diff_trees(&a, &b, on_diff, &d, e);
	side_done(&a, &oa);
	side_done(&b, &ob);
	if (r < 0)
		return r;
	json_object_set_new(answer, "added", json_integer((json_int_t)d.added));
	json_object_set_new(answer, "removed",
			    json_integer((json_int_t)d.removed));
	json_object_set_new(answer, "changed",
			    json_integer((json_int_t)d.changed));
	return 0;
}
