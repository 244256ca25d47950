/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_WALK_H
#define BASE_WALK_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/err.h"

/*
 * A tree, entry by entry, sorted by name, following no link.  Neither stack nor
 * descriptors grow with its depth: directories above are closed and found
 * again by "..", and it is an error if that is another one by then.  The tree
 * may change under the walk; the walk stays in what it opened.
 */
enum walk_flags {
	WALK_POST = 1 << 0,    /* each directory once more, after its content */
	WALK_ONE_DEV = 1 << 1, /* do not go into other file systems */
	WALK_NO_PROC = 1 << 2, /* nor from another one into procfs or sysfs */
	WALK_LAZY = 1 << 3,    /* see walk_item.lazy */
};

struct walk_item {
	int dirfd;	  /* of its directory; valid until the next call */
	const char *name; /* in dirfd */
	const char *path; /* below the root, "" for the root itself */
	unsigned depth;	  /* 0: the root */
	bool post;
	int errnum;	/* not 0: it cannot be looked at, or not be entered */
	struct stat st; /* of the entry itself; zero where that failed */
	/* With WALK_LAZY: its directory said that it is a regular file, and of
	 * st only st_mode is there, S_IFREG: who opens it asks then. */
	bool lazy;
};

struct walk;

/*
 * walk_open(dirfd, path, flags, ret_walk, e):
 * Begin at ${path}, whose last component is not followed; what stands before
 * it is.
 */
int walk_open(int dirfd, const char *path, unsigned flags,
	      struct walk **ret_walk, struct err *e);

/* walk_next(w, it, e): 1: an entry in *${it}; 0: that was all. */
int walk_next(struct walk *w, struct walk_item *it, struct err *e);

/* walk_skip(w): do not go into the directory just returned. */
void walk_skip(struct walk *w);

void walk_free(struct walk *w);

#define auto_walk __attribute__((cleanup(walk_cleanup)))

static inline void walk_cleanup(struct walk **w)
{
	walk_free(*w);
}

#endif
