/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "img/erofs.h"
#include "img/erofs_format.h"
#include "img/fstree_priv.h"

struct item {
	struct fsnode *n;
	uint32_t slot, parent; /* nids */
};

/*
 * ${left}: bytes of the image that no inode or block has claimed yet.  In an
 * honest image nothing is claimed twice; where it is, the claims would add up
 * to more than the image, and with them time and memory.
 */
struct reader {
	const uint8_t *data;
	size_t len;
	uint64_t left;
	struct fstree *t;
	uint32_t *by_slot;  /* place in items + 1 */
	struct item *items; /* in the order they were found */
	size_t n, cap;
	struct err *e;
};

/* What is being read: an inode, its bytes checked to be inside the image. */
struct inode {
	struct er_inode x;
	uint64_t at;   /* of the inode */
	uint64_t rest; /* of what follows it and its attributes */
	unsigned layout;
};

static int bad(const struct reader *r, uint64_t at, const char *what)
{
	return err_set(r->e, -EBADMSG, "image_damaged", "at byte %llu: %s",
		       (unsigned long long)at, what);
}

static int nomem(const struct reader *r)
{
	return err_sys(r->e, ENOMEM, "read an image");
}

/* ${len} bytes from ${at} are there and were nobody's. */
static int claim(struct reader *r, uint64_t at, uint64_t len)
{
	if (at > r->len || len > r->len - at)
		return bad(r, at, "something that ends behind the image");
	if (len > r->left)
		return bad(r, at, "parts of the image overlap");
	r->left -= len;
	return 0;
}

/* --- super block ---------------------------------------------------------- */

static int read_devices(struct reader *r, const struct er_super *s)
{
	uint64_t mapped = le32toh(s->blocks);
	size_t n = le16toh(s->ndevices);

	if (n > FS_DEVICES_MAX ||
	    claim(r, ER_DEVICES, n * sizeof(struct er_device)) < 0)
		return bad(r, ER_SUPER, "too many devices");
	for (size_t i = 0; i < n; i++) {
		uint64_t at = ER_DEVICES + i * sizeof(struct er_device);
		char tag[DIGEST_HEX + 1] = {0};
		struct fsdevice dev;
		struct er_device d;
		uint16_t index;

		memcpy(&d, r->data + at, sizeof(d));
		memcpy(tag, d.tag, sizeof(d.tag));
		if (digest_parse(tag, &dev.root) < 0)
			return bad(r, at, "a device without a digest");
		dev.blocks = le32toh(d.blocks);
		if (le32toh(d.mapped) != mapped)
			return bad(r, at, "a device not behind the last one");
		mapped += dev.blocks;
		if (mapped > UINT32_MAX)
			return bad(r, at, "a device beyond all numbers");
		if (fstree_device(r->t, &dev, &index, r->e) < 0 ||
		    index != i + 1)
			return bad(r, at, "a device twice");
	}
	return 0;
}

static int read_super(struct reader *r, struct er_super *s)
{
	uint32_t incompat;

	if (r->len < ER_BLOCK || r->len % ER_BLOCK)
		return bad(r, r->len, "no whole blocks");
	memcpy(s, r->data + ER_SUPER, sizeof(*s));
	if (le32toh(s->magic) != ER_MAGIC)
		return bad(r, ER_SUPER, "no image");
	if (le32toh(s->checksum) != erofs_checksum(r->data))
		return bad(r, ER_SUPER, "the super block's checksum is wrong");
	incompat = ER_CHUNKED | (s->ndevices ? ER_DEVICE_TABLE : 0);
	if (le32toh(s->compat) != ER_CHECKSUM ||
	    le32toh(s->incompat) != incompat || s->block_bits != ER_BITS ||
	    s->ext_slots || s->meta_block || s->dir_block_bits || s->nprefixes)
		return bad(r, ER_SUPER, "features that are not ours");
	if (le32toh(s->blocks) != r->len / ER_BLOCK)
		return bad(r, ER_SUPER, "cut short, or something behind it");
	return read_devices(r, s);
}

/* --- inodes --------------------------------------------------------------- */

static int read_xattr(struct reader *r, struct fsnode *n, uint64_t *at,
		      uint64_t end)
{
	char name[sizeof("system.posix_acl_default") + UINT8_MAX];
	const char *prefix;
	struct er_xattr h;
	size_t len, value;

	if (end - *at < sizeof(h))
		return bad(r, *at, "an attribute cut short");
	memcpy(&h, r->data + *at, sizeof(h));
	prefix = erofs_prefix(h.prefix);
	value = le16toh(h.value_len);
	if (!prefix || sizeof(h) + h.name_len + value > end - *at)
		return bad(r, *at, "an attribute that cannot be");
	len = strlen(prefix);
	memcpy(name, prefix, len);
	memcpy(name + len, r->data + *at + sizeof(h), h.name_len);
	name[len + h.name_len] = '\0';
	if (strlen(name) != len + h.name_len ||
	    (prefix[len - 1] == '.') != (h.name_len > 0))
		return bad(r, *at, "an attribute's name");
	if (n->nxattrs && strcmp(n->xattrs[n->nxattrs - 1].name, name) >= 0)
		return bad(r, *at, "attributes out of order");
	if (fsnode_set_xattr(r->t, n, name,
			     r->data + *at + sizeof(h) + h.name_len, value) < 0)
		return nomem(r);
	*at += er_align(sizeof(h) + h.name_len + value, 4);
	return 0;
}

static int read_xattrs(struct reader *r, struct fsnode *n, struct inode *in)
{
	uint64_t at = in->at + sizeof(in->x), end;
	size_t words = le16toh(in->x.xattrs);
	struct er_xattrs h;
	int rc;

	in->rest = at;
	if (words == 0)
		return 0;
	end = at + sizeof(h) + (words - 1) * 4;
	rc = claim(r, at, end - at);
	if (rc < 0)
		return rc;
	memcpy(&h, r->data + at, sizeof(h));
	if (h.filter || h.shared)
		return bad(r, at, "attributes shared or filtered");
	at += sizeof(h);
	while (rc == 0 && at < end)
		rc = read_xattr(r, n, &at, end);
	if (rc == 0 && at != end)
		return bad(r, at, "attributes of the wrong length");
	in->rest = end;
	return rc;
}

static int read_chunk(struct reader *r, struct fsnode *n, uint64_t at,
		      uint64_t bytes)
{
	struct fschunk c = {.block = FS_HOLE};
	struct er_chunk x;

	memcpy(&x, r->data + at, sizeof(x));
	if (x.block != UINT32_MAX) {
		c.block = le32toh(x.block);
		c.device = le16toh(x.device);
		if (c.device < 1 || c.device > r->t->ndevices)
			return bad(r, at, "data in a device that is not there");
		if (c.block + (bytes + FS_BLOCK - 1) / FS_BLOCK >
		    r->t->devices[c.device - 1].blocks)
			return bad(r, at, "data outside its device");
	} else if (x.device) {
		return bad(r, at, "a hole in a device");
	}
	if (x.advise)
		return bad(r, at, "a chunk of a kind that is not ours");
	return fsnode_add_chunk(r->t, n, &c) < 0 ? nomem(r) : 0;
}

static int read_file(struct reader *r, struct fsnode *n, struct inode *in)
{
	uint64_t at = er_align(in->rest, 8);
	uint64_t count = (n->size + FS_CHUNK - 1) / FS_CHUNK;
	uint64_t left = n->size;
	int rc;

	if (n->size == 0)
		return in->layout == ER_PLAIN && !in->x.u
			       ? 0
			       : bad(r, in->at, "an empty file with data");
	if (in->layout != ER_CHUNKS ||
	    le32toh(in->x.u) != ER_CHUNK_FORMAT(FS_CHUNK_BITS))
		return bad(r, in->at, "a file that is not in our chunks");
	if (n->size > FS_FILE_MAX)
		return bad(r, in->at, "a file larger than there are");
	rc = claim(r, at, count * sizeof(struct er_chunk));
	for (uint64_t i = 0; rc == 0 && i < count; i++) {
		uint64_t bytes = left < FS_CHUNK ? left : FS_CHUNK;

		rc = read_chunk(r, n, at + i * sizeof(struct er_chunk), bytes);
		left -= bytes;
	}
	return rc;
}

/*
 * Where the bytes of a directory or link are: *${ret_blocks} whole blocks and
 * *${ret_tail}.  What lies in blocks is padded.
 */
static int locate(struct reader *r, const struct inode *in, uint64_t *ret_at,
		  uint64_t *ret_blocks, uint64_t *ret_tail)
{
	uint64_t size = le64toh(in->x.size), tail = size % ER_BLOCK;
	uint64_t blocks = size / ER_BLOCK;
	int rc;

	if (in->layout != ER_PLAIN && in->layout != ER_INLINE)
		return bad(r, in->at, "a layout that is not ours");
	if (blocks > r->len / ER_BLOCK)
		return bad(r, in->at, "larger than the image");
	if (in->layout == ER_PLAIN) {
		blocks += tail > 0;
	} else {
		if (tail == 0 || in->rest % ER_BLOCK + tail > ER_BLOCK)
			return bad(r, in->at, "a tail across blocks");
		rc = claim(r, in->rest, tail);
		if (rc < 0)
			return rc;
	}
	*ret_at = (uint64_t)le32toh(in->x.u) * ER_BLOCK;
	*ret_blocks = blocks;
	*ret_tail = in->rest;
	if (blocks == 0)
		return 0;
	return claim(r, *ret_at, blocks * ER_BLOCK);
}

static int read_link(struct reader *r, struct fsnode *n, struct inode *in)
{
	uint64_t at, blocks, tail;
	int rc;

	if (n->size == 0 || n->size >= ER_BLOCK)
		return bad(r, in->at, "a link of an impossible length");
	rc = locate(r, in, &at, &blocks, &tail);
	if (rc < 0)
		return rc;
	at = blocks ? at : tail;
	if (memchr(r->data + at, '\0', n->size))
		return bad(r, at, "a link with a NUL");
	n->link = fs_strndup(r->t, (const char *)r->data + at, n->size);
	return n->link ? 0 : nomem(r);
}

static int read_attr(struct reader *r, struct fsnode *n, struct inode *in)
{
	uint32_t u = le32toh(in->x.u);
	int rc;

	n->mode = le16toh(in->x.mode);
	n->uid = le32toh(in->x.uid);
	n->gid = le32toh(in->x.gid);
	n->mtime.tv_sec = (time_t)le64toh(in->x.mtime);
	n->mtime.tv_nsec = le32toh(in->x.mtime_ns);
	n->num = le32toh(in->x.nlink); /* compared when all names are known */
	rc = read_xattrs(r, n, in);
	if (rc < 0)
		return rc;
	switch (n->mode & S_IFMT) {
	case S_IFREG:
		n->size = le64toh(in->x.size);
		return read_file(r, n, in);
	case S_IFLNK:
		n->size = le64toh(in->x.size);
		return read_link(r, n, in);
	case S_IFDIR:
		n->implied = fsnode_looks_implied(n);
		return fsnode_opendir(r->t, n) < 0 ? nomem(r) : 0;
	case S_IFCHR:
	case S_IFBLK:
		n->rdev = makedev(u >> 8 & 0xfff, (u & 0xff) | (u >> 20) << 8);
		break;
	default:
		if (u)
			return bad(r, in->at, "a pipe with a number");
		break;
	}
	if (in->x.size || in->layout != ER_PLAIN)
		return bad(r, in->at, "a special file with data");
	return 0;
}

static int get_inode(struct reader *r, uint64_t nid, struct inode *in)
{
	unsigned format;

	*in = (struct inode){.at = nid * ER_SLOT};
	memcpy(&in->x, r->data + in->at, sizeof(in->x));
	format = le16toh(in->x.format);
	in->layout = format >> 1;
	if (!(format & 1))
		return bad(r, in->at, "an inode of a form that is not ours");
	in->rest = in->at + sizeof(in->x);
	if (in->x.xattrs)
		in->rest += sizeof(struct er_xattrs) +
			    (le16toh(in->x.xattrs) - 1U) * 4;
	return 0;
}

/* A new inode: into the tree and the queue of what is to be looked into. */
static int read_inode(struct reader *r, uint32_t slot, uint32_t parent,
		      struct fsnode **ret)
{
	struct inode in;
	struct fsnode *n;
	int rc = claim(r, (uint64_t)slot * ER_SLOT, sizeof(struct er_inode));

	if (rc == 0)
		rc = get_inode(r, slot, &in);
	if (rc < 0)
		return rc;
	n = slot == parent && !r->n ? r->t->root : fsnode_new(r->t);
	if (!n)
		return nomem(r);
	fsdir_free(n->dir); /* of a new tree's root */
	n->dir = NULL;
	n->implied = false;
	rc = read_attr(r, n, &in);
	if (rc < 0)
		return rc;
	if (fsnode_check(n) < 0)
		return bad(r, in.at, "attributes that cannot be");
	if (r->n == r->cap) {
		struct item *p;

		r->cap = r->cap ? r->cap * 2 : 256;
		p = reallocarray(r->items, r->cap, sizeof(*p));
		if (!p)
			return nomem(r);
		r->items = p;
	}
	r->items[r->n++] = (struct item){n, slot, parent};
	r->by_slot[slot] = (uint32_t)r->n;
	*ret = n;
	return 0;
}

/* --- directories ---------------------------------------------------------- */

struct name {
	const char *s;
	size_t len;
	uint64_t at; /* of its entry */
	struct er_dirent d;
};

/* A directory being read: its last name, and the dots it has shown. */
struct names {
	struct item dir;
	const char *last;
	size_t last_len;
	unsigned dots;
};

static int add_name(struct reader *r, const struct names *ns,
		    const struct name *name)
{
	uint64_t nid = le64toh(name->d.nid);
	struct fsnode *n;
	char *own;
	int rc;

	if (nid >= r->len / ER_SLOT)
		return bad(r, name->at, "a name of nothing in this image");
	if (r->by_slot[nid]) {
		n = r->items[r->by_slot[nid] - 1].n;
		if (S_ISDIR(n->mode))
			return bad(r, name->at, "a directory's second name");
	} else {
		rc = read_inode(r, (uint32_t)nid, ns->dir.slot, &n);
		if (rc < 0)
			return rc;
	}
	if (name->d.type != erofs_type(n->mode))
		return bad(r, name->at, "a name of the wrong type");
	own = fs_strndup(r->t, name->s, name->len);
	if (!own || fsdir_add(ns->dir.n, own, n) < 0)
		return nomem(r);
	return 0;
}

static int take_name(struct reader *r, struct names *ns,
		     const struct name *name)
{
	size_t least = name->len < ns->last_len ? name->len : ns->last_len;
	bool dot = name->len <= 2 && memcmp(name->s, "..", name->len) == 0;
	uint64_t want;
	int c;

	if (name->len == 0 || name->len > FS_NAME_MAX ||
	    memchr(name->s, '\0', name->len) || memchr(name->s, '/', name->len))
		return bad(r, name->at, "a name that cannot be");
	c = ns->last ? memcmp(ns->last, name->s, least) : -1;
	if (c > 0 || (c == 0 && ns->last_len >= name->len))
		return bad(r, name->at, "names out of order");
	ns->last = name->s;
	ns->last_len = name->len;
	if (!dot)
		return add_name(r, ns, name);
	want = name->len == 1 ? ns->dir.slot : ns->dir.parent;
	if (le64toh(name->d.nid) != want || name->d.type != erofs_type(S_IFDIR))
		return bad(r, name->at, "\".\" or \"..\" leads elsewhere");
	ns->dots++;
	return 0;
}

/* ${bytes} of names at ${at}: entries, then the names, perhaps padding. */
static int read_names(struct reader *r, struct names *ns, uint64_t at,
		      size_t bytes)
{
	const char *block = (const char *)r->data + at;
	struct er_dirent d;
	size_t n, off, end;
	int rc = 0;

	if (bytes < sizeof(d))
		return bad(r, at, "a directory cut short");
	memcpy(&d, block, sizeof(d));
	off = le16toh(d.name_off);
	n = off / sizeof(d);
	if (off % sizeof(d) || n == 0 || off > bytes)
		return bad(r, at, "a directory block");
	for (size_t i = 0; rc == 0 && i < n; i++, off = end) {
		struct name name = {
			.s = block + off,
			.at = at + i * sizeof(d),
			.d = d,
		};

		end = bytes;
		if (i + 1 < n) {
			memcpy(&d, block + (i + 1) * sizeof(d), sizeof(d));
			end = le16toh(d.name_off);
			if (end < off || end > bytes)
				return bad(r, name.at, "a name's place");
			name.len = end - off;
		} else {
			name.len = strnlen(block + off, end - off);
		}
		rc = take_name(r, ns, &name);
	}
	return rc;
}

static int read_dir(struct reader *r, const struct item *dir)
{
	struct names ns = {.dir = *dir};
	uint64_t at, blocks, tail, size;
	struct inode in;
	int rc = get_inode(r, dir->slot, &in);

	if (rc == 0)
		rc = locate(r, &in, &at, &blocks, &tail);
	if (rc < 0)
		return rc;
	size = le64toh(in.x.size);
	for (uint64_t i = 0; rc == 0 && i < blocks; i++) {
		rc = read_names(r, &ns, at + i * ER_BLOCK,
				size < ER_BLOCK ? size : ER_BLOCK);
		size -= size < ER_BLOCK ? size : ER_BLOCK;
	}
	if (rc == 0 && size)
		rc = read_names(r, &ns, tail, size);
	if (rc == 0 && ns.dots != 2)
		return bad(r, in.at, "a directory without \".\" or \"..\"");
	return rc;
}

/* --- the whole ------------------------------------------------------------ */

static int check_counts(struct reader *r, const struct er_super *s)
{
	if (le64toh(s->inodes) != r->n)
		return bad(r, ER_SUPER, "another number of inodes");
	for (size_t i = 0; i < r->n; i++) {
		const struct item *it = &r->items[i];

		if (it->n->num != it->n->nlink)
			return bad(r, (uint64_t)it->slot * ER_SLOT,
				   "a link count that is not that of its "
				   "names");
	}
	return 0;
}

/* There is one image of a tree, so what else the bytes may say is wrong. */
static int check_form(struct reader *r)
{
	uint64_t at;
	int rc = erofs_compare(r->t, r->data, r->len, &at, r->e);

	if (rc == -ENOMEM || rc > 0)
		return rc > 0 ? 0 : rc;
	if (rc < 0)
		return bad(r, 0, "no image that we would write");
	return bad(r, at, "not the form that we write");
}

static int read_all(struct reader *r)
{
	struct er_super s = {0};
	struct fsnode *n = NULL;
	uint32_t root;
	int rc = read_super(r, &s);

	if (rc < 0)
		return rc;
	r->by_slot = calloc(r->len / ER_SLOT, sizeof(*r->by_slot));
	if (!r->by_slot)
		return nomem(r);
	root = le16toh(s.root_nid);
	rc = read_inode(r, root, root, &n);
	if (rc == 0 && !S_ISDIR(n->mode))
		return bad(r, (uint64_t)root * ER_SLOT,
			   "the root is no "
			   "directory");
	if (rc == 0)
		n->dir->parent = n;
	for (size_t i = 0; rc == 0 && i < r->n; i++) {
		struct item it = r->items[i];

		if (S_ISDIR(it.n->mode))
			rc = read_dir(r, &it);
	}
	if (rc == 0)
		rc = check_counts(r, &s);
	return rc == 0 ? check_form(r) : rc;
}

int erofs_read(const void *data, size_t len, struct fstree **ret, struct err *e)
{
	auto_fstree struct fstree *t = fstree_new();
	struct reader r = {.data = data,
			   .len = len,
			   .left = len,
			   .t = t,
			   .e = e};
	int rc;

	if (!t)
		return nomem(&r);
	if (len / ER_SLOT >= UINT32_MAX)
		return bad(&r, len, "too large");
	rc = read_all(&r);
	free(r.by_slot);
	free(r.items);
	if (rc < 0)
		return rc;
	*ret = steal_ptr(t);
	return 0;
}
