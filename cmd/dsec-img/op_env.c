/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "env.h"

static void layer_out(struct stack_layer *l)
{
	layer_done(&l->layer);
	blob_reader_free(l->side.reader);
	fstree_free(l->side.tree);
	free(l->name);
	memset(l, 0, sizeof(*l));
}

void stack_done(struct stack *st)
{
	for (size_t i = 0; i < st->n; i++)
		layer_out(&st->at[i]);
	json_decref(st->config);
	memset(st, 0, sizeof(*st));
}

/* --- what it is made of -------------------------------------------------- */

/* A layer that comes twice counts where it comes last. */
static void drop_twin(struct stack *st, const struct digest *d)
{
	for (size_t i = 0; i < st->n; i++) {
		if (!digest_eq(&st->at[i].digest, d))
			continue;
		layer_out(&st->at[i]);
		st->n--;
		memmove(&st->at[i], &st->at[i + 1],
			(st->n - i) * sizeof(st->at[0]));
		return;
	}
}

static int push(struct stack *st, const struct store *s, const struct digest *d,
		const struct tags *tags, struct err *e)
{
	char hex[DIGEST_HEX + 1];
	struct stack_layer *l;
	const char *name = tags_name(tags, d);

	drop_twin(st, d);
	if (st->n == ENV_LAYERS_MAX)
		return err_set(e, -E2BIG, "too_large",
			       "an environment has at most %d layers",
			       ENV_LAYERS_MAX);
	l = &st->at[st->n++];
	l->digest = *d;
	l->name = strdup(name ? name : digest_hex(d, hex));
	if (!l->name)
		return err_sys(e, ENOMEM, "list of layers");
	return store_layer(s, d, &l->layer, e);
}

static int join_config(struct stack *st, const json_t *upper, struct err *e)
{
	json_t *joined = NULL;
	int r;

	r = config_join(st->config, upper, &joined, e);
	if (r < 0)
		return r;
	json_decref(st->config);
	st->config = joined;
	return 0;
}

static int add_name(struct img_ctx *c, struct stack *st, const struct store *s,
		    const struct tags *tags, const char *name, struct err *e)
{
	auto_item struct item it = {0};
	const struct digest *layers;
	struct digest d;
	size_t n;
	int r;

	r = img_resolve(c, s, name, NULL, &d, e);
	if (r == 0)
		r = item_load(s, &d, &it, e);
	if (r < 0)
		return r;
	layers = item_layers(&it, &n);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = push(st, s, &layers[i], tags, e);
	return r < 0 ? err_wrap(e, r, "'%s'", name)
		     : join_config(st, item_config(&it), e);
}

/* --- publishing ---------------------------------------------------------- */

static int put(const struct store *s, int tmp, const struct stack *st,
	       struct digest *ret, struct err *e)
{
	struct env env = {.nlayers = st->n, .config = st->config};

	for (size_t i = 0; i < st->n; i++)
		env.layers[i] = st->at[i].digest;
	return store_put_env(s, tmp, &env, ret, e);
}

static int publish(const struct store *s, const struct stack *st,
		   const struct img_name *name, struct digest *ret,
		   struct err *e)
{
	auto_close int tmp = -1;
	char tmp_name[STORE_TMP_NAME];
	int r;

	r = store_tmp(s, &tmp, tmp_name, e);
	if (r < 0)
		return r;
	r = put(s, tmp, st, ret, e);
	if (r == 0)
		r = store_tag(s, name, ret, e);
	store_tmp_done(s, &tmp, tmp_name);
	return r;
}

/* --- the answer ---------------------------------------------------------- */

static int set(json_t *rec, const char *key, json_t *v, struct err *e)
{
	return json_object_set_new(rec, key, v) < 0
		       ? err_sys(e, ENOMEM, "answer")
		       : 0;
}

static json_t *describe_layers(const struct stack *st)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < st->n; i++) {
		const struct stack_layer *l = &st->at[i];

		json_array_append_new(
			list,
			json_pack("{s:s, s:o, s:s, s:I, s:I, s:s*}", "name",
				  l->name, "digest", json_digest(&l->digest),
				  "kind", layer_kind_name(l->layer.kind),
				  "entries", (json_int_t)l->layer.entries,
				  "bytes", (json_int_t)l->layer.bytes, "at",
				  l->layer.at));
	}
	return list;
}

/* Layers that one of them was packed on and that are not below it. */
static json_t *missing_parents(const struct stack *st)
{
	json_t *list = json_array();
	struct dset below = {0};

	for (size_t i = 0; list && i < st->n; i++) {
		const struct layer *l = &st->at[i].layer;

		for (size_t k = 0; k < l->nparents; k++)
			if (!dset_has(&below, &l->parents[k]))
				json_array_append_new(list,
						      json_digest(
							      &l->parents[k]));
		if (dset_add(&below, &st->at[i].digest, 1, NULL) < 0)
			break;
	}
	dset_done(&below);
	return list;
}

static int describe(const struct stack *st, const struct stack_conflicts *found,
		    json_t *answer, struct err *e)
{
	int r;

	r = set(answer, "layers", describe_layers(st), e);
	if (r == 0)
		r = set(answer, "parents_missing", missing_parents(st), e);
	if (r == 0)
		r = set(answer, "config", json_incref(st->config), e);
	if (r == 0)
		r = set(answer, "conflicts",
			json_integer((json_int_t)found->different), e);
	if (r == 0)
		r = set(answer, "same", json_integer((json_int_t)found->same),
			e);
	return r;
}

/* --- the operation ------------------------------------------------------- */

static int compose(struct img_ctx *c, const struct store *s, const json_t *req,
		   struct stack *st, struct err *e)
{
	auto_tags struct tags tags = {0};
	const json_t *name;
	size_t i;
	int r;

	st->config = json_object();
	if (!st->config)
		return err_sys(e, ENOMEM, "configuration");
	r = tags_load(s, &tags, e);
	json_array_foreach(json_object_get(req, "names"), i, name) {
		if (r < 0)
			break;
		r = add_name(c, st, s, &tags, json_string_value(name), e);
	}
	if (r == 0 && st->n == 0)
		r = err_set(e, -EBADMSG, "bad_value", "'names' is empty");
	return r;
}

/* The name to give, or an empty one. */
static int parse_as(const json_t *req, struct img_name *ret, struct err *e)
{
	const char *as = json_str(req, "as");
	int r;

	memset(ret, 0, sizeof(*ret));
	if (!*as)
		return 0;
	r = img_name_parse(as, ret, e);
	if (r < 0)
		return err_wrap(e, r, "'as'");
	if (ret->by_digest)
		return err_set(e, -EINVAL, "bad_value",
			       "'as' is a digest: a tag is a name");
	return 0;
}

int op_env(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	auto_stack struct stack st = {.n = 0};
	struct stack_conflicts found = {0};
	char text[IMG_NAME_MAX + 1];
	const struct store *s;
	struct img_name as;
	struct digest d;
	int r;

	r = parse_as(req, &as, e);
	if (r == 0)
		r = img_store(c, false, &s, e);
	if (r == 0)
		r = compose(c, s, req, &st, e);
	if (r == 0)
		r = stack_conflicts(c, s, &st, &found, e);
	if (r == 0)
		r = describe(&st, &found, answer, e);
	if (r < 0 || !*as.name)
		return r;
	r = publish(s, &st, &as, &d, e);
	if (r == 0)
		r = set(answer, "name", json_string(img_name_str(&as, text)),
			e);
	return r < 0 ? r : set(answer, "digest", json_digest(&d), e);
}
