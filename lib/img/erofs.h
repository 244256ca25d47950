/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_EROFS_H
#define IMG_EROFS_H

#include "base/buf.h"
#include "img/fstree.h"

/*
 * The EROFS form of a tree: one metadata image; the data of files are chunks of
 * devices, named in the device table by their root in hex.  The form is fixed,
 * so equal trees are equal bytes: extended inodes, sorted directories with
 * inlined tails, inline attributes, chunk indexes, no compression, no uuid, no
 * build time.
 */

/* erofs_write(t, ret, e): append the image to ${ret}.  "unsupported": an
 * attribute the format has no prefix for. */
int erofs_write(struct fstree *t, struct buf *ret, struct err *e);

/*
 * erofs_read(data, len, ret, e):
 * The tree of an image, which may be a stranger's: every offset, index, order,
 * loop and link count is checked, and every chunk lies inside its device.
 * Takes time and memory in proportion to ${len}.  -EBADMSG, code
 * "image_damaged", with what is wrong and where.  What erofs_write() would not
 * write is refused even if a kernel would take it.
 */
int erofs_read(const void *data, size_t len, struct fstree **ret,
	       struct err *e);

#endif
