/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_EXPORT_H
#define IMG_EXPORT_H

#include "img/blob.h"
#include "img/manifest.h"
#include "wire/tar.h"

/*
 * Trees as archives.
 *
 * EXPORT_OCI is an OCI layer: a whiteout is an empty file ".wh.NAME", an opaque
 * directory has an empty file ".wh..wh..opq"; attributes are
 * SCHILY.xattr.NAME, access lists too, in their system.posix_acl_* form.
 * EXPORT_ROOT is a root file system: the tree has neither.
 *
 * Entries are in the order of fstree_walk(), directories before what is in
 * them, further names of a file as hard links to the first.  Sockets cannot be
 * archived and are left out.  Equal trees are equal bytes.
 *
 * What a runner packs for a builder, who imports it as inbox:NODE/NAME, is
 *
 *   inbox/NODE/NAME.tar   EXPORT_OCI, not compressed, whiteouts for what is
 *                         below: a layer's, not to be dropped
 *   inbox/NODE/NAME.json  written last: without it the .tar is not complete
 *     {"v":1,"kind":"workspace","tar":{"digest":HEX,"size":BYTES},
 *      "config":{..},"source":{"type":"sandbox","name":ID},
 *      "parents":[HEX..],"as":"project/name:version" (or absent)}
 *
 * NODE is the runner's node code, NAME [a-z0-9][a-z0-9._-]{0,127}.
 */
enum export_form { EXPORT_OCI, EXPORT_ROOT };

struct export_tar {
	struct fstree *tree;
	struct blob_reader *reader;
	enum export_form form;
	/* Files with holes of so many bytes together are written as sparse
	 * files, others with zeros.  0: all. */
	uint64_t sparse_from;
	/* A socket; may be NULL. */
	void (*left_out)(void *arg, const char *path);
	/* Before each entry and after each chunk: what is not 0 ends it.  May
	 * be NULL. */
	int (*step)(void *arg, struct err *e);
	void *arg;
};

/*
 * export_tar(x, w, e): the tree and the end of the archive.  "unsupported": an
 * entry that the form has no way to say.  Memory: that of the tree, and the
 * first name of each file with several.
 */
int export_tar(const struct export_tar *x, struct tar_writer *w, struct err *e);

#endif
