/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/cleanup.h"
#include "item.h"

static int set(json_t *rec, const char *key, json_t *v, struct err *e)
{
	return json_object_set_new(rec, key, v) < 0
		       ? err_sys(e, ENOMEM, "answer")
		       : 0;
}

static json_t *digests(const struct digest *d, size_t n)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < n; i++)
		json_array_append_new(list, json_digest(&d[i]));
	return list;
}

static int describe_layer(const struct layer *l, json_t *rec, struct err *e)
{
	json_t *devices = json_array();
	int r;

	for (size_t i = 0; devices && i < l->ndevices; i++)
		json_array_append_new(devices,
				      json_pack("{s:o, s:I}", "root",
						json_digest(
							&l->devices[i].root),
						"bytes",
						(json_int_t)l->devices[i]
								.blocks *
							FS_BLOCK));
	r = set(rec, "devices", devices, e);
	if (r == 0)
		r = set(rec, "meta",
			json_pack("{s:o, s:I}", "digest", json_digest(&l->meta),
				  "bytes", (json_int_t)l->meta_bytes),
			e);
	if (r == 0 && l->at)
		r = set(rec, "at", json_string(l->at), e);
	if (r == 0 && l->source)
		r = set(rec, "source", json_incref(l->source), e);
	return r < 0 ? r
		     : set(rec, "parents", digests(l->parents, l->nparents), e);
}

/* The layers of an environment, each with a name if it has one. */
static int describe_env(const struct store *s, const struct tags *tags,
			const struct env *v, json_t *rec, struct err *e)
{
	auto_json json_t *list = json_array();
	const char *name;
	int r;

	for (size_t i = 0; i < v->nlayers; i++) {
		auto_json json_t *one = json_object();
		auto_item struct item it = {0};

		if (!list || !one)
			return err_sys(e, ENOMEM, "answer");
		r = item_load(s, &v->layers[i], &it, e);
		if (r == 0)
			r = item_describe(s, &it, one, e);
		name = tags_name(tags, &v->layers[i]);
		if (r == 0 && name)
			r = set(one, "name", json_string(name), e);
		json_object_del(one, "layers");
		if (r < 0 || json_array_append(list, one) < 0)
			return r < 0 ? r : err_sys(e, ENOMEM, "answer");
	}
	return set(rec, "layers", steal_ptr(list), e);
}

static int describe_names(const struct tags *tags, const struct digest *d,
			  json_t *rec, struct err *e)
{
	json_t *names = json_array();
	int64_t made_ms = 0;

	for (size_t i = 0; names && i < tags->n; i++) {
		if (!digest_eq(&tags->at[i].digest, d))
			continue;
		json_array_append_new(names, json_string(tags->at[i].name));
		if (!made_ms || tags->at[i].made_ms < made_ms)
			made_ms = tags->at[i].made_ms;
	}
	if (made_ms)
		json_object_set_new(rec, "created_ms", json_integer(made_ms));
	return set(rec, "names", names, e);
}

int op_inspect(struct img_ctx *c, const json_t *req, json_t *answer,
	       struct err *e)
{
	auto_tags struct tags tags = {0};
	auto_item struct item it = {0};
	const struct store *s;
	struct digest d;
	int r;

	r = img_store(c, false, &s, e);
	if (r == 0)
		r = img_resolve(c, s, json_str(req, "name"), NULL, &d, e);
	if (r == 0)
		r = item_load(s, &d, &it, e);
	if (r == 0)
		r = tags_load(s, &tags, e);
	if (r == 0)
		r = item_describe(s, &it, answer, e);
	if (r == 0)
		r = describe_names(&tags, &d, answer, e);
	if (r == 0)
		r = it.is_env ? describe_env(s, &tags, &it.env, answer, e)
			      : describe_layer(&it.layer, answer, e);
	if (r == 0)
		r = set(answer, "config", json_deep_copy(item_config(&it)), e);
	return r;
}
