/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/walk.h"
#include "img/pack_xattr.h"
#include "img/pack_upper.h"

/* A file with several names, by its inode. */
struct seen {
	ino_t ino;
	struct fsnode *node;
};

/* What is left out from here down. */
struct gone {
	bool on;
	unsigned depth;
	const char *rule;
	struct buf path;
	uint64_t bytes;
};

struct packing {
	const struct pack_upper *p;
	struct pack_upper_result n;
	struct seen *seen; /* open addressing; cap is a power of two */
	size_t nseen, cap;
	struct gone gone;
	const char *below; /* the rule of a directory whose content goes */
	unsigned below_depth;
	struct pack_xattr xattr;
	uint64_t chunks;
	char *data; /* FS_CHUNK bytes */
};

static void packing_done(struct packing *k)
{
	free(k->seen);
	free(k->data);
	buf_done(&k->gone.path);
	pack_xattr_done(&k->xattr);
}

static int too_large(struct err *e, const char *path, const char *what)
{
	return err_set(e, -EFBIG, "too_large", "'%.200s': %s", path, what);
}

static int changed(struct err *e, const char *path)
{
	return err_set(e, -EBUSY, "busy", "'%.200s' changed while it was read",
		       path);
}

static int progress(struct packing *k, struct err *e)
{
	if (!k->p->progress)
		return 0;
	return k->p->progress(k->p->arg, k->n.entries, k->n.bytes, e);
}

/* --- files with several names -------------------------------------------- */

static struct seen *slot(struct seen *table, size_t cap, ino_t ino)
{
	size_t i = (ino * 0x9e3779b97f4a7c15u >> 20) & (cap - 1);

	while (table[i].node && table[i].ino != ino)
		i = (i + 1) & (cap - 1);
	return &table[i];
}

static int seen_grow(struct packing *k)
{
	size_t cap = k->cap ? k->cap * 2 : 256;
	struct seen *table;

	if (k->nseen * 2 < k->cap)
		return 0;
	table = calloc(cap, sizeof(*table));
	if (!table)
		return -ENOMEM;
	for (size_t i = 0; i < k->cap; i++)
		if (k->seen[i].node)
			*slot(table, cap, k->seen[i].ino) = k->seen[i];
	free(k->seen);
	k->seen = table;
	k->cap = cap;
	return 0;
}

/* --- data ---------------------------------------------------------------- */

/* 1: the file ends before. */
static int read_chunk(int fd, uint64_t off, char *data, size_t len)
{
	size_t done = 0;

	while (done < len) {
		ssize_t n = pread(fd, data + done, len - done,
				  (off_t)(off + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 1;
		done += (size_t)n;
	}
	return 0;
}

static int add_chunk(struct packing *k, int fd, const char *path,
		     struct fsnode *n, uint64_t off, struct err *e)
{
	uint64_t left = n->size - off;
	size_t len = left < FS_CHUNK ? (size_t)left : FS_CHUNK;
	struct fschunk chunk;
	int r;

	r = read_chunk(fd, off, k->data, len);
	if (r > 0)
		return changed(e, path);
	if (r < 0)
		return err_sys(e, -r, "read '%.200s'", path);
	r = k->p->chunk(k->p->arg, k->data, len, &chunk, e);
	if (r < 0)
		return r;
	k->n.bytes += len;
	if (fsnode_add_chunk(k->p->tree, n, &chunk) < 0)
		return err_sys(e, ENOMEM, "pack");
	return progress(k, e);
}

/* The next chunk from ${i} on that has data; ${count}: none.  A file system
 * that cannot tell has it everywhere. */
static uint64_t next_data(int fd, uint64_t i, uint64_t count)
{
	off_t at = lseek(fd, (off_t)(i << FS_CHUNK_BITS), SEEK_DATA);

	if (at < 0)
		return errno == ENXIO ? count : i;
	return (uint64_t)at >> FS_CHUNK_BITS;
}

static int add_data(struct packing *k, int fd, const char *path,
		    const struct stat *st, struct fsnode *n, struct err *e)
{
	static const struct fschunk hole = {FS_HOLE, 0};
	uint64_t count = (n->size + FS_CHUNK - 1) >> FS_CHUNK_BITS;
	bool sparse = n->size > FS_CHUNK &&
		      (uint64_t)st->st_blocks * 512 < n->size;
	uint64_t i = 0, next;
	int r;

	if (count > PACK_CHUNKS_MAX - k->chunks)
		return too_large(e, path, "files are over 8 TiB together");
	k->chunks += count;
	while (i < count) {
		next = sparse ? next_data(fd, i, count) : i;
		for (; i < next && i < count; i++)
			if (fsnode_add_chunk(k->p->tree, n, &hole) < 0)
				return err_sys(e, ENOMEM, "pack");
		if (i == count)
			break;
		r = add_chunk(k, fd, path, n, i++ << FS_CHUNK_BITS, e);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- entries ------------------------------------------------------------- */

static int check_ids(struct walk_item *it, struct err *e)
{
	if (it->st.st_uid <= PACK_ID_MAX && it->st.st_gid <= PACK_ID_MAX)
		return 0;
	return err_set(e, -EOVERFLOW, "bad_value",
		       "'%.200s' belongs to %u:%u, which is nobody of a "
		       "sandbox",
		       it->path, it->st.st_uid, it->st.st_gid);
}

static void attributes(struct walk_item *it, struct fsnode *attr)
{
	*attr = (struct fsnode){
		.mode = it->st.st_mode,
		.uid = it->st.st_uid,
		.gid = it->st.st_gid,
		.mtime = it->st.st_mtim,
	};
}

static int put(struct packing *k, struct walk_item *it,
	       const struct fsnode *attr, struct fsnode **ret, struct err *e)
{
	int r = fstree_put(k->p->tree, it->path, attr, ret, e);

	return r < 0 ? err_wrap(e, r, "'%.200s'", it->path) : 0;
}

/* All whiteouts are one inode to overlay, and each is one by itself to us. */
static int put_whiteout(struct packing *k, struct walk_item *it, struct err *e)
{
	struct fsnode attr = {.mode = S_IFCHR}, *n;

	k->n.whiteouts++;
	return put(k, it, &attr, &n, e);
}

static int apply_xattrs(struct packing *k, struct walk_item *it, int fd,
			struct fsnode *n, struct err *e)
{
	int r = pack_xattr_apply(&k->xattr, fd, k->p->tree, n, e);

	if (r < 0)
		return err_wrap(e, r, "'%.200s'", it->path);
	k->n.opaques += fsnode_is_opaque(n);
	return 0;
}

static int open_entry(struct walk_item *it, int flags, struct err *e)
{
	struct stat st;
	int fd;

	fd = openat(it->dirfd, it->name,
		    flags | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
	if (fd < 0)
		return err_sys(e, errno, "open '%.200s'", it->path);
	if (fstat(fd, &st) < 0 ||
	    (st.st_mode & S_IFMT) != (it->st.st_mode & S_IFMT) ||
	    (!it->lazy && st.st_ino != it->st.st_ino)) {
		fd_close(fd);
		return changed(e, it->path);
	}
	it->st = st;
	it->lazy = false;
	return fd;
}

static int add_new_file(struct packing *k, struct walk_item *it, int fd,
			struct fsnode **ret, struct err *e)
{
	struct fsnode attr;
	int r;

	if ((uint64_t)it->st.st_size > FS_FILE_MAX)
		return too_large(e, it->path, "a file of over 8 TiB");
	attributes(it, &attr);
	attr.size = (uint64_t)it->st.st_size;
	r = put(k, it, &attr, ret, e);
	if (r == 0)
		r = apply_xattrs(k, it, fd, *ret, e);
	if (r == 0 && k->p->chunk)
		r = add_data(k, fd, it->path, &it->st, *ret, e);
	return r;
}

/* Everything that may have several names. */
static int add_known(struct packing *k, struct walk_item *it, int fd,
		     int (*add)(struct packing *k, struct walk_item *it, int fd,
				struct fsnode **ret, struct err *e),
		     struct err *e)
{
	struct seen *s = NULL;
	struct fsnode *n;
	int r;

	if (it->st.st_nlink > 1) {
		if (seen_grow(k) < 0)
			return err_sys(e, ENOMEM, "pack");
		s = slot(k->seen, k->cap, it->st.st_ino);
	}
	if (s && s->node) {
		r = fstree_link(k->p->tree, it->path, s->node, e);
		return r < 0 ? err_wrap(e, r, "'%.200s'", it->path) : 0;
	}
	r = add(k, it, fd, &n, e);
	if (r < 0 || !s)
		return r;
	*s = (struct seen){it->st.st_ino, n};
	k->nseen++;
	return 0;
}

static int add_file(struct packing *k, struct walk_item *it, struct err *e)
{
	auto_close int fd = -1;
	int r;

	/* O_NOATIME: the upper is only looked at. */
	fd = open_entry(it, O_RDONLY | O_NONBLOCK | O_NOATIME, e);
	if (fd < 0)
		return fd;
	r = check_ids(it, e);
	if (r < 0)
		return r;
	if (it->st.st_size == 0) {
		r = pack_xattr_whiteout(fd);
		if (r > 0)
			return put_whiteout(k, it, e);
	}
	return add_known(k, it, fd, add_new_file, e);
}

static int add_dir(struct packing *k, struct walk_item *it, struct err *e)
{
	struct fsnode attr, *n;
	auto_close int fd = -1;
	int r;

	if (it->depth > PACK_DEPTH_MAX)
		return too_large(e, it->path, "directories are too deep");
	fd = openat(it->dirfd, it->name,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC |
			    O_NOATIME);
	if (fd < 0)
		return err_sys(e, errno, "open '%.200s'", it->path);
	attributes(it, &attr);
	r = put(k, it, &attr, &n, e);
	return r < 0 ? r : apply_xattrs(k, it, fd, n, e);
}

static int read_link(struct walk_item *it, int fd, struct fsnode *attr,
		     char *link, struct err *e)
{
	ssize_t len = readlinkat(fd, "", link, PATH_MAX);

	if (len < 0)
		return err_sys(e, errno, "read link '%.200s'", it->path);
	if (len == PATH_MAX)
		return too_large(e, it->path, "the target of the link");
	link[len] = '\0';
	attr->link = link;
	attr->size = (uint64_t)len;
	return 0;
}

static int add_new_other(struct packing *k, struct walk_item *it, int fd,
			 struct fsnode **ret, struct err *e)
{
	char link[PATH_MAX + 1];
	struct fsnode attr;
	int r = 0;

	attributes(it, &attr);
	if (S_ISLNK(attr.mode))
		r = read_link(it, fd, &attr, link, e);
	if (S_ISCHR(attr.mode) || S_ISBLK(attr.mode))
		attr.rdev = it->st.st_rdev;
	if (r == 0)
		r = put(k, it, &attr, ret, e);
	return r < 0 ? r : apply_xattrs(k, it, fd, *ret, e);
}

static int add_other(struct packing *k, struct walk_item *it, struct err *e)
{
	auto_close int fd = -1;

	fd = open_entry(it, O_PATH, e);
	return fd < 0 ? fd : add_known(k, it, fd, add_new_other, e);
}

static bool is_whiteout(struct walk_item *it)
{
	return S_ISCHR(it->st.st_mode) && it->st.st_rdev == 0;
}

static int add_entry(struct packing *k, struct walk_item *it, struct err *e)
{
	int r;

	if (++k->n.entries > PACK_ENTRIES_MAX)
		return too_large(e, it->path, "too many entries");
	if (k->n.entries % 64 == 0) {
		r = progress(k, e);
		if (r < 0)
			return r;
	}
	if (is_whiteout(it))
		return put_whiteout(k, it, e);
	if (S_ISREG(it->st.st_mode))
		return add_file(k, it, e);
	r = check_ids(it, e);
	if (r < 0)
		return r;
	if (S_ISDIR(it->st.st_mode))
		return add_dir(k, it, e);
	return add_other(k, it, e);
}

/* --- residue ------------------------------------------------------------- */

/* What a file takes: one that is mostly holes is not what its size says. */
static uint64_t taken(struct walk_item *it)
{
	uint64_t blocks, size;

	if (!S_ISREG(it->st.st_mode))
		return 0;
	if (it->lazy &&
	    fstatat(it->dirfd, it->name, &it->st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	it->lazy = false;
	blocks = (uint64_t)it->st.st_blocks * 512;
	size = (uint64_t)it->st.st_size;
	return size < blocks ? size : blocks;
}

static int gone_end(struct packing *k, struct err *e)
{
	struct gone *g = &k->gone;

	if (!g->on)
		return 0;
	g->on = false;
	k->n.removed++;
	k->n.removed_bytes += g->bytes;
	if (!k->p->removed)
		return 0;
	return k->p->removed(k->p->arg, g->rule, g->path.data, g->bytes, e);
}

static int gone_begin(struct packing *k, struct walk_item *it, const char *rule,
		      struct err *e)
{
	struct gone *g = &k->gone;

	g->path.len = 0;
	if (buf_add(&g->path, it->path, strlen(it->path) + 1) < 0)
		return err_sys(e, ENOMEM, "pack");
	g->on = true;
	g->depth = it->depth;
	g->rule = rule;
	g->bytes = taken(it);
	return 0;
}

/* Does the file's beginning say so too? */
static int look(struct packing *k, struct walk_item *it,
		const struct residue_hit *hit, struct err *e)
{
	auto_close int fd = -1;
	ssize_t n;

	fd = open_entry(it, O_RDONLY | O_NONBLOCK | O_NOATIME, e);
	if (fd < 0)
		return fd;
	n = pread(fd, k->data, RESIDUE_HEAD, 0);
	if (n < 0)
		return err_sys(e, errno, "read '%.200s'", it->path);
	return residue_look(hit, k->data, (size_t)n);
}

/* 1: leave it out. */
static int residue(struct packing *k, struct walk_item *it, struct err *e)
{
	struct residue_hit hit = {.part = RESIDUE_NONE};
	int r;

	if (k->below && it->depth <= k->below_depth)
		k->below = NULL;
	if (k->gone.on && it->depth > k->gone.depth) {
		k->gone.bytes += taken(it);
		return !k->p->list_only;
	}
	r = gone_end(k, e);
	if (r < 0)
		return r;
	if (k->below && !is_whiteout(it))
		hit = (struct residue_hit){k->below, RESIDUE_ALL, 0};
	else if (it->depth > 0 && !is_whiteout(it))
		residue_match(k->p->residue, it->path, it->st.st_mode, &hit);
	if (hit.part == RESIDUE_LOOK) {
		r = look(k, it, &hit, e);
		if (r <= 0)
			return r;
		hit.part = RESIDUE_ALL;
	}
	if (hit.part == RESIDUE_BELOW) {
		k->below = hit.rule;
		k->below_depth = it->depth;
	}
	if (hit.part != RESIDUE_ALL)
		return 0;
	r = gone_begin(k, it, hit.rule, e);
	return r < 0 ? r : !k->p->list_only;
}

static int one(struct packing *k, struct walk_item *it, struct err *e)
{
	int r;

	r = residue(k, it, e);
	if (r != 0)
		return r < 0 ? r : 0;
	if (it->errnum == EXDEV)
		return err_set(e, -EXDEV, "unsupported",
			       "'%.200s' is another file system", it->path);
	if (it->errnum)
		return err_sys(e, it->errnum, "read '%.200s'", it->path);
	return add_entry(k, it, e);
}

int pack_upper(const struct pack_upper *p, struct pack_upper_result *ret,
	       struct err *e)
{
	struct packing k = {.p = p, .xattr.uid_base = p->uid_base};
	auto_walk struct walk *walk = NULL;
	struct walk_item it;
	int r;

	r = walk_open(p->dirfd, ".", WALK_ONE_DEV | WALK_LAZY, &walk, e);
	if (r < 0)
		return r;
	k.data = malloc(FS_CHUNK);
	r = k.data ? pack_xattr_init(&k.xattr) : -ENOMEM;
	if (r < 0)
		err_sys(e, ENOMEM, "pack");
	while (r == 0 && (r = walk_next(walk, &it, e)) > 0)
		r = one(&k, &it, e);
	if (r == 0)
		r = gone_end(&k, e);
	if (r == 0)
		*ret = k.n;
	packing_done(&k);
	return r;
}
