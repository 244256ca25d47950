/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/cleanup.h"
#include "img/blob.h"
#include "item.h"

/*
 * Layers and blobs are checked once however many images have them.
 */
struct check {
	struct img_ctx *c;
	const struct store *s;
	struct tags tags;
	struct dset layers, blobs; /* that were checked */
	struct dset faulty;	   /* of them: those that are damaged */
	bool data;
	unsigned checked, bad;
};

/* What ends the whole operation, rather than being an answer about an image. */
static bool ends(int r)
{
	return r == -ENOMEM || r == -ECANCELED || r == -ETIMEDOUT ||
	       r == -EMFILE || r == -EPIPE;
}

/* 1: it was checked before and is good; 0: to be checked now. */
static int seen(struct check *k, struct dset *set, const struct digest *d,
		const char *what, struct err *e)
{
	char hex[DIGEST_HEX + 1];
	int r;

	if (dset_has(&k->faulty, d))
		return err_set(e, -EBADMSG, "image_damaged", "%s %s is damaged",
			       what, digest_hex(d, hex));
	if (dset_has(set, d))
		return 1;
	r = img_progress(k->c, set->n, 0, what, e);
	return r < 0 ? r : dset_add(set, d, 1, e);
}

static int judge(struct check *k, const struct digest *d, int r)
{
	if (r < 0 && !ends(r))
		(void)dset_add(&k->faulty, d, 1, NULL);
	return r;
}

static int read_blob(struct check *k, const struct digest *root, struct err *e)
{
	auto_close int data = -1;
	auto_close int idx = -1;

	data = store_open_blob((void *)(uintptr_t)k->s, root, e);
	if (data < 0)
		return data;
	idx = store_open_idx(k->s, root, e);
	return idx < 0 ? idx : blob_verify(data, idx, root, e);
}

static int check_blob(struct check *k, const struct digest *root, struct err *e)
{
	int r = seen(k, &k->blobs, root, "blob", e);

	if (r)
		return r < 0 ? r : 0;
	return judge(k, root, read_blob(k, root, e));
}

static int check_layer(struct check *k, const struct digest *d, struct err *e)
{
	auto_layer struct layer l = {0};
	int r = seen(k, &k->layers, d, "layer", e);

	if (r)
		return r < 0 ? r : 0;
	r = store_verify(k->s, d, false, e);
	if (r == 0 && k->data)
		r = store_layer(k->s, d, &l, e);
	for (size_t i = 0; r == 0 && i < l.ndevices; i++)
		r = check_blob(k, &l.devices[i].root, e);
	return judge(k, d, r);
}

static int check_image(struct check *k, const struct digest *d, struct err *e)
{
	auto_item struct item it = {0};
	const struct digest *layers;
	size_t n;
	int r;

	r = item_load(k->s, d, &it, e);
	if (r < 0)
		return r;
	/* The manifest of an environment against its own digest. */
	if (it.is_env)
		r = store_verify(k->s, d, false, e);
	layers = item_layers(&it, &n);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = check_layer(k, &layers[i], e);
	return r;
}

static int tell(struct check *k, const struct digest *d, const struct err *why,
		struct err *e)
{
	const char *name = tags_name(&k->tags, d);
	json_t *rec = json_pack("{s:o}", "digest", json_digest(d));

	if (rec && name)
		json_object_set_new(rec, "name", json_string(name));
	if (rec && why)
		json_object_set_new(rec, "damaged", json_string(why->msg));
	return img_event(k->c, why ? "damaged" : "good", rec, e);
}

static int check_each(void *arg, const struct digest *d, struct err *e)
{
	struct check *k = arg;
	struct err why = {0};
	int r;

	k->checked++;
	r = check_image(k, d, &why);
	if (r == 0)
		return 0;
	if (ends(r)) {
		*e = why;
		return r;
	}
	k->bad++;
	return tell(k, d, &why, e);
}

static int check_all(struct check *k, struct err *e)
{
	int r;

	r = tags_load(k->s, &k->tags, e);
	if (r == 0)
		r = store_manifests(k->s, check_each, k, e);
	if (r == 0 && k->bad)
		r = err_set(e, -EBADMSG, "image_damaged",
			    "%u of %u images are damaged", k->bad, k->checked);
	return r;
}

static int check_name(struct check *k, const char *name, json_t *answer,
		      struct err *e)
{
	struct digest d;
	int r;

	r = img_resolve(k->c, k->s, name, NULL, &d, e);
	if (r == 0)
		r = check_image(k, &d, e);
	k->checked = 1;
	if (r == 0 &&
	    json_object_set_new(answer, "digest", json_digest(&d)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

int op_verify(struct img_ctx *c, const json_t *req, json_t *answer,
	      struct err *e)
{
	struct check k = {.c = c, .data = json_flag(req, "data")};
	const char *name = json_str(req, "name");
	int r;

	if (!*name == !json_flag(req, "all"))
		return err_set(e, -EBADMSG,
			       *name ? "bad_value" : "missing_field",
			       *name ? "'name' and 'all': one of them"
				     : "'name' or 'all' is missing");
	r = img_store(c, false, &k.s, e);
	if (r == 0)
		r = *name ? check_name(&k, name, answer, e) : check_all(&k, e);
	if (r == 0 &&
	    json_object_set_new(answer, "checked", json_integer(k.checked)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	tags_done(&k.tags);
	dset_done(&k.layers);
	dset_done(&k.blobs);
	dset_done(&k.faulty);
	return r;
}
