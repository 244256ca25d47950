/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "opened.h"

static int join(struct opened *o, const json_t *upper, struct err *e)
{
	json_t *joined = NULL;
	int r;

	r = config_join(o->config, upper, &joined, e);
	if (r < 0)
		return r;
	json_decref(o->config);
	o->config = joined;
	return 0;
}

static int read_env(struct opened *o, const json_t *obj, struct err *e)
{
	struct env v = {0};
	int r;

	r = env_parse(obj, &v, e);
	if (r < 0)
		return r;
	o->env = true;
	o->n = v.nlayers;
	memcpy(o->layers, v.layers, sizeof(o->layers));
	for (size_t i = 0; i < o->n && r == 0; i++) {
		auto_layer struct layer l = {0};

		r = opened_layer(o, i, &l, e);
		if (r == 0)
			r = join(o, l.config, e);
	}
	if (r == 0)
		r = join(o, v.config, e);
	env_done(&v);
	return r;
}

static int read_layer(struct opened *o, const json_t *obj, struct err *e)
{
	auto_layer struct layer l = {0};
	int r;

	r = layer_parse(obj, &l, e);
	if (r < 0)
		return r;
	o->n = 1;
	o->layers[0] = o->digest;
	return join(o, l.config, e);
}

int opened_init(struct img_ctx *c, const char *name, struct opened *ret,
		struct err *e)
{
	auto_opened struct opened o = {.config = json_object()};
	auto_json json_t *obj = NULL;
	int r;

	r = o.config ? img_store(c, false, &o.store, e)
		     : err_sys(e, ENOMEM, "image");
	if (r == 0)
		r = img_resolve(c, o.store, name, &o.name, &o.digest, e);
	if (r < 0)
		return r;
	r = store_manifest(o.store, &o.digest, &obj, e);
	if (r == 0)
		r = manifest_is_env(obj) ? read_env(&o, obj, e)
					 : read_layer(&o, obj, e);
	if (r < 0)
		return err_wrap(e, r, "image '%.128s'", name);
	*ret = o;
	o.config = NULL;
	return 0;
}

void opened_done(struct opened *o)
{
	json_decref(o->config);
	o->config = NULL;
}

int opened_layer(const struct opened *o, size_t i, struct layer *ret,
		 struct err *e)
{
	return store_layer(o->store, &o->layers[i], ret, e);
}

int opened_tree(const struct opened *o, size_t i, struct fstree **ret,
		struct err *e)
{
	auto_layer struct layer l = {0};
	int r;

	r = opened_layer(o, i, &l, e);
	return r < 0 ? r : store_tree(o->store, &l, ret, e);
}

int opened_merged(const struct opened *o, bool final, struct fstree **ret,
		  struct err *e)
{
	auto_fstree struct fstree *t = NULL;
	int r = 0;

	if (o->n == 1 && !final)
		return opened_tree(o, 0, ret, e);
	t = fstree_new();
	if (!t)
		return err_sys(e, ENOMEM, "image");
	for (size_t i = 0; i < o->n && r == 0; i++) {
		auto_fstree struct fstree *upper = NULL;

		r = opened_tree(o, i, &upper, e);
		if (r == 0)
			r = fstree_merge(t, upper, true, e);
	}
	if (r == 0)
		*ret = steal_ptr(t);
	return r;
}

int opened_reader(const struct opened *o, struct fstree *t,
		  struct blob_reader **ret, struct err *e)
{
	struct blob_reader *r;

	r = blob_reader_new(t, store_open_blob, (void *)(uintptr_t)o->store);
	if (!r)
		return err_sys(e, ENOMEM, "image");
	*ret = r;
	return 0;
}
