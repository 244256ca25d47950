/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_BLOB_PRIV_H
#define IMG_BLOB_PRIV_H

#include "img/blob.h"
#include "img/sha256.h"

/* --- the index file ------------------------------------------------------ */

#define IDX_HEADER_LEN 16
#define IDX_PIECES     (FS_CHUNK / BLOB_PIECE)
#define IDX_CHUNK_MAX  (8 + IDX_PIECES * DIGEST_LEN)

struct idx_chunk {
	uint32_t block, bytes;
	unsigned npieces;
	struct digest pieces[IDX_PIECES];
};

static inline unsigned idx_pieces(uint32_t bytes)
{
	return (bytes + BLOB_PIECE - 1) / BLOB_PIECE;
}

static inline uint32_t idx_blocks(uint32_t bytes)
{
	return (bytes + FS_BLOCK - 1) / FS_BLOCK;
}

/* idx_chunk_put(c, out): into out[IDX_CHUNK_MAX]; returns its length. */
size_t idx_chunk_put(const struct idx_chunk *c, uint8_t *out);
void idx_header_put(uint32_t chunks, uint32_t blocks, uint8_t *out);

/* idx_chunk_digest(c, h, ret): the chunk's own, by ${h}. */
void idx_chunk_digest(const struct idx_chunk *c, struct sha256 *h,
		      struct digest *ret);

/*
 * idx_open(r, fd, root, e): read ${fd} from its start, in order, trusting
 * nothing.  idx_next(r, ret, e): 1 a chunk, 0 that was all and the file is what
 * ${root} says, or "image_damaged".  Memory does not depend on the file.
 */
struct idx_reader {
	int fd; /* borrowed */
	struct digest root;
	struct sha256 *hash;
	uint32_t chunks, blocks; /* as the header says */
	uint32_t seen, next_block;
	off_t off;
	size_t pos, len; /* of buf */
	uint8_t buf[16384];
};
int idx_open(struct idx_reader *r, int fd, const struct digest *root,
	     struct err *e);
int idx_next(struct idx_reader *r, struct idx_chunk *ret, struct err *e);
void idx_done(struct idx_reader *r);

/* --- tables of chunks ---------------------------------------------------- */

#define TABLE_BLOBS_MAX 2048

/*
 * What is known of a chunk.  Chunks are the same when digest and length are:
 * the digest of a large one alone could be had by a small file made of the
 * digests of its pieces.
 */
struct table_chunk {
	struct digest digest;
	uint32_t block;
	uint32_t bytes : 21, blob : 11;
};

struct chunk_table {
	struct table_chunk *chunks;
	uint32_t *slots; /* index of a chunk + 1, or 0 */
	size_t n, cap, nslots;
};

void table_done(struct chunk_table *t);

/* table_find(t, digest, bytes): its index, or -1. */
ssize_t table_find(const struct chunk_table *t, const struct digest *digest,
		   uint32_t bytes);

/* table_add(t, chunk): one that is not there.  -ENOMEM. */
int table_add(struct chunk_table *t, const struct table_chunk *chunk);

struct blob_dict {
	struct chunk_table table;
	struct fsdevice *blobs; /* by table_chunk.blob */
	size_t nblobs;
};

#endif
