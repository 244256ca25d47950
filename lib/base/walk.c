/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/walk.h"

#define OPEN_MAX_LEVELS 32 /* of directories kept open along the path */
#define DEPTH_MAX	100000

/* A directory whose entries are being returned. */
struct level {
	int fd; /* -1: closed for a while */
	dev_t dev;
	ino_t ino;
	struct buf text; /* the names, each with its type before and a NUL */
	const char **names;
	size_t n, next;
	size_t path_len; /* of the path down to it */
	struct stat st;	 /* as it was returned, for WALK_POST */
};

struct walk {
	unsigned flags;
	int top; /* the directory of the root */
	char *name;
	struct level *levels;
	size_t n, cap;
	struct buf path;
	bool started, descend;
	struct stat last; /* of the entry to descend into */
};

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The type the directory says, then the name. */
static int add_name(struct level *l, const struct dirent *de)
{
	char type = (char)de->d_type;
	int r;

	if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, ".."))
		return 0;
	l->n++;
	r = buf_add(&l->text, &type, 1);
	return r < 0 ? r
		     : buf_add(&l->text, de->d_name, strlen(de->d_name) + 1);
}

/* All names at once: sorted, and safe from what happens meanwhile. */
static int read_names(struct level *l)
{
	auto_dir DIR *d = NULL;
	int fd = fcntl(l->fd, F_DUPFD_CLOEXEC, 0), r = 0;
	const struct dirent *de;
	size_t pos = 0;

	if (fd < 0)
		return -errno;
	d = fdopendir(fd);
	if (!d) {
		fd_close(fd);
		return -ENOMEM;
	}
	while (r == 0 && (errno = 0, de = readdir(d)))
		r = add_name(l, de);
	if (r == 0 && errno)
		r = -errno;
	if (r < 0)
		return r;
	l->names = calloc(l->n + 1, sizeof(*l->names));
	if (!l->names)
		return -ENOMEM;
	for (size_t i = 0; i < l->n; i++) {
		l->names[i] = l->text.data + pos + 1;
		pos += strlen(l->names[i]) + 2;
	}
	qsort(l->names, l->n, sizeof(*l->names), by_name);
	return 0;
}

static void level_done(struct level *l)
{
	if (l->fd >= 0)
		fd_close(l->fd);
	buf_done(&l->text);
	free(l->names);
}

static int grow(struct walk *w)
{
	size_t cap = w->cap ? w->cap * 2 : 16;
	struct level *p;

	if (w->n < w->cap)
		return 0;
	if (cap > DEPTH_MAX)
		return -ELOOP;
	p = realloc(w->levels, cap * sizeof(*p));
	if (!p)
		return -ENOMEM;
	w->levels = p;
	w->cap = cap;
	return 0;
}

static bool is_kernel_fs(int fd)
{
	struct statfs fs;

	return fstatfs(fd, &fs) == 0 &&
	       (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC);
}

/* 1: entered, 0: not to be entered, or -errno. */
static int enter(struct walk *w, int dirfd, const char *name)
{
	struct level l = {.fd = -1, .path_len = w->path.len, .st = w->last};
	bool crossing;
	struct stat st;
	int r;

	r = grow(w);
	if (r < 0)
		return r;
	l.fd = openat(dirfd, name,
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK |
			      O_CLOEXEC);
	if (l.fd < 0 || fstat(l.fd, &st) < 0) {
		r = -errno;
		level_done(&l);
		return r;
	}
	crossing = w->n > 0 && st.st_dev != w->levels[w->n - 1].dev;
	if (crossing && ((w->flags & WALK_ONE_DEV) ||
			 ((w->flags & WALK_NO_PROC) && is_kernel_fs(l.fd)))) {
		level_done(&l);
		return w->flags & WALK_ONE_DEV ? -EXDEV : 0;
	}
	l.dev = st.st_dev;
	l.ino = st.st_ino;
	r = read_names(&l);
	if (r < 0) {
		level_done(&l);
		return r;
	}
	w->levels[w->n++] = l;
	if (w->n > OPEN_MAX_LEVELS) {
		struct level *up = &w->levels[w->n - 1 - OPEN_MAX_LEVELS];

		if (up->fd >= 0)
			fd_close(steal_fd(&up->fd));
	}
	return 1;
}

static int dir_of(const struct walk *w)
{
	return w->n > 0 ? w->levels[w->n - 1].fd : w->top;
}

/* Leave the deepest directory; the one above may have to be found again. */
static int leave(struct walk *w, struct err *e)
{
	struct level *l = &w->levels[w->n - 1];
	struct level *up = w->n > 1 ? l - 1 : NULL;
	struct stat st;

	if (up && up->fd < 0) {
		up->fd = openat(l->fd, "..",
				O_RDONLY | O_DIRECTORY | O_NOFOLLOW |
					O_CLOEXEC);
		if (up->fd < 0 || fstat(up->fd, &st) < 0)
			return err_sys(e, errno, "go back up from '%s'",
				       w->path.data);
		if (st.st_dev != up->dev || st.st_ino != up->ino)
			return err_sys(e, EBUSY,
				       "'%s' was moved while it was read",
				       w->path.data);
	}
	w->path.len = l->path_len;
	if (w->path.data)
		w->path.data[w->path.len] = '\0';
	level_done(l);
	w->n--;
	return 0;
}

static const char *base_of(const struct walk *w, const struct level *l)
{
	const char *slash;

	if (l == w->levels)
		return w->name;
	slash = strrchr(w->path.data, '/');
	return slash ? slash + 1 : w->path.data;
}

static int look(struct walk *w, const char *name, struct walk_item *it,
		struct err *e)
{
	if (w->n > 0 && ((w->path.len > 0 && buf_add(&w->path, "/", 1) < 0) ||
			 buf_add(&w->path, name, strlen(name)) < 0))
		return err_sys(e, ENOMEM, "walk");
	*it = (struct walk_item){.dirfd = dir_of(w),
				 .name = name,
				 .path = w->path.data ? w->path.data : "",
				 .depth = (unsigned)w->n};
	if ((w->flags & WALK_LAZY) && w->n > 0 && name[-1] == DT_REG) {
		it->lazy = true;
		it->st.st_mode = S_IFREG;
	} else if (fstatat(it->dirfd, name, &it->st, AT_SYMLINK_NOFOLLOW) < 0) {
		memset(&it->st, 0, sizeof(it->st));
		it->errnum = errno;
	}
	w->last = it->st;
	w->descend = !it->errnum && S_ISDIR(it->st.st_mode);
	return 1;
}

static int descend(struct walk *w, struct walk_item *it)
{
	const char *name = w->name;
	int r;

	w->descend = false;
	if (w->n > 0) {
		const struct level *l = &w->levels[w->n - 1];

		name = l->names[l->next - 1];
	}
	r = enter(w, dir_of(w), name);
	if (r >= 0)
		return 0;
	*it = (struct walk_item){.dirfd = dir_of(w),
				 .name = name,
				 .path = w->path.data ? w->path.data : "",
				 .depth = (unsigned)w->n,
				 .errnum = -r,
				 .st = w->last};
	return 1;
}

/* The path ends in the entry last returned; cut it back to the directory. */
static void cut(struct walk *w, const struct level *l)
{
	w->path.len = l->path_len;
	if (w->path.data)
		w->path.data[w->path.len] = '\0';
}

static int after(struct walk *w, struct walk_item *it, struct err *e)
{
	struct stat st = w->levels[w->n - 1].st;
	const char *name;
	int r;

	cut(w, &w->levels[w->n - 1]);
	r = leave(w, e);
	if (r < 0 || !(w->flags & WALK_POST))
		return r;
	name = base_of(w, &w->levels[w->n]);
	*it = (struct walk_item){.dirfd = dir_of(w),
				 .name = name,
				 .path = w->path.data ? w->path.data : "",
				 .depth = (unsigned)w->n,
				 .post = true,
				 .st = st};
	return 1;
}

int walk_next(struct walk *w, struct walk_item *it, struct err *e)
{
	int r;

	if (!w->started) {
		w->started = true;
		return look(w, w->name, it, e);
	}
	if (w->descend && descend(w, it))
		return 1;
	while (w->n > 0) {
		struct level *l = &w->levels[w->n - 1];

		if (l->next < l->n) {
			cut(w, l);
			return look(w, l->names[l->next++], it, e);
		}
		r = after(w, it, e);
		if (r != 0)
			return r;
	}
	return 0;
}

void walk_skip(struct walk *w)
{
	w->descend = false;
}

/* "a/b/" names b in a; "/" and "." name themselves. */
static int split(struct walk *w, int dirfd, const char *path, struct err *e)
{
	auto_free char *copy = strdup(path);
	size_t len = strlen(path);
	char *slash;

	if (!copy)
		return err_sys(e, ENOMEM, "walk");
	while (len > 1 && copy[len - 1] == '/')
		copy[--len] = '\0';
	slash = strrchr(copy, '/');
	if (!slash || !slash[1]) {
		w->name = strdup(slash ? "." : copy);
		w->top = openat(dirfd, slash ? "/" : ".",
				O_PATH | O_DIRECTORY | O_CLOEXEC);
	} else {
		w->name = strdup(slash + 1);
		*slash = '\0';
		w->top = openat(dirfd, *copy ? copy : "/",
				O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	if (!w->name)
		return err_sys(e, ENOMEM, "walk");
	if (w->top < 0)
		return err_sys(e, errno, "'%s'", path);
	return 0;
}

int walk_open(int dirfd, const char *path, unsigned flags,
	      struct walk **ret_walk, struct err *e)
{
	struct walk *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return err_sys(e, ENOMEM, "walk");
	w->top = -1;
	w->flags = flags;
	r = split(w, dirfd, path, e);
	if (r < 0) {
		walk_free(w);
		return r;
	}
	*ret_walk = w;
	return 0;
}

void walk_free(struct walk *w)
{
	if (!w)
		return;
	while (w->n > 0)
		level_done(&w->levels[--w->n]);
	if (w->top >= 0)
		fd_close(w->top);
	free(w->levels);
	free(w->name);
	buf_done(&w->path);
	free(w);
}
