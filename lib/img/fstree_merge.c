/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "img/fstree_priv.h"

/* Two directories of the same place; or, with ${name}, an implied directory
 * over a link, which is the entry of that name in ${lower}. */
struct pair {
	struct fsnode *lower, *upper;
	const char *name;
};

struct merge {
	struct fstree *t;
	struct buf pairs; /* to be joined; the last is next */
	struct buf links; /* to be joined when all else is in its place */
	struct err *e;
};

static int nomem(const struct merge *m)
{
	return err_sys(m->e, ENOMEM, "merge layers");
}

static int push(const struct merge *m, struct buf *b, struct fsnode *lower,
		struct fsnode *upper, const char *name)
{
	struct pair p = {lower, upper, name};

	return buf_add(b, &p, sizeof(p)) < 0 ? nomem(m) : 0;
}

static int set_opaque(const struct merge *m, struct fsnode *n)
{
	return fsnode_set_xattr(m->t, n, FS_OPAQUE, "y", 1) < 0 ? nomem(m) : 0;
}

/* A directory over one: the upper's attributes; what hid what is below goes on
 * hiding it. */
static int take_attr(const struct merge *m, struct fsnode *l, struct fsnode *u)
{
	bool opaque = fsnode_is_opaque(l);

	if (u->implied)
		return 0;
	l->mode = u->mode;
	l->uid = u->uid;
	l->gid = u->gid;
	l->mtime = u->mtime;
	l->implied = false;
	l->xattrs = u->xattrs;
	l->nxattrs = u->nxattrs;
	u->xattrs = NULL;
	u->nxattrs = 0;
	return opaque ? set_opaque(m, l) : 0;
}

static void replace(const struct merge *m, struct fsnode *dir, size_t i,
		    struct fsnode *n)
{
	fs_forget(m->t, fsdir_replace(dir, i, n));
}

/* One name of the upper over what is at ${i} in the lower. */
static int lay_over(struct merge *m, struct fsnode *dir, size_t i,
		    const struct fsdirent *ent)
{
	struct fsnode *l = dir->dir->ents[i].node, *u = ent->node;
	bool hides = fsnode_is_opaque(u);

	if (S_ISDIR(u->mode) && S_ISDIR(l->mode) && !hides) {
		if (take_attr(m, l, u) < 0)
			return -ENOMEM;
		return push(m, &m->pairs, l, u, NULL);
	}
	if (S_ISDIR(u->mode) && S_ISLNK(l->mode) && u->implied && !hides)
		return push(m, &m->links, dir, u, ent->name);
	/* Not even a directory further below is to be seen through it. */
	if (S_ISDIR(u->mode) && !S_ISDIR(l->mode) && !hides &&
	    set_opaque(m, u) < 0)
		return -ENOMEM;
	replace(m, dir, i, u);
	return 0;
}

/* Each name moves, so the counts of names are right as they are. */
static int join_one(struct merge *m, struct fsnode *lower,
		    const struct fsdirent *ent)
{
	ssize_t i = fsdir_lookup(lower, ent->name, strlen(ent->name));
	struct fsnode *u = ent->node;
	int r = 0;

	if (!S_ISDIR(u->mode))
		u->nlink--;
	if (i < 0)
		r = fsdir_add(lower, ent->name, u) < 0 ? nomem(m) : 0;
	else
		r = lay_over(m, lower, (size_t)i, ent);
	return r;
}

/* The upper directory is used up: its names are the lower's. */
static int join(struct merge *m, const struct pair *p)
{
	struct fsdir *u = p->upper->dir;
	int r = 0;

	fsdir_sort(p->upper);
	for (uint32_t i = 0; r == 0 && i < u->n; i++)
		r = join_one(m, p->lower, &u->ents[i]);
	u->n = 0;
	p->upper->nlink = 0;
	m->t->count--;
	return r;
}

static int join_pairs(struct merge *m)
{
	int r = 0;

	while (r == 0 && m->pairs.len > 0) {
		struct pair p;

		m->pairs.len -= sizeof(p);
		memcpy(&p, m->pairs.data + m->pairs.len, sizeof(p));
		r = join(m, &p);
	}
	return r;
}

/*
 * Where the link in ${p} leads, made if need be; NULL: nowhere a directory can
 * be.
 */
static int link_target(const struct merge *m, const struct pair *p,
		       struct fsnode **ret)
{
	auto_free char *text = NULL;
	size_t len = strlen(p->name);
	struct fs_way w = {.t = m->t, .dir = p->lower};
	int r;

	/* A last name, for the way to go through the link before it. */
	text = malloc(len + 3);
	if (!text)
		return nomem(m);
	memcpy(text, p->name, len);
	memcpy(text + len, "/x", 3);
	*ret = NULL;
	for (int make = 0; make <= 1; make++) {
		w = (struct fs_way){.t = m->t,
				    .dir = p->lower,
				    .rest = text,
				    .make = make};
		r = fs_way_go(&w);
		fs_way_done(&w);
		if (r == -ENOMEM)
			return nomem(m);
		if (r < 0)
			return 0;
		if (w.missing == 0)
			break;
	}
	*ret = w.dir;
	return 0;
}

static int join_link(struct merge *m, const struct pair *p)
{
	struct fsnode *target;
	struct fsdirent ent = {(char *)p->name, p->upper};
	ssize_t i;
	int r;

	if (p->lower->nlink == 0) { /* this layer removes it elsewhere */
		fs_forget(m->t, p->upper);
		return 0;
	}
	r = link_target(m, p, &target);
	if (r < 0)
		return r;
	if (target)
		return push(m, &m->pairs, target, p->upper, NULL);
	i = fsdir_lookup(p->lower, ent.name, strlen(ent.name));
	if (set_opaque(m, p->upper) < 0)
		return -ENOMEM;
	replace(m, p->lower, (size_t)i, p->upper);
	return 0;
}

static int join_all(struct merge *m)
{
	int r = join_pairs(m);

	for (size_t at = 0; r == 0 && at < m->links.len;
	     at += sizeof(struct pair)) {
		struct pair p;

		memcpy(&p, m->links.data + at, sizeof(p));
		r = join_link(m, &p);
		if (r == 0)
			r = join_pairs(m);
	}
	return r;
}

/* --- whole trees ---------------------------------------------------------- */

static int join_devices(struct fstree *t, struct fstree *upper, struct err *e)
{
	uint16_t map[FS_DEVICES_MAX + 1] = {0};
	size_t was = t->ndevices;
	bool moved = false;

	for (size_t i = 0; i < upper->ndevices; i++) {
		int r = fstree_device(t, &upper->devices[i], &map[i + 1], e);

		if (r < 0) {
			t->ndevices = was;
			return r;
		}
		moved = moved || map[i + 1] != i + 1;
	}
	for (struct fs_slab *s = moved ? upper->slabs : NULL; s; s = s->next) {
		for (size_t i = 0; i < s->n; i++) {
			struct fsnode *n = &s->nodes[i];

			for (size_t k = 0; k < n->nchunks; k++)
				n->chunks[k].device = map[n->chunks[k].device];
		}
	}
	return 0;
}

/* All of the upper's memory is the tree's from now on. */
static void adopt(struct fstree *t, struct fstree *upper)
{
	struct fs_slab **s = &t->slabs;
	struct fs_block **b = &t->blocks;

	while (*s)
		s = &(*s)->next;
	*s = steal_ptr(upper->slabs);
	while (*b)
		b = &(*b)->next;
	*b = steal_ptr(upper->blocks);
	t->count += upper->count;
	t->made += upper->made;
	upper->count = 0;
	upper->made = 0;
	upper->ndevices = 0;
}

static void strip(struct fstree *t)
{
	for (struct fs_slab *s = t->slabs; s; s = s->next) {
		for (size_t i = 0; i < s->n; i++) {
			struct fsnode *n = &s->nodes[i];

			if (!n->dir || n->nlink == 0)
				continue;
			fsdir_strip(t, n);
			fsnode_drop_xattr(n, FS_OPAQUE);
		}
	}
}

int fstree_merge(struct fstree *t, struct fstree *upper, bool final,
		 struct err *e)
{
	auto_buf struct buf pairs = {0};
	auto_buf struct buf links = {0};
	struct merge m = {.t = t, .e = e};
	struct fsnode *root = upper->root;
	int r = join_devices(t, upper, e);

	if (r < 0)
		return r;
	upper->root = NULL;
	adopt(t, upper);
	if (fsnode_is_opaque(root))
		fstree_clear_dir(t, t->root);
	r = take_attr(&m, t->root, root);
	if (r == 0 && fsnode_is_opaque(root))
		r = set_opaque(&m, t->root);
	if (r == 0)
		r = push(&m, &m.pairs, t->root, root, NULL);
	if (r == 0)
		r = join_all(&m);
	pairs = m.pairs;
	links = m.links;
	if (r == 0 && final)
		strip(t);
	return r;
}
