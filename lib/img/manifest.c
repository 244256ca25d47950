/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/manifest.h"

#define META_BYTES_MAX ((int64_t)1 << 32) /* it is read into memory */

static const char *const kinds[] = {
	[LAYER_BASE] = "base",
	[LAYER_WORKSPACE] = "workspace",
	[LAYER_TOOLKIT] = "toolkit",
};

const char *layer_kind_name(enum layer_kind kind)
{
	return kinds[kind];
}

int layer_kind_parse(const char *s, enum layer_kind *ret, struct err *e)
{
	for (size_t i = 0; i < array_len(kinds); i++)
		if (!strcmp(s, kinds[i])) {
			*ret = (enum layer_kind)i;
			return 0;
		}
	return err_set(e, -EINVAL, "bad_value",
		       "'%.50s' is no kind of layer: base, workspace, toolkit",
		       s);
}

void layer_done(struct layer *l)
{
	free(l->devices);
	free(l->at);
	json_decref(l->config);
	json_decref(l->source);
	memset(l, 0, sizeof(*l));
}

void env_done(struct env *v)
{
	json_decref(v->config);
	memset(v, 0, sizeof(*v));
}

static int damaged(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "image_damaged", "manifest: %s", what);
}

/* --- the configuration ------------------------------------------------- */

static bool all_strings(const json_t *array)
{
	const json_t *v;
	size_t i;

	json_array_foreach((json_t *)(uintptr_t)array, i, v)
		if (!json_is_string(v))
			return false;
	return true;
}

static bool map_of_strings(const json_t *obj, bool variables)
{
	const json_t *v;
	const char *key;

	json_object_foreach((json_t *)(uintptr_t)obj, key, v) {
		if (!json_is_string(v))
			return false;
		if (variables && (!*key || strchr(key, '=')))
			return false;
	}
	return true;
}

static bool config_value_ok(const char *key, const json_t *v)
{
	if (!strcmp(key, "env"))
		return json_is_object(v) && map_of_strings(v, true);
	if (!strcmp(key, "labels"))
		return json_is_object(v) && map_of_strings(v, false);
	if (!strcmp(key, "entrypoint") || !strcmp(key, "cmd"))
		return json_is_array(v) && all_strings(v);
	if (!strcmp(key, "user") || !strcmp(key, "workdir") ||
	    !strcmp(key, "arch"))
		return json_is_string(v);
	return true; /* a later version's */
}

int config_check(const json_t *config, struct err *e)
{
	const json_t *v;
	const char *key;

	if (!json_is_object(config))
		return damaged(e, "'config' is not an object");
	json_object_foreach((json_t *)(uintptr_t)config, key, v)
		if (!config_value_ok(key, v))
			return err_set(e, -EBADMSG, "image_damaged",
				       "manifest: 'config': '%s' is of "
				       "another type",
				       key);
	return 0;
}

/* *${env}: new variables over those of ${config}. */
static int join_env(json_t *config, const json_t *upper)
{
	json_t *env = json_object_get(config, "env"), *own;

	if (!env)
		return json_object_set(config, "env",
				       (json_t *)(uintptr_t)upper);
	own = json_copy(env);
	if (!own || json_object_update(own, (json_t *)(uintptr_t)upper) < 0) {
		json_decref(own);
		return -1;
	}
	return json_object_set_new(config, "env", own);
}

int config_join(const json_t *lower, const json_t *upper, json_t **ret,
		struct err *e)
{
	auto_json json_t *config = json_copy((json_t *)(uintptr_t)lower);
	const char *key;
	json_t *v;
	int r = 0;

	if (!config)
		return err_sys(e, ENOMEM, "configuration");
	json_object_foreach((json_t *)(uintptr_t)upper, key, v) {
		if (!strcmp(key, "env") && json_is_object(v))
			r = join_env(config, v);
		else
			r = json_object_set(config, key, v);
		if (r < 0)
			return err_sys(e, ENOMEM, "configuration");
	}
	*ret = steal_ptr(config);
	return 0;
}

/* --- parts of both ------------------------------------------------------ */

static int take_digest(const json_t *j, struct digest *ret)
{
	const char *s = json_string_value(j);

	/* one way to write it: the bare digits */
	if (!s || strlen(s) != DIGEST_HEX)
		return -EINVAL;
	return digest_parse(s, ret);
}

static int take_digests(const json_t *array, struct digest *ret, size_t max,
			size_t *ret_n)
{
	size_t n = json_array_size(array);

	if (!json_is_array(array) || n > max)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		if (take_digest(json_array_get(array, i), &ret[i]) < 0)
			return -EINVAL;
		for (size_t k = 0; k < i; k++)
			if (digest_eq(&ret[k], &ret[i]))
				return -EINVAL;
	}
	*ret_n = n;
	return 0;
}

/* An integer of 0..max; absent is -1. */
static int64_t take_int(const json_t *obj, const char *key, int64_t max)
{
	int64_t n = json_int(obj, key, -1);

	return n > max ? -1 : n;
}

static int take_object(const json_t *obj, const char *key, json_t **ret)
{
	json_t *j = json_object_get(obj, key);

	if (j && !json_is_object(j))
		return -EINVAL;
	*ret = j ? json_incref(j) : json_object();
	return *ret ? 0 : -ENOMEM;
}

static int take_head(const json_t *obj, const char *kind, struct err *e)
{
	int64_t v = json_int(obj, "v", -1);

	if (v != 1)
		return err_set(e, -EBADMSG, "image_damaged",
			       "manifest of version %lld: this program knows 1",
			       (long long)v);
	if (strcmp(json_str(obj, "kind"), kind))
		return err_set(e, -EBADMSG, "image_damaged",
			       "a manifest of kind '%.20s', not '%s'",
			       json_str(obj, "kind"), kind);
	return 0;
}

bool manifest_is_env(const json_t *obj)
{
	return !strcmp(json_str(obj, "kind"), "env");
}

int manifest_text(const json_t *obj, char **ret, size_t *ret_len, struct err *e)
{
	auto_free char *text = json_dumps(obj, JSON_COMPACT | JSON_SORT_KEYS);

	if (!text)
		return err_sys(e, ENOMEM, "manifest");
	*ret_len = strlen(text);
	if (*ret_len > MANIFEST_MAX)
		return err_set(e, -EFBIG, "too_large",
			       "a manifest of %zu bytes (%d at most)", *ret_len,
			       MANIFEST_MAX);
	*ret = steal_ptr(text);
	return 0;
}

static json_t *digest_array(const struct digest *d, size_t n)
{
	json_t *a = json_array();
	char hex[DIGEST_HEX + 1];

	for (size_t i = 0; a && i < n; i++)
		if (json_array_append_new(a,
					  json_string(digest_hex(&d[i], hex))) <
		    0) {
			json_decref(a);
			a = NULL;
		}
	return a;
}

/* --- a layer ------------------------------------------------------------ */

static int take_meta(const json_t *meta, struct layer *l)
{
	int64_t size = take_int(meta, "size", META_BYTES_MAX);

	if (size < 1)
		return -EINVAL;
	l->meta_bytes = (uint64_t)size;
	return take_digest(json_object_get(meta, "digest"), &l->meta);
}

static int take_device(const json_t *j, struct layer *l)
{
	struct fsdevice *d = &l->devices[l->ndevices];
	int64_t blocks = take_int(j, "blocks", UINT32_MAX - 1);

	if (blocks < 1 || take_digest(json_object_get(j, "root"), &d->root) < 0)
		return -EINVAL;
	for (size_t i = 0; i < l->ndevices; i++)
		if (digest_eq(&l->devices[i].root, &d->root))
			return -EINVAL;
	d->blocks = (uint32_t)blocks;
	l->ndevices++;
	return 0;
}

static int take_devices(const json_t *array, struct layer *l)
{
	size_t n = json_array_size(array);
	int r;

	if (!json_is_array(array) || n > FS_DEVICES_MAX)
		return -EINVAL;
	l->devices = calloc(n + 1, sizeof(*l->devices));
	if (!l->devices)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		r = take_device(json_array_get(array, i), l);
		if (r < 0)
			return r;
	}
	return 0;
}

/* An absolute path as we would write it. */
static bool at_ok(const char *at)
{
	size_t len = strlen(at);

	if (at[0] != '/' || len < 2 || len >= PATH_MAX)
		return false;
	while (*at == '/') {
		size_t n = strcspn(++at, "/");

		if (n == 0 || n > FS_NAME_MAX ||
		    (at[0] == '.' && (n == 1 || (n == 2 && at[1] == '.'))))
			return false;
		at += n;
	}
	return true;
}

static int take_at(const json_t *obj, struct layer *l)
{
	const json_t *at = json_object_get(obj, "at");

	if (!at)
		return 0;
	if (!json_is_string(at) || !at_ok(json_string_value(at)))
		return -EINVAL;
	l->at = strdup(json_string_value(at));
	return l->at ? 0 : -ENOMEM;
}

static int take_counts(const json_t *obj, struct layer *l)
{
	int64_t entries = take_int(obj, "entries", UINT32_MAX);
	int64_t bytes = take_int(obj, "bytes", INT64_MAX);
	int64_t new_bytes = take_int(obj, "new_bytes", INT64_MAX);

	if (entries < 0 || bytes < 0 || new_bytes < 0)
		return -EINVAL;
	l->entries = (uint64_t)entries;
	l->bytes = (uint64_t)bytes;
	l->new_bytes = (uint64_t)new_bytes;
	return 0;
}

static int take_parents(const json_t *obj, struct layer *l)
{
	const json_t *parents = json_object_get(obj, "parents");

	if (!parents)
		return 0;
	return take_digests(parents, l->parents, LAYER_PARENTS_MAX,
			    &l->nparents);
}

/* The name of the field that is wrong, or NULL with *${r} 0. */
static const char *take_layer(const json_t *obj, struct layer *l, int *r)
{
	if ((*r = layer_kind_parse(json_str(obj, "layer"), &l->kind, NULL)) < 0)
		return "layer";
	if ((*r = take_meta(json_object_get(obj, "meta"), l)) < 0)
		return "meta";
	if ((*r = take_devices(json_object_get(obj, "devices"), l)) < 0)
		return "devices";
	if ((*r = take_at(obj, l)) < 0)
		return "at";
	if ((*r = take_counts(obj, l)) < 0)
		return "entries, bytes, new_bytes";
	if ((*r = take_object(obj, "config", &l->config)) < 0)
		return "config";
	if ((*r = take_object(obj, "source", &l->source)) < 0)
		return "source";
	if ((*r = take_parents(obj, l)) < 0)
		return "parents";
	return NULL;
}

int layer_parse(const json_t *obj, struct layer *ret, struct err *e)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	const char *wrong;
	int r;

	r = take_head(obj, "layer", e);
	if (r < 0)
		return r;
	wrong = take_layer(obj, &l, &r);
	if (wrong && r == -ENOMEM)
		return err_sys(e, ENOMEM, "manifest");
	if (wrong)
		return err_set(e, -EBADMSG, "image_damaged",
			       "manifest: '%s' is missing or wrong", wrong);
	r = config_check(l.config, e);
	if (r < 0)
		return r;
	*ret = l;
	memset(&l, 0, sizeof(l));
	return 0;
}

static json_t *device_array(const struct layer *l)
{
	json_t *a = json_array();
	char hex[DIGEST_HEX + 1];

	for (size_t i = 0; a && i < l->ndevices; i++) {
		const struct fsdevice *d = &l->devices[i];

		if (json_array_append_new(a,
					  json_pack("{s:s,s:I}", "root",
						    digest_hex(&d->root, hex),
						    "blocks",
						    (json_int_t)d->blocks)) <
		    0) {
			json_decref(a);
			return NULL;
		}
	}
	return a;
}

int layer_json(const struct layer *l, json_t **ret, struct err *e)
{
	auto_layer struct layer check = {.kind = LAYER_BASE};
	auto_json json_t *j = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	/* "o*": taken over, left out when NULL */
	r = json_pack_or(
		&j, e,
		"{s:i,s:s,s:s,s:{s:s,s:I},s:o,s:s*,s:I,s:I,s:I,s:O*,s:O*}", "v",
		1, "kind", "layer", "layer", layer_kind_name(l->kind), "meta",
		"digest", digest_hex(&l->meta, hex), "size",
		(json_int_t)l->meta_bytes, "devices", device_array(l), "at",
		l->at, "entries", (json_int_t)l->entries, "bytes",
		(json_int_t)l->bytes, "new_bytes", (json_int_t)l->new_bytes,
		"config", l->config, "source", l->source);
	if (r < 0)
		return r;
	if (l->nparents > 0 &&
	    json_object_set_new(j, "parents",
				digest_array(l->parents, l->nparents)) < 0)
		return err_sys(e, ENOMEM, "manifest");
	/* What we would not read is not written. */
	r = layer_parse(j, &check, e);
	if (r < 0) {
		if (e && r == -EBADMSG)
			e->code = "bad_value";
		return r == -EBADMSG ? -EINVAL : r;
	}
	*ret = steal_ptr(j);
	return 0;
}

/* --- an environment ----------------------------------------------------- */

int env_parse(const json_t *obj, struct env *ret, struct err *e)
{
	auto_env struct env v = {.nlayers = 0};
	int r;

	r = take_head(obj, "env", e);
	if (r < 0)
		return r;
	if (take_digests(json_object_get(obj, "layers"), v.layers,
			 ENV_LAYERS_MAX, &v.nlayers) < 0 ||
	    v.nlayers == 0)
		return damaged(e, "'layers' is missing or wrong");
	r = take_object(obj, "config", &v.config);
	if (r == -ENOMEM)
		return err_sys(e, ENOMEM, "manifest");
	if (r < 0)
		return damaged(e, "'config' is not an object");
	r = config_check(v.config, e);
	if (r < 0)
		return r;
	*ret = v;
	memset(&v, 0, sizeof(v));
	return 0;
}

int env_json(const struct env *v, json_t **ret, struct err *e)
{
	auto_env struct env check = {.nlayers = 0};
	auto_json json_t *j = NULL;
	int r;

	r = json_pack_or(&j, e, "{s:i,s:s,s:o,s:O*}", "v", 1, "kind", "env",
			 "layers", digest_array(v->layers, v->nlayers),
			 "config", v->config);
	if (r < 0)
		return r;
	r = env_parse(j, &check, e);
	if (r < 0) {
		if (e && r == -EBADMSG)
			e->code = "bad_value";
		return r == -EBADMSG ? -EINVAL : r;
	}
	*ret = steal_ptr(j);
	return 0;
}
