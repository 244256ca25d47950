/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/import_store.h"

/* --- dictionaries ------------------------------------------------
 */

/* As long as m->tmpfd is there. */
static int hold(struct importing *m, const struct digest *d, struct err *e)
{
	return store_hold(m->store, m->tmpfd, d, e);
}

static int dict_blob(struct importing *m, const struct fsdevice *dev,
		     struct err *e)
{
	auto_close int fd = store_open_idx(m->store, &dev->root, e);

	return fd < 0 ? fd : blob_dict_add(m->dict, fd, &dev->root, e);
}

static int dict_layer(struct importing *m, const struct digest *digest,
		      struct err *e)
{
	auto_layer struct layer l = {0};
	int r;

	r = hold(m, digest, e);
	if (r == 0)
		r = store_layer(m->store, digest, &l, e);
	for (size_t i = 0; r == 0 && i < l.ndevices; i++)
		r = dict_blob(m, &l.devices[i], e);
	return r;
}

int importing_start(struct importing *m, const struct digest *dict,
		    size_t ndict, struct err *e)
{
	int r;

	m->tmpfd = -1;
	if (ndict > IMPORT_DICT_MAX)
		return err_set(e, -E2BIG, "bad_value",
			       "more than %d dictionaries", IMPORT_DICT_MAX);
	r = store_tmp(m->store, &m->tmpfd, m->holder, e);
	if (r < 0 || ndict == 0)
		return r;
	m->dict = blob_dict_new();
	if (!m->dict)
		return err_sys(e, ENOMEM, "import");
	for (size_t i = 0; i < ndict && r == 0; i++) {
		m->dict_layers[m->ndict++] = dict[i];
		r = dict_layer(m, &dict[i], e);
	}
	return r;
}

void importing_done(struct importing *m)
{
	if (m->tmpfd >= 0)
		store_tmp_done(m->store, &m->tmpfd, m->holder);
	blob_dict_free(m->dict);
	m->dict = NULL;
}

/* --- one layer ---------------------------------------------------------------
 */

/* A layer in the making: its tree, its blob, the place for its files. */
struct making {
	struct importing *m;
	struct fstree *tree;
	struct blob *blob;
	int tmpfd;
	char tmp[STORE_TMP_NAME];
	struct source *s; /* for the progress told; or NULL */
	uint64_t total;
	const char *what;
};

static int making_start(struct making *k, struct importing *m, struct err *e)
{
	int r;

	*k = (struct making){.m = m, .tmpfd = -1};
	r = store_tmp(m->store, &k->tmpfd, k->tmp, e);
	if (r < 0)
		return r;
	k->tree = fstree_new();
	if (!k->tree)
		return err_sys(e, ENOMEM, "import");
	return blob_open(k->tmpfd, m->dict, k->tree, &k->blob, e);
}

static void making_done(struct making *k)
{
	blob_free(k->blob);
	if (k->tmpfd >= 0)
		store_tmp_done(k->m->store, &k->tmpfd, k->tmp);
	fstree_free(k->tree);
}

/* A source_watch_fn too. */
static int tell(void *arg, uint64_t bytes, struct err *e)
{
	struct making *k = arg;
	const struct importing *m = k->m;

	if (!m->progress)
		return 0;
	return m->progress(m->arg, k->s ? source_taken(k->s) : bytes, k->total,
			   k->what, e);
}

static void take_counts(struct importing *m, const struct import *x)
{
	m->entries += x->entries;
	m->bytes += x->bytes;
	m->dropped.xattrs += x->dropped.xattrs;
	m->dropped.devices += x->dropped.devices;
	m->dropped.sockets += x->dropped.sockets;
	m->dropped.others += x->dropped.others;
}

/* Blobs first, then what names them. */
static int publish_blob(struct making *k, uint64_t *ret_bytes, struct err *e)
{
	const struct store *s = k->m->store;
	struct fsdevice dev = {.blocks = 0};
	int fd, r;

	r = blob_finish(k->blob, k->tree, store_open_blob, (void *)(uintptr_t)s,
			IMPORT_SAVED_MIN, &dev, e);
	*ret_bytes = (uint64_t)dev.blocks * FS_BLOCK;
	if (r < 0 || dev.blocks == 0)
		return r;
	r = hold(k->m, &dev.root, e);
	if (r < 0)
		return r;
	fd = store_open_idx(s, &dev.root, NULL);
	if (fd >= 0)
		fd_close(fd);
	else
		k->m->new_bytes += *ret_bytes;
	return store_put_blob(s, k->tmpfd, &dev, e);
}

static int publish_layer(struct importing *m, int tmpfd, struct fstree *tree,
			 struct layer *layer, struct digest *ret, struct err *e)
{
	int r;

	if (layer->at) {
		r = fstree_rebase(tree, layer->at, e);
		if (r < 0)
			return r;
	}
	r = store_put_layer(m->store, tmpfd, tree, layer, ret, e);
	return r < 0 ? r : hold(m, ret, e);
}

static int making_end(struct making *k, struct layer *layer, struct digest *ret,
		      struct err *e)
{
	int r;

	r = publish_blob(k, &layer->new_bytes, e);
	if (r < 0)
		return r;
	return publish_layer(k->m, k->tmpfd, k->tree, layer, ret, e);
}

static int fill_tar(struct making *k, struct source *s, unsigned flags,
		    struct err *e)
{
	struct import x = {.tree = k->tree,
			   .blob = k->blob,
			   .flags = flags,
			   .progress = tell,
			   .arg = k};
	int r;

	k->s = s;
	/* Also what has no files in it, and what comes after them. */
	source_watch(s, tell, k);
	r = import_tar(&x, source_read, source_skip, s, e);
	take_counts(k->m, &x);
	return r;
}

int importing_tar(struct importing *m, struct source *s, unsigned flags,
		  struct layer *layer, struct digest *ret, struct err *e)
{
	struct making k;
	int r;

	r = making_start(&k, m, e);
	k.what = "read the archive";
	k.total = source_size(s);
	if (r == 0)
		r = fill_tar(&k, s, flags, e);
	if (r == 0)
		r = source_end(s, e);
	source_watch(s, NULL, NULL);
	if (r == 0)
		r = making_end(&k, layer, ret, e);
	making_done(&k);
	return r;
}

int importing_dir(struct importing *m, int dirfd, struct layer *layer,
		  struct digest *ret, struct err *e)
{
	struct making k;
	int r;

	r = making_start(&k, m, e);
	k.what = "read the directory";
	if (r == 0) {
		struct import x = {.tree = k.tree,
				   .blob = k.blob,
				   .exclude = m->exclude,
				   .nexclude = m->nexclude,
				   .progress = tell,
				   .arg = &k};

		r = import_dir(&x, dirfd, e);
		take_counts(m, &x);
	}
	if (r == 0)
		r = making_end(&k, layer, ret, e);
	making_done(&k);
	return r;
}

/* --- images of several layers ------------------------------------------------
 */

/*
 * What a layer becomes depends on its bytes, on our way of reading them and on
 * the dictionaries, so all of that is its key.
 */
static int key_of(const struct importing *m, const struct digest *diff_id,
		  struct digest *ret, struct err *e)
{
	static const char form[] = "oci layer 1\n";
	auto_sha256 struct sha256 *h = sha256_new();

	if (!h)
		return err_sys(e, ENOMEM, "import");
	sha256_add(h, form, sizeof(form));
	sha256_add(h, diff_id->b, DIGEST_LEN);
	for (size_t i = 0; i < m->ndict; i++)
		sha256_add(h, m->dict_layers[i].b, DIGEST_LEN);
	sha256_end(h, ret);
	return 0;
}

/* 1: the store had it, whole. */
static int cached_layer(struct importing *m, const struct digest *key,
			struct layer *ret_layer, struct fstree **ret_tree,
			struct err *e)
{
	struct digest digest;
	int r;

	r = store_source_get(m->store, key, &digest, e);
	if (r <= 0)
		return r;
	r = hold(m, &digest, e);
	if (r == 0)
		r = store_layer_checked(m->store, &digest, ret_layer, e);
	if (r == 0)
		r = store_tree(m->store, ret_layer, ret_tree, e);
	if (r == 0)
		return 1;
	layer_done(ret_layer);
	/* Pruned before we held it, or damaged: it is made anew, and what is
	 * damaged replaced. */
	return r == -ENOENT || r == -EBADMSG ? 0 : r;
}

static int layer_source(const struct oci_layer *l, struct layer *layer,
			struct err *e)
{
	char hex[DIGEST_HEX + 1];
	int r;

	layer->kind = LAYER_BASE;
	r = json_pack_or(&layer->config, e, "{}");
	if (r < 0)
		return r;
	return json_pack_or(&layer->source, e, "{s:s, s:s}", "type",
			    "oci-layer", "digest",
			    digest_hex(&l->diff_id, hex));
}

/* Its stream is checked to the end before anything is published. */
static int read_layer(struct making *k, struct oci_files *f,
		      const struct oci_layer *l, struct layer *layer,
		      const struct digest *key, struct err *e)
{
	auto_source struct source *s = NULL;
	struct oci_part part = {.fd = -1};
	struct digest digest;
	int r;

	r = oci_layer_open(f, l, &part, &s, e);
	if (r < 0)
		return r;
	k->total = part.len;
	r = fill_tar(k, s, IMPORT_OCI, e);
	if (r == 0)
		r = oci_layer_end(l, s, e);
	fd_close(part.fd);
	if (r == 0)
		r = layer_source(l, layer, e);
	if (r == 0)
		r = making_end(k, layer, &digest, e);
	return r < 0 ? r : store_source_put(k->m->store, key, &digest, e);
}

static int import_layer(struct importing *m, struct oci_files *f,
			const struct oci_layer *l, size_t nth,
			struct layer *layer, struct fstree **ret_tree,
			struct err *e)
{
	struct making k;
	struct digest key;
	char what[32];
	int r;

	r = key_of(m, &l->diff_id, &key, e);
	if (r < 0)
		return r;
	r = cached_layer(m, &key, layer, ret_tree, e);
	if (r != 0) {
		m->cached += r > 0;
		return r < 0 ? r : 0;
	}
	snprintf(what, sizeof(what), "read layer %zu", nth + 1);
	r = making_start(&k, m, e);
	k.what = what;
	if (r == 0)
		r = read_layer(&k, f, l, layer, &key, e);
	if (r == 0) {
		*ret_tree = steal_ptr(k.tree);
		m->made++;
	}
	making_done(&k);
	return r;
}

/* The limits of a tree hold for each layer; they are all in memory here. */
static int check_sum(const struct fstree *t, const struct fstree *upper,
		     struct err *e)
{
	if (fstree_made(t) + fstree_made(upper) <= IMPORT_NODES_MAX &&
	    fstree_bytes(t) + fstree_bytes(upper) <= IMPORT_BYTES_MAX)
		return 0;
	return err_set(e, -EFBIG, "too_large",
		       "the image's layers have more than %u entries, or %u "
		       "MiB of names and attributes",
		       IMPORT_NODES_MAX, (unsigned)(IMPORT_BYTES_MAX >> 20));
}

/* The layers of an image one over the other, as a root has them. */
static int merge_layers(struct importing *m, struct oci_files *f,
			const struct oci_image *img, struct fstree *tree,
			uint64_t *ret_bytes, struct err *e)
{
	int r = 0;

	*ret_bytes = 0;
	for (size_t i = 0; i < img->nlayers && r == 0; i++) {
		auto_fstree struct fstree *upper = NULL;
		auto_layer struct layer l = {0};

		r = import_layer(m, f, &img->layers[i], i, &l, &upper, e);
		if (r < 0)
			return r == -ECANCELED || r == -ETIMEDOUT
				       ? r
				       : err_wrap(e, r, "layer %zu", i + 1);
		*ret_bytes += l.new_bytes;
		r = check_sum(tree, upper, e);
		if (r < 0)
			return r;
		r = fstree_merge(tree, upper, true, e);
		if (r == -E2BIG)
			return err_set(e, r, "unsupported",
				       "the image's layers lie in more than "
				       "%d blobs",
				       FS_DEVICES_MAX);
	}
	return r;
}

int importing_oci(struct importing *m, struct oci_files *f,
		  const struct oci_image *img, struct layer *layer,
		  struct digest *ret, struct err *e)
{
	auto_fstree struct fstree *tree = fstree_new();
	int r;

	if (!tree)
		return err_sys(e, ENOMEM, "import");
	r = merge_layers(m, f, img, tree, &layer->new_bytes, e);
	if (r == 0)
		fstree_trim_devices(tree);
	return r < 0 ? r : publish_layer(m, m->tmpfd, tree, layer, ret, e);
}
