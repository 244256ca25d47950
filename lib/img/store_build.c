/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "img/blob.h"
#include "img/erofs.h"
#include "img/sha256.h"
#include "img/store_priv.h"

int store_put_blob(const struct store *s, int tmpfd, const struct fsdevice *dev,
		   struct err *e)
{
	struct stat st;
	int r;

	r = store_must_build(s, e);
	if (r < 0)
		return r;
	if (fstatat(tmpfd, "data", &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "publish a blob");
	if (st.st_size != (off_t)dev->blocks * FS_BLOCK)
		return err_sys(e, EIO, "publish a blob of another length");
	r = store_hold_only(tmpfd, &dev->root, e);
	if (r == 0)
		r = store_publish(s, tmpfd, "data", STORE_DATA, &dev->root, e);
	if (r == 0)
		r = store_publish(s, tmpfd, "idx", STORE_IDX, &dev->root, e);
	return r;
}

/* --- manifests ----------------------------------------------------------- */

static int put_manifest(const struct store *s, int tmpfd, const json_t *obj,
			struct digest *ret, struct err *e)
{
	auto_free char *text = NULL;
	struct digest d;
	size_t len;
	int r;

	r = manifest_text(obj, &text, &len, e);
	if (r < 0)
		return r;
	if (sha256_of(text, len, &d) < 0)
		return err_sys(e, ENOMEM, "manifest");
	r = store_file(tmpfd, "manifest", text, len, e);
	if (r == 0)
		r = store_hold_only(tmpfd, &d, e);
	if (r == 0)
		r = store_publish(s, tmpfd, "manifest", STORE_MANIFEST, &d, e);
	if (r == 0)
		*ret = d;
	return r;
}

/* What a manifest is about to name must be there and stay. */
static int need(const struct store *s, int tmpfd, enum store_kind kind,
		const struct digest *d, struct err *e)
{
	int r = store_hold_only(tmpfd, d, e);

	return r < 0 ? r : store_want(s, kind, d, e);
}

int store_put_env(const struct store *s, int tmpfd, const struct env *env,
		  struct digest *ret_digest, struct err *e)
{
	auto_json json_t *obj = NULL;
	int r;

	r = store_must_build(s, e);
	for (size_t i = 0; r == 0 && i < env->nlayers; i++)
		r = need(s, tmpfd, STORE_MANIFEST, &env->layers[i], e);
	if (r == 0)
		r = env_json(env, &obj, e);
	return r < 0 ? r : put_manifest(s, tmpfd, obj, ret_digest, e);
}

/* --- layers -------------------------------------------------------------- */

static int unmark(void *arg, const char *path, struct fsnode *n, struct err *e)
{
	(void)arg;
	(void)path;
	(void)e;
	n->mark = 0;
	return 0;
}

static int add_bytes(void *arg, const char *path, struct fsnode *n,
		     struct err *e)
{
	uint64_t *bytes = arg;

	(void)path;
	(void)e;
	if (S_ISREG(n->mode) && !n->mark)
		*bytes += n->size;
	n->mark = 1;
	return 0;
}

/* Each file once, however many names it has. */
int store_tree_bytes(struct fstree *t, uint64_t *ret, struct err *e)
{
	uint64_t bytes = 0;
	int r;

	r = fstree_walk(t, unmark, NULL, e);
	if (r == 0)
		r = fstree_walk(t, add_bytes, &bytes, e);
	if (r == 0)
		*ret = bytes;
	return r;
}

static int fill_layer(struct fstree *tree, struct layer *l, struct err *e)
{
	size_t n = fstree_ndevices(tree);

	free(l->devices);
	l->ndevices = 0;
	l->devices = calloc(n + 1, sizeof(*l->devices));
	if (!l->devices)
		return err_sys(e, ENOMEM, "layer");
	for (size_t i = 0; i < n; i++)
		l->devices[i] = *fstree_device_at(tree, (uint16_t)(i + 1));
	l->ndevices = n;
	l->entries = fstree_count(tree);
	return store_tree_bytes(tree, &l->bytes, e);
}

static int put_meta(const struct store *s, int tmpfd, struct fstree *tree,
		    struct layer *l, struct err *e)
{
	auto_buf struct buf meta = {0};
	int r;

	r = erofs_write(tree, &meta, e);
	if (r < 0)
		return r;
	if (sha256_of(meta.data, meta.len, &l->meta) < 0)
		return err_sys(e, ENOMEM, "metadata");
	l->meta_bytes = meta.len;
	r = store_file(tmpfd, "meta", meta.data, meta.len, e);
	if (r == 0)
		r = store_hold_only(tmpfd, &l->meta, e);
	if (r == 0)
		r = store_publish(s, tmpfd, "meta", STORE_META, &l->meta, e);
	return r;
}

int store_put_layer(const struct store *s, int tmpfd, struct fstree *tree,
		    struct layer *layer, struct digest *ret_digest,
		    struct err *e)
{
	auto_json json_t *obj = NULL;
	int r;

	r = store_must_build(s, e);
	if (r == 0)
		r = fill_layer(tree, layer, e);
	for (size_t i = 0; r == 0 && i < layer->ndevices; i++) {
		r = need(s, tmpfd, STORE_DATA, &layer->devices[i].root, e);
		if (r == 0)
			r = need(s, tmpfd, STORE_IDX, &layer->devices[i].root,
				 e);
	}
	/* where it comes from: it does without, if that is gone */
	for (size_t i = 0; r == 0 && i < layer->nparents; i++) {
		r = need(s, tmpfd, STORE_MANIFEST, &layer->parents[i], e);
		r = r == -ENOENT ? 0 : r;
	}
	if (r == 0)
		r = put_meta(s, tmpfd, tree, layer, e);
	if (r == 0)
		r = layer_json(layer, &obj, e);
	return r < 0 ? r : put_manifest(s, tmpfd, obj, ret_digest, e);
}

/* --- dictionaries -------------------------------------------------------- */

static int dict_layer(const struct store *s, const struct layer *l,
		      struct blob_dict *dict, struct err *e)
{
	for (size_t i = 0; i < l->ndevices; i++) {
		auto_close int fd = -1;
		int r;

		fd = store_open_idx(s, &l->devices[i].root, e);
		if (fd < 0)
			return fd;
		r = blob_dict_add(dict, fd, &l->devices[i].root, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int dict_layer_of(const struct store *s, const struct digest *digest,
			 struct blob_dict *dict, struct err *e)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	int r = store_layer(s, digest, &l, e);

	return r < 0 ? r : dict_layer(s, &l, dict, e);
}

int store_dict(const struct store *s, int tmpfd, const struct digest *layer,
	       struct blob_dict *dict, struct err *e)
{
	auto_json json_t *obj = NULL;
	auto_env struct env v = {.nlayers = 0};
	int r;

	r = need(s, tmpfd, STORE_MANIFEST, layer, e);
	if (r == 0)
		r = store_manifest(s, layer, &obj, e);
	if (r < 0)
		return r;
	if (!manifest_is_env(obj))
		return dict_layer_of(s, layer, dict, e);
	r = env_parse(obj, &v, e);
	for (size_t i = 0; r == 0 && i < v.nlayers; i++)
		r = dict_layer_of(s, &v.layers[i], dict, e);
	return r;
}
