/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_BLOB_H
#define IMG_BLOB_H

#include "img/fstree.h"

/*
 * Blobs: the data of files, uncompressed, in blocks of FS_BLOCK, each chunk
 * once.  NAME.data is the device; NAME.idx tells its chunks and proves them:
 *
 *   header   "dsecidx1", u32 chunks, u32 blocks           (little endian)
 *   a chunk  u32 block, u32 bytes, 32 bytes digest of each 256 KiB begun
 *
 * in the order of blocks, each chunk right after the one before.  A chunk's own
 * digest is that of its only piece, or of the digests of its pieces in a row:
 * so one pass hashes once, and a loader can check 256 KiB at a time.  The
 * blob's name, its root, is the SHA-256 of the .idx file.
 */
#define BLOB_PIECE (256U * 1024)

/* Chunks of blobs that are there already. */
struct blob_dict;
struct blob_dict *blob_dict_new(void);
void blob_dict_free(struct blob_dict *d);

/* blob_dict_add(d, idx_fd, root, e): the chunks of one more blob. */
int blob_dict_add(struct blob_dict *d, int idx_fd, const struct digest *root,
		  struct err *e);

/*
 * blob_open(dirfd, dict, t, ret, e):
 * Start a blob as files "data" and "idx" in ${dirfd}, made with the first chunk
 * that is stored.  Chunks that ${dict} (may be NULL) knows are not stored
 * again; it stays the caller's and as it is until blob_free().  Chunks are
 * numbered in the device table of ${t}: the new blob comes next, then each
 * other blob in the order of first use.
 */
struct blob;
#define auto_blob __attribute__((cleanup(blob_cleanup)))
int blob_open(int dirfd, struct blob_dict *dict, struct fstree *t,
	      struct blob **ret, struct err *e);

/* blob_add(b, data, len, ret, e): one chunk, 1..FS_CHUNK bytes; zeros alone are
 * a hole.  After a failure there is only blob_free(). */
int blob_add(struct blob *b, const void *data, size_t len, struct fschunk *ret,
	     struct err *e);

/*
 * blob_finish(b, t, open_foreign, arg, min_saved, ret, e):
 * Write out and sync.  A foreign blob of which fewer than ${min_saved} bytes
 * were used is not referred to: its chunks are copied, read through
 * ${open_foreign} (it returns an fd of that blob's data, closed here; may be
 * NULL without a dictionary), and the tree's chunks changed.  *${ret}: our own
 * blob; blocks 0 when the tree names none of it, and then there are no files.
 * The tree's device table is final afterwards (trimmed).
 */
typedef int blob_open_fn(void *arg, const struct digest *root, struct err *e);
int blob_finish(struct blob *b, struct fstree *t, blob_open_fn *open_foreign,
		void *arg, uint64_t min_saved, struct fsdevice *ret,
		struct err *e);
uint64_t blob_stored(const struct blob *b); /* new bytes, padded, so far */
void blob_free(struct blob *b); /* unfinished: the files are removed */
static inline void blob_cleanup(struct blob **b)
{
	blob_free(*b);
}

/* blob_check(data_fd, idx_fd, dev, e): the index is what dev->root says, and
 * the data as long as it says; data is not read.  dev->blocks 0: any. */
int blob_check(int data_fd, int idx_fd, const struct fsdevice *dev,
	       struct err *e);

/* blob_verify(data_fd, idx_fd, root, e): index and data are what ${root} says.
 * "image_damaged" with the block that is not. */
int blob_verify(int data_fd, int idx_fd, const struct digest *root,
		struct err *e);

/*
 * Reading files of a tree back.  blob_reader_read(): ${len} bytes of ${n} from
 * ${off} (holes are zeros), fewer only at its end; opens each device once.
 */
struct blob_reader;
struct blob_reader *blob_reader_new(struct fstree *t, blob_open_fn *open_blob,
				    void *arg);
void blob_reader_free(struct blob_reader *r);
ssize_t blob_reader_read(struct blob_reader *r, const struct fsnode *n,
			 uint64_t off, void *data, size_t len, struct err *e);

#endif
