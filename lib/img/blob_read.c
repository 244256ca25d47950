/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/blob.h"

struct blob_reader {
	struct fstree *tree;
	blob_open_fn *open;
	void *arg;
	int fds[FS_DEVICES_MAX + 1]; /* by device; -1: not open */
};

struct blob_reader *blob_reader_new(struct fstree *t, blob_open_fn *open_blob,
				    void *arg)
{
	struct blob_reader *r = malloc(sizeof(*r));

	if (!r)
		return NULL;
	r->tree = t;
	r->open = open_blob;
	r->arg = arg;
	for (size_t i = 0; i < array_len(r->fds); i++)
		r->fds[i] = -1;
	return r;
}

void blob_reader_free(struct blob_reader *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < array_len(r->fds); i++)
		if (r->fds[i] >= 0)
			fd_close(r->fds[i]);
	free(r);
}

static int reader_fd(struct blob_reader *r, uint16_t device, struct err *e)
{
	int fd;

	if (device < 1 || device > fstree_ndevices(r->tree) ||
	    device >= array_len(r->fds))
		return err_set(e, -EBADMSG, "image_damaged",
			       "a chunk of device %u, which is not there",
			       device);
	if (r->fds[device] >= 0)
		return r->fds[device];
	fd = r->open(r->arg, &fstree_device_at(r->tree, device)->root, e);
	if (fd >= 0)
		r->fds[device] = fd;
	return fd;
}

/* ${len} bytes from ${in} of one chunk. */
static int read_chunk(struct blob_reader *r, const struct fschunk *c,
		      uint64_t in, char *data, size_t len, struct err *e)
{
	size_t got = 0;
	ssize_t n;
	int fd;

	if (c->block == FS_HOLE) {
		memset(data, 0, len);
		return 0;
	}
	fd = reader_fd(r, c->device, e);
	if (fd < 0)
		return fd;
	while (got < len) {
		n = pread(fd, data + got, len - got,
			  (off_t)((uint64_t)c->block * FS_BLOCK + in + got));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read a blob");
		if (n == 0)
			return err_set(e, -EBADMSG, "image_damaged",
				       "a blob ends before a chunk at block %u",
				       c->block);
		got += (size_t)n;
	}
	return 0;
}

ssize_t blob_reader_read(struct blob_reader *r, const struct fsnode *n,
			 uint64_t off, void *data, size_t len, struct err *e)
{
	size_t done = 0;
	int rc;

	if (off >= n->size)
		return 0;
	if (len > n->size - off)
		len = (size_t)(n->size - off);
	while (done < len) {
		uint64_t in = (off + done) % FS_CHUNK;
		uint64_t i = (off + done) / FS_CHUNK;
		size_t part = FS_CHUNK - (size_t)in;

		if (part > len - done)
			part = len - done;
		if (i >= n->nchunks)
			return err_set(e, -EBADMSG, "image_damaged",
				       "a file of %llu bytes in %zu chunks",
				       (unsigned long long)n->size, n->nchunks);
		rc = read_chunk(r, &n->chunks[i], in, (char *)data + done, part,
				e);
		if (rc < 0)
			return rc;
		done += part;
	}
	return (ssize_t)done;
}
