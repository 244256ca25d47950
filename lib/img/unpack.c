/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "img/unpack.h"

#define PIECE (256U * 1024)

/* A directory that is open, by its path. */
struct place {
	char *path; /* owned */
	size_t len;
	int fd;
};

struct unpack {
	struct fstree *t;
	struct blob_reader *data;
	int top;
	struct place at, first; /* of the entry; of a link's first name */
	char **names;		/* first names of inodes that have several */
	size_t nnames, names_cap;
	void *piece;
};

static int open_below(int dirfd, const char *path, size_t len)
{
	char part[PATH_MAX];

	memcpy(part, path, len);
	part[len] = '\0';
	return fd_openat2(dirfd, len ? part : ".", O_PATH | O_DIRECTORY,
			  RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
				  RESOLVE_NO_XDEV);
}

/* Paths may be longer than the kernel takes: in steps. */
static int open_dir(int top, const char *path, size_t len)
{
	auto_close int fd = -1;
	size_t n;
	int next;

	do {
		n = len;
		if (n >= PATH_MAX)
			for (n = PATH_MAX - 1; n > 0 && path[n] != '/'; n--)
				;
		next = open_below(fd < 0 ? top : fd, path, n);
		if (next < 0)
			return next;
		if (fd >= 0)
			fd_close(fd);
		fd = next;
		n += n < len;
		path += n;
		len -= n;
	} while (len > 0);
	return steal_fd(&fd);
}

/* The directory that ${path} is in, kept open for the next; *${ret_name}: what
 * it is called there. */
static int go_to(struct unpack *u, struct place *p, const char *path,
		 const char **ret_name, struct err *e)
{
	const char *slash = strrchr(path, '/');
	size_t len = slash ? (size_t)(slash - path) : 0;

	*ret_name = slash ? slash + 1 : path;
	if (p->fd >= 0 && p->len == len && !memcmp(p->path, path, len))
		return 0;
	if (p->fd >= 0)
		fd_close(steal_fd(&p->fd));
	free(p->path);
	p->path = strndup(path, len);
	if (!p->path)
		return err_sys(e, ENOMEM, "unpack");
	p->len = len;
	p->fd = open_dir(u->top, path, len);
	if (p->fd >= 0)
		return 0;
	len = (size_t)-p->fd;
	p->fd = -1;
	return err_sys(e, (int)len, "open the directory of '%s'", path);
}

/* --- attributes ---------------------------------------------------------- */

/* By a path through the directory's descriptor: there is no call that sets an
 * attribute of a link or a device by descriptor. */
static int put_xattrs(int dirfd, const char *name, const struct fsnode *n,
		      const char *path, struct err *e)
{
	char at[32 + NAME_MAX];

	snprintf(at, sizeof(at), "/proc/self/fd/%d/%s", dirfd, name);
	for (size_t i = 0; i < n->nxattrs; i++) {
		const struct fsxattr *x = &n->xattrs[i];

		if (lsetxattr(at, x->name, x->value, x->len, 0) == 0)
			continue;
		/* No file system has these; nothing is lost. */
		if (errno == EPERM && !strncmp(x->name, "user.", 5) &&
		    !S_ISREG(n->mode) && !S_ISDIR(n->mode))
			continue;
		return err_sys(e, errno, "attribute '%s' of '%s'", x->name,
			       path);
	}
	return 0;
}

static int put_times(int dirfd, const char *name, const struct fsnode *n,
		     const char *path, struct err *e)
{
	const struct timespec times[] = {n->mtime, n->mtime};

	if (utimensat(dirfd, name, times, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "times of '%s'", path);
	return 0;
}

/* Owner first, which takes set-ID bits and capabilities away. */
static int put_attributes(int dirfd, const char *name, const struct fsnode *n,
			  const char *path, struct err *e)
{
	int r;

	if (fchownat(dirfd, name, n->uid, n->gid, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "owner of '%s'", path);
	if (!S_ISLNK(n->mode) && fchmodat(dirfd, name, n->mode & 07777, 0) < 0)
		return err_sys(e, errno, "mode of '%s'", path);
	r = put_xattrs(dirfd, name, n, path, e);
	return r < 0 ? r : put_times(dirfd, name, n, path, e);
}

/* --- inodes -------------------------------------------------------------- */

static bool is_hole(const struct fsnode *n, uint64_t off)
{
	size_t i = (size_t)(off / FS_CHUNK);

	return i >= n->nchunks || n->chunks[i].block == FS_HOLE;
}

static int put_data(struct unpack *u, int fd, const struct fsnode *n,
		    const char *path, struct err *e)
{
	uint64_t off = 0;
	ssize_t len;
	int r;

	while (off < n->size) {
		if (is_hole(n, off)) {
			off = (off / FS_CHUNK + 1) * FS_CHUNK;
			continue;
		}
		len = blob_reader_read(u->data, n, off, u->piece, PIECE, e);
		if (len < 0)
			return err_wrap(e, (int)len, "'%s'", path);
		if (len == 0)
			return err_set(e, -EBADMSG, "image_damaged",
				       "'%s' has no data at %llu", path,
				       (unsigned long long)off);
		if (lseek(fd, (off_t)off, SEEK_SET) < 0)
			return err_sys(e, errno, "write '%s'", path);
		r = fd_write_all(fd, u->piece, (size_t)len, e);
		if (r < 0)
			return err_wrap(e, r, "'%s'", path);
		off += (uint64_t)len;
	}
	if (ftruncate(fd, (off_t)n->size) < 0)
		return err_sys(e, errno, "size of '%s'", path);
	return 0;
}

static int put_file(struct unpack *u, const char *name, const struct fsnode *n,
		    const char *path, struct err *e)
{
	auto_close int fd = -1;

	fd = openat(u->at.fd, name,
		    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, errno, "create '%s'", path);
	return put_data(u, fd, n, path, e);
}

static int put_inode(struct unpack *u, const char *name, const struct fsnode *n,
		     const char *path, struct err *e)
{
	int r = 0;

	if (S_ISREG(n->mode))
		return put_file(u, name, n, path, e);
	if (S_ISDIR(n->mode))
		r = mkdirat(u->at.fd, name, 0700);
	else if (S_ISLNK(n->mode))
		r = symlinkat(n->link, u->at.fd, name);
	else
		r = mknodat(u->at.fd, name, (n->mode & S_IFMT) | 0600, n->rdev);
	return r < 0 ? err_sys(e, errno, "create '%s'", path) : 0;
}

static int remember(struct unpack *u, const char *path, struct fsnode *n,
		    struct err *e)
{
	size_t cap = u->names_cap ? 2 * u->names_cap : 64;
	char **p;

	if (u->nnames == u->names_cap) {
		p = realloc(u->names, cap * sizeof(*p));
		if (!p)
			return err_sys(e, ENOMEM, "unpack");
		u->names = p;
		u->names_cap = cap;
	}
	u->names[u->nnames] = strdup(path);
	if (!u->names[u->nnames])
		return err_sys(e, ENOMEM, "unpack");
	n->mark = ++u->nnames;
	return 0;
}

static int put_link(struct unpack *u, const char *name, const struct fsnode *n,
		    const char *path, struct err *e)
{
	const char *old;
	int r;

	r = go_to(u, &u->first, u->names[n->mark - 1], &old, e);
	if (r == 0 && linkat(u->first.fd, old, u->at.fd, name, 0) < 0)
		r = err_sys(e, errno, "link '%s'", path);
	return r;
}

static int clear_mark(void *arg, const char *path, struct fsnode *n,
		      struct err *e)
{
	(void)arg;
	(void)path;
	(void)e;
	n->mark = 0;
	return 0;
}

static int put(void *arg, const char *path, struct fsnode *n, struct err *e)
{
	struct unpack *u = arg;
	const char *name;
	int r;

	if (!*path)
		return put_attributes(u->top, ".", n, "/", e);
	r = go_to(u, &u->at, path, &name, e);
	if (r == 0 && n->mark)
		return put_link(u, name, n, path, e);
	if (r == 0 && n->nlink > 1 && !S_ISDIR(n->mode))
		r = remember(u, path, n, e);
	if (r == 0)
		r = put_inode(u, name, n, path, e);
	return r < 0 ? r : put_attributes(u->at.fd, name, n, path, e);
}

/* What is put into a directory changes its time: at the end. */
static int put_dir_times(void *arg, const char *path, struct fsnode *n,
			 struct err *e)
{
	struct unpack *u = arg;
	const char *name;
	int r;

	if (!S_ISDIR(n->mode))
		return 0;
	if (!*path)
		return put_times(u->top, ".", n, "/", e);
	r = go_to(u, &u->at, path, &name, e);
	return r < 0 ? r : put_times(u->at.fd, name, n, path, e);
}

static void unpack_done(struct unpack *u)
{
	for (size_t i = 0; i < u->nnames; i++)
		free(u->names[i]);
	free(u->names);
	free(u->at.path);
	free(u->first.path);
	if (u->at.fd >= 0)
		fd_close(u->at.fd);
	if (u->first.fd >= 0)
		fd_close(u->first.fd);
	blob_reader_free(u->data);
	free(u->piece);
}

int unpack_tree(struct fstree *t, blob_open_fn *open_blob, void *arg, int dirfd,
		struct err *e)
{
	struct unpack u = {.t = t, .top = dirfd, .at.fd = -1, .first.fd = -1};
	mode_t mask;
	int r;

	u.piece = malloc(PIECE);
	u.data = blob_reader_new(t, open_blob, arg);
	if (!u.piece || !u.data) {
		unpack_done(&u);
		return err_sys(e, ENOMEM, "unpack");
	}
	mask = umask(0);
	r = fstree_walk(t, clear_mark, NULL, e);
	if (r == 0)
		r = fstree_walk(t, put, &u, e);
	if (r == 0)
		r = fstree_walk(t, put_dir_times, &u, e);
	umask(mask);
	if (r == 0 && syncfs(dirfd) < 0)
		r = err_sys(e, errno, "sync");
	unpack_done(&u);
	return r;
}
