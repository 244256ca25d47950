/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_FSTREE_PRIV_H
#define IMG_FSTREE_PRIV_H

#include "base/cleanup.h"
#include "img/fstree.h"

/*
 * What fstree's files, the EROFS reader and the EROFS writer share.  Strings
 * and arrays lie in blocks, nodes in slabs, so that every node can be visited
 * without walking the tree; a node that left the tree has nlink 0.
 */
struct fs_block {
	struct fs_block *next;
	size_t used, cap;
	char data[] __attribute__((aligned(8)));
};

struct fs_slab {
	struct fs_slab *next;
	size_t n, cap;
	struct fsnode nodes[];
};

struct fstree {
	struct fsnode *root;
	struct fs_block *blocks; /* the first is the one being filled */
	struct fs_slab *slabs;
	size_t count;
	size_t made; /* nodes, those without a name too */
	uint64_t seed;
	size_t ndevices;
	struct fsdevice devices[FS_DEVICES_MAX];
};

/*
 * The names of a directory, in any order; beyond a few a hash table of their
 * numbers, keyed by a secret, for names are a stranger's.
 */
struct fsdir {
	struct fsnode *parent; /* of the root: itself */
	struct fsdirent *ents;
	uint32_t *slots; /* number + 1; 0 free; FS_GONE */
	uint64_t seed;
	uint32_t n, cap, nslots, nused;
	bool sorted;
};

/* fs_huge(p, len): ${p} is going to be filled: in large pages, if it may be,
 * for faults are what a large tree costs most. */
void fs_huge(void *p, size_t len);

/* fs_alloc(t, len, align): of the tree's memory, or NULL. */
void *fs_alloc(struct fstree *t, size_t len, size_t align);
char *fs_strndup(struct fstree *t, const char *s, size_t len);

/* fsnode_new(t): zeroed, counted in fstree_count(), without a name. */
struct fsnode *fsnode_new(struct fstree *t);

/* fsnode_opendir(t, n): make ${n} an empty directory; -ENOMEM. */
int fsnode_opendir(struct fstree *t, struct fsnode *n);

/* fsnode_set_implied(n): the attributes an implied directory has. */
void fsnode_set_implied(struct fsnode *n);
bool fsnode_looks_implied(const struct fsnode *n);

/* fsnode_check(a): -errno if a node cannot have the attributes ${a}. */
int fsnode_check(const struct fsnode *a);

/* fsdir_lookup(dir, name, len): number of the entry, or -1. */
ssize_t fsdir_lookup(struct fsnode *dir, const char *name, size_t len);

/*
 * fsdir_add(dir, name, n): one more name, which must not be there and lives as
 * long as the tree.  fsdir_replace(): entry ${i} is another node from now on;
 * the one it was has lost a name.  fsdir_drop(): likewise, without another.
 * They keep nlink; fs_forget() takes a node without names out of the count.
 */
must_check int fsdir_add(struct fsnode *dir, char *name, struct fsnode *n);
struct fsnode *fsdir_replace(struct fsnode *dir, size_t i, struct fsnode *n);
struct fsnode *fsdir_drop(struct fsnode *dir, size_t i);
void fs_forget(struct fstree *t, struct fsnode *n);
void fsdir_sort(struct fsnode *dir);
void fsdir_free(struct fsdir *d);

/* fsdir_strip(t, dir): without its whiteouts. */
void fsdir_strip(struct fstree *t, struct fsnode *dir);

/*
 * A way through the tree.  fs_way_go(): up to the last component, which is
 * ${name} afterwards, or NULL where the way ends in ${dir} itself.  Without
 * ${make} ${missing} directories below ${dir} are not there.  fs_way_done().
 */
struct fs_way {
	struct fstree *t;
	struct fsnode *dir;
	const char *rest;
	char *text; /* owned: of rest, once a link was followed */
	unsigned links;
	bool make;
	size_t missing;
	const char *name;
	size_t len;
};
int fs_way_go(struct fs_way *w);
void fs_way_done(struct fs_way *w);

#endif
