/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_POOL_PRIV_H
#define SYS_POOL_PRIV_H

#include "sys/pool.h"

/* The parts of a layer: upper, work, out. */
#define POOL_PARTS 3
extern const char *const pool_part[POOL_PARTS];

/* pool_no_limit(e, why): "unsupported", with the way out. */
int pool_no_limit(struct err *e, const char *why);

/* The subvolume pool/<id>: make it; remove it (absent is fine); limit the one
 * that ${fd} is; the directories in it; the links to those in ${home}. */
int pool_subvol_make(const struct pool *p, const char *id, int *ret_fd,
		     struct err *e);
int pool_subvol_remove(const struct pool *p, const char *id, struct err *e);
int pool_subvol_limit(int fd, uint64_t limit_bytes, struct err *e);
int pool_parts_make(int dir, const char *id, struct err *e);
int pool_parts_link(int home, const char *id, struct err *e);

/*
 * pool_copy_tree(copy, e):
 * Copy the tree ${copy->name} of ${copy->from} to ${copy->to}, where it is not
 * yet, with all that a layer can have.  On failure what was made is left.
 */
struct pool_copy_tree {
	int from, to;
	const char *name;
	int stop;	     /* -1, or: reads as "stop now" */
	bool shared, copied; /* out: some data was reflinked, some was copied */
};
int pool_copy_tree(struct pool_copy_tree *copy, struct err *e);

#endif
