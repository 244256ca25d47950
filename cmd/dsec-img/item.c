/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "item.h"

/* --- manifests ----------------------------------------------------------- */

int item_load(const struct store *s, const struct digest *d, struct item *ret,
	      struct err *e)
{
	auto_json json_t *obj = NULL;
	int r;

	memset(ret, 0, sizeof(*ret));
	r = store_manifest(s, d, &obj, e);
	if (r < 0)
		return r;
	ret->digest = *d;
	ret->is_env = manifest_is_env(obj);
	return ret->is_env ? env_parse(obj, &ret->env, e)
			   : layer_parse(obj, &ret->layer, e);
}

void item_done(struct item *it)
{
	if (it->is_env)
		env_done(&it->env);
	else
		layer_done(&it->layer);
	memset(it, 0, sizeof(*it));
}

const struct digest *item_layers(const struct item *it, size_t *ret_n)
{
	*ret_n = it->is_env ? it->env.nlayers : 1;
	return it->is_env ? it->env.layers : &it->digest;
}

const char *item_kind(const struct item *it)
{
	return it->is_env ? "env" : layer_kind_name(it->layer.kind);
}

const json_t *item_config(const struct item *it)
{
	return it->is_env ? it->env.config : it->layer.config;
}

static void add_layer(struct item_size *sum, const struct layer *l)
{
	sum->entries += l->entries;
	sum->bytes += l->bytes;
	sum->new_bytes += l->new_bytes;
}

int item_size(const struct store *s, const struct item *it,
	      struct item_size *ret, struct err *e)
{
	struct item_size sum = {0};
	int r;

	if (!it->is_env) {
		add_layer(&sum, &it->layer);
		*ret = sum;
		return 0;
	}
	for (size_t i = 0; i < it->env.nlayers; i++) {
		auto_layer struct layer l = {0};

		r = store_layer(s, &it->env.layers[i], &l, e);
		if (r < 0)
			return r;
		add_layer(&sum, &l);
	}
	*ret = sum;
	return 0;
}

json_t *json_digest(const struct digest *d)
{
	char hex[DIGEST_HEX + 1];

	return json_sprintf("sha256:%s", digest_hex(d, hex));
}

int item_describe(const struct store *s, const struct item *it, json_t *rec,
		  struct err *e)
{
	auto_json json_t *more = NULL;
	struct item_size size = {0};
	size_t n;
	int r;

	r = item_size(s, it, &size, e);
	if (r < 0)
		return r;
	item_layers(it, &n);
	r = json_pack_or(&more, e, "{s:o, s:s, s:I, s:I, s:I, s:I}", "digest",
			 json_digest(&it->digest), "kind", item_kind(it),
			 "layers", (json_int_t)n, "entries",
			 (json_int_t)size.entries, "bytes",
			 (json_int_t)size.bytes, "new_bytes",
			 (json_int_t)size.new_bytes);
	if (r == 0 && json_object_update(rec, more) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

/* --- sets of digests ----------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

void dset_done(struct dset *s)
{
	free(s->d);
	memset(s, 0, sizeof(*s));
}

int dset_add(struct dset *s, const struct digest *d, size_t n, struct err *e)
{
	size_t cap = s->cap ? s->cap : 16;
	struct digest *more;

	while (cap < s->n + n)
		cap *= 2;
	if (cap > s->cap) {
		more = reallocarray(s->d, cap, sizeof(*more));
		if (!more)
			return err_sys(e, ENOMEM, "list of digests");
		s->d = more;
		s->cap = cap;
	}
	if (n)
		memcpy(s->d + s->n, d, n * sizeof(*d));
	s->n += n;
	return 0;
}

bool dset_has(struct dset *s, const struct digest *d)
{
	if (s->n == 0)
		return false;
	if (s->sorted != s->n)
		qsort(s->d, s->n, sizeof(*s->d), by_digest);
	s->sorted = s->n;
	return bsearch(d, s->d, s->n, sizeof(*s->d), by_digest) != NULL;
}

/* --- tags ---------------------------------------------------------------- */

static int add_tag(void *arg, const struct img_name *name,
		   const struct digest *digest, int64_t made_ms, struct err *e)
{
	struct tags *t = arg;
	size_t cap = t->cap ? 2 * t->cap : 64;
	char text[IMG_NAME_MAX + 1];
	struct tag *more;

	if (t->n == t->cap) {
		more = reallocarray(t->at, cap, sizeof(*more));
		if (!more)
			return err_sys(e, ENOMEM, "list of images");
		t->at = more;
		t->cap = cap;
	}
	t->at[t->n].name = strdup(img_name_str(name, text));
	if (!t->at[t->n].name)
		return err_sys(e, ENOMEM, "list of images");
	t->at[t->n].digest = *digest;
	t->at[t->n++].made_ms = made_ms;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct tag *)a)->name,
		      ((const struct tag *)b)->name);
}

int tags_load(const struct store *s, struct tags *ret, struct err *e)
{
	struct tags t = {0};
	int r;

	r = store_tags(s, add_tag, &t, e);
	if (r < 0) {
		tags_done(&t);
		return r;
	}
	if (t.n)
		qsort(t.at, t.n, sizeof(*t.at), by_name);
	*ret = t;
	return 0;
}

void tags_done(struct tags *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->at[i].name);
	free(t->at);
	memset(t, 0, sizeof(*t));
}

const char *tags_name(const struct tags *t, const struct digest *d)
{
	for (size_t i = 0; i < t->n; i++)
		if (digest_eq(&t->at[i].digest, d))
			return t->at[i].name;
	return NULL;
}

bool tags_match(const char *name, const char *match)
{
	size_t len = match ? strlen(match) : 0;

	if (!len)
		return true;
	if (strpbrk(match, "*?["))
		return fnmatch(match, name, 0) == 0;
	/* A project and all below it, a name, or a name with its version. */
	return !strncmp(name, match, len) && strchr("/:", name[len]);
}
