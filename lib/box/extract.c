/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "box/extract.h"

#define DEPTH_MAX 4096 /* of names in a path */

/* A file of this run, to which hard links may be made. */
struct made {
	dev_t dev;
	ino_t ino;
};

/* A directory of this run: its mode and time come last. */
struct dir {
	size_t path; /* in dirs_text */
	dev_t dev;
	ino_t ino;
	mode_t mode;
	int64_t uid, gid;
	struct timespec mtime;
};

struct run {
	const struct extract *x;
	struct tar_reader *r;
	struct extract_result n;
	struct made *made;
	size_t nmade, made_cap;
	struct buf dirs, dirs_text;
	struct buf path;	/* of the entry, cleaned */
	int parent;		/* the directory last worked in ... */
	struct buf parent_path; /* ... and its path */
	bool have_parent;
};

int extract_temp_name(char *name, struct err *e)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return err_sys(e, errno ? errno : EIO, "random numbers");
	snprintf(name, EXTRACT_TEMP_SIZE, ".dsec-%016llx",
		 (unsigned long long)random);
	return 0;
}

ssize_t extract_fd_source(void *arg, void *data, size_t cap, struct err *e)
{
	ssize_t n;

	do
		n = read(*(const int *)arg, data, cap);
	while (n < 0 && errno == EINTR);
	return n < 0 ? err_sys(e, errno, "read") : n;
}

static void run_done(struct run *k)
{
	free(k->made);
	buf_done(&k->dirs);
	buf_done(&k->dirs_text);
	buf_done(&k->path);
	buf_done(&k->parent_path);
	if (k->parent >= 0)
		fd_close(k->parent);
}

static void refuse(struct run *k, const char *path, const struct err *why)
{
	k->n.refused++;
	if (k->x->refused)
		k->x->refused(k->x->arg, path, why);
}

/* Out of space, descriptors or memory: going on would only repeat it. */
static bool is_fatal(int r)
{
	switch (-r) {
	case ENOSPC:
	case EDQUOT:
	case EMFILE:
	case ENFILE:
	case ENOMEM:
	case EIO:
	case EROFS:
		return true;
	default:
		return false;
	}
}

static size_t made_slot(const struct made *t, size_t cap, dev_t dev, ino_t ino)
{
	size_t i = (ino * 0x9e3779b97f4a7c15u ^ dev) & (cap - 1);

	while (t[i].ino && (t[i].ino != ino || t[i].dev != dev))
		i = (i + 1) & (cap - 1);
	return i;
}

static int made_grow(struct run *k)
{
	size_t cap = k->made_cap ? k->made_cap * 2 : 1024, i;
	struct made *t;

	if (k->nmade * 2 < k->made_cap)
		return 0;
	t = calloc(cap, sizeof(*t));
	if (!t)
		return -ENOMEM;
	for (size_t j = 0; j < k->made_cap; j++) {
		if (!k->made[j].ino)
			continue;
		i = made_slot(t, cap, k->made[j].dev, k->made[j].ino);
		t[i] = k->made[j];
	}
	free(k->made);
	k->made = t;
	k->made_cap = cap;
	return 0;
}

static int made_add(struct run *k, const struct stat *st, struct err *e)
{
	size_t i;

	if (made_grow(k) < 0)
		return err_sys(e, ENOMEM, "extract");
	i = made_slot(k->made, k->made_cap, st->st_dev, st->st_ino);
	if (!k->made[i].ino)
		k->nmade++;
	k->made[i] = (struct made){st->st_dev, st->st_ino};
	return 0;
}

static bool made_has(const struct run *k, const struct stat *st)
{
	if (!k->made_cap)
		return false;
	return k->made[made_slot(k->made, k->made_cap, st->st_dev, st->st_ino)]
		       .ino != 0;
}

/*
 * "./a//b/" becomes "a/b", "/a" becomes "a", "." becomes "".  A name with ".."
 * is refused: where it leads depends on what the names before it are.
 */
static int clean(const char *name, struct buf *out, struct err *why)
{
	unsigned depth = 0;

	out->len = 0;
	if (buf_reserve(out, strlen(name) + 1) < 0)
		return err_sys(why, ENOMEM, "extract");
	for (const char *p = name; *p;) {
		size_t n = strcspn(p, "/");

		if (n == 2 && p[0] == '.' && p[1] == '.')
			return err_set(why, -EXDEV, "bad_path",
				       "'..' in its name");
		if (n > NAME_MAX || (n > 0 && depth++ == DEPTH_MAX))
			return err_sys(why, ENAMETOOLONG, "its name");
		if (n > 0 && !(n == 1 && *p == '.') &&
		    ((out->len && buf_add(out, "/", 1) < 0) ||
		     buf_add(out, p, n) < 0))
			return err_sys(why, ENOMEM, "extract");
		p += n;
		p += *p == '/';
	}
	return 0;
}

static int check_top(const struct run *k, const char *path, struct err *why)
{
	size_t n;

	if (!k->x->top)
		return 0;
	n = strlen(k->x->top);
	if (!strncmp(path, k->x->top, n) && (!path[n] || path[n] == '/'))
		return 0;
	return err_set(why, -EXDEV, "bad_path", "not below '%s'", k->x->top);
}

/* One step down, without following; missing directories are made. */
static int step(int at, const char *name, bool make, struct err *why)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(at, name, flags);

	if (fd < 0 && errno == ENOENT && make) {
		if (mkdirat(at, name, 0755) < 0 && errno != EEXIST)
			return err_sys(why, errno, "make '%s'", name);
		fd = openat(at, name, flags);
	}
	if (fd < 0 && (errno == ENOTDIR || errno == ELOOP))
		return err_set(why, -ENOTDIR, "not_directory",
			       "'%s' on the way is not a directory (links are "
			       "not followed)",
			       name);
	return fd < 0 ? err_sys(why, errno, "open '%s'", name) : fd;
}

/* Open ${path} (cleaned), seen from ${from}, component by component. */
static int walk_from(int from, const char *path, size_t len, bool make,
		     struct err *why)
{
	auto_close int at = -1;
	char name[NAME_MAX + 1];

	at = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (at < 0)
		return err_sys(why, errno, "destination");
	for (size_t pos = 0; pos < len;) {
		size_t n = strcspn(path + pos, "/");
		int next;

		memcpy(name, path + pos, n);
		name[n] = '\0';
		next = step(at, name, make, why);
		if (next < 0)
			return next;
		fd_close(at);
		at = next;
		pos += n + 1;
	}
	return steal_fd(&at);
}

static int walk_to(const struct run *k, const char *path, size_t len, bool make,
		   struct err *why)
{
	return walk_from(k->x->dirfd, path, len, make, why);
}

static const char *base_of(const char *path, size_t *ret_dir_len)
{
	const char *slash = strrchr(path, '/');

	*ret_dir_len = slash ? (size_t)(slash - path) : 0;
	return slash ? slash + 1 : path;
}

/* Is the entry's directory the one kept, or below it? */
static bool below_parent(const struct run *k, size_t len)
{
	size_t n = k->parent_path.len;

	if (!k->have_parent || n > len ||
	    (n < len && n && k->path.data[n] != '/'))
		return false;
	return n == 0 || !memcmp(k->parent_path.data, k->path.data, n);
}

/* The directory of the entry in k->parent, kept for the next one's sake. */
static int open_parent(struct run *k, size_t len, struct err *why)
{
	size_t n = k->parent_path.len;
	int fd;

	if (!below_parent(k, len)) {
		fd = walk_to(k, k->path.data, len, true, why);
	} else if (n < len) {
		n += n > 0;
		fd = walk_from(k->parent, k->path.data + n, len - n, true, why);
	} else {
		return 0;
	}
	k->have_parent = false;
	if (k->parent >= 0)
		fd_close(steal_fd(&k->parent));
	if (fd < 0)
		return fd;
	k->parent = fd;
	k->parent_path.len = 0;
	if (len && buf_add(&k->parent_path, k->path.data, len) < 0)
		return err_sys(why, ENOMEM, "extract");
	k->have_parent = true;
	return 0;
}

static mode_t mode_of(const struct run *k, const struct tar_entry *en)
{
	return en->mode & (k->x->flags & EXTRACT_SETID ? 07777 : 0777);
}

static int owner(const struct run *k, int dirfd, const char *name,
		 const struct tar_entry *en, struct err *why)
{
	if (!(k->x->flags & EXTRACT_OWNER))
		return 0;
	if (en->uid < 0 || en->gid < 0 || en->uid >= UINT32_MAX ||
	    en->gid >= UINT32_MAX)
		return err_set(why, -EINVAL, "bad_value",
			       "an impossible owner");
	if (fchownat(dirfd, name, (uid_t)en->uid, (gid_t)en->gid,
		     AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(why, errno, "owner");
	return 0;
}

static void set_time(int dirfd, const char *name, struct timespec mtime)
{
	struct timespec t[2] = {{.tv_nsec = UTIME_OMIT}, mtime};

	/* A time the file system cannot hold is no reason to fail. */
	(void)!utimensat(dirfd, name, t, AT_SYMLINK_NOFOLLOW);
}

/* Rename the finished ${temp}; what may not be replaced stays. */
static int put_in_place(int dirfd, const char *temp, const char *name,
			struct err *why)
{
	int r;

	if (renameat(dirfd, temp, dirfd, name) == 0)
		return 0;
	r = errno == EISDIR || errno == EEXIST || errno == ENOTEMPTY
		    ? err_set(why, -EISDIR, "is_directory",
			      "a directory is in its place")
		    : err_sys(why, errno, "rename");
	unlinkat(dirfd, temp, 0);
	return r;
}

static int write_data(struct run *k, int fd, struct err *e)
{
	const void *data;
	uint64_t off;
	size_t len;
	int r;

	while ((r = tar_data(k->r, &data, &len, &off, e)) > 0) {
		k->n.bytes += len;
		if (k->x->max_bytes && k->n.bytes > k->x->max_bytes)
			return err_set(e, -EFBIG, "too_large",
				       "more than %llu bytes",
				       (unsigned long long)k->x->max_bytes);
		for (size_t done = 0; done < len;) {
			ssize_t n = pwrite(fd, (const char *)data + done,
					   len - done, (off_t)(off + done));

			if (n < 0 && errno == EINTR)
				continue;
			if (n < 0)
				return err_sys(e, errno, "write");
			done += (size_t)n;
		}
		if (k->x->progress)
			k->x->progress(k->x->arg, k->n.bytes);
	}
	return r;
}

static int set_xattrs(int fd, const struct tar_entry *en, struct err *why)
{
	for (size_t i = 0; i < en->nxattrs; i++) {
		const struct tar_xattr *x = &en->xattrs[i];

		/* Any other is power or policy, not data. */
		if (strncmp(x->name, "user.", 5))
			continue;
		if (fsetxattr(fd, x->name, x->value, x->len, 0) == 0 ||
		    errno == ENOTSUP || errno == EPERM || errno == EINVAL)
			continue;
		return err_sys(why, errno, "attribute %s", x->name);
	}
	return 0;
}

/* Everything but the name; the order keeps set-ID bits and the time. */
static int fill_file(struct run *k, int fd, const char *temp,
		     const struct tar_entry *en, struct err *why)
{
	struct stat st;
	int r;

	if (en->size > INT64_MAX)
		return err_sys(why, EFBIG, "size");
	r = write_data(k, fd, why);
	if (r < 0)
		return r;
	if (en->sparse && ftruncate(fd, (off_t)en->size) < 0)
		return err_sys(why, errno, "size");
	r = owner(k, k->parent, temp, en, why);
	if (r == 0)
		r = set_xattrs(fd, en, why);
	if (r < 0)
		return r;
	if (fchmod(fd, mode_of(k, en)) < 0 || fstat(fd, &st) < 0)
		return err_sys(why, errno, "mode");
	set_time(k->parent, temp, en->mtime);
	return made_add(k, &st, why);
}

static int make_file(struct run *k, const char *name,
		     const struct tar_entry *en, struct err *why)
{
	auto_close int fd = -1;
	char temp[EXTRACT_TEMP_SIZE];
	int r;

	r = extract_temp_name(temp, why);
	if (r < 0)
		return r;
	fd = openat(k->parent, temp,
		    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(why, errno, "create");
	r = fill_file(k, fd, temp, en, why);
	if (r < 0) {
		unlinkat(k->parent, temp, 0);
		return r;
	}
	return put_in_place(k->parent, temp, name, why);
}

static int make_symlink(struct run *k, const char *name,
			const struct tar_entry *en, struct err *why)
{
	char temp[EXTRACT_TEMP_SIZE];
	int r;

	r = extract_temp_name(temp, why);
	if (r < 0)
		return r;
	if (symlinkat(en->link, k->parent, temp) < 0)
		return err_sys(why, errno, "link");
	r = owner(k, k->parent, temp, en, why);
	if (r < 0) {
		unlinkat(k->parent, temp, 0);
		return r;
	}
	set_time(k->parent, temp, en->mtime);
	return put_in_place(k->parent, temp, name, why);
}

static int link_to(struct run *k, int dirfd, const char *target,
		   const char *name, struct err *why)
{
	char temp[EXTRACT_TEMP_SIZE];
	struct stat st;
	int r;

	if (fstatat(dirfd, target, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(why, errno, "hard link to '%s'", target);
	if (!S_ISREG(st.st_mode) || !made_has(k, &st))
		return err_set(why, -EXDEV, "bad_path",
			       "a hard link to what was not extracted before");
	r = extract_temp_name(temp, why);
	if (r < 0)
		return r;
	if (linkat(dirfd, target, k->parent, temp, 0) < 0)
		return err_sys(why, errno, "hard link");
	/* Between look and link it may have become another one. */
	if (fstatat(k->parent, temp, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !made_has(k, &st)) {
		unlinkat(k->parent, temp, 0);
		return err_set(why, -EXDEV, "bad_path",
			       "the target of a hard link changed");
	}
	r = put_in_place(k->parent, temp, name, why);
	/* Where both were names of one file, rename() has left them. */
	unlinkat(k->parent, temp, 0);
	return r;
}

static int make_hardlink(struct run *k, const char *name,
			 const struct tar_entry *en, struct err *why)
{
	auto_buf struct buf target = {0};
	auto_close int dir = -1;
	const char *base;
	size_t len;
	int r;

	r = clean(en->link, &target, why);
	if (r == 0)
		r = check_top(k, target.data, why);
	if (r < 0)
		return r;
	if (target.len == 0)
		return err_set(why, -EISDIR, "is_directory",
			       "a hard link to a directory");
	base = base_of(target.data, &len);
	dir = walk_to(k, target.data, len, false, why);
	if (dir < 0)
		return dir;
	return link_to(k, dir, base, name, why);
}

static int make_fifo(struct run *k, const char *name,
		     const struct tar_entry *en, struct err *why)
{
	char temp[EXTRACT_TEMP_SIZE];
	int r;

	if (!(k->x->flags & EXTRACT_FIFOS))
		return err_set(why, -EPERM, "not_regular", "a FIFO");
	r = extract_temp_name(temp, why);
	if (r < 0)
		return r;
	if (mkfifoat(k->parent, temp, 0600) < 0)
		return err_sys(why, errno, "FIFO");
	r = owner(k, k->parent, temp, en, why);
	if (r == 0 && fchmodat(k->parent, temp, mode_of(k, en), 0) < 0)
		r = err_sys(why, errno, "mode");
	if (r < 0) {
		unlinkat(k->parent, temp, 0);
		return r;
	}
	set_time(k->parent, temp, en->mtime);
	return put_in_place(k->parent, temp, name, why);
}

static int remember_dir(struct run *k, const struct tar_entry *en,
			const struct stat *st, struct err *why)
{
	struct dir d = {
		.dev = st->st_dev,
		.ino = st->st_ino,
		.path = k->dirs_text.len,
		.mode = mode_of(k, en),
		.uid = en->uid,
		.gid = en->gid,
		.mtime = en->mtime,
	};

	if (buf_add(&k->dirs_text, k->path.data, k->path.len + 1) < 0 ||
	    buf_add(&k->dirs, &d, sizeof(d)) < 0)
		return err_sys(why, ENOMEM, "extract");
	return 0;
}

static int make_dir(struct run *k, const char *name, const struct tar_entry *en,
		    struct err *why)
{
	auto_close int fd = -1;
	struct stat st;
	bool made = mkdirat(k->parent, name, 0700) == 0;

	if (!made && errno != EEXIST)
		return err_sys(why, errno, "make directory");
	if (fstatat(k->parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(why, errno, "stat");
	if (!S_ISDIR(st.st_mode))
		return err_set(why, -ENOTDIR, "not_directory",
			       "something else is in its place");
	if (!made)
		return 0;
	if (en->nxattrs > 0) {
		fd = step(k->parent, name, false, why);
		if (fd < 0)
			return fd;
		if (set_xattrs(fd, en, why) < 0)
			return why->r;
	}
	return remember_dir(k, en, &st, why);
}

static int make(struct run *k, const struct tar_entry *en, struct err *why)
{
	const char *name;
	size_t len;
	int r;

	if (en->bad)
		return err_set(why, -EBADMSG, "bad_value", "%s", en->bad);
	r = clean(en->path, &k->path, why);
	if (r == 0)
		r = check_top(k, k->path.data, why);
	if (r < 0)
		return r;
	if (k->path.len == 0 && en->type == TAR_DIR)
		return 0; /* the destination itself */
	if (k->path.len == 0)
		return err_set(why, -EISDIR, "is_directory",
			       "not a directory, but named as the destination");
	name = base_of(k->path.data, &len);
	r = open_parent(k, len, why);
	if (r < 0)
		return r;
	switch (en->type) {
	case TAR_FILE:
		return make_file(k, name, en, why);
	case TAR_DIR:
		return make_dir(k, name, en, why);
	case TAR_SYMLINK:
		return make_symlink(k, name, en, why);
	case TAR_HARDLINK:
		return make_hardlink(k, name, en, why);
	case TAR_FIFO:
		return make_fifo(k, name, en, why);
	case TAR_CHAR:
	case TAR_BLOCK:
		return err_set(why, -EPERM, "not_regular", "a device");
	default:
		return err_set(why, -EOPNOTSUPP, "unsupported",
			       "an entry of an unknown type");
	}
}

/*
 * Up from ${at} to the directory ${d}, which is the one above where a tree is
 * finished from below; -1 where it is not.
 */
static int step_up(int at, const struct dir *d)
{
	auto_close int fd = -1;
	struct stat st;

	fd = at < 0 ? -1
		    : openat(at, "..",
			     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || st.st_dev != d->dev ||
	    st.st_ino != d->ino)
		return -1;
	return steal_fd(&fd);
}

static int finish_dir(struct run *k, int fd, const struct dir *d,
		      struct err *why)
{
	struct tar_entry en = {.uid = d->uid, .gid = d->gid};
	int r;

	set_time(fd, ".", d->mtime);
	r = owner(k, fd, ".", &en, why);
	if (r == 0 && fchmod(fd, d->mode) < 0)
		r = err_sys(why, errno, "mode");
	return r;
}

/* Modes and times of directories, the deepest first. */
static void finish_dirs(struct run *k)
{
	const struct dir *d = (const void *)k->dirs.data;
	auto_close int at = -1;

	for (size_t i = k->dirs.len / sizeof(*d); i-- > 0;) {
		const char *path = k->dirs_text.data + d[i].path;
		struct err why = {0};
		int fd = step_up(at, &d[i]);

		if (fd < 0)
			fd = walk_to(k, path, strlen(path), false, &why);
		if (fd < 0 || finish_dir(k, fd, &d[i], &why) < 0)
			refuse(k, path, &why);
		if (at >= 0)
			fd_close(at);
		at = fd < 0 ? -1 : fd;
	}
}

static int each_entry(struct run *k, struct err *e)
{
	const struct tar_entry *en;
	struct err why;
	int r;

	while ((r = tar_next(k->r, &en, e)) > 0) {
		if (k->x->max_entries && k->n.entries >= k->x->max_entries)
			return err_set(e, -EFBIG, "too_large",
				       "more than %llu entries",
				       (unsigned long long)k->x->max_entries);
		k->n.entries++;
		r = make(k, en, &why);
		if (r >= 0)
			continue;
		/* A cut archive or a full disk ends it; the rest is refused. */
		if (is_fatal(r) || k->r->failed ||
		    (k->x->max_bytes && k->n.bytes > k->x->max_bytes)) {
			*e = why;
			return err_wrap(e, r, "'%.200s'", en->path);
		}
		refuse(k, en->path, &why);
	}
	return r;
}

/* A writer upstream may pad its last record; let it finish. */
static int drain(struct tar_reader *r, struct err *e)
{
	char data[4096];
	ssize_t n = 1;

	for (int i = 0; i < 256 && n > 0 && !r->eof; i++)
		n = r->source(r->arg, data, sizeof(data), e);
	return n < 0 ? (int)n : 0;
}

int extract_tree(const struct extract *x, struct tar_reader *r,
		 struct extract_result *ret, struct err *e)
{
	struct run k = {.x = x, .r = r, .parent = -1};
	struct err local;
	int rc;

	/* What failed decides what happens next, asked for or not. */
	if (!e)
		e = &local;
	rc = each_entry(&k, e);
	if (rc == 0)
		rc = drain(r, e);
	finish_dirs(&k);
	*ret = k.n;
	run_done(&k);
	return rc;
}
