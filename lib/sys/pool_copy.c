/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "sys/pool_priv.h"

#define BLOCK (1024 * 1024)

/* The first name of a file that has several. */
struct link {
	dev_t dev;
	ino_t ino;
	char *path;
};

struct job {
	struct pool_copy_tree *c;
	int at; /* the directory of the copy that is being filled */
	int root;
	bool no_reflink;    /* it was tried */
	struct link *links; /* open addressing, by inode */
	size_t nlinks, cap;
	char *block; /* BLOCK bytes */
	char names[XATTR_LIST_MAX], value[XATTR_SIZE_MAX];
};

static int stopped(const struct job *j, struct err *e)
{
	struct pollfd p = {.fd = j->c->stop, .events = POLLIN};

	if (j->c->stop < 0 || poll(&p, 1, 0) <= 0)
		return 0;
	return err_set(e, -ECANCELED, "cancelled", "the copy was stopped");
}

/* --- attributes ---------------------------------------------------------- */

/* Names that are too long for a path together are not: both are one name in a
 * directory that is open. */
static void entry_path(char *path, int dirfd, const char *name)
{
	snprintf(path, NAME_MAX + 32, "/proc/self/fd/%d/%s", dirfd, name);
}

static int copy_xattrs(struct job *j, const struct walk_item *it, int dirfd,
		       const char *name, struct err *e)
{
	char from[NAME_MAX + 32], to[NAME_MAX + 32];
	ssize_t n, len;

	entry_path(from, it->dirfd, it->name);
	entry_path(to, dirfd, name);
	n = llistxattr(from, j->names, sizeof(j->names));
	if (n < 0)
		return errno == ENOTSUP ? 0 : err_sys(e, errno, "attributes");
	for (const char *x = j->names; x < j->names + n; x += strlen(x) + 1) {
		len = lgetxattr(from, x, j->value, sizeof(j->value));
		if (len < 0 || lsetxattr(to, x, j->value, (size_t)len, 0) < 0)
			return err_sys(e, errno, "attribute '%s'", x);
	}
	return 0;
}

/* Owner first: it takes set-uid bits and capabilities away. */
static int copy_attrs(struct job *j, const struct walk_item *it, int dirfd,
		      const char *name, struct err *e)
{
	const struct timespec times[] = {it->st.st_atim, it->st.st_mtim};
	int r;

	if (fchownat(dirfd, name, it->st.st_uid, it->st.st_gid,
		     AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "owner");
	r = copy_xattrs(j, it, dirfd, name, e);
	if (r < 0)
		return r;
	if (!S_ISLNK(it->st.st_mode) &&
	    fchmodat(dirfd, name, it->st.st_mode & 07777, 0) < 0)
		return err_sys(e, errno, "mode");
	if (utimensat(dirfd, name, times, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "times");
	return 0;
}

/* --- names that are one file --------------------------------------------- */

static struct link *link_slot(struct job *j, const struct stat *st)
{
	size_t i = (size_t)(st->st_ino * 0x9e3779b97f4a7c15u) & (j->cap - 1);

	while (j->links[i].path &&
	       (j->links[i].ino != st->st_ino || j->links[i].dev != st->st_dev))
		i = (i + 1) & (j->cap - 1);
	return &j->links[i];
}

static int links_grow(struct job *j, struct err *e)
{
	struct link *old = j->links;
	size_t n = j->cap;
	struct stat st = {0};

	if (j->nlinks * 2 < j->cap)
		return 0;
	j->links = calloc(n ? 2 * n : 256, sizeof(*j->links));
	if (!j->links) {
		j->links = old;
		return err_sys(e, ENOMEM, "links");
	}
	j->cap = n ? 2 * n : 256;
	for (size_t i = 0; i < n; i++) {
		if (!old[i].path)
			continue;
		st.st_ino = old[i].ino;
		st.st_dev = old[i].dev;
		*link_slot(j, &st) = old[i];
	}
	free(old);
	return 0;
}

/* A directory of the copy by its path, however long that is. */
static int open_far(int root, const char *path, struct err *e)
{
	auto_close int fd = -1;
	char part[PATH_MAX];
	size_t n;
	int next;

	fd = openat(root, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	while (fd >= 0 && *path) {
		n = strlen(path);
		if (n >= sizeof(part)) {
			n = sizeof(part) - 1;
			while (n > 0 && path[n] != '/')
				n--;
		}
		memcpy(part, path, n);
		part[n] = '\0';
		path += n + (path[n] == '/');
		next = openat(fd, part,
			      O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		fd_close(fd);
		fd = next;
	}
	return fd < 0 ? err_sys(e, errno, "open a directory") : steal_fd(&fd);
}

static int link_to(struct job *j, const struct link *l, const char *name,
		   struct err *e)
{
	char *slash = strrchr(l->path, '/');
	auto_close int far = -1;
	int dir = j->root;

	if (linkat(j->root, l->path, j->at, name, 0) == 0)
		return 0;
	if (errno != ENAMETOOLONG || !slash)
		return err_sys(e, errno, "link");
	*slash = '\0';
	far = dir = open_far(j->root, l->path, e);
	*slash = '/';
	if (dir < 0)
		return dir;
	if (linkat(dir, slash + 1, j->at, name, 0) < 0)
		return err_sys(e, errno, "link");
	return 0;
}

/* 1: the file is there by another name and has this one now too. */
static int copy_link(struct job *j, const struct walk_item *it, struct err *e)
{
	struct link *l;
	char *path;
	int r;

	if (it->st.st_nlink < 2)
		return 0;
	r = links_grow(j, e);
	if (r < 0)
		return r;
	l = link_slot(j, &it->st);
	if (l->path) {
		r = link_to(j, l, it->name, e);
		return r < 0 ? r : 1;
	}
	path = strdup(it->path);
	if (!path)
		return err_sys(e, ENOMEM, "links");
	*l = (struct link){it->st.st_dev, it->st.st_ino, path};
	j->nlinks++;
	return 0;
}

/* --- content ------------------------------------------------------------- */

/* Bytes from ${at} to ${end}, whatever the file system can do to be quick. */
static int copy_range(struct job *j, int from, int to, off_t at, off_t end,
		      struct err *e)
{
	ssize_t n;
	size_t want;
	int r;

	while (at < end) {
		r = stopped(j, e);
		if (r < 0)
			return r;
		want = end - at < BLOCK ? (size_t)(end - at) : BLOCK;
		n = pread(from, j->block, want, at);
		if (n < 0)
			return err_sys(e, errno, "read");
		if (n == 0)
			return err_set(e, -EIO, "system", "it became shorter");
		/* One cut short has its reason when the rest is tried. */
		n = pwrite(to, j->block, (size_t)n, at);
		if (n <= 0)
			return err_sys(e, n < 0 ? errno : ENOSPC, "write");
		at += n;
	}
	return 0;
}

/* Holes stay holes. */
static int copy_data(struct job *j, int from, int to, off_t size, struct err *e)
{
	off_t data = 0, hole = 0;
	int r;

	if (ftruncate(to, size) < 0)
		return err_sys(e, errno, "make it as long");
	while (hole < size) {
		data = lseek(from, hole, SEEK_DATA);
		if (data < 0 && errno == ENXIO)
			return 0;
		hole = data < 0 ? data : lseek(from, data, SEEK_HOLE);
		if (hole < 0)
			return err_sys(e, errno, "find its holes");
		r = copy_range(j, from, to, data, hole, e);
		if (r < 0)
			return r;
		j->c->copied = true;
	}
	return 0;
}

static int copy_content(struct job *j, int from, int to, off_t size,
			struct err *e)
{
	if (size == 0)
		return 0;
	if (!j->no_reflink) {
		if (ioctl(to, FICLONE, from) == 0) {
			j->c->shared = true;
			return 0;
		}
		if (errno == EOPNOTSUPP || errno == EXDEV || errno == ENOTTY)
			j->no_reflink = true;
		else if (errno == ENOSPC || errno == EDQUOT)
			return err_sys(e, errno, "share its data");
	}
	return copy_data(j, from, to, size, e);
}

static int copy_file(struct job *j, const struct walk_item *it, struct err *e)
{
	auto_close int from = -1, to = -1;
	struct stat st;

	from = openat(it->dirfd, it->name,
		      O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOATIME |
			      O_CLOEXEC);
	if (from < 0 || fstat(from, &st) < 0)
		return err_sys(e, errno, "open");
	if (st.st_ino != it->st.st_ino || !S_ISREG(st.st_mode))
		return err_set(e, -ESTALE, "system", "it was replaced");
	to = openat(j->at, it->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0600);
	if (to < 0)
		return err_sys(e, errno, "create");
	return copy_content(j, from, to, st.st_size, e);
}

static int copy_symlink(struct job *j, const struct walk_item *it,
			struct err *e)
{
	char text[PATH_MAX];
	ssize_t n = readlinkat(it->dirfd, it->name, text, sizeof(text));

	if (n < 0 || (size_t)n >= sizeof(text))
		return err_sys(e, n < 0 ? errno : ENAMETOOLONG, "read a link");
	text[n] = '\0';
	if (symlinkat(text, j->at, it->name) < 0)
		return err_sys(e, errno, "link");
	return 0;
}

static int copy_dir(struct job *j, const struct walk_item *it, struct err *e)
{
	int fd;

	if (mkdirat(j->at, it->name, 0700) < 0)
		return err_sys(e, errno, "make");
	fd = openat(j->at, it->name,
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open");
	if (it->depth == 0) {
		j->root = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (j->root < 0) {
			fd_close(fd);
			return err_sys(e, errno, "open");
		}
	}
	fd_close(j->at);
	j->at = fd;
	return 0;
}

/* Its times last, when nothing in it changes any more. */
static int end_dir(struct job *j, const struct walk_item *it, struct err *e)
{
	int fd = openat(j->at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return err_sys(e, errno, "leave");
	fd_close(j->at);
	j->at = fd;
	return copy_attrs(j, it, fd, it->name, e);
}

static int copy_entry(struct job *j, const struct walk_item *it, struct err *e)
{
	int r;

	if (it->errnum)
		return err_sys(e, it->errnum, "look at");
	if (S_ISDIR(it->st.st_mode))
		return it->post ? end_dir(j, it, e) : copy_dir(j, it, e);
	r = copy_link(j, it, e);
	if (r != 0)
		return r < 0 ? r : 0;
	if (S_ISREG(it->st.st_mode))
		r = copy_file(j, it, e);
	else if (S_ISLNK(it->st.st_mode))
		r = copy_symlink(j, it, e);
	else if (mknodat(j->at, it->name, it->st.st_mode & (S_IFMT | 0700),
			 it->st.st_rdev) < 0)
		r = err_sys(e, errno, "make a node");
	return r < 0 ? r : copy_attrs(j, it, j->at, it->name, e);
}

static int copy_all(struct job *j, struct err *e)
{
	auto_walk struct walk *w = NULL;
	struct walk_item it;
	int r;

	r = walk_open(j->c->from, j->c->name, WALK_POST | WALK_ONE_DEV, &w, e);
	while (r >= 0 && (r = walk_next(w, &it, e)) > 0) {
		r = stopped(j, e);
		if (r == 0)
			r = copy_entry(j, &it, e);
		if (r < 0)
			return err_wrap(e, r, "copy '%s/%.200s'", j->c->name,
					it.path);
	}
	return r;
}

int pool_copy_tree(struct pool_copy_tree *copy, struct err *e)
{
	struct job *j = calloc(1, sizeof(*j));
	int r = 0;

	if (!j)
		return err_sys(e, ENOMEM, "copy");
	j->c = copy;
	j->root = -1;
	j->block = malloc(BLOCK);
	j->at = openat(copy->to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!j->block || j->at < 0)
		r = err_sys(e, j->block ? errno : ENOMEM, "copy");
	if (r == 0)
		r = copy_all(j, e);
	for (size_t i = 0; i < j->cap; i++)
		free(j->links[i].path);
	free(j->links);
	free(j->block);
	if (j->at >= 0)
		fd_close(j->at);
	if (j->root >= 0)
		fd_close(j->root);
	free(j);
	return r;
}
