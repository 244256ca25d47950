/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_IMPORT_H
#define IMG_IMPORT_H

#include "img/blob.h"
#include "wire/tar.h"

/*
 * Trees that come from outside, into a tree of ours and a blob, in one pass and
 * without unpacking anything.  Names, links and devices are data: nothing is
 * looked up or followed on this machine.
 *
 * What overlay would take for its own is no part of a stranger's tree and is
 * left out, as are attributes that no Linux file system has, and sockets; they
 * are counted in ${dropped}.
 */
enum import_flags {
	/* Whiteouts as OCI writes them (.wh.NAME, .wh..wh..opq) become
	 * overlay's own; without it they are files of such a name. */
	IMPORT_OCI = 1 << 0,
};

#define IMPORT_NODES_MAX (8U << 20) /* of a tree; entries of an archive */
#define IMPORT_HOLES_MAX (4U << 20) /* chunks that are holes: 4 TiB */
#define IMPORT_XATTR_MAX 65536U	    /* bytes of a value, and of all of them */
/* Bytes of attributes, of links' targets, of hard links' names and of whiteouts
 * of a tree: they are in memory, and compress well. */
#define IMPORT_TEXT_MAX (512U << 20)
/* fstree_bytes() of all layers of an image together. */
#define IMPORT_BYTES_MAX (4ULL << 30)

struct import_dropped {
	uint64_t xattrs, devices, sockets, others;
};

struct import {
	struct fstree *tree; /* filled; may have something already */
	struct blob *blob;   /* takes the data */
	unsigned flags;
	/* Of a directory: what matches one of these is left out.  A pattern
	 * with '/' is held against the path, one without against each name. */
	const char *const *exclude;
	size_t nexclude;
	/* May be NULL; called often with the bytes of files done so far; not 0
	 * ends the import with that. */
	int (*progress)(void *arg, uint64_t bytes, struct err *e);
	void *arg;
	/* What was done. */
	uint64_t entries, bytes, text;
	struct import_dropped dropped;
};

/*
 * import_tar(x, source, skip, arg, e):
 * All of a tar stream, up to its end blocks; ${skip} may be NULL.  -EBADMSG,
 * code "bad_archive", with the entry's name and offset: an entry tar(1) would
 * not extract, or a damaged archive; the tree is of no use then.
 */
int import_tar(struct import *x, tar_source *source, tar_skip *skip, void *arg,
	       struct err *e);

/*
 * import_dir(x, dirfd, e):
 * The directory ${dirfd} is and what is below it on its file system, in byte
 * order of names.  A file that changes while it is read is read again; code
 * "busy" where that does not end.
 */
int import_dir(struct import *x, int dirfd, struct err *e);

#endif
