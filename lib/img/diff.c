/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "img/diff.h"

/* A directory of one side or both, half way through. */
struct frame {
	struct fsnode *a, *b; /* either may be NULL */
	size_t na, nb, ia, ib;
	size_t path_len;
};

struct differ {
	struct diff_side a, b;
	diff_fn *fn;
	void *arg;
	/* Index of a device of a among those of b; 0: b does not have it. */
	uint16_t map[FS_DEVICES_MAX + 1];
	struct frame *frames;
	size_t n, cap;
	struct buf path;
	char *data; /* FS_CHUNK bytes for each side */
};

static void map_devices(struct differ *d)
{
	for (size_t i = 1; i <= fstree_ndevices(d->a.tree); i++) {
		const struct fsdevice *da = fstree_device_at(d->a.tree,
							     (uint16_t)i);

		for (size_t k = 1; k <= fstree_ndevices(d->b.tree); k++) {
			const struct fsdevice *db = fstree_device_at(d->b.tree,
								     (uint16_t)
									     k);

			if (digest_eq(&da->root, &db->root))
				d->map[i] = (uint16_t)k;
		}
	}
}

static bool same_place(const struct differ *d, const struct fschunk *a,
		       const struct fschunk *b)
{
	if (a->block == FS_HOLE || b->block == FS_HOLE)
		return a->block == b->block;
	return a->block == b->block && d->map[a->device] == b->device;
}

static int read_side(const struct diff_side *s, const struct fsnode *n,
		     uint64_t off, char *data, size_t len, struct err *e)
{
	ssize_t got = blob_reader_read(s->reader, n, off, data, len, e);

	if (got < 0)
		return (int)got;
	if ((size_t)got != len)
		return err_set(e, -EBADMSG, "image_damaged",
			       "its data ends too early");
	return 0;
}

/* 1: the content differs.  Both have the same size. */
static int content(struct differ *d, const struct fsnode *a,
		   const struct fsnode *b, struct err *e)
{
	for (size_t i = 0; i < a->nchunks && i < b->nchunks; i++) {
		uint64_t off = (uint64_t)i << FS_CHUNK_BITS;
		uint64_t left = a->size - off;
		size_t len = left < FS_CHUNK ? (size_t)left : FS_CHUNK;
		int r;

		if (same_place(d, &a->chunks[i], &b->chunks[i]))
			continue;
		r = read_side(&d->a, a, off, d->data, len, e);
		if (r == 0)
			r = read_side(&d->b, b, off, d->data + FS_CHUNK, len,
				      e);
		if (r < 0)
			return r;
		if (memcmp(d->data, d->data + FS_CHUNK, len) != 0)
			return 1;
	}
	return a->nchunks != b->nchunks;
}

static bool same_xattrs(const struct fsnode *a, const struct fsnode *b)
{
	if (a->nxattrs != b->nxattrs)
		return false;
	for (size_t i = 0; i < a->nxattrs; i++) {
		const struct fsxattr *x = &a->xattrs[i], *y = &b->xattrs[i];

		if (strcmp(x->name, y->name) != 0 || x->len != y->len ||
		    memcmp(x->value, y->value, x->len) != 0)
			return false;
	}
	return true;
}

static unsigned of_type(const struct fsnode *a, const struct fsnode *b)
{
	unsigned what = 0;

	switch (a->mode & S_IFMT) {
	case S_IFREG:
		if (a->size != b->size)
			what |= DIFF_SIZE | DIFF_CONTENT;
		break;
	case S_IFLNK:
		if (strcmp(a->link, b->link) != 0)
			what |= DIFF_TARGET;
		break;
	case S_IFCHR:
	case S_IFBLK:
		if (a->rdev != b->rdev)
			what |= DIFF_DEVICE;
		break;
	default:
		break;
	}
	if (!S_ISDIR(a->mode) && a->nlink != b->nlink)
		what |= DIFF_LINKS;
	return what;
}

static int compare(struct differ *d, const struct fsnode *a,
		   const struct fsnode *b, unsigned *ret, struct err *e)
{
	unsigned what = of_type(a, b);
	int r = 0;

	if (a->mode != b->mode)
		what |= DIFF_MODE;
	if (a->uid != b->uid || a->gid != b->gid)
		what |= DIFF_OWNER;
	if (a->mtime.tv_sec != b->mtime.tv_sec ||
	    a->mtime.tv_nsec != b->mtime.tv_nsec)
		what |= DIFF_MTIME;
	if (!same_xattrs(a, b))
		what |= DIFF_XATTR;
	if (S_ISREG(a->mode) && a->size == b->size)
		r = content(d, a, b, e);
	if (r < 0)
		return err_wrap(e, r, "'%.200s'", d->path.data);
	*ret = what | (r > 0 ? DIFF_CONTENT : 0);
	return 0;
}

static struct fsnode *dir_or_null(struct fsnode *n)
{
	return n && S_ISDIR(n->mode) ? n : NULL;
}

static int push(struct differ *d, struct fsnode *a, struct fsnode *b,
		struct err *e)
{
	struct frame f = {.a = dir_or_null(a),
			  .b = dir_or_null(b),
			  .path_len = d->path.len};

	if (!f.a && !f.b)
		return 0;
	if (d->n == d->cap) {
		size_t cap = d->cap ? d->cap * 2 : 64;
		struct frame *p = realloc(d->frames, cap * sizeof(*p));

		if (!p)
			return err_sys(e, ENOMEM, "diff");
		d->frames = p;
		d->cap = cap;
	}
	f.na = f.a ? fsdir_count(f.a) : 0;
	f.nb = f.b ? fsdir_count(f.b) : 0;
	d->frames[d->n++] = f;
	return 0;
}

/* One name of one side or both: tell, and go into it. */
static int name(struct differ *d, struct fsnode *a, struct fsnode *b,
		struct err *e)
{
	unsigned what = 0;
	int r = 0;

	if (a && b && (a->mode & S_IFMT) != (b->mode & S_IFMT))
		what = DIFF_TYPE;
	else if (a && b)
		r = compare(d, a, b, &what, e);
	if (r == 0 && (!a || !b || what))
		r = d->fn(d->arg, d->path.data, a, b, what, e);
	return r != 0 ? r : push(d, a, b, e);
}

static int set_path(struct differ *d, size_t parent_len, const char *base,
		    struct err *e)
{
	d->path.len = parent_len;
	if ((parent_len && buf_add(&d->path, "/", 1) < 0) ||
	    buf_add(&d->path, base, strlen(base)) < 0)
		return err_sys(e, ENOMEM, "diff");
	return 0;
}

static int step(struct differ *d, struct err *e)
{
	struct frame *f = &d->frames[d->n - 1];
	const struct fsdirent *ea = NULL, *eb = NULL;
	int c, r;

	if (f->ia < f->na)
		ea = fsdir_at(f->a, f->ia);
	if (f->ib < f->nb)
		eb = fsdir_at(f->b, f->ib);
	if (!ea && !eb) {
		d->n--;
		return 0;
	}
	c = !ea ? 1 : !eb ? -1 : strcmp(ea->name, eb->name);
	if (c <= 0)
		f->ia++;
	if (c >= 0)
		f->ib++;
	r = set_path(d, f->path_len, c <= 0 ? ea->name : eb->name, e);
	if (r < 0)
		return r;
	return name(d, c <= 0 ? ea->node : NULL, c >= 0 ? eb->node : NULL, e);
}

int diff_trees(const struct diff_side *a, const struct diff_side *b,
	       diff_fn *fn, void *arg, struct err *e)
{
	struct differ d = {.a = *a, .b = *b, .fn = fn, .arg = arg};
	int r = 0;

	d.data = malloc(2 * (size_t)FS_CHUNK);
	if (!d.data || buf_add(&d.path, "", 0) < 0)
		r = err_sys(e, ENOMEM, "diff");
	map_devices(&d);
	if (r == 0)
		r = name(&d, fstree_root(a->tree), fstree_root(b->tree), e);
	while (r == 0 && d.n > 0)
		r = step(&d, e);
	free(d.data);
	free(d.frames);
	buf_done(&d.path);
	return r;
}

int diff_nodes(const struct diff_side *a, const struct fsnode *na,
	       const struct diff_side *b, const struct fsnode *nb,
	       const char *path, unsigned *ret_what, struct err *e)
{
	struct differ d = {.a = *a, .b = *b};
	int r = 0;

	if ((na->mode & S_IFMT) != (nb->mode & S_IFMT)) {
		*ret_what = DIFF_TYPE;
		return 0;
	}
	d.data = malloc(2 * (size_t)FS_CHUNK);
	if (!d.data || buf_add(&d.path, path, strlen(path)) < 0)
		r = err_sys(e, ENOMEM, "diff");
	map_devices(&d);
	if (r == 0)
		r = compare(&d, na, nb, ret_what, e);
	free(d.data);
	buf_done(&d.path);
	return r;
}
