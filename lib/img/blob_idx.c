/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "img/blob_priv.h"

static const uint8_t magic[8] = {'d', 's', 'e', 'c', 'i', 'd', 'x', '1'};

static void put32(uint8_t *p, uint32_t v)
{
	v = htole32(v);
	memcpy(p, &v, sizeof(v));
}

static uint32_t get32(const uint8_t *p)
{
	uint32_t v;

	memcpy(&v, p, sizeof(v));
	return le32toh(v);
}

size_t idx_chunk_put(const struct idx_chunk *c, uint8_t *out)
{
	size_t len = c->npieces * sizeof(c->pieces[0]);

	put32(out, c->block);
	put32(out + 4, c->bytes);
	memcpy(out + 8, c->pieces, len);
	return 8 + len;
}

void idx_header_put(uint32_t chunks, uint32_t blocks, uint8_t *out)
{
	memcpy(out, magic, sizeof(magic));
	put32(out + 8, chunks);
	put32(out + 12, blocks);
}

void idx_chunk_digest(const struct idx_chunk *c, struct sha256 *h,
		      struct digest *ret)
{
	if (c->npieces == 1) {
		*ret = c->pieces[0];
		return;
	}
	sha256_add(h, c->pieces, c->npieces * sizeof(c->pieces[0]));
	sha256_end(h, ret);
}

static int damaged(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "image_damaged", "index of a blob: %s",
		       what);
}

/* 1 if ${len} bytes are at buf + pos, 0 if the file ends before. */
static int idx_fill(struct idx_reader *r, size_t len, struct err *e)
{
	ssize_t n;

	if (r->len - r->pos >= len)
		return 1;
	memmove(r->buf, r->buf + r->pos, r->len - r->pos);
	r->len -= r->pos;
	r->pos = 0;
	while (r->len < len) {
		n = pread(r->fd, r->buf + r->len, sizeof(r->buf) - r->len,
			  r->off);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read the index of a blob");
		if (n == 0)
			return 0;
		sha256_add(r->hash, r->buf + r->len, (size_t)n);
		r->off += n;
		r->len += (size_t)n;
	}
	return 1;
}

void idx_done(struct idx_reader *r)
{
	sha256_free(r->hash);
	r->hash = NULL;
}

int idx_open(struct idx_reader *r, int fd, const struct digest *root,
	     struct err *e)
{
	int n;

	memset(r, 0, offsetof(struct idx_reader, buf));
	r->fd = fd;
	r->root = *root;
	r->hash = sha256_new();
	if (!r->hash)
		return err_sys(e, ENOMEM, "read the index of a blob");
	n = idx_fill(r, IDX_HEADER_LEN, e);
	if (n < 0)
		return n;
	if (n == 0 || memcmp(r->buf, magic, sizeof(magic)) != 0)
		return damaged(e, "not one");
	r->chunks = get32(r->buf + 8);
	r->blocks = get32(r->buf + 12);
	r->pos = IDX_HEADER_LEN;
	return 0;
}

/* The chunk at buf + pos, whose first 8 bytes are there. */
static int idx_take(struct idx_reader *r, struct idx_chunk *ret, struct err *e)
{
	int n;

	ret->block = get32(r->buf + r->pos);
	ret->bytes = get32(r->buf + r->pos + 4);
	if (ret->bytes < 1 || ret->bytes > FS_CHUNK ||
	    ret->block != r->next_block ||
	    idx_blocks(ret->bytes) > r->blocks - r->next_block)
		return damaged(e, "a chunk that cannot be there");
	ret->npieces = idx_pieces(ret->bytes);
	n = idx_fill(r, 8 + ret->npieces * sizeof(ret->pieces[0]), e);
	if (n < 0)
		return n;
	if (n == 0)
		return damaged(e, "cut short");
	memcpy(ret->pieces, r->buf + r->pos + 8,
	       ret->npieces * sizeof(ret->pieces[0]));
	r->pos += 8 + ret->npieces * sizeof(ret->pieces[0]);
	r->next_block += idx_blocks(ret->bytes);
	r->seen++;
	return 1;
}

static int idx_end(struct idx_reader *r, struct err *e)
{
	struct digest d;
	int n;

	n = idx_fill(r, 1, e);
	if (n < 0)
		return n;
	if (n > 0 || r->next_block != r->blocks)
		return damaged(e, "longer or shorter than it says");
	sha256_end(r->hash, &d);
	if (!digest_eq(&d, &r->root))
		return damaged(e, "not what its name says");
	return 0;
}

int idx_next(struct idx_reader *r, struct idx_chunk *ret, struct err *e)
{
	int n;

	if (r->seen == r->chunks)
		return idx_end(r, e);
	n = idx_fill(r, 8, e);
	if (n < 0)
		return n;
	return n == 0 ? damaged(e, "cut short") : idx_take(r, ret, e);
}

/* --- checking ------------------------------------------------------------ */

static int read_at(int fd, void *data, size_t len, off_t off, struct err *e)
{
	size_t got = 0;
	ssize_t n;

	while (got < len) {
		n = pread(fd, (char *)data + got, len - got, off + (off_t)got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read a blob");
		if (n == 0)
			return err_set(e, -EBADMSG, "image_damaged",
				       "a blob ends at byte %lld",
				       (long long)off + (long long)got);
		got += (size_t)n;
	}
	return 0;
}

static int bad_block(struct err *e, uint64_t block)
{
	return err_set(e, -EBADMSG, "image_damaged",
		       "a blob is not what its index says at block %llu",
		       (unsigned long long)block);
}

/* One chunk, padded, at ${data}. */
static int check_chunk(const struct idx_chunk *c, const uint8_t *data,
		       struct sha256 *h, struct err *e)
{
	uint32_t padded = idx_blocks(c->bytes) * FS_BLOCK;
	struct digest d;

	for (unsigned i = 0; i < c->npieces; i++) {
		uint32_t off = i * BLOB_PIECE, len = c->bytes - off;

		sha256_add(h, data + off, len < BLOB_PIECE ? len : BLOB_PIECE);
		sha256_end(h, &d);
		if (!digest_eq(&d, &c->pieces[i]))
			return bad_block(e, c->block + off / FS_BLOCK);
	}
	/* A mapping of the file's last page shows them. */
	for (uint32_t i = c->bytes; i < padded; i++)
		if (data[i])
			return bad_block(e, c->block + i / FS_BLOCK);
	return 0;
}

static int check_index(struct idx_reader *r, struct err *e)
{
	struct idx_chunk c;
	int n;

	do
		n = idx_next(r, &c, e);
	while (n > 0);
	return n;
}

static int check_data(struct idx_reader *r, int data_fd, struct err *e)
{
	auto_sha256 struct sha256 *h = sha256_new();
	auto_free uint8_t *data = malloc(FS_CHUNK);
	struct idx_chunk c;
	int n, rc;

	if (!h || !data)
		return err_sys(e, ENOMEM, "verify a blob");
	while ((n = idx_next(r, &c, e)) > 0) {
		rc = read_at(data_fd, data, idx_blocks(c.bytes) * FS_BLOCK,
			     (off_t)c.block * FS_BLOCK, e);
		if (rc == 0)
			rc = check_chunk(&c, data, h, e);
		if (rc < 0)
			return rc;
	}
	return n;
}

int blob_check(int data_fd, int idx_fd, const struct fsdevice *dev,
	       struct err *e)
{
	struct idx_reader r;
	struct stat st;
	int rc;

	rc = idx_open(&r, idx_fd, &dev->root, e);
	if (rc == 0)
		rc = check_index(&r, e);
	if (rc == 0 && dev->blocks && dev->blocks != r.blocks)
		rc = damaged(e, "of another length than the device");
	if (rc == 0 && fstat(data_fd, &st) < 0)
		rc = err_sys(e, errno, "a blob's size");
	if (rc == 0 && st.st_size != (off_t)r.blocks * FS_BLOCK)
		rc = err_set(e, -EBADMSG, "image_damaged",
			     "a blob of %lld bytes, not %lld",
			     (long long)st.st_size,
			     (long long)r.blocks * FS_BLOCK);
	idx_done(&r);
	return rc;
}

int blob_verify(int data_fd, int idx_fd, const struct digest *root,
		struct err *e)
{
	struct fsdevice dev = {.root = *root};
	struct idx_reader r;
	int rc;

	/* The index first: what it says is then true of as much as is read. */
	rc = blob_check(data_fd, idx_fd, &dev, e);
	if (rc < 0)
		return rc;
	rc = idx_open(&r, idx_fd, root, e);
	if (rc == 0)
		rc = check_data(&r, data_fd, e);
	idx_done(&r);
	return rc;
}
