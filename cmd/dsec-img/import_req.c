/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "import.h"
#include "item.h"

static int progress(void *arg, uint64_t done, uint64_t total, const char *what,
		    struct err *e)
{
	const struct import_req *q = arg;

	return img_progress(q->c, done, total, what, e);
}

/* An absolute path without ".." or empty names, "/" being none. */
static int take_at(struct import_req *q, const char *at, struct err *e)
{
	size_t n = strlen(at);

	while (n > 1 && at[n - 1] == '/')
		n--;
	if (*at != '/')
		return err_set(e, -EINVAL, "bad_value",
			       "'at' is no absolute path: '%.64s'", at);
	for (const char *p = at; *p;) {
		p += strspn(p, "/");
		if (!strncmp(p, "..", 2) && (p[2] == '/' || !p[2]))
			return err_set(e, -EINVAL, "bad_value",
				       "'at' with '..' in it");
		p += strcspn(p, "/");
	}
	if (n == 1)
		return 0;
	if (q->layer.kind == LAYER_BASE)
		return err_set(e, -EINVAL, "bad_value",
			       "'at' is for workspaces and toolkits");
	q->layer.at = strndup(at, n);
	return q->layer.at ? 0 : err_sys(e, ENOMEM, "request");
}

static int take_kind(struct import_req *q, struct err *e)
{
	const char *kind = json_str(q->req, "kind");

	q->layer.kind = LAYER_BASE;
	return *kind ? layer_kind_parse(kind, &q->layer.kind, e) : 0;
}

/* What the request says of the configuration, over that of the image. */
static int join_config(struct import_req *q, json_t *image, struct err *e)
{
	static const char *const keys[] = {"env", "user", "workdir"};
	auto_json json_t *own = json_object();
	json_t *joined = NULL;
	int r;

	for (size_t i = 0; i < array_len(keys); i++) {
		json_t *v = json_object_get(q->req, keys[i]);

		if (v && json_object_set(own, keys[i], v) < 0)
			return err_sys(e, ENOMEM, "request");
	}
	r = config_join(image, own, &joined, e);
	if (r < 0)
		return r;
	json_decref(q->layer.config);
	q->layer.config = joined;
	return 0;
}

static int take_excludes(struct import_req *q, struct err *e)
{
	const json_t *list = json_object_get(q->req, "exclude"), *item;
	size_t n = json_array_size(list), i;

	if (n == 0)
		return 0;
	q->exclude = calloc(n, sizeof(*q->exclude));
	if (!q->exclude)
		return err_sys(e, ENOMEM, "request");
	json_array_foreach(list, i, item)
		q->exclude[i] = json_string_value(item);
	q->m.exclude = q->exclude;
	q->m.nexclude = n;
	return 0;
}

/* The layers of an image that is a dictionary, behind the ${n} there are. */
static int add_dict(struct import_req *q, const char *name, struct digest *dict,
		    size_t *n, struct err *e)
{
	auto_item struct item it = {0};
	const struct digest *layers;
	struct digest d;
	size_t more = 0;
	int r;

	r = img_resolve(q->c, q->store, name, NULL, &d, e);
	if (r == 0)
		r = item_load(q->store, &d, &it, e);
	if (r < 0)
		return r;
	layers = item_layers(&it, &more);
	if (*n + more > IMPORT_DICT_MAX)
		return err_set(e, -E2BIG, "bad_value",
			       "dictionaries of more than %d layers",
			       IMPORT_DICT_MAX);
	for (size_t i = 0; i < more; i++)
		dict[(*n)++] = layers[i];
	return 0;
}

static int start_importing(struct import_req *q, struct err *e)
{
	const json_t *list = json_object_get(q->req, "dict"), *item;
	struct digest dict[IMPORT_DICT_MAX];
	size_t n = 0, i;
	int r;

	json_array_foreach(list, i, item) {
		r = add_dict(q, json_string_value(item), dict, &n, e);
		if (r < 0)
			return r;
	}
	q->m.store = q->store;
	q->m.progress = progress;
	q->m.arg = q;
	return importing_start(&q->m, dict, n, e);
}

int import_req_start(struct import_req *q, struct img_ctx *c, const json_t *req,
		     struct err *e)
{
	auto_json json_t *none = json_object();
	const char *as = json_str(req, "as"), *at = json_str(req, "at");
	int r;

	*q = (struct import_req){.c = c, .req = req, .m = {.tmpfd = -1}};
	r = *as ? img_name_parse(as, &q->as, e) : 0;
	if (r == 0 && q->as.by_digest)
		r = err_set(e, -EINVAL, "bad_value",
			    "'as' is a name, not a digest");
	q->have_as = *as;
	if (r == 0)
		r = take_kind(q, e);
	if (r == 0 && *at)
		r = take_at(q, at, e);
	if (r == 0)
		r = take_excludes(q, e);
	if (r == 0)
		r = join_config(q, none, e);
	if (r == 0)
		r = img_store(c, true, &q->store, e);
	if (r == 0 && !q->store->builder)
		r = err_set(e, -EPERM, "permission",
			    "the store '%s' belongs to another user, who "
			    "imports into it, or is read-only here; --store "
			    "has another",
			    q->store->path);
	return r < 0 ? r : start_importing(q, e);
}

void import_req_done(struct import_req *q)
{
	importing_done(&q->m);
	layer_done(&q->layer);
	free(q->exclude);
}

int import_req_source(struct import_req *q, const char *type,
		      const struct digest *digest, const char *name,
		      struct err *e)
{
	char hex[DIGEST_HEX + 1];

	json_decref(q->layer.source);
	q->layer.source = NULL;
	return json_pack_or(&q->layer.source, e, "{s:s, s:s*, s:s*}", "type",
			    type, "digest",
			    digest ? digest_hex(digest, hex) : NULL, "name",
			    name);
}

int import_req_image(struct import_req *q, struct oci_files *f, const char *ref,
		     const char *type, const char *name, json_t *answer,
		     struct err *e)
{
	const char *platform = json_str(q->req, "platform");
	auto_oci_image struct oci_image img = {0};
	auto_json json_t *config = NULL;
	struct digest digest;
	int r;

	r = oci_image_open(f, ref, *platform ? platform : NULL, &img, e);
	if (r == 0)
		r = oci_config(&img, &config, e);
	if (r == 0)
		r = join_config(q, config, e);
	if (r == 0)
		r = import_req_source(q, type, &img.digest, name, e);
	if (r == 0)
		r = importing_oci(&q->m, f, &img, &q->layer, &digest, e);
	if (r < 0)
		return r;
	if (json_object_set_new(answer, "layers",
				json_pack("{s:i, s:i}", "cached",
					  (int)q->m.cached, "new",
					  (int)q->m.made)) < 0)
		return err_sys(e, ENOMEM, "answer");
	return import_req_end(q, &digest, answer, e);
}

static int put_int(json_t *obj, const char *key, uint64_t v)
{
	return json_object_set_new(obj, key, json_integer((json_int_t)v));
}

/* What the image does not have of what was there, if anything. */
static int put_dropped(json_t *answer, const struct import_dropped *d)
{
	auto_json json_t *obj = json_object();

	if ((d->xattrs && put_int(obj, "xattrs", d->xattrs) < 0) ||
	    (d->devices && put_int(obj, "devices", d->devices) < 0) ||
	    (d->sockets && put_int(obj, "sockets", d->sockets) < 0) ||
	    (d->others && put_int(obj, "others", d->others) < 0))
		return -ENOMEM;
	return json_object_size(obj) ? json_object_set(answer, "dropped", obj)
				     : 0;
}

int import_req_end(struct import_req *q, const struct digest *digest,
		   json_t *answer, struct err *e)
{
	char name[IMG_NAME_MAX + 1];
	int r;

	if (q->have_as) {
		r = store_tag(q->store, &q->as, digest, e);
		if (r < 0)
			return r;
		if (json_object_set_new(answer, "name",
					json_string(img_name_str(&q->as,
								 name))) < 0)
			return err_sys(e, ENOMEM, "answer");
	}
	if (json_object_set_new(answer, "digest", json_digest(digest)) < 0 ||
	    json_object_set_new(answer, "kind",
				json_string(layer_kind_name(q->layer.kind))) <
		    0 ||
	    put_int(answer, "entries", q->layer.entries) < 0 ||
	    put_int(answer, "bytes", q->layer.bytes) < 0 ||
	    put_int(answer, "new_bytes", q->m.new_bytes) < 0 ||
	    put_dropped(answer, &q->m.dropped) < 0)
		return err_sys(e, ENOMEM, "answer");
	return 0;
}
