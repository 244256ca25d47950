/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "pack.h"

int pack_find_store(struct pack *p, struct err *e)
{
	int r;

	r = img_store(p->c, true, &p->store, e);
	if (r < 0)
		return r;
	if (p->store->builder && !p->named)
		return err_set(e, -EBADMSG, "missing_field",
			       "'as' is missing: what to call the layer");
	return 0;
}

/* --- what is shared with layers that are there --------------------------- */

struct sharing {
	const struct store *store;
	struct blob_dict *dict;
	int tmp;
};

static int share_blob(struct sharing *sh, const struct fsdevice *dev,
		      struct err *e)
{
	auto_close int idx = store_open_idx(sh->store, &dev->root, e);

	return idx < 0 ? idx : blob_dict_add(sh->dict, idx, &dev->root, e);
}

/* Held before it is used: nobody may remove what we are about to name. */
static int share_layer(struct sharing *sh, const struct digest *d,
		       struct err *e)
{
	auto_layer struct layer l = {0};
	int r;

	r = store_hold(sh->store, sh->tmp, d, e);
	if (r == 0)
		r = store_layer(sh->store, d, &l, e);
	for (size_t i = 0; i < l.ndevices && r == 0; i++)
		r = share_blob(sh, &l.devices[i], e);
	return r;
}

static int share_named(struct pack *p, struct sharing *sh, const char *name,
		       struct err *e)
{
	auto_json json_t *obj = NULL;
	struct env env = {0};
	struct digest d;
	int r;

	r = img_resolve(p->c, p->store, name, NULL, &d, e);
	if (r == 0)
		r = store_manifest(p->store, &d, &obj, e);
	if (r < 0)
		return r;
	if (!manifest_is_env(obj))
		return share_layer(sh, &d, e);
	r = env_parse(obj, &env, e);
	for (size_t i = 0; i < env.nlayers && r == 0; i++)
		r = share_layer(sh, &env.layers[i], e);
	env_done(&env);
	return r;
}

static int share(struct pack *p, const json_t *req, struct sharing *sh,
		 struct err *e)
{
	json_t *v;
	size_t i;
	int r = 0;

	sh->store = p->store;
	sh->dict = blob_dict_new();
	if (!sh->dict)
		return err_sys(e, ENOMEM, "pack");
	for (i = 0; i < p->layer.nparents && r == 0; i++)
		r = share_layer(sh, &p->layer.parents[i], e);
	json_array_foreach(json_object_get(req, "dict"), i, v) {
		if (r == 0)
			r = share_named(p, sh, json_string_value(v), e);
	}
	return r;
}

/* --- a store of ours ----------------------------------------------------- */

static int publish(struct pack *p, int tmp, json_t *answer, struct err *e)
{
	char name[IMG_NAME_MAX + 1];
	struct digest d;
	int r = 0;

	p->layer.new_bytes = (uint64_t)p->dev.blocks * FS_BLOCK;
	if (p->dev.blocks > 0)
		r = store_put_blob(p->store, tmp, &p->dev, e);
	if (r == 0)
		r = store_put_layer(p->store, tmp, p->tree, &p->layer, &d, e);
	if (r == 0)
		r = store_tag(p->store, &p->name, &d, e);
	if (r < 0)
		return r;
	json_object_set_new(answer, "name",
			    json_string(img_name_str(&p->name, name)));
	json_object_set_new(answer, "digest", json_digest(&d));
	json_object_set_new(answer, "new_bytes",
			    json_integer((json_int_t)p->layer.new_bytes));
	return 0;
}

static int source_of(struct pack *p, struct err *e)
{
	return json_pack_or(&p->layer.source, e, "{s:s, s:s}", "type",
			    "sandbox", "name", p->id);
}

int pack_to_store(struct pack *p, const json_t *req, pack_fn *fn,
		  json_t *answer, struct err *e)
{
	struct sharing sh = {0};
	auto_close int tmp = -1;
	char name[STORE_TMP_NAME];
	int r;

	r = store_tmp(p->store, &tmp, name, e);
	if (r < 0)
		return r;
	sh.tmp = tmp;
	r = source_of(p, e);
	if (r == 0)
		r = share(p, req, &sh, e);
	if (r == 0)
		r = fn(p, tmp, sh.dict, e);
	if (r == 0)
		r = publish(p, tmp, answer, e);
	blob_free(steal_ptr(p->blob)); /* it uses the dictionary */
	blob_dict_free(sh.dict);
	store_tmp_done(p->store, &tmp, name);
	return r;
}
