/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_PACK_UPPER_H
#define IMG_PACK_UPPER_H

#include "img/fstree.h"
#include "img/residue.h"

/*
 * A sandbox's upper directory as a layer's tree.  Nobody may write to it
 * meanwhile; what it holds was made by whoever was inside, and is hostile.
 *
 *   whiteouts             character devices 0:0, each by itself; the newer form
 *                         (an empty file with overlay.whiteout) becomes one
 *   opaque directories    keep trusted.overlay.opaque=y
 *   origin, impure, uuid, nlink, upper, protattr of overlay: not kept
 *   metacopy, redirect, anything else of overlay's: "unsupported"
 *   user.overlay.*        plain data: our mounts do not use them
 *   hard links            kept inside the upper
 *   holes, zero chunks    holes
 *   security.capability   of the sandbox's root: as version 2
 *   access lists          kept; FIFOs, sockets, devices: kept
 *   ids                   are as on disk those inside; over 65535: an error
 */
#define PACK_ENTRIES_MAX (4U * 1024 * 1024)
#define PACK_DEPTH_MAX	 4096U
#define PACK_XATTRS_MAX	 (256U * 1024 * 1024) /* bytes of them all */
/* Chunks of all files, holes too: 8 TiB, which is 64 MiB of metadata. */
#define PACK_CHUNKS_MAX (8U * 1024 * 1024)

struct pack_upper {
	int dirfd;	     /* the upper */
	struct fstree *tree; /* new; filled */
	residue_set residue; /* what is left out */
	bool list_only;	     /* residue is told, and kept */
	uint32_t uid_base;   /* the host's uid of the sandbox's root */

	/* Data, 1..FS_CHUNK bytes: blob_add(); NULL: none is read. */
	int (*chunk)(void *arg, const void *data, size_t len,
		     struct fschunk *ret, struct err *e);
	/* An entry, all below included, is residue; may be NULL. */
	int (*removed)(void *arg, const char *rule, const char *path,
		       uint64_t bytes, struct err *e);
	/* Now and then; may be NULL.  What it returns ends the packing. */
	int (*progress)(void *arg, uint64_t entries, uint64_t bytes,
			struct err *e);
	void *arg;
};

struct pack_upper_result {
	uint64_t entries, bytes; /* packed: names, bytes of data read */
	uint64_t whiteouts, opaques;
	uint64_t removed, removed_bytes;
};

/*
 * pack_upper(p, ret, e):
 * Codes: "too_large" (a limit above), "unsupported", "bad_value" (an id),
 * "busy" (it changes meanwhile); the message names the entry.
 */
int pack_upper(const struct pack_upper *p, struct pack_upper_result *ret,
	       struct err *e);

#endif
