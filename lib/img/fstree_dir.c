/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "img/fstree_priv.h"

#define FS_GONE	  UINT32_MAX
#define SCAN_MAX  12 /* names that are looked through without a table */
#define SLOTS_MIN 32

int fsnode_opendir(struct fstree *t, struct fsnode *n)
{
	n->dir = calloc(1, sizeof(*n->dir));
	if (!n->dir)
		return -ENOMEM;
	n->dir->seed = t->seed;
	n->dir->sorted = true;
	n->nlink = 2;
	return 0;
}

void fsdir_free(struct fsdir *d)
{
	if (!d)
		return;
	free(d->ents);
	free(d->slots);
	free(d);
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	unsigned __int128 x = (unsigned __int128)a * b;

	return (uint64_t)x ^ (uint64_t)(x >> 64);
}

static uint64_t name_hash(uint64_t seed, const char *name, size_t len)
{
	uint64_t h = seed ^ len, w;

	while (len >= 8) {
		memcpy(&w, name, 8);
		h = mix(h ^ w, 0x9e3779b97f4a7c15U);
		name += 8;
		len -= 8;
	}
	w = 0;
	memcpy(&w, name, len);
	return mix(mix(h ^ w, 0x9e3779b97f4a7c15U), seed | 1);
}

static void slot_put(struct fsdir *d, uint32_t i)
{
	const char *name = d->ents[i].name;
	uint32_t at = (uint32_t)name_hash(d->seed, name, strlen(name));

	while (d->slots[at & (d->nslots - 1)])
		at++;
	d->slots[at & (d->nslots - 1)] = i + 1;
	d->nused++;
}

static void table_drop(struct fsdir *d)
{
	free(d->slots);
	d->slots = NULL;
	d->nslots = 0;
	d->nused = 0;
}

/* Without memory there is no table, and names are looked through. */
static void table_make(struct fsdir *d)
{
	uint32_t nslots = SLOTS_MIN;

	table_drop(d);
	while (nslots < d->n * 2 + 2)
		nslots *= 2;
	d->slots = calloc(nslots, sizeof(*d->slots));
	if (!d->slots)
		return;
	d->nslots = nslots;
	for (uint32_t i = 0; i < d->n; i++)
		slot_put(d, i);
}

static bool is_name(const struct fsdirent *ent, const char *name, size_t len)
{
	return strncmp(ent->name, name, len) == 0 && ent->name[len] == '\0';
}

/* The slot that holds ${name}; there is a table. */
static uint32_t *slot_find(struct fsdir *d, const char *name, size_t len)
{
	uint32_t at = (uint32_t)name_hash(d->seed, name, len);

	for (;; at++) {
		uint32_t *s = &d->slots[at & (d->nslots - 1)];

		if (*s == 0)
			return NULL;
		if (*s != FS_GONE && is_name(&d->ents[*s - 1], name, len))
			return s;
	}
}

ssize_t fsdir_lookup(struct fsnode *dir, const char *name, size_t len)
{
	struct fsdir *d = dir->dir;

	if (!d->slots && d->n > SCAN_MAX)
		table_make(d);
	if (d->slots) {
		const uint32_t *s = slot_find(d, name, len);

		return s ? (ssize_t)*s - 1 : -1;
	}
	for (uint32_t i = 0; i < d->n; i++) {
		if (is_name(&d->ents[i], name, len))
			return i;
	}
	return -1;
}

struct fsnode *fsdir_get(struct fsnode *dir, const char *name, size_t len)
{
	ssize_t i = dir->dir ? fsdir_lookup(dir, name, len) : -1;

	return i < 0 ? NULL : dir->dir->ents[i].node;
}

static void name_gained(struct fsnode *dir, struct fsnode *n)
{
	if (S_ISDIR(n->mode)) {
		n->dir->parent = dir;
		dir->nlink++;
	} else {
		n->nlink++;
	}
}

static void name_lost(struct fsnode *dir, struct fsnode *n)
{
	if (S_ISDIR(n->mode))
		dir->nlink--;
	else
		n->nlink--;
}

static int ents_reserve(struct fsdir *d)
{
	struct fsdirent *p;
	uint32_t cap = d->cap ? d->cap * 2 : 4;

	if (d->n < d->cap)
		return 0;
	if (d->n >= UINT32_MAX / 8)
		return -ENOMEM;
	p = reallocarray(d->ents, cap, sizeof(*p));
	if (!p)
		return -ENOMEM;
	d->ents = p;
	d->cap = cap;
	return 0;
}

int fsdir_add(struct fsnode *dir, char *name, struct fsnode *n)
{
	struct fsdir *d = dir->dir;

	if (ents_reserve(d) < 0)
		return -ENOMEM;
	if (d->sorted && d->n > 0)
		d->sorted = strcmp(d->ents[d->n - 1].name, name) < 0;
	d->ents[d->n++] = (struct fsdirent){name, n};
	if (d->slots && (d->nused + 1) * 4 > d->nslots * 3)
		table_make(d);
	else if (d->slots)
		slot_put(d, d->n - 1);
	name_gained(dir, n);
	return 0;
}

struct fsnode *fsdir_replace(struct fsnode *dir, size_t i, struct fsnode *n)
{
	struct fsnode *old = dir->dir->ents[i].node;

	dir->dir->ents[i].node = n;
	name_gained(dir, n);
	name_lost(dir, old);
	return old;
}

/* What the table has for entry ${i} becomes ${slot}. */
static void slot_set(struct fsdir *d, size_t i, uint32_t slot)
{
	const char *name = d->ents[i].name;
	uint32_t *s;

	if (!d->slots)
		return;
	s = slot_find(d, name, strlen(name));
	assert(s);
	*s = slot;
}

struct fsnode *fsdir_drop(struct fsnode *dir, size_t i)
{
	struct fsdir *d = dir->dir;
	struct fsnode *n = d->ents[i].node;
	uint32_t last = d->n - 1;

	slot_set(d, i, FS_GONE);
	if (i != last) {
		slot_set(d, last, (uint32_t)i + 1);
		d->ents[i] = d->ents[last];
		d->sorted = false;
	}
	d->n = last;
	name_lost(dir, n);
	return n;
}

void fs_forget(struct fstree *t, struct fsnode *n)
{
	if (S_ISDIR(n->mode)) {
		fstree_clear_dir(t, n);
		n->nlink = 0;
	}
	if (n->nlink == 0)
		t->count--;
}

/* The last name in ${d} is that of a directory which is empty. */
static void drop_empty(struct fstree *t, struct fsnode *d)
{
	struct fsnode *n = d->dir->ents[--d->dir->n].node;

	d->nlink--;
	n->nlink = 0;
	t->count--;
}

void fstree_clear_dir(struct fstree *t, struct fsnode *dir)
{
	struct fsnode *d = dir;

	for (;;) {
		struct fsnode *n;

		table_drop(d->dir);
		while (d->dir->n > 0) {
			n = d->dir->ents[d->dir->n - 1].node;
			if (S_ISDIR(n->mode))
				break;
			d->dir->n--;
			if (--n->nlink == 0)
				t->count--;
		}
		if (d->dir->n > 0) {
			d = d->dir->ents[d->dir->n - 1].node;
			continue;
		}
		d->dir->sorted = true;
		if (d == dir)
			return;
		d = d->dir->parent;
		drop_empty(t, d);
	}
}

void fsdir_strip(struct fstree *t, struct fsnode *dir)
{
	struct fsdir *d = dir->dir;
	uint32_t kept = 0;

	for (uint32_t i = 0; i < d->n; i++) {
		struct fsnode *n = d->ents[i].node;

		if (!fsnode_is_whiteout(n))
			d->ents[kept++] = d->ents[i];
		else if (--n->nlink == 0)
			t->count--;
	}
	if (kept == d->n)
		return;
	d->n = kept;
	table_drop(d);
}

static int by_name(const void *a, const void *b)
{
	const struct fsdirent *x = a, *y = b;

	return strcmp(x->name, y->name);
}

void fsdir_sort(struct fsnode *dir)
{
	struct fsdir *d = dir->dir;

	if (d->sorted)
		return;
	qsort(d->ents, d->n, sizeof(*d->ents), by_name);
	d->sorted = true;
	if (d->slots)
		table_make(d);
}

size_t fsdir_count(struct fsnode *dir)
{
	if (!dir->dir)
		return 0;
	fsdir_sort(dir);
	return dir->dir->n;
}

const struct fsdirent *fsdir_at(const struct fsnode *dir, size_t i)
{
	assert(dir->dir->sorted && i < dir->dir->n);
	return &dir->dir->ents[i];
}

/* --- walking ------------------------------------------------------------ */

/* A directory being walked: the next name, and the path's length before it. */
struct level {
	struct fsnode *dir;
	size_t next, len;
};

static int level_push(struct buf *levels, struct fsnode *dir, size_t len)
{
	struct level l = {dir, 0, len};

	if (fsdir_count(dir) == 0)
		return 0;
	return buf_add(levels, &l, sizeof(l));
}

/* One name: path, callback, and down into a directory. */
static int walk_name(struct level *l, struct buf *levels, struct buf *path,
		     fstree_fn *fn, void *arg, struct err *e)
{
	const struct fsdirent *ent = fsdir_at(l->dir, l->next++);
	int r;

	path->len = l->len;
	if ((l->len && buf_add(path, "/", 1) < 0) ||
	    buf_add(path, ent->name, strlen(ent->name)) < 0)
		return err_sys(e, ENOMEM, "walk a tree");
	r = fn(arg, path->data, ent->node, e);
	if (r != 0)
		return r;
	if (level_push(levels, ent->node, path->len) < 0)
		return err_sys(e, ENOMEM, "walk a tree");
	return 0;
}

int fstree_walk(struct fstree *t, fstree_fn *fn, void *arg, struct err *e)
{
	auto_buf struct buf levels = {0};
	auto_buf struct buf path = {0};
	int r = fn(arg, "", t->root, e);

	if (r == 0 && level_push(&levels, t->root, 0) < 0)
		r = err_sys(e, ENOMEM, "walk a tree");
	while (r == 0 && levels.len > 0) {
		struct level *l = (struct level *)(void *)(levels.data +
							   levels.len) -
				  1;

		if (l->next == l->dir->dir->n)
			levels.len -= sizeof(*l);
		else
			r = walk_name(l, &levels, &path, fn, arg, e);
	}
	return r;
}
