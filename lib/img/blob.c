/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "img/blob_priv.h"

#define WRITE_BYTES (1024 * 1024)     /* gathered for one write */
#define WRITE_ALONE (128 * 1024)      /* a chunk so large is not copied */
#define START_BYTES (8 * 1024 * 1024) /* the disk begins while we go on */
#define IDX_BYTES   65536

struct foreign {
	uint16_t device; /* in the tree's table; 0: not used so far */
	uint64_t saved;	 /* bytes we need not store */
};

struct blob {
	int dirfd, data_fd, idx_fd;
	struct fstree *tree;
	uint16_t own; /* device */
	struct sha256 *hash;
	struct chunk_table table;
	uint32_t blocks;
	const struct blob_dict *dict;
	struct foreign *foreign; /* for each blob of dict */
	uint64_t *used;		 /* for each chunk of dict a bit */
	uint8_t *buf;		 /* WRITE_BYTES, waiting to be written */
	size_t buf_len;
	off_t written, started; /* bytes of data */
	struct buf idx;
	int failed; /* -errno */
	bool finished;
};

void blob_free(struct blob *b)
{
	if (!b)
		return;
	if (b->data_fd >= 0)
		fd_close(b->data_fd);
	if (b->idx_fd >= 0)
		fd_close(b->idx_fd);
	if (!b->finished && b->dirfd >= 0) {
		if (b->data_fd >= 0)
			unlinkat(b->dirfd, "data", 0);
		if (b->idx_fd >= 0)
			unlinkat(b->dirfd, "idx", 0);
	}
	if (b->dirfd >= 0)
		fd_close(b->dirfd);
	sha256_free(b->hash);
	table_done(&b->table);
	free(b->foreign);
	free(b->used);
	free(b->buf);
	buf_done(&b->idx);
	free(b);
}

static int blob_alloc_dict(struct blob *b)
{
	if (!b->dict)
		return 0;
	b->foreign = calloc(b->dict->nblobs + 1, sizeof(*b->foreign));
	b->used = calloc(b->dict->table.n / 64 + 1, sizeof(*b->used));
	return b->foreign && b->used ? 0 : -ENOMEM;
}

int blob_open(int dirfd, struct blob_dict *dict, struct fstree *t,
	      struct blob **ret, struct err *e)
{
	const struct fsdevice unnamed = {.blocks = 0};
	auto_blob struct blob *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return err_sys(e, ENOMEM, "blob");
	b->dirfd = b->data_fd = b->idx_fd = -1;
	b->tree = t;
	b->dict = dict;
	b->hash = sha256_new();
	b->buf = malloc(WRITE_BYTES);
	if (!b->hash || !b->buf || blob_alloc_dict(b) < 0)
		return err_sys(e, ENOMEM, "blob");
	b->dirfd = fcntl(dirfd, F_DUPFD_CLOEXEC, 3);
	if (b->dirfd < 0)
		return err_sys(e, errno, "blob");
	/* It has no name before its end; the slot is kept. */
	r = fstree_device(t, &unnamed, &b->own, e);
	if (r < 0)
		return r;
	*ret = steal_ptr(b);
	return 0;
}

uint64_t blob_stored(const struct blob *b)
{
	return (uint64_t)b->blocks * FS_BLOCK;
}

/* --- writing ------------------------------------------------------------- */

static int make_file(const struct blob *b, const char *name, int *ret_fd,
		     struct err *e)
{
	*ret_fd = openat(b->dirfd, name,
			 O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
			 0644);
	if (*ret_fd < 0)
		return err_sys(e, errno, "make a blob's '%s'", name);
	/* readers are other users, whatever our umask */
	if (fchmod(*ret_fd, 0644) < 0)
		return err_sys(e, errno, "mode of a blob's '%s'", name);
	return 0;
}

static int make_files(struct blob *b, struct err *e)
{
	const uint8_t header[IDX_HEADER_LEN] = {0};
	int r;

	r = make_file(b, "data", &b->data_fd, e);
	if (r == 0)
		r = make_file(b, "idx", &b->idx_fd, e);
	if (r == 0 && buf_add(&b->idx, header, sizeof(header)) < 0)
		r = err_sys(e, ENOMEM, "blob");
	return r;
}

/* Write all of ${iov}, which is used up. */
static int write_iov(int fd, struct iovec *iov, int n, struct err *e)
{
	ssize_t done;

	while (n > 0) {
		if (iov->iov_len == 0) {
			iov++;
			n--;
			continue;
		}
		done = writev(fd, iov, n);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return err_sys(e, errno, "write a blob");
		while (n > 0 && (size_t)done >= iov->iov_len) {
			done -= (ssize_t)iov->iov_len;
			iov++;
			n--;
		}
		if (n > 0) {
			iov->iov_base = (char *)iov->iov_base + done;
			iov->iov_len -= (size_t)done;
		}
	}
	return 0;
}

/* What was gathered, and after it ${len} bytes of ${data}, padded. */
static int write_out(struct blob *b, const void *data, size_t len,
		     struct err *e)
{
	static const uint8_t zeros[FS_BLOCK];
	size_t pad = (FS_BLOCK - len % FS_BLOCK) % FS_BLOCK;
	struct iovec iov[] = {{b->buf, b->buf_len},
			      {(void *)(uintptr_t)data, len},
			      {(void *)(uintptr_t)zeros, pad}};
	int r;

	r = write_iov(b->data_fd, iov, array_len(iov), e);
	if (r < 0)
		return r;
	b->written += (off_t)(b->buf_len + len + pad);
	b->buf_len = 0;
	if (b->written - b->started >= START_BYTES) {
		/* Else it all waits for the sync at the end.  A hint. */
		sync_file_range(b->data_fd, b->started, b->written - b->started,
				SYNC_FILE_RANGE_WRITE);
		b->started = b->written;
	}
	return 0;
}

static int write_chunk(struct blob *b, const void *data, size_t len,
		       struct err *e)
{
	size_t padded = idx_blocks((uint32_t)len) * FS_BLOCK;
	int r = 0;

	if (len >= WRITE_ALONE)
		return write_out(b, data, len, e);
	if (b->buf_len + padded > WRITE_BYTES)
		r = write_out(b, NULL, 0, e);
	if (r < 0)
		return r;
	memcpy(b->buf + b->buf_len, data, len);
	memset(b->buf + b->buf_len + len, 0, padded - len);
	b->buf_len += padded;
	return 0;
}

static int write_idx(struct blob *b, struct err *e)
{
	int r = fd_write_all(b->idx_fd, b->idx.data, b->idx.len, e);

	b->idx.len = 0;
	return r;
}

static int store_idx(struct blob *b, const struct idx_chunk *c, struct err *e)
{
	uint8_t out[IDX_CHUNK_MAX];

	if (buf_add(&b->idx, out, idx_chunk_put(c, out)) < 0)
		return err_sys(e, ENOMEM, "blob");
	return b->idx.len >= IDX_BYTES ? write_idx(b, e) : 0;
}

/* A chunk that is nowhere so far; its place is entered in ${c}. */
static int store_chunk(struct blob *b, const void *data, struct idx_chunk *c,
		       const struct digest *digest, struct err *e)
{
	struct table_chunk t = {.digest = *digest};
	int r;

	/* the last number is FS_HOLE */
	if (idx_blocks(c->bytes) > UINT32_MAX - 1 - b->blocks)
		return err_set(e, -EFBIG, "too_large",
			       "more than 16 TiB in one layer");
	if (b->data_fd < 0) {
		r = make_files(b, e);
		if (r < 0)
			return r;
	}
	c->block = t.block = b->blocks;
	t.bytes = c->bytes & 0x1fffff;
	r = write_chunk(b, data, c->bytes, e);
	if (r == 0)
		r = store_idx(b, c, e);
	if (r == 0 && table_add(&b->table, &t) < 0)
		r = err_sys(e, ENOMEM, "blob");
	b->blocks += idx_blocks(c->bytes);
	return r;
}

/* --- one chunk ----------------------------------------------------------- */

static bool all_zero(const uint8_t *p, size_t len)
{
	/* Where the first ones are, each is compared with the one before. */
	return p[0] == 0 && !memcmp(p, p + 1, len - 1);
}

static void hash_chunk(struct blob *b, const uint8_t *data, size_t len,
		       struct idx_chunk *c, struct digest *digest)
{
	c->bytes = (uint32_t)len;
	c->npieces = idx_pieces(c->bytes);
	for (unsigned i = 0; i < c->npieces; i++) {
		size_t off = (size_t)i * BLOB_PIECE, n = len - off;

		sha256_add(b->hash, data + off,
			   n < BLOB_PIECE ? n : BLOB_PIECE);
		sha256_end(b->hash, &c->pieces[i]);
	}
	idx_chunk_digest(c, b->hash, digest);
}

/* Chunk ${i} of the dictionary is ours to refer to.  1: done; 0: the device
 * table is full. */
static int use_foreign(struct blob *b, size_t i, struct fschunk *ret)
{
	const struct table_chunk *c = &b->dict->table.chunks[i];
	struct foreign *f = &b->foreign[c->blob];
	uint64_t bit = UINT64_C(1) << (i % 64);

	if (!f->device && fstree_device(b->tree, &b->dict->blobs[c->blob],
					&f->device, NULL) < 0)
		return 0;
	if (!(b->used[i / 64] & bit)) {
		b->used[i / 64] |= bit;
		f->saved += idx_blocks(c->bytes) * (uint64_t)FS_BLOCK;
	}
	*ret = (struct fschunk){.block = c->block, .device = f->device};
	return 1;
}

static int place_chunk(struct blob *b, const void *data, struct idx_chunk *c,
		       const struct digest *digest, bool foreign,
		       struct fschunk *ret, struct err *e)
{
	ssize_t i;
	int r;

	i = table_find(&b->table, digest, c->bytes);
	if (i >= 0) {
		ret->block = b->table.chunks[i].block;
		ret->device = b->own;
		return 0;
	}
	if (foreign && b->dict) {
		i = table_find(&b->dict->table, digest, c->bytes);
		if (i >= 0 && use_foreign(b, (size_t)i, ret))
			return 0;
	}
	r = store_chunk(b, data, c, digest, e);
	if (r < 0) {
		b->failed = r;
		return r;
	}
	*ret = (struct fschunk){.block = c->block, .device = b->own};
	return 0;
}

int blob_add(struct blob *b, const void *data, size_t len, struct fschunk *ret,
	     struct err *e)
{
	struct digest digest;
	struct idx_chunk c;

	assert(len >= 1 && len <= FS_CHUNK);
	if (b->failed)
		return err_sys(e, -b->failed, "the blob failed before");
	if (all_zero(data, len)) {
		*ret = (struct fschunk){.block = FS_HOLE};
		return 0;
	}
	hash_chunk(b, data, len, &c, &digest);
	return place_chunk(b, data, &c, &digest, true, ret, e);
}

/* --- the end ------------------------------------------------------------- */

struct move {
	struct fschunk from, to;
};

struct moves {
	struct move *v;
	size_t n, cap;
};

static int move_cmp(const void *a, const void *b)
{
	const struct fschunk *x = &((const struct move *)a)->from;
	const struct fschunk *y = &((const struct move *)b)->from;

	if (x->device != y->device)
		return x->device < y->device ? -1 : 1;
	return x->block < y->block ? -1 : x->block > y->block;
}

static int move_add(struct moves *m, const struct move *move, struct err *e)
{
	if (m->n == m->cap) {
		size_t cap = m->cap ? 2 * m->cap : 64;
		struct move *v = reallocarray(m->v, cap, sizeof(*v));

		if (!v)
			return err_sys(e, ENOMEM, "blob");
		m->v = v;
		m->cap = cap;
	}
	m->v[m->n++] = *move;
	return 0;
}

static int read_foreign(int fd, const struct table_chunk *t, void *data,
			struct err *e)
{
	size_t got = 0;
	ssize_t n;

	while (got < t->bytes) {
		n = pread(fd, (char *)data + got, t->bytes - got,
			  (off_t)t->block * FS_BLOCK + (off_t)got);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read a blob");
		if (n == 0)
			return err_set(e, -EBADMSG, "image_damaged",
				       "a blob of the dictionary is cut short");
		got += (size_t)n;
	}
	return 0;
}

static int copy_chunk(struct blob *b, int fd, const struct table_chunk *t,
		      void *data, struct moves *m, struct err *e)
{
	struct move move = {.from = {.block = t->block,
				     .device = b->foreign[t->blob].device}};
	struct digest digest;
	struct idx_chunk c;
	int r;

	r = read_foreign(fd, t, data, e);
	if (r < 0)
		return r;
	hash_chunk(b, data, t->bytes, &c, &digest);
	if (!digest_eq(&digest, &t->digest))
		return err_set(e, -EBADMSG, "image_damaged",
			       "a blob of the dictionary is not what its index "
			       "says at block %u",
			       t->block);
	r = place_chunk(b, data, &c, &digest, false, &move.to, e);
	return r < 0 ? r : move_add(m, &move, e);
}

/* All chunks that we use of blob ${blob} of the dictionary. */
static int copy_foreign(struct blob *b, size_t blob, int fd, struct moves *m,
			struct err *e)
{
	const struct chunk_table *table = &b->dict->table;
	auto_free void *data = malloc(FS_CHUNK);
	int r = 0;

	if (!data)
		return err_sys(e, ENOMEM, "blob");
	for (size_t i = 0; r == 0 && i < table->n; i++)
		if (table->chunks[i].blob == blob &&
		    (b->used[i / 64] >> (i % 64) & 1))
			r = copy_chunk(b, fd, &table->chunks[i], data, m, e);
	return r;
}

static int move_node(void *arg, const char *path, struct fsnode *n,
		     struct err *e)
{
	const struct moves *m = arg;
	const struct move *found;
	struct move key = {.from = {.block = FS_HOLE}};

	(void)path;
	(void)e;
	/* Twice for a node of two names: what was moved is not found again. */
	for (size_t i = 0; i < n->nchunks; i++) {
		if (n->chunks[i].block == FS_HOLE)
			continue;
		key.from = n->chunks[i];
		found = bsearch(&key, m->v, m->n, sizeof(*m->v), move_cmp);
		if (found)
			n->chunks[i] = found->to;
	}
	return 0;
}

static int copy_little_used(struct blob *b, blob_open_fn *open_foreign,
			    void *arg, uint64_t min_saved, struct moves *m,
			    struct err *e)
{
	for (size_t i = 0; i < b->dict->nblobs; i++) {
		auto_close int fd = -1;
		int r;

		if (!b->foreign[i].device || b->foreign[i].saved >= min_saved)
			continue;
		fd = open_foreign(arg, &b->dict->blobs[i].root, e);
		if (fd < 0)
			return fd;
		r = copy_foreign(b, i, fd, m, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int settle_foreign(struct blob *b, blob_open_fn *open_foreign, void *arg,
			  uint64_t min_saved, struct err *e)
{
	struct moves m = {.n = 0};
	int r;

	if (!b->dict || !open_foreign)
		return 0;
	r = copy_little_used(b, open_foreign, arg, min_saved, &m, e);
	if (r == 0 && m.n > 0) {
		qsort(m.v, m.n, sizeof(*m.v), move_cmp);
		r = fstree_walk(b->tree, move_node, &m, e);
	}
	free(m.v);
	return r;
}

/* The root. */
static int close_idx(struct blob *b, struct digest *root, struct err *e)
{
	uint8_t header[IDX_HEADER_LEN];
	int r;

	r = write_idx(b, e);
	if (r < 0)
		return r;
	idx_header_put((uint32_t)b->table.n, b->blocks, header);
	if (pwrite(b->idx_fd, header, sizeof(header), 0) != sizeof(header))
		return err_sys(e, errno ? errno : EIO, "write a blob's 'idx'");
	return sha256_fd(b->idx_fd, root, e);
}

static int sync_files(struct blob *b, struct err *e)
{
	int r;

	r = write_out(b, NULL, 0, e);
	if (r < 0)
		return r;
	if (fsync(b->data_fd) < 0 || fsync(b->idx_fd) < 0)
		return err_sys(e, errno, "sync a blob");
	/* some file systems have no sync of directories */
	if (fsync(b->dirfd) < 0 && errno != EINVAL)
		return err_sys(e, errno, "sync the directory of a blob");
	return 0;
}

static bool has_device(struct fstree *t, const struct digest *root)
{
	for (size_t i = 1; i <= fstree_ndevices(t); i++)
		if (digest_eq(&fstree_device_at(t, (uint16_t)i)->root, root))
			return true;
	return false;
}

int blob_finish(struct blob *b, struct fstree *t, blob_open_fn *open_foreign,
		void *arg, uint64_t min_saved, struct fsdevice *ret,
		struct err *e)
{
	struct fsdevice own = {.blocks = 0};
	int r;

	assert(t == b->tree && !b->finished);
	if (b->failed)
		return err_sys(e, -b->failed, "the blob failed before");
	r = settle_foreign(b, open_foreign, arg, min_saved, e);
	if (r < 0)
		return r;
	own.blocks = b->blocks;
	if (b->blocks > 0) {
		r = close_idx(b, &own.root, e);
		if (r < 0)
			return r;
	}
	*fstree_device_at(t, b->own) = own;
	fstree_trim_devices(t);
	/* What was stored may have been replaced later: then nobody needs it
	 * and blob_free() removes it. */
	if (b->blocks == 0 || !has_device(t, &own.root)) {
		*ret = (struct fsdevice){.blocks = 0};
		return 0;
	}
	r = sync_files(b, e);
	if (r < 0)
		return r;
	b->finished = true;
	*ret = own;
	return 0;
}
