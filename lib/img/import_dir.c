/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "img/import_priv.h"

#define TRIES	   3	       /* of a file that changes */
#define XATTR_LIST (64 * 1024) /* the kernel's own limits */
#define READ_SIZE  (1024 * 1024)

/* A file with several names: where the first of them went. */
struct seen {
	dev_t dev;
	ino_t ino;
	struct fsnode *node; /* NULL: free */
};

struct visit {
	struct import *x;
	uint64_t mount; /* the one all is on; 0: this kernel does not tell */
	struct filling f;
	struct seen *seen;
	size_t nseen, seen_cap;
	char *names, *value, *data;
};

/* --- hard links ------------------------------------------------------------
 */

static struct seen *slot_of(struct seen *t, size_t cap, const struct stat *st)
{
	size_t i = (st->st_ino * 0x9e3779b97f4a7c15u ^ st->st_dev) & (cap - 1);

	while (t[i].node && (t[i].ino != st->st_ino || t[i].dev != st->st_dev))
		i = (i + 1) & (cap - 1);
	return &t[i];
}

static int seen_grow(struct visit *v)
{
	size_t cap = v->seen_cap ? 2 * v->seen_cap : 256;
	struct seen *t;

	if (2 * (v->nseen + 1) < v->seen_cap)
		return 0;
	t = calloc(cap, sizeof(*t));
	if (!t)
		return -ENOMEM;
	for (size_t i = 0; i < v->seen_cap; i++) {
		const struct seen *s = &v->seen[i];
		struct stat st = {.st_dev = s->dev, .st_ino = s->ino};

		if (s->node)
			*slot_of(t, cap, &st) = *s;
	}
	free(v->seen);
	v->seen = t;
	v->seen_cap = cap;
	return 0;
}

static struct fsnode *seen_find(const struct visit *v, const struct stat *st)
{
	if (st->st_nlink < 2 || !v->seen_cap)
		return NULL;
	return slot_of(v->seen, v->seen_cap, st)->node;
}

static int seen_add(struct visit *v, const struct stat *st, struct fsnode *n,
		    struct err *e)
{
	if (st->st_nlink < 2)
		return 0;
	if (seen_grow(v) < 0)
		return err_sys(e, ENOMEM, "import");
	*slot_of(v->seen, v->seen_cap, st) = (struct seen){st->st_dev,
							   st->st_ino, n};
	v->nseen++;
	return 0;
}

/* --- attributes ------------------------------------------------------------
 */

static int one_xattr(struct visit *v, const char *path, const char *name,
		     struct fsnode *n, struct err *e)
{
	ssize_t len = lgetxattr(path, name, v->value, IMPORT_XATTR_MAX);

	if (len < 0 && errno == ENODATA)
		return 0;
	if (len < 0)
		return err_sys(e, errno, "attribute %s", name);
	return import_xattr(v->x, n, name, v->value, (size_t)len, e);
}

/* By a path of ours, since links have no descriptor to ask. */
static int xattrs(struct visit *v, const struct walk_item *it, struct fsnode *n,
		  struct err *e)
{
	char path[64 + NAME_MAX];
	ssize_t len;
	int r = 0;

	snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", it->dirfd,
		 it->name);
	len = llistxattr(path, v->names, XATTR_LIST);
	if (len < 0 && errno == ENOTSUP)
		return 0;
	if (len < 0)
		return err_sys(e, errno, "attributes");
	for (ssize_t i = 0; i < len && r == 0;
	     i += (ssize_t)strlen(v->names + i) + 1)
		r = one_xattr(v, path, v->names + i, n, e);
	return r;
}

/* --- files ------------------------------------------------------------------
 */

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
	       a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
	       a->st_ctim.tv_sec == b->st_ctim.tv_sec &&
	       a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* Bytes from ${from} to ${to}; 1: the file ended before. */
static int read_run(struct visit *v, int fd, off_t from, off_t to,
		    struct err *e)
{
	while (from < to) {
		size_t want = to - from < READ_SIZE ? (size_t)(to - from)
						    : READ_SIZE;
		ssize_t n = pread(fd, v->data, want, from);
		int r;

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read");
		if (n == 0)
			return 1;
		r = filling_add(&v->f, (uint64_t)from, v->data, (size_t)n, e);
		if (r < 0)
			return r;
		v->x->bytes += (uint64_t)n;
		from += n;
		r = v->x->progress ? v->x->progress(v->x->arg, v->x->bytes, e)
				   : 0;
		if (r < 0)
			return r;
	}
	return 0;
}

/* Its data without its holes, which only large files are asked for. */
static int read_runs(struct visit *v, int fd, const struct stat *st,
		     struct err *e)
{
	off_t size = st->st_size, from = 0, to = size;
	int r = 0;

	if (st->st_blocks * 512 >= size)
		return read_run(v, fd, 0, size, e);
	while (from < size && r == 0) {
		from = lseek(fd, from, SEEK_DATA);
		if (from < 0 && errno == ENXIO)
			return 0;
		if (from < 0)
			return err_sys(e, errno, "seek");
		if (from >= size)
			return 0;
		to = lseek(fd, from, SEEK_HOLE);
		if (to < 0)
			return err_sys(e, errno, "seek");
		if (to > size)
			to = size;
		r = read_run(v, fd, from, to, e);
		from = to;
	}
	return r;
}

/* 1: it changed meanwhile. */
static int read_file(struct visit *v, int fd, const struct stat *st,
		     struct fsnode *n, struct err *e)
{
	uint64_t before = v->x->bytes;
	struct stat now;
	int r;

	filling_start(&v->f, n);
	r = read_runs(v, fd, st, e);
	if (r == 0)
		r = filling_end(&v->f, e);
	if (r < 0)
		return r;
	if (fstat(fd, &now) < 0)
		return err_sys(e, errno, "stat");
	if (r == 0 && same(st, &now))
		return 0;
	v->x->bytes = before;
	return 1;
}

static void attr_of(const struct stat *st, struct fsnode *ret)
{
	*ret = (struct fsnode){
		.mode = st->st_mode,
		.uid = st->st_uid,
		.gid = st->st_gid,
		.rdev = S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)
				? st->st_rdev
				: 0,
		.mtime = st->st_mtim,
	};
	if (S_ISREG(st->st_mode))
		ret->size = (uint64_t)st->st_size;
}

/* The node is put anew each time: so it has no chunks of the last one. */
static int put_file(struct visit *v, const struct walk_item *it,
		    struct fsnode **ret, struct err *e)
{
	auto_close int fd = -1;
	struct fsnode attr;
	struct stat st;
	int r = 1;

	fd = openat(it->dirfd, it->name,
		    O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open");
	for (int i = 0; i < TRIES && r == 1; i++) {
		if (fstat(fd, &st) < 0)
			return err_sys(e, errno, "stat");
		if (!S_ISREG(st.st_mode))
			break;
		attr_of(&st, &attr);
		r = fstree_put(v->x->tree, it->path, &attr, ret, e);
		if (r == 0)
			r = read_file(v, fd, &st, *ret, e);
	}
	if (r == 1)
		return err_set(e, -EBUSY, "busy",
			       "it changes while it is read");
	return r < 0 ? r : seen_add(v, &st, *ret, e);
}

static int put_symlink(struct visit *v, const struct walk_item *it,
		       struct fsnode **ret, struct err *e)
{
	char target[PATH_MAX];
	struct fsnode attr;
	ssize_t n = readlinkat(it->dirfd, it->name, target, sizeof(target));
	int r;

	if (n < 0)
		return err_sys(e, errno, "read link");
	if ((size_t)n == sizeof(target))
		return err_sys(e, ENAMETOOLONG, "the link's target");
	target[n] = '\0';
	attr_of(&it->st, &attr);
	attr.link = target;
	attr.size = (uint64_t)n;
	r = import_text(v->x, (size_t)n, e);
	return r < 0 ? r : fstree_put(v->x->tree, it->path, &attr, ret, e);
}

static int put_other(struct visit *v, const struct walk_item *it,
		     struct fsnode **ret, struct err *e)
{
	struct fsnode attr;

	attr_of(&it->st, &attr);
	if (S_ISSOCK(attr.mode)) {
		v->x->dropped.sockets++;
		return 0;
	}
	if (fsnode_is_whiteout(&attr)) {
		v->x->dropped.devices++;
		return 0;
	}
	return fstree_put(v->x->tree, it->path, &attr, ret, e);
}

/* --- the walk ---------------------------------------------------------------
 */

static bool is_excluded(const struct import *x, const struct walk_item *it)
{
	for (size_t i = 0; i < x->nexclude && it->depth > 0; i++) {
		const char *p = x->exclude[i];
		bool whole = strchr(p, '/');

		if (!fnmatch(p + (*p == '/'), whole ? it->path : it->name,
			     FNM_PATHNAME))
			return true;
	}
	return false;
}

static uint64_t mount_of(int dirfd, const char *name)
{
	struct statx st;

	if (statx(dirfd, name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
		  STATX_MNT_ID, &st) < 0 ||
	    !(st.stx_mask & STATX_MNT_ID))
		return 0;
	return st.stx_mnt_id;
}

/* A directory bound to another place of its own file system is outside, too. */
static bool is_mount(const struct visit *v, const struct walk_item *it)
{
	uint64_t mount;

	if (!v->mount || !S_ISDIR(it->st.st_mode))
		return false;
	mount = mount_of(it->dirfd, it->name);
	return mount && mount != v->mount;
}

static int put_item(struct visit *v, const struct walk_item *it, struct err *e)
{
	struct fsnode *n = seen_find(v, &it->st);
	int r;

	if (n && !S_ISDIR(it->st.st_mode))
		return fstree_link(v->x->tree, it->path, n, e);
	n = NULL;
	if (S_ISREG(it->st.st_mode))
		r = put_file(v, it, &n, e);
	else if (S_ISLNK(it->st.st_mode))
		r = put_symlink(v, it, &n, e);
	else
		r = put_other(v, it, &n, e);
	if (r == 0 && n)
		r = xattrs(v, it, n, e);
	if (r == 0 && n && !S_ISREG(it->st.st_mode) && !S_ISDIR(it->st.st_mode))
		r = seen_add(v, &it->st, n, e);
	return r;
}

static int visit(struct visit *v, struct walk *w, struct err *e)
{
	struct import *x = v->x;
	char name[IMPORT_NAME_SIZE];
	struct walk_item it;
	int r;

	while ((r = walk_next(w, &it, e)) > 0) {
		if (is_excluded(x, &it)) {
			if (S_ISDIR(it.st.st_mode))
				walk_skip(w);
			continue;
		}
		/* What is mounted there stays outside. */
		if (it.errnum == EXDEV)
			continue;
		if (is_mount(v, &it)) {
			x->dropped.others++;
			walk_skip(w);
		}
		x->entries++;
		if (it.errnum)
			r = err_sys(e, it.errnum, "look at it");
		else if (x->entries > IMPORT_NODES_MAX)
			r = err_set(e, -EFBIG, "too_large",
				    "more than %u entries", IMPORT_NODES_MAX);
		else
			r = put_item(v, &it, e);
		if (r < 0)
			return r == -ECANCELED || r == -ETIMEDOUT
				       ? r
				       : err_wrap(e, r, "'%s'",
						  import_name(it.path, name));
	}
	return r;
}

int import_dir(struct import *x, int dirfd, struct err *e)
{
	auto_walk struct walk *w = NULL;
	struct visit v = {.x = x};
	int r;

	v.names = malloc(XATTR_LIST);
	v.value = malloc(IMPORT_XATTR_MAX);
	v.data = malloc(READ_SIZE);
	r = filling_init(&v.f, x, e);
	if (r == 0 && (!v.names || !v.value || !v.data))
		r = err_sys(e, ENOMEM, "import");
	if (r == 0)
		r = walk_open(dirfd, ".", WALK_ONE_DEV, &w, e);
	v.mount = mount_of(dirfd, ".");
	if (r == 0)
		r = visit(&v, w, e);
	filling_done(&v.f);
	free(v.seen);
	free(v.names);
	free(v.value);
	free(v.data);
	return r;
}
