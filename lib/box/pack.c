/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/walk.h"
#include "box/pack.h"

#define XATTR_BYTES_MAX (256 * 1024)

/* The first name under which a file with several was packed. */
struct seen {
	dev_t dev;
	ino_t ino;
	char *path;
};

struct packing {
	const struct pack *p;
	struct tar_writer *w;
	struct pack_result n;
	struct seen *seen; /* open addressing; cap is a power of two */
	size_t nseen, cap;
	struct buf path, link, names, values, runs;
	char *data;
};

#define DATA_SIZE (64 * 1024)

int pack_fd_sink(void *arg, const void *data, size_t len, struct err *e)
{
	return fd_write_all(*(const int *)arg, data, len, e);
}

static void packing_done(struct packing *k)
{
	for (size_t i = 0; i < k->cap; i++)
		free(k->seen[i].path);
	free(k->seen);
	free(k->data);
	buf_done(&k->path);
	buf_done(&k->link);
	buf_done(&k->names);
	buf_done(&k->values);
	buf_done(&k->runs);
}

static struct seen *slot(struct seen *table, size_t cap, dev_t dev, ino_t ino)
{
	size_t i = (ino * 0x9e3779b97f4a7c15u ^ dev) & (cap - 1);

	while (table[i].path && (table[i].dev != dev || table[i].ino != ino))
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
		if (k->seen[i].path)
			*slot(table, cap, k->seen[i].dev,
			      k->seen[i].ino) = k->seen[i];
	free(k->seen);
	k->seen = table;
	k->cap = cap;
	return 0;
}

/* 1: *${ret_path} is an earlier name; 0: this is the first. */
static int earlier_name(struct packing *k, const struct stat *st,
			const char **ret_path)
{
	struct seen *s;

	if (st->st_nlink < 2)
		return 0;
	if (seen_grow(k) < 0)
		return -ENOMEM;
	s = slot(k->seen, k->cap, st->st_dev, st->st_ino);
	if (s->path) {
		*ret_path = s->path;
		return 1;
	}
	s->path = strdup(k->path.data);
	if (!s->path)
		return -ENOMEM;
	s->dev = st->st_dev;
	s->ino = st->st_ino;
	k->nseen++;
	return 0;
}

static void leave_out(struct packing *k, const char *path,
		      const struct err *why)
{
	k->n.left_out++;
	if (k->p->left_out)
		k->p->left_out(k->p->arg, path, why);
}

static int entry_name(struct packing *k, const struct walk_item *it)
{
	const char *root = k->p->name;
	int r = 0;

	k->path.len = 0;
	if (strcmp(root, ".") || !*it->path)
		r = buf_add(&k->path, root, strlen(root));
	if (r == 0 && k->path.len && *it->path)
		r = buf_add(&k->path, "/", 1);
	if (r == 0)
		r = buf_add(&k->path, it->path, strlen(it->path));
	if (r == 0 && S_ISDIR(it->st.st_mode))
		r = buf_add(&k->path, "/", 1);
	return r;
}

static int read_link(struct packing *k, const struct walk_item *it)
{
	ssize_t n;

	k->link.len = 0;
	if (buf_reserve(&k->link, PATH_MAX) < 0)
		return -ENOMEM;
	n = readlinkat(it->dirfd, it->name, k->link.data, PATH_MAX);
	if (n < 0)
		return -errno;
	k->link.len = (size_t)n;
	k->link.data[n] = '\0';
	return 0;
}

static void add_xattr(struct packing *k, int fd, const char *name,
		      struct tar_entry *en)
{
	size_t room = XATTR_BYTES_MAX - k->values.len;
	ssize_t n;

	if (strncmp(name, "user.", 5) || en->nxattrs == TAR_XATTRS_MAX)
		return;
	n = fgetxattr(fd, name, k->values.data + k->values.len, room);
	if (n < 0)
		return;
	en->xattrs[en->nxattrs++] = (struct tar_xattr){name,
						       k->values.data +
							       k->values.len,
						       (size_t)n};
	k->values.len += (size_t)n;
}

/* Attributes are an extra: what cannot be read of them is not missed. */
static void xattrs(struct packing *k, int fd, struct tar_entry *en)
{
	ssize_t n = flistxattr(fd, NULL, 0);

	if (n <= 0)
		return;
	k->names.len = k->values.len = 0;
	if (buf_reserve(&k->names, (size_t)n) < 0 ||
	    buf_reserve(&k->values, XATTR_BYTES_MAX) < 0)
		return;
	n = flistxattr(fd, k->names.data, (size_t)n);
	for (ssize_t i = 0; i < n;
	     i += (ssize_t)strnlen(k->names.data + i, (size_t)(n - i)) + 1)
		add_xattr(k, fd, k->names.data + i, en);
}

/* Halve a map that has grown too long by closing its smallest gaps. */
static void coalesce(struct buf *runs)
{
	struct tar_run *run = (void *)runs->data;
	size_t n = runs->len / sizeof(*run), out = n;

	for (uint64_t gap = 4096; out > TAR_RUNS_MAX / 2; gap *= 2, n = out) {
		out = 0;
		for (size_t i = 1; i < n; i++) {
			uint64_t end = run[out].off + run[out].len;

			if (run[i].off - end <= gap)
				run[out].len = run[i].off + run[i].len -
					       run[out].off;
			else
				run[++out] = run[i];
		}
		out++;
	}
	runs->len = out * sizeof(*run);
}

/* Where the file has data; a file system that cannot tell has it everywhere. */
static int find_runs(struct packing *k, int fd, struct tar_entry *en)
{
	struct tar_run run;
	off_t at = 0, hole;

	k->runs.len = 0;
	while ((uint64_t)at < en->size) {
		at = lseek(fd, at, SEEK_DATA);
		if (at < 0 && errno == ENXIO)
			break;
		if (at < 0 || (uint64_t)at >= en->size)
			return at < 0 ? -errno : 0;
		hole = lseek(fd, at, SEEK_HOLE);
		if (hole < 0)
			return -errno;
		if ((uint64_t)hole > en->size)
			hole = (off_t)en->size;
		run = (struct tar_run){(uint64_t)at, (uint64_t)(hole - at)};
		if (buf_add(&k->runs, &run, sizeof(run)) < 0)
			return -ENOMEM;
		if (k->runs.len / sizeof(run) == TAR_RUNS_MAX)
			coalesce(&k->runs);
		at = hole;
	}
	return 0;
}

static int sparse_map(struct packing *k, int fd, const struct stat *st,
		      struct tar_entry *en)
{
	const struct tar_run *run;
	int r;

	if ((uint64_t)st->st_blocks * 512 >= en->size || en->size < 8192)
		return 0;
	r = find_runs(k, fd, en);
	if (r == -EINVAL)
		return 0;
	if (r < 0)
		return r;
	run = (const void *)k->runs.data;
	en->nruns = k->runs.len / sizeof(*run);
	en->runs = run;
	en->sparse = !(en->nruns == 1 && run->off == 0 && run->len == en->size);
	return 0;
}

static int copy_run(struct packing *k, int fd, uint64_t off, uint64_t len,
		    struct err *e)
{
	int r = 0;

	while (len > 0 && r == 0) {
		size_t want = len < DATA_SIZE ? (size_t)len : DATA_SIZE;
		ssize_t n = pread(fd, k->data, want, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		/* The length is announced: the rest is zeros. */
		if (n <= 0)
			return tar_write_zeros(k->w, len, e);
		r = tar_write_data(k->w, k->data, (size_t)n, e);
		off += (uint64_t)n;
		len -= (uint64_t)n;
		k->n.bytes += (uint64_t)n;
	}
	return r;
}

static int copy_data(struct packing *k, int fd, const struct tar_entry *en,
		     struct err *e)
{
	int r = 0;

	if (!en->sparse)
		return copy_run(k, fd, 0, en->size, e);
	for (size_t i = 0; i < en->nruns && r == 0; i++)
		r = copy_run(k, fd, en->runs[i].off, en->runs[i].len, e);
	return r;
}

/* Open what lstat() said is a file; never wait for whoever replaced it. */
static int open_file(const struct walk_item *it, struct stat *st,
		     struct err *why)
{
	auto_close int fd = -1;

	fd = openat(it->dirfd, it->name,
		    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(why, errno, "open");
	if (fstat(fd, st) < 0)
		return err_sys(why, errno, "stat");
	if (!S_ISREG(st->st_mode))
		return err_set(why, -EINVAL, "not_regular",
			       "no longer a regular file");
	return steal_fd(&fd);
}

static int pack_file(struct packing *k, const struct walk_item *it,
		     struct tar_entry *en, struct err *e)
{
	auto_close int fd = -1;
	struct err why = {0};
	const char *first;
	struct stat st;
	int r;

	fd = open_file(it, &st, &why);
	if (fd < 0) {
		leave_out(k, it->path, &why);
		return it->depth == 0
			       ? err_set(e, why.r, why.code, "%s", why.msg)
			       : 0;
	}
	r = earlier_name(k, &st, &first);
	if (r < 0)
		return err_sys(e, ENOMEM, "pack");
	if (r > 0) {
		en->type = TAR_HARDLINK;
		en->link = first;
		return tar_write_entry(k->w, en, e);
	}
	en->size = (uint64_t)st.st_size;
	xattrs(k, fd, en);
	r = sparse_map(k, fd, &st, en);
	if (r < 0)
		return err_sys(e, -r, "read '%s'", it->path);
	r = tar_write_entry(k->w, en, e);
	return r < 0 ? r : copy_data(k, fd, en, e);
}

static int pack_dir(struct packing *k, const struct walk_item *it,
		    struct tar_entry *en, struct err *e)
{
	auto_close int fd = -1;

	fd = openat(it->dirfd, it->name,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0)
		xattrs(k, fd, en);
	return tar_write_entry(k->w, en, e);
}

static int pack_other(struct packing *k, const struct walk_item *it,
		      struct tar_entry *en, struct err *e)
{
	struct err why;
	int r = 0;

	switch (it->st.st_mode & S_IFMT) {
	case S_IFLNK:
		r = read_link(k, it);
		en->type = TAR_SYMLINK;
		en->link = k->link.data;
		break;
	case S_IFIFO:
		en->type = TAR_FIFO;
		break;
	case S_IFCHR:
		en->type = TAR_CHAR;
		break;
	case S_IFBLK:
		en->type = TAR_BLOCK;
		break;
	default:
		err_set(&why, -EINVAL, "not_regular",
			"a socket cannot be archived");
		leave_out(k, it->path, &why);
		return 0;
	}
	if (r < 0) {
		err_sys(&why, -r, "read link");
		leave_out(k, it->path, &why);
		return 0;
	}
	return tar_write_entry(k->w, en, e);
}

static int pack_entry(struct packing *k, const struct walk_item *it,
		      struct err *e)
{
	struct tar_entry en = {
		.link = "",
		.mode = it->st.st_mode & 07777,
		.uid = it->st.st_uid,
		.gid = it->st.st_gid,
		.mtime = it->st.st_mtim,
	};

	if (k->p->max_entries && k->n.entries >= k->p->max_entries)
		return err_set(e, -EFBIG, "too_large", "more than %llu entries",
			       (unsigned long long)k->p->max_entries);
	if (entry_name(k, it) < 0)
		return err_sys(e, ENOMEM, "pack");
	en.path = k->path.data;
	k->n.entries++;
	if (S_ISREG(it->st.st_mode))
		return pack_file(k, it, &en, e);
	if (!S_ISDIR(it->st.st_mode))
		return pack_other(k, it, &en, e);
	en.type = TAR_DIR;
	return pack_dir(k, it, &en, e);
}

static int unreadable(struct packing *k, const struct walk_item *it,
		      struct err *e)
{
	struct err why;

	err_sys(&why, it->errnum, "read");
	if (it->depth == 0)
		return err_sys(e, it->errnum, "'%s'", k->p->path);
	leave_out(k, it->path, &why);
	return 0;
}

int pack_tree(const struct pack *p, struct tar_writer *w,
	      struct pack_result *ret, struct err *e)
{
	struct packing k = {.p = p, .w = w};
	auto_walk struct walk *walk = NULL;
	struct walk_item it;
	int r;

	r = walk_open(p->dirfd, p->path, WALK_NO_PROC, &walk, e);
	if (r < 0)
		return r;
	k.data = malloc(DATA_SIZE);
	if (!k.data)
		return err_sys(e, ENOMEM, "pack");
	while ((r = walk_next(walk, &it, e)) > 0) {
		r = it.errnum ? unreadable(&k, &it, e) : pack_entry(&k, &it, e);
		if (r < 0)
			break;
	}
	if (r == 0)
		r = tar_write_end(w, e);
	*ret = k.n;
	packing_done(&k);
	return r;
}
