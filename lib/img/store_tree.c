/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/erofs.h"
#include "img/sha256.h"
#include "img/store_priv.h"

static int damaged(struct err *e, const struct digest *d, const char *what)
{
	char hex[DIGEST_HEX + 1];

	return err_set(e, -EBADMSG, "image_damaged", "metadata sha256:%s: %s",
		       digest_hex(d, hex), what);
}

/* Into memory: a file of a shared store may change under a mapping. */
static int read_meta(int fd, const struct layer *l, void **ret, struct err *e)
{
	auto_free char *data = NULL;
	size_t len = (size_t)l->meta_bytes, got = 0;
	struct stat st;
	ssize_t n;

	if (fstat(fd, &st) < 0)
		return err_sys(e, errno, "metadata");
	/* Before the memory is taken: the length is a manifest's word. */
	if (st.st_size < 0 || (uint64_t)st.st_size != l->meta_bytes)
		return damaged(e, &l->meta, "of another length");
	data = malloc(len + 1);
	if (!data)
		return err_sys(e, ENOMEM, "metadata of %zu bytes", len);
	while (got < len) {
		n = read(fd, data + got, len - got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read metadata");
		if (n == 0)
			return damaged(e, &l->meta, "cut short");
		got += (size_t)n;
	}
	*ret = steal_ptr(data);
	return 0;
}

static bool same_devices(struct fstree *t, const struct layer *l)
{
	if (fstree_ndevices(t) != l->ndevices)
		return false;
	for (size_t i = 0; i < l->ndevices; i++) {
		const struct fsdevice *d = fstree_device_at(t,
							    (uint16_t)(i + 1));

		if (!digest_eq(&d->root, &l->devices[i].root) ||
		    d->blocks != l->devices[i].blocks)
			return false;
	}
	return true;
}

int store_tree(const struct store *s, const struct layer *layer,
	       struct fstree **ret, struct err *e)
{
	auto_fstree struct fstree *t = NULL;
	auto_free void *data = NULL;
	auto_close int fd = -1;
	struct digest d;
	int r;

	fd = store_open_meta(s, &layer->meta, e);
	if (fd < 0)
		return fd == -ENOENT ? damaged(e, &layer->meta, "not there")
				     : fd;
	r = read_meta(fd, layer, &data, e);
	if (r < 0)
		return r;
	if (sha256_of(data, (size_t)layer->meta_bytes, &d) < 0)
		return err_sys(e, ENOMEM, "metadata");
	if (!digest_eq(&d, &layer->meta))
		return damaged(e, &layer->meta, "not what its name says");
	r = erofs_read(data, (size_t)layer->meta_bytes, &t, e);
	if (r < 0)
		return r;
	if (!same_devices(t, layer))
		return damaged(e, &layer->meta,
			       "its devices are not the manifest's");
	*ret = steal_ptr(t);
	return 0;
}
