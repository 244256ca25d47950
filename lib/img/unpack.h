/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_UNPACK_H
#define IMG_UNPACK_H

#include "img/blob.h"

/*
 * unpack_tree(t, open_blob, arg, dirfd, e):
 * Make the tree ${t} in the directory ${dirfd}, which is empty and nobody
 * else's: every inode with all its attributes, hard links, devices, whiteouts
 * and opaque directories as overlay has them, holes as holes.  Needs root.
 * Written to the disk before it returns.  Uses the marks of ${t}.  On failure
 * the caller removes what is there.
 */
int unpack_tree(struct fstree *t, blob_open_fn *open_blob, void *arg, int dirfd,
		struct err *e);

#endif
