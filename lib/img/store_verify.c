/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "img/blob.h"
#include "img/sha256.h"
#include "img/store_priv.h"

/* A manifest whose bytes are what ${digest} says. */
static int checked_manifest(const struct store *s, const struct digest *digest,
			    json_t **ret, struct err *e)
{
	auto_free char *text = NULL;
	auto_close int fd = -1;
	struct digest d;
	size_t len;
	int r;

	fd = store_open_kind(s, STORE_MANIFEST, digest, e);
	if (fd == -ENOENT)
		return err_set(e, -ENOENT, "image_unknown",
			       "the store has no such manifest");
	if (fd < 0)
		return fd;
	r = fd_read_all(fd, MANIFEST_MAX, &text, &len, e);
	if (r < 0 && r != -EFBIG)
		return r;
	if (r == 0 && sha256_of(text, len, &d) < 0)
		return err_sys(e, ENOMEM, "manifest");
	if (r < 0 || !digest_eq(&d, digest))
		return err_set(e, -EBADMSG, "image_damaged",
			       "manifest: not what its name says");
	r = json_parse(text, len, ret, e);
	if (r == -EBADMSG && e)
		e->code = "image_damaged";
	return r;
}

int store_layer_checked(const struct store *s, const struct digest *digest,
			struct layer *ret, struct err *e)
{
	auto_json json_t *obj = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	r = checked_manifest(s, digest, &obj, e);
	if (r == 0)
		r = layer_parse(obj, ret, e);
	return r < 0 ? err_wrap(e, r, "layer sha256:%s",
				digest_hex(digest, hex))
		     : 0;
}

static int verify_blob(const struct store *s, const struct fsdevice *dev,
		       bool data, struct err *e)
{
	auto_close int data_fd = -1;
	auto_close int idx_fd = -1;
	int r;

	data_fd = store_open_kind(s, STORE_DATA, &dev->root, e);
	if (data_fd >= 0)
		idx_fd = store_open_idx(s, &dev->root, e);
	if (data_fd < 0 || idx_fd < 0) {
		r = data_fd < 0 ? data_fd : idx_fd;
		if (r == -ENOENT && e)
			e->code = "image_damaged";
		return r == -ENOENT ? -EBADMSG : r;
	}
	r = blob_check(data_fd, idx_fd, dev, e);
	if (r == 0 && data)
		r = blob_verify(data_fd, idx_fd, &dev->root, e);
	return r;
}

static int verify_counts(struct fstree *t, const struct layer *l, struct err *e)
{
	uint64_t bytes;
	int r;

	r = store_tree_bytes(t, &bytes, e);
	if (r < 0)
		return r;
	if (bytes != l->bytes || fstree_count(t) != l->entries)
		return err_set(e, -EBADMSG, "image_damaged",
			       "manifest: its counts are not the metadata's");
	return 0;
}

static int verify_layer(const struct store *s, const json_t *obj, bool data,
			struct err *e)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	auto_fstree struct fstree *t = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	r = layer_parse(obj, &l, e);
	if (r == 0)
		r = store_tree(s, &l, &t, e);
	if (r == 0)
		r = verify_counts(t, &l, e);
	for (size_t i = 0; r == 0 && i < l.ndevices; i++) {
		r = verify_blob(s, &l.devices[i], data, e);
		if (r < 0)
			err_wrap(e, r, "blob %s",
				 digest_hex(&l.devices[i].root, hex));
	}
	return r;
}

static int verify_env(const struct store *s, const json_t *obj, bool data,
		      struct err *e)
{
	auto_env struct env v = {.nlayers = 0};
	char hex[DIGEST_HEX + 1];
	int r;

	r = env_parse(obj, &v, e);
	for (size_t i = 0; r == 0 && i < v.nlayers; i++) {
		auto_json json_t *layer = NULL;

		r = checked_manifest(s, &v.layers[i], &layer, e);
		if (r == 0)
			r = verify_layer(s, layer, data, e);
		if (r < 0)
			err_wrap(e, r, "layer %s",
				 digest_hex(&v.layers[i], hex));
	}
	return r;
}

int store_verify(const struct store *s, const struct digest *digest, bool data,
		 struct err *e)
{
	auto_json json_t *obj = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	r = checked_manifest(s, digest, &obj, e);
	if (r == 0)
		r = manifest_is_env(obj) ? verify_env(s, obj, data, e)
					 : verify_layer(s, obj, data, e);
	return r < 0 ? err_wrap(e, r, "image sha256:%s",
				digest_hex(digest, hex))
		     : 0;
}
