/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "img/fstree_priv.h"

/* A tree takes memory in pieces: small ones, then those of a large page. */
#define PIECE	  (32U * 1024)
#define PIECE_BIG (2U * 1024 * 1024)
#define SMALL_MAX 1000 /* nodes */

void fs_huge(void *p, size_t len)
{
	uintptr_t from = ((uintptr_t)p + PIECE_BIG - 1) & -(uintptr_t)PIECE_BIG;
	uintptr_t to = ((uintptr_t)p + len) & -(uintptr_t)PIECE_BIG;

	if (from < to)
		madvise((void *)from, to - from, MADV_HUGEPAGE);
}

/* A piece of *${ret_len} bytes; it is free()d. */
static void *piece(const struct fstree *t, size_t *ret_len)
{
	void *p;

	*ret_len = t->count < SMALL_MAX ? PIECE : PIECE_BIG;
	if (*ret_len == PIECE)
		return malloc(PIECE);
	p = aligned_alloc(PIECE_BIG, PIECE_BIG);
	if (p)
		fs_huge(p, PIECE_BIG);
	return p;
}

void *fs_alloc(struct fstree *t, size_t len, size_t align)
{
	struct fs_block *b = t->blocks;
	size_t at = b ? (b->used + align - 1) / align * align : 0, cap;

	if (b && at <= b->cap && len <= b->cap - at) {
		b->used = at + len;
		return b->data + at;
	}
	if (len > SIZE_MAX / 2)
		return NULL;
	if (len > PIECE / 4) {
		/* What is large has a block to itself, behind the open one. */
		b = malloc(sizeof(*b) + len);
		if (!b)
			return NULL;
		b->cap = len;
		b->next = t->blocks ? t->blocks->next : NULL;
		*(t->blocks ? &t->blocks->next : &t->blocks) = b;
	} else {
		b = piece(t, &cap);
		if (!b)
			return NULL;
		b->cap = cap - sizeof(*b);
		b->next = t->blocks;
		t->blocks = b;
	}
	b->used = len;
	return b->data;
}

char *fs_strndup(struct fstree *t, const char *s, size_t len)
{
	char *p = fs_alloc(t, len + 1, 1);

	if (!p)
		return NULL;
	memcpy(p, s, len);
	p[len] = '\0';
	return p;
}

struct fsnode *fsnode_new(struct fstree *t)
{
	struct fs_slab *s = t->slabs;
	struct fsnode *n;
	size_t len;

	if (!s || s->n == s->cap) {
		s = piece(t, &len);
		if (!s)
			return NULL;
		s->n = 0;
		s->cap = (len - sizeof(*s)) / sizeof(*n);
		s->next = t->slabs;
		t->slabs = s;
	}
	n = &s->nodes[s->n++];
	memset(n, 0, sizeof(*n));
	t->count++;
	t->made++;
	return n;
}

struct fstree *fstree_new(void)
{
	struct fstree *t = calloc(1, sizeof(*t));

	if (!t)
		return NULL;
	if (getrandom(&t->seed, sizeof(t->seed), GRND_INSECURE) < 0)
		t->seed = (uintptr_t)t;
	t->root = fsnode_new(t);
	if (!t->root || fsnode_opendir(t, t->root) < 0) {
		fstree_free(t);
		return NULL;
	}
	fsnode_set_implied(t->root);
	t->root->dir->parent = t->root;
	return t;
}

void fstree_free(struct fstree *t)
{
	if (!t)
		return;
	for (struct fs_slab *s = t->slabs, *next; s; s = next) {
		next = s->next;
		for (size_t i = 0; i < s->n; i++)
			fsdir_free(s->nodes[i].dir);
		free(s);
	}
	for (struct fs_block *b = t->blocks, *next; b; b = next) {
		next = b->next;
		free(b);
	}
	free(t);
}

struct fsnode *fstree_root(struct fstree *t)
{
	return t->root;
}

size_t fstree_count(const struct fstree *t)
{
	return t->count;
}

size_t fstree_made(const struct fstree *t)
{
	return t->made;
}

uint64_t fstree_bytes(const struct fstree *t)
{
	uint64_t sum = (uint64_t)t->made * sizeof(struct fsnode);

	for (const struct fs_block *b = t->blocks; b; b = b->next)
		sum += b->used;
	return sum;
}

/* --- devices ----------------------------------------------------------- */

int fstree_device(struct fstree *t, const struct fsdevice *dev,
		  uint16_t *ret_index, struct err *e)
{
	for (size_t i = 0; i < t->ndevices; i++) {
		struct fsdevice *d = &t->devices[i];

		if (!digest_eq(&d->root, &dev->root))
			continue;
		if (d->blocks != dev->blocks)
			return err_set(e, -EINVAL, "image_damaged",
				       "a blob of %u and of %u blocks",
				       d->blocks, dev->blocks);
		*ret_index = (uint16_t)(i + 1);
		return 0;
	}
	if (t->ndevices == FS_DEVICES_MAX)
		return err_set(e, -E2BIG, "unsupported",
			       "data in more than %d blobs", FS_DEVICES_MAX);
	t->devices[t->ndevices++] = *dev;
	*ret_index = (uint16_t)t->ndevices;
	return 0;
}

size_t fstree_ndevices(const struct fstree *t)
{
	return t->ndevices;
}

struct fsdevice *fstree_device_at(struct fstree *t, uint16_t index)
{
	assert(index >= 1 && index <= t->ndevices);
	return &t->devices[index - 1];
}

static void count_uses(struct fstree *t, uint16_t *used)
{
	for (struct fs_slab *s = t->slabs; s; s = s->next) {
		for (size_t i = 0; i < s->n; i++) {
			const struct fsnode *n = &s->nodes[i];

			for (size_t k = 0; n->nlink && k < n->nchunks; k++) {
				if (n->chunks[k].block != FS_HOLE)
					used[n->chunks[k].device] = 1;
			}
		}
	}
}

void fstree_trim_devices(struct fstree *t)
{
	uint16_t map[FS_DEVICES_MAX + 1] = {0};
	size_t ndevices = 0;

	count_uses(t, map);
	for (size_t i = 1; i <= t->ndevices; i++) {
		if (!map[i])
			continue;
		t->devices[ndevices] = t->devices[i - 1];
		map[i] = (uint16_t)++ndevices;
	}
	if (ndevices == t->ndevices)
		return;
	t->ndevices = ndevices;
	for (struct fs_slab *s = t->slabs; s; s = s->next) {
		for (size_t i = 0; i < s->n; i++) {
			struct fsnode *n = &s->nodes[i];

			for (size_t k = 0; k < n->nchunks; k++)
				n->chunks[k].device = map[n->chunks[k].device];
		}
	}
}

/* --- nodes ------------------------------------------------------------- */

void fsnode_set_implied(struct fsnode *n)
{
	n->mode = S_IFDIR | 0755;
	n->uid = 0;
	n->gid = 0;
	n->mtime = FS_IMPLIED_MTIME;
	n->implied = true;
}

bool fsnode_looks_implied(const struct fsnode *n)
{
	return n->mode == (S_IFDIR | 0755) && n->uid == 0 && n->gid == 0 &&
	       n->mtime.tv_sec == 0 && n->mtime.tv_nsec == 1;
}

/* The number of ${name} among the attributes, or where it would be. */
static size_t xattr_place(const struct fsnode *n, const char *name,
			  bool *ret_there)
{
	size_t lo = 0, hi = n->nxattrs;

	*ret_there = false;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int c = strcmp(n->xattrs[mid].name, name);

		if (c == 0) {
			*ret_there = true;
			return mid;
		}
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* An array grows at each power of two, so it needs no capacity. */
static void *grown(struct fstree *t, void *old, size_t n, size_t size)
{
	void *p;

	if (n & (n - 1))
		return old;
	p = fs_alloc(t, (n ? 2 * n : 1) * size, 8);
	if (p && n)
		memcpy(p, old, n * size);
	return p;
}

int fsnode_set_xattr(struct fstree *t, struct fsnode *n, const char *name,
		     const void *value, size_t len)
{
	bool there;
	size_t i = xattr_place(n, name, &there);
	char *copy = fs_strndup(t, value ? value : "", value ? len : 0);
	struct fsxattr *xs;

	if (!copy)
		return -ENOMEM;
	if (!there) {
		char *own = fs_strndup(t, name, strlen(name));

		xs = grown(t, n->xattrs, n->nxattrs, sizeof(*xs));
		if (!own || !xs)
			return -ENOMEM;
		memmove(xs + i + 1, xs + i, (n->nxattrs - i) * sizeof(*xs));
		n->xattrs = xs;
		n->nxattrs++;
		xs[i].name = own;
	}
	n->xattrs[i].value = copy;
	n->xattrs[i].len = len;
	return 0;
}

void fsnode_drop_xattr(struct fsnode *n, const char *name)
{
	bool there;
	size_t i = xattr_place(n, name, &there);

	if (!there)
		return;
	n->nxattrs--;
	memmove(n->xattrs + i, n->xattrs + i + 1,
		(n->nxattrs - i) * sizeof(*n->xattrs));
}

const struct fsxattr *fsnode_xattr(const struct fsnode *n, const char *name)
{
	bool there;
	size_t i = xattr_place(n, name, &there);

	return there ? &n->xattrs[i] : NULL;
}

int fsnode_add_chunk(struct fstree *t, struct fsnode *n,
		     const struct fschunk *chunk)
{
	struct fschunk *cs = grown(t, n->chunks, n->nchunks, sizeof(*cs));

	if (!cs)
		return -ENOMEM;
	cs[n->nchunks++] = *chunk;
	n->chunks = cs;
	return 0;
}

bool fsnode_is_whiteout(const struct fsnode *n)
{
	return S_ISCHR(n->mode) && n->rdev == makedev(0, 0);
}

bool fsnode_is_opaque(const struct fsnode *n)
{
	const struct fsxattr *x;

	if (!S_ISDIR(n->mode) || n->nxattrs == 0)
		return false;
	x = fsnode_xattr(n, FS_OPAQUE);
	return x && x->len == 1 && *(const char *)x->value == 'y';
}
