/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "img/import_priv.h"
#include "wire/acl.h"

#define OVERLAY "trusted.overlay."

int filling_init(struct filling *f, struct import *x, struct err *e)
{
	memset(f, 0, sizeof(*f));
	f->x = x;
	f->chunk = malloc(FS_CHUNK);
	return f->chunk ? 0 : err_sys(e, ENOMEM, "import");
}

void filling_done(struct filling *f)
{
	free(f->chunk);
	memset(f, 0, sizeof(*f));
}

void filling_start(struct filling *f, struct fsnode *node)
{
	f->node = node;
	f->base = 0;
	f->have = 0;
}

/* Bytes of the chunk at hand when it is full. */
static size_t chunk_len(const struct filling *f)
{
	uint64_t left = f->node->size - f->base;

	return left < FS_CHUNK ? (size_t)left : FS_CHUNK;
}

static int enter(struct filling *f, const void *data, struct err *e)
{
	struct fschunk c = {.block = FS_HOLE};
	size_t len = chunk_len(f);
	int r = 0;

	if (data)
		r = blob_add(f->x->blob, data, len, &c, e);
	else if (f->holes++ >= IMPORT_HOLES_MAX)
		return err_set(e, -EFBIG, "too_large",
			       "sparse files have more than %u MiB of holes",
			       IMPORT_HOLES_MAX);
	if (r < 0)
		return r;
	if (fsnode_add_chunk(f->x->tree, f->node, &c) < 0)
		return err_sys(e, ENOMEM, "import");
	f->base += len;
	f->have = 0;
	return 0;
}

/* What is there of the chunk, with zeros up to its end. */
static int close_chunk(struct filling *f, struct err *e)
{
	size_t len = chunk_len(f);

	if (f->have == 0)
		return enter(f, NULL, e);
	memset(f->chunk + f->have, 0, len - f->have);
	return enter(f, f->chunk, e);
}

int filling_add(struct filling *f, uint64_t off, const void *data, size_t len,
		struct err *e)
{
	const char *p = data;
	int r = 0;

	while (len > 0 && r == 0) {
		size_t in, n, full;

		while (off - f->base >= FS_CHUNK) {
			r = close_chunk(f, e);
			if (r < 0)
				return r;
		}
		in = (size_t)(off - f->base);
		full = chunk_len(f);
		n = len < full - in ? len : full - in;
		if (in == 0 && n == full) {
			r = enter(f, p, e);
		} else {
			memset(f->chunk + f->have, 0, in - f->have);
			memcpy(f->chunk + in, p, n);
			f->have = in + n;
			if (f->have == full)
				r = enter(f, f->chunk, e);
		}
		p += n;
		off += n;
		len -= n;
	}
	return r;
}

int filling_end(struct filling *f, struct err *e)
{
	int r = 0;

	while (r == 0 && f->base < f->node->size)
		r = close_chunk(f, e);
	return r;
}

/* Is it one of those a file of Linux may have? */
static bool known_xattr(const char *name)
{
	static const char *const prefixes[] = {"user.", "trusted.",
					       "security."};

	for (size_t i = 0; i < array_len(prefixes); i++) {
		size_t n = strlen(prefixes[i]);

		if (!strncmp(name, prefixes[i], n))
			return name[n] != '\0';
	}
	return !strcmp(name, ACL_XATTR_ACCESS) ||
	       !strcmp(name, ACL_XATTR_DEFAULT);
}

static size_t xattr_bytes(const struct fsnode *n)
{
	size_t sum = 0;

	for (size_t i = 0; i < n->nxattrs; i++)
		sum += n->xattrs[i].len;
	return sum;
}

static int room(uint64_t n, struct err *e)
{
	if (n < IMPORT_NODES_MAX)
		return 0;
	return err_set(e, -EFBIG, "too_large", "more than %u entries",
		       IMPORT_NODES_MAX);
}

int import_nodes(const struct import *x, struct err *e)
{
	return room(fstree_made(x->tree), e);
}

int import_room(const struct import *x, struct err *e)
{
	int r = import_nodes(x, e);

	return r < 0 ? r : room(x->entries, e);
}

int import_text(struct import *x, size_t len, struct err *e)
{
	x->text += len;
	if (x->text <= IMPORT_TEXT_MAX)
		return 0;
	return err_set(e, -EFBIG, "too_large",
		       "attributes, links and whiteouts over %u MiB together",
		       IMPORT_TEXT_MAX >> 20);
}

int import_xattr(struct import *x, struct fsnode *n, const char *name,
		 const void *value, size_t len, struct err *e)
{
	int r;

	if (!known_xattr(name) || strlen(name) > FS_NAME_MAX ||
	    !strncmp(name, OVERLAY, strlen(OVERLAY))) {
		x->dropped.xattrs++;
		return 0;
	}
	if (!strncmp(name, "system.", 7) && acl_check(value, len) < 0)
		return err_set(e, -EBADMSG, "bad_archive", "a damaged ACL");
	if (len > IMPORT_XATTR_MAX || xattr_bytes(n) + len > IMPORT_XATTR_MAX)
		return err_set(e, -EBADMSG, "bad_archive",
			       "more than %u bytes of attributes",
			       IMPORT_XATTR_MAX);
	r = import_text(x, strlen(name) + len, e);
	if (r == 0 && fsnode_set_xattr(x->tree, n, name, value, len) < 0)
		r = err_sys(e, ENOMEM, "import");
	return r;
}

char *import_name(const char *path, char *buf)
{
	size_t n = 0;

	for (; *path && n + 8 < IMPORT_NAME_SIZE; path++) {
		unsigned char c = (unsigned char)*path;

		if (c >= ' ' && c < 0x7f && c != '\\')
			buf[n++] = *path;
		else
			n += (size_t)snprintf(buf + n, IMPORT_NAME_SIZE - n,
					      "\\x%02x", c);
	}
	snprintf(buf + n, IMPORT_NAME_SIZE - n, "%s", *path ? "..." : "");
	return buf;
}
