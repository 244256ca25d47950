/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "env.h"

struct look {
	struct img_ctx *c;
	struct stack *st;
	size_t layer; /* whose tree is walked */
	uint64_t seen;
	struct stack_conflicts found;
};

/*
 * What a layer's tree has at ${path}, following no link: overlay joins
 * directories by name alone.  *${ret_hides}: something on the way hides what
 * lower layers have there.
 */
static struct fsnode *at_path(struct fstree *t, const char *path,
			      bool *ret_hides)
{
	struct fsnode *n = fstree_root(t);
	size_t len;

	*ret_hides = false;
	for (; *path; path += len + (path[len] == '/')) {
		len = strcspn(path, "/");
		if (!S_ISDIR(n->mode)) {
			*ret_hides = true;
			return NULL;
		}
		*ret_hides |= fsnode_is_opaque(n);
		n = fsdir_get(n, path, len);
		if (!n)
			return NULL;
	}
	return n;
}

/* When it was made and how often it is linked are no conflict. */
static int same(const struct diff_side *a, const struct fsnode *na,
		const struct diff_side *b, const struct fsnode *nb,
		const char *path, struct err *e)
{
	unsigned what = 0;
	int r = diff_nodes(a, na, b, nb, path, &what, e);

	return r < 0 ? r : !(what & ~(unsigned)(DIFF_MTIME | DIFF_LINKS));
}

/* --- conflicts ----------------------------------------------------------- */

/* What ${upper} does to ${lower}; NULL: they go together. */
static const char *conflict_of(struct fsnode *upper, struct fsnode *lower)
{
	bool dirs = S_ISDIR(upper->mode) && S_ISDIR(lower->mode);

	if (dirs && !fsnode_is_opaque(upper))
		return NULL;
	if (dirs)
		return fsdir_count(lower) ? "opaque" : NULL;
	if (fsnode_is_whiteout(lower))
		return NULL;
	if (fsnode_is_whiteout(upper))
		return "whiteout";
	return S_ISDIR(upper->mode) != S_ISDIR(lower->mode) ? "type" : "file";
}

static int tell(struct look *k, const char *path, const char *conflict,
		const bool *has, struct err *e)
{
	auto_json json_t *rec = NULL;
	json_t *layers = json_array();
	int r;

	for (size_t i = 0; layers && i <= k->layer; i++)
		if (has[i])
			json_array_append_new(layers,
					      json_string(k->st->at[i].name));
	r = json_pack_or(&rec, e, "{s:s, s:o, s:s}", "conflict", conflict,
			 "layers", layers, "winner", k->st->at[k->layer].name);
	if (r == 0 && json_set_bytes(rec, "path", path, strlen(path)) < 0)
		r = err_sys(e, ENOMEM, "conflict");
	return r < 0 ? r : img_event(k->c, "conflict", steal_ptr(rec), e);
}

/* Does a layer above have this path, or hide it? */
static bool is_hidden(const struct look *k, const char *path)
{
	bool hides;

	for (size_t i = k->layer + 1; i < k->st->n; i++)
		if (at_path(k->st->at[i].side.tree, path, &hides) || hides)
			return true;
	return false;
}

static int look_at(void *arg, const char *path, struct fsnode *n, struct err *e)
{
	bool has[ENV_LAYERS_MAX] = {false}, hides, all_same = true;
	const char *conflict = NULL;
	struct look *k = arg;
	int r;

	r = img_progress(k->c, ++k->seen, 0, "compare layers", e);
	if (r < 0)
		return r;
	if (!*path || is_hidden(k, path))
		return 0;
	has[k->layer] = true;
	for (size_t i = k->layer; i-- > 0;) {
		struct diff_side *side = &k->st->at[i].side;
		struct fsnode *lower = at_path(side->tree, path, &hides);
		const char *is = lower ? conflict_of(n, lower) : NULL;

		if (!is)
			continue;
		has[i] = true;
		if (!conflict)
			conflict = is;
		r = all_same ? same(&k->st->at[k->layer].side, n, side, lower,
				    path, e)
			     : 0;
		if (r < 0)
			return r;
		all_same = r;
	}
	if (!conflict)
		return 0;
	if (all_same) {
		k->found.same++;
		return 0;
	}
	k->found.different++;
	return tell(k, path, conflict, has, e);
}

static int open_side(const struct store *s, const struct layer *l,
		     struct diff_side *ret, struct err *e)
{
	int r = store_tree(s, l, &ret->tree, e);

	if (r < 0)
		return r;
	ret->reader = blob_reader_new(ret->tree, store_open_blob,
				      (void *)(uintptr_t)s);
	return ret->reader ? 0 : err_sys(e, ENOMEM, "reader");
}

int stack_conflicts(struct img_ctx *c, const struct store *s, struct stack *st,
		    struct stack_conflicts *ret, struct err *e)
{
	struct look k = {.c = c, .st = st};
	int r = 0;

	for (size_t i = 0; r == 0 && i < st->n; i++) {
		r = img_progress(c, i, st->n, "read layers", e);
		if (r == 0)
			r = open_side(s, &st->at[i].layer, &st->at[i].side, e);
	}
	for (k.layer = st->n; r == 0 && k.layer-- > 0;)
		r = fstree_walk(st->at[k.layer].side.tree, look_at, &k, e);
	*ret = k.found;
	return r;
}
