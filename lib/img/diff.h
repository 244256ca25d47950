/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_DIFF_H
#define IMG_DIFF_H

#include "img/blob.h"

/*
 * What differs between two trees, name by name.  Content is equal where its
 * chunks are the same places of the same blobs; else it is read and compared.
 * What is below a directory that one side alone has is told too.
 */
enum diff_what {
	DIFF_TYPE = 1 << 0, /* alone: the rest then means nothing */
	DIFF_MODE = 1 << 1,
	DIFF_OWNER = 1 << 2,
	DIFF_MTIME = 1 << 3,
	DIFF_SIZE = 1 << 4,
	DIFF_CONTENT = 1 << 5,
	DIFF_TARGET = 1 << 6, /* of a symbolic link */
	DIFF_DEVICE = 1 << 7,
	DIFF_XATTR = 1 << 8,
	DIFF_LINKS = 1 << 9, /* how many names the file has */
};

struct diff_side {
	struct fstree *tree;
	struct blob_reader *reader;
};

/* ${a} NULL: added; ${b} NULL: removed; else ${what} says what differs. */
typedef int diff_fn(void *arg, const char *path, const struct fsnode *a,
		    const struct fsnode *b, unsigned what, struct err *e);

/*
 * diff_trees(a, b, fn, arg, e): in the order of fstree_walk().  Ends early with
 * what ${fn} returned if that is not 0.
 */
int diff_trees(const struct diff_side *a, const struct diff_side *b,
	       diff_fn *fn, void *arg, struct err *e);

/* diff_nodes(a, na, b, nb, ret_what, e): two nodes alone; ${path} for errors.
 */
int diff_nodes(const struct diff_side *a, const struct fsnode *na,
	       const struct diff_side *b, const struct fsnode *nb,
	       const char *path, unsigned *ret_what, struct err *e);

#endif
