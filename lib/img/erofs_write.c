/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "img/erofs.h"
#include "img/erofs_format.h"
#include "img/fstree_priv.h"

/* An inode and its place. */
struct item {
	struct fsnode *n;
	uint32_t slot;	/* nid */
	uint32_t block; /* of its whole blocks, the first of all being 0 */
	uint32_t nblocks;
	uint32_t xattrs; /* bytes */
	uint64_t size;
	enum er_layout layout;
};

struct writer {
	struct fstree *t;
	struct item
		*items; /* breadth first; fsnode.num - 1 is the place here */
	size_t n;
	uint64_t end;  /* of the inodes */
	uint64_t data; /* blocks behind them */
};

/* --- directories --------------------------------------------------------- */

struct name {
	const char *s;
	size_t len;
	struct fsnode *n;
};

struct names {
	struct fsnode *dir;
	size_t i, ndots;
};

/* The next name in byte order, "." and ".." among them; false: no more. */
static bool names_peek(const struct names *it, struct name *ret)
{
	static const char *const dots[] = {".", ".."};
	const struct fsdir *d = it->dir->dir;
	const char *s = it->i < d->n ? d->ents[it->i].name : NULL;

	if (it->ndots < 2 && (!s || strcmp(s, dots[it->ndots]) > 0)) {
		*ret = (struct name){dots[it->ndots], it->ndots + 1,
				     it->ndots ? d->parent : it->dir};
		return true;
	}
	if (!s)
		return false;
	*ret = (struct name){s, strlen(s), d->ents[it->i].node};
	return true;
}

static void names_step(struct names *it, const struct name *name)
{
	if (it->ndots < 2 && name->len == it->ndots + 1 &&
	    strncmp(name->s, "..", name->len) == 0)
		it->ndots++;
	else
		it->i++;
}

#define BLOCK_NAMES (ER_BLOCK / (sizeof(struct er_dirent) + 1))

/* The names of one block into ${ns}; their number, and the bytes they take. */
static size_t names_block(struct names *it, struct name *ns, size_t *ret_bytes)
{
	size_t n = 0, bytes = 0;
	struct name name;

	while (names_peek(it, &name)) {
		size_t need = sizeof(struct er_dirent) + name.len;

		if (bytes + need > ER_BLOCK)
			break;
		bytes += need;
		ns[n++] = name;
		names_step(it, &name);
	}
	*ret_bytes = bytes;
	return n;
}

static uint64_t dir_size(struct fsnode *dir)
{
	struct names it = {.dir = dir};
	struct name ns[BLOCK_NAMES], next;
	uint64_t size = 0;
	size_t bytes;

	fsdir_sort(dir);
	do {
		size = er_align(size, ER_BLOCK);
		names_block(&it, ns, &bytes);
		size += bytes;
	} while (names_peek(&it, &next));
	return size;
}

static void put_names(const struct writer *w, uint8_t *at,
		      const struct name *ns, size_t n)
{
	size_t off = n * sizeof(struct er_dirent);

	for (size_t i = 0; i < n; i++) {
		const struct item *it = &w->items[ns[i].n->num - 1];
		struct er_dirent d = {
			.nid = htole64(it->slot),
			.name_off = htole16((uint16_t)off),
			.type = erofs_type(ns[i].n->mode),
		};

		memcpy(at + i * sizeof(d), &d, sizeof(d));
		memcpy(at + off, ns[i].s, ns[i].len);
		off += ns[i].len;
	}
}

/* The content of a directory: whole blocks at ${blocks}, the rest at ${tail}.
 */
static void put_dir(const struct writer *w, const struct item *item,
		    uint8_t *blocks, uint8_t *tail)
{
	struct names it = {.dir = item->n};
	struct name ns[BLOCK_NAMES];
	uint32_t k = 0;
	size_t n, bytes;

	while ((n = names_block(&it, ns, &bytes)) > 0) {
		put_names(w,
			  k < item->nblocks ? blocks + (size_t)k * ER_BLOCK
					    : tail,
			  ns, n);
		k++;
	}
}

/* --- attributes ---------------------------------------------------------- */

/* The number of the prefix of ${name}, 0 if there is none; what is left. */
static uint8_t prefix_of(const char *name, const char **ret_rest)
{
	for (uint8_t i = 1; i < ER_PREFIXES; i++) {
		const char *p = erofs_prefix(i);
		size_t len = p ? strlen(p) : 0;

		if (!p || strncmp(name, p, len) != 0)
			continue;
		/* A prefix with a dot needs a rest, one without has none. */
		if ((p[len - 1] == '.') != (name[len] != '\0'))
			continue;
		*ret_rest = name + len;
		return i;
	}
	return 0;
}

static int measure_xattrs(const struct fsnode *n, uint32_t *ret, struct err *e)
{
	uint64_t size = sizeof(struct er_xattrs);
	const char *rest;

	*ret = 0;
	if (n->nxattrs == 0)
		return 0;
	for (size_t i = 0; i < n->nxattrs; i++) {
		const struct fsxattr *x = &n->xattrs[i];

		if (!prefix_of(x->name, &rest) || strlen(rest) > UINT8_MAX)
			return err_set(e, -EOPNOTSUPP, "unsupported",
				       "an attribute '%.100s', which the image "
				       "format cannot hold",
				       x->name);
		if (x->len > UINT16_MAX)
			return err_set(e, -EOPNOTSUPP, "unsupported",
				       "an attribute '%.100s' of %zu bytes",
				       x->name, x->len);
		size += er_align(sizeof(struct er_xattr) + strlen(rest) +
					 x->len,
				 4);
	}
	if ((size - sizeof(struct er_xattrs)) / 4 + 1 > UINT16_MAX)
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "attributes of %llu bytes on one file",
			       (unsigned long long)size);
	*ret = (uint32_t)size;
	return 0;
}

static uint8_t *put_bytes(uint8_t *at, const void *data, size_t len)
{
	if (len > 0)
		memcpy(at, data, len);
	return at + len;
}

static void put_xattrs(const struct fsnode *n, uint8_t *at)
{
	at += sizeof(struct er_xattrs);
	for (size_t i = 0; i < n->nxattrs; i++) {
		const struct fsxattr *x = &n->xattrs[i];
		const char *rest = "";
		uint8_t prefix = prefix_of(x->name, &rest);
		size_t len = strlen(rest);
		struct er_xattr h = {
			.name_len = (uint8_t)len,
			.prefix = prefix,
			.value_len = htole16((uint16_t)x->len),
		};

		at = put_bytes(at, &h, sizeof(h));
		at = put_bytes(at, rest, len);
		at = put_bytes(at, x->value, x->len);
		at += er_align(len + x->len, 4) - (len + x->len);
	}
}

/* --- places -------------------------------------------------------------- */

static int check_chunks(const struct fstree *t, const struct fsnode *n,
			struct err *e)
{
	uint64_t left = n->size;

	if (n->nchunks != (n->size + FS_CHUNK - 1) / FS_CHUNK)
		goto bad;
	for (size_t i = 0; i < n->nchunks; i++) {
		const struct fschunk *c = &n->chunks[i];
		uint64_t bytes = left < FS_CHUNK ? left : FS_CHUNK;

		left -= bytes;
		if (c->block == FS_HOLE)
			continue;
		if (c->device < 1 || c->device > t->ndevices ||
		    c->block + (bytes + FS_BLOCK - 1) / FS_BLOCK >
			    t->devices[c->device - 1].blocks)
			goto bad;
	}
	return 0;
bad:
	return err_set(e, -EINVAL, "internal",
		       "a file of %llu bytes has no data that fits",
		       (unsigned long long)n->size);
}

/* What follows the inode and its attributes, as far as it is not in blocks. */
static size_t measure_rest(struct item *it, size_t head)
{
	size_t tail = it->size % ER_BLOCK;

	it->layout = ER_PLAIN;
	if (it->size == 0)
		return 0;
	if (S_ISREG(it->n->mode)) {
		it->layout = ER_CHUNKS;
		return er_align(head, 8) - head +
		       it->n->nchunks * sizeof(struct er_chunk);
	}
	it->nblocks = (uint32_t)(it->size / ER_BLOCK);
	if (tail == 0)
		return 0;
	if (head + tail > ER_BLOCK) {
		it->nblocks++;
		return 0;
	}
	it->layout = ER_INLINE;
	return tail;
}

static int place(struct writer *w, struct item *it, struct err *e)
{
	size_t head, rest, whole;
	int r = measure_xattrs(it->n, &it->xattrs, e);

	if (r == 0 && S_ISREG(it->n->mode))
		r = check_chunks(w->t, it->n, e);
	if (r < 0)
		return r;
	if (S_ISDIR(it->n->mode))
		it->size = dir_size(it->n);
	else if (S_ISREG(it->n->mode) || S_ISLNK(it->n->mode))
		it->size = it->n->size;
	head = sizeof(struct er_inode) + it->xattrs;
	rest = measure_rest(it, head);
	whole = it->layout == ER_INLINE ? head + rest : sizeof(struct er_inode);
	if (w->end % ER_BLOCK + whole > ER_BLOCK)
		w->end = er_align(w->end, ER_BLOCK);
	if (w->end / ER_SLOT > UINT32_MAX)
		return err_set(e, -EFBIG, "too_large", "too many files");
	it->slot = (uint32_t)(w->end / ER_SLOT);
	it->block = (uint32_t)w->data;
	w->data += it->nblocks;
	w->end = er_align(w->end + head + rest, ER_SLOT);
	return 0;
}

static void append(struct writer *w, struct fsnode *n)
{
	w->items[w->n++] = (struct item){.n = n};
	n->num = (uint32_t)w->n;
}

/* Every inode, breadth first, by the first of its names. */
static int collect(struct writer *w, struct err *e)
{
	if (w->t->count >= UINT32_MAX)
		return err_set(e, -EFBIG, "too_large", "too many files");
	w->items = malloc(w->t->count * sizeof(*w->items));
	if (!w->items)
		return err_sys(e, ENOMEM, "write an image");
	fs_huge(w->items, w->t->count * sizeof(*w->items));
	for (struct fs_slab *s = w->t->slabs; s; s = s->next) {
		for (size_t i = 0; i < s->n; i++)
			s->nodes[i].num = 0;
	}
	append(w, w->t->root);
	for (size_t i = 0; i < w->n; i++) {
		struct fsnode *dir = w->items[i].n;
		size_t n = fsdir_count(dir);

		for (size_t k = 0; k < n; k++) {
			struct fsnode *c = dir->dir->ents[k].node;

			if (c->num == 0)
				append(w, c);
		}
	}
	return 0;
}

/* --- output -------------------------------------------------------------- */

static void put_chunks(const struct fsnode *n, uint8_t *at)
{
	for (size_t i = 0; i < n->nchunks; i++) {
		const struct fschunk *c = &n->chunks[i];
		struct er_chunk x = {.block = UINT32_MAX};

		if (c->block != FS_HOLE) {
			x.device = htole16(c->device);
			x.block = htole32(c->block);
		}
		memcpy(at + i * sizeof(x), &x, sizeof(x));
	}
}

static uint32_t encode_rdev(dev_t dev)
{
	uint32_t ma = major(dev), mi = minor(dev);

	return (mi & 0xff) | ma << 8 | (mi & ~0xffU) << 12;
}

static uint32_t inode_u(const struct writer *w, const struct item *it)
{
	if (S_ISCHR(it->n->mode) || S_ISBLK(it->n->mode))
		return encode_rdev(it->n->rdev);
	if (it->layout == ER_CHUNKS)
		return ER_CHUNK_FORMAT(FS_CHUNK_BITS);
	if (it->nblocks)
		return (uint32_t)(w->end / ER_BLOCK) + it->block;
	return 0;
}

/* The inode and what follows it to ${at}, its whole blocks to ${blocks}; both
 * were zeros. */
static void put_inode(const struct writer *w, const struct item *it,
		      uint8_t *at, uint8_t *blocks)
{
	const struct fsnode *n = it->n;
	uint8_t *rest = at + sizeof(struct er_inode) + it->xattrs;
	struct er_inode x = {
		.format = htole16(ER_FORMAT(it->layout)),
		.mode = htole16((uint16_t)n->mode),
		.size = htole64(it->size),
		.u = htole32(inode_u(w, it)),
		.ino = htole32(n->num),
		.uid = htole32(n->uid),
		.gid = htole32(n->gid),
		.mtime = htole64((uint64_t)n->mtime.tv_sec),
		.mtime_ns = htole32((uint32_t)n->mtime.tv_nsec),
		.nlink = htole32(n->nlink),
	};

	if (it->xattrs) {
		x.xattrs = htole16(
			(uint16_t)((it->xattrs - sizeof(struct er_xattrs)) / 4 +
				   1));
		put_xattrs(n, at + sizeof(x));
	}
	memcpy(at, &x, sizeof(x));
	if (S_ISDIR(n->mode))
		put_dir(w, it, blocks, rest);
	else if (S_ISLNK(n->mode))
		memcpy(it->layout == ER_INLINE ? rest : blocks, n->link,
		       n->size);
	else if (it->layout == ER_CHUNKS)
		put_chunks(n, at + er_align((size_t)(rest - at), 8));
}

/* What comes before the inodes. */
static void put_super(const struct writer *w, uint8_t *out)
{
	const struct fstree *t = w->t;
	uint32_t blocks = (uint32_t)(w->end / ER_BLOCK + w->data);
	struct er_super s = {
		.magic = htole32(ER_MAGIC),
		.compat = htole32(ER_CHECKSUM),
		.block_bits = ER_BITS,
		.root_nid = htole16((uint16_t)w->items[0].slot),
		.inodes = htole64(w->n),
		.blocks = htole32(blocks),
		.incompat = htole32(ER_CHUNKED |
				    (t->ndevices ? ER_DEVICE_TABLE : 0)),
		.ndevices = htole16((uint16_t)t->ndevices),
	};
	char hex[DIGEST_HEX + 1];

	if (t->ndevices)
		s.devices_slot = htole16(ER_DEVICES / sizeof(struct er_device));
	for (size_t i = 0; i < t->ndevices; i++) {
		struct er_device d = {
			.blocks = htole32(t->devices[i].blocks),
			.mapped = htole32(blocks),
		};

		memcpy(d.tag, digest_hex(&t->devices[i].root, hex),
		       sizeof(d.tag));
		memcpy(out + ER_DEVICES + i * sizeof(d), &d, sizeof(d));
		blocks += t->devices[i].blocks;
	}
	memcpy(out + ER_SUPER, &s, sizeof(s));
	s.checksum = htole32(erofs_checksum(out));
	memcpy(out + ER_SUPER, &s, sizeof(s));
}

static uint64_t item_at(const struct writer *w, size_t i)
{
	return i < w->n ? (uint64_t)w->items[i].slot * ER_SLOT : w->end;
}

static uint64_t blocks_at(const struct writer *w, const struct item *it)
{
	return w->end + (uint64_t)it->block * ER_BLOCK;
}

static uint64_t image_bytes(const struct writer *w)
{
	return w->end + w->data * ER_BLOCK;
}

/* --- the whole ------------------------------------------------------------ */

static void writer_done(struct writer *w)
{
	free(w->items);
}
#define auto_writer __attribute__((cleanup(writer_done)))

static int writer_open(struct writer *w, struct fstree *t, struct err *e)
{
	uint64_t blocks;
	int r;

	*w = (struct writer){
		.t = t,
		.end = er_align(ER_DEVICES +
					t->ndevices * sizeof(struct er_device),
				ER_BLOCK),
	};
	r = collect(w, e);
	for (size_t i = 0; r == 0 && i < w->n; i++)
		r = place(w, &w->items[i], e);
	if (r < 0)
		return r;
	w->end = er_align(w->end, ER_BLOCK);
	blocks = image_bytes(w) / ER_BLOCK;
	for (size_t i = 0; i < t->ndevices; i++)
		blocks += t->devices[i].blocks;
	if (blocks > UINT32_MAX)
		return err_set(e, -EFBIG, "too_large",
			       "more than 16 TiB of data in an image");
	return 0;
}

int erofs_write(struct fstree *t, struct buf *ret, struct err *e)
{
	auto_writer struct writer w = {0};
	int r = writer_open(&w, t, e);
	uint8_t *out;

	if (r < 0)
		return r;
	if (buf_reserve(ret, image_bytes(&w)) < 0)
		return err_sys(e, ENOMEM, "write an image");
	out = (uint8_t *)ret->data + ret->len;
	fs_huge(out, image_bytes(&w));
	memset(out, 0, image_bytes(&w) + 1);
	put_super(&w, out);
	for (size_t i = 0; i < w.n; i++)
		put_inode(&w, &w.items[i], out + item_at(&w, i),
			  out + blocks_at(&w, &w.items[i]));
	ret->len += image_bytes(&w);
	return 0;
}

/* --- comparing ------------------------------------------------------------ */

/* The first byte in which ${data} is not ${want}, both at ${at}; or the end. */
static uint64_t differ(const uint8_t *data, const uint8_t *want, size_t len,
		       uint64_t at)
{
	size_t i = 0;

	if (memcmp(data + at, want, len) == 0)
		return UINT64_MAX;
	while (data[at + i] == want[i])
		i++;
	return at + i;
}

/* ${len} zeros in ${b}, or NULL. */
static uint8_t *zeros(struct buf *b, size_t len)
{
	b->len = 0;
	if (buf_reserve(b, len) < 0)
		return NULL;
	memset(b->data, 0, len);
	return (uint8_t *)b->data;
}

static int compare_item(const struct writer *w, size_t i, const uint8_t *data,
			struct buf *b, uint64_t *ret_at)
{
	const struct item *it = &w->items[i];
	uint64_t at = item_at(w, i), whole = blocks_at(w, it);
	size_t len = item_at(w, i + 1) - at;
	size_t blocks = (size_t)it->nblocks * ER_BLOCK;
	uint8_t *p = zeros(b, len + blocks);

	if (!p)
		return -ENOMEM;
	put_inode(w, it, p, p + len);
	*ret_at = differ(data, p, len, at);
	if (*ret_at == UINT64_MAX)
		*ret_at = differ(data, p + len, blocks, whole);
	return 0;
}

/* Piece by piece, for a second image in memory costs more than all else. */
int erofs_compare(struct fstree *t, const void *data, size_t len,
		  uint64_t *ret_at, struct err *e)
{
	auto_writer struct writer w = {0};
	auto_buf struct buf b = {0};
	uint64_t at = 0;
	uint8_t *p;
	int r = writer_open(&w, t, e);

	if (r < 0)
		return r;
	*ret_at = len;
	if (image_bytes(&w) != len)
		return 0;
	p = zeros(&b, item_at(&w, 0));
	if (p) {
		put_super(&w, p);
		at = differ(data, p, item_at(&w, 0), 0);
	}
	for (size_t i = 0; p && at == UINT64_MAX && i < w.n; i++) {
		if (compare_item(&w, i, data, &b, &at) < 0)
			p = NULL;
	}
	if (!p)
		return err_sys(e, ENOMEM, "compare an image");
	if (at == UINT64_MAX)
		return 1;
	*ret_at = at;
	return 0;
}
