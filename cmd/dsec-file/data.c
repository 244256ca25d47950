/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/extract.h"
#include "ops.h"

#define CHUNK (64 * 1024)

static int check_regular(const struct stat *st, const char *path, struct err *e)
{
	if (S_ISREG(st->st_mode))
		return 0;
	if (S_ISDIR(st->st_mode))
		return err_set(e, -EISDIR, "is_directory",
			       "'%s' is a directory", path);
	return err_set(e, -EINVAL, "not_regular", "'%s' is no regular file",
		       path);
}

/* Open for reading without ever waiting, or waking a device. */
static int open_read(const char *path, struct stat *st, struct err *e)
{
	auto_close int fd = -1;
	int r;

	if (stat(path, st) < 0)
		return err_sys(e, errno, "'%s'", path);
	r = check_regular(st, path, e);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "'%s'", path);
	if (fstat(fd, st) < 0)
		return err_sys(e, errno, "'%s'", path);
	r = check_regular(st, path, e);
	return r < 0 ? r : steal_fd(&fd);
}

static int copy_out(int fd, int64_t limit, int64_t *done, struct err *e)
{
	char data[CHUNK];
	ssize_t n;

	while (*done < limit) {
		int64_t want = limit - *done;

		n = read(fd, data, want < CHUNK ? (size_t)want : CHUNK);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read");
		if (n == 0 || fd_write_all(STDOUT_FILENO, data, (size_t)n, e))
			return n == 0 ? 0 : e->r;
		*done += n;
	}
	return 0;
}

static int set_counts(struct call *c, int64_t size, int64_t bytes,
		      struct err *e)
{
	if (json_object_set_new(c->res, "size", json_integer(size)) < 0 ||
	    json_object_set_new(c->res, "bytes", json_integer(bytes)) < 0)
		return err_sys(e, ENOMEM, "result");
	return 0;
}

int op_read(struct call *c, struct err *e)
{
	int64_t limit = c->given & ARG_LIMIT ? c->limit : INT64_MAX, done = 0;
	auto_close int fd = -1;
	struct stat st;
	int r;

	fd = open_read(c->path, &st, e);
	if (fd < 0)
		return fd;
	if (c->offset > 0 && lseek(fd, c->offset, SEEK_SET) < 0)
		return err_sys(e, errno, "offset");
	r = copy_out(fd, limit, &done, e);
	if (r < 0)
		return err_wrap(e, r, "'%s'", c->path);
	return set_counts(c, st.st_size, done, e);
}

/* What a write replaces: it must be a file, and one we could write to. */
static int look_at_old(int dir, const char *name, struct stat *st,
		       bool *ret_there, struct err *e)
{
	int r;

	*ret_there = false;
	if (fstatat(dir, name, st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : err_sys(e, errno, "'%s'", name);
	r = check_regular(st, name, e);
	if (r < 0)
		return r;
	if (faccessat(dir, name, W_OK, AT_EACCESS) < 0)
		return err_sys(e, errno, "'%s'", name);
	*ret_there = true;
	return 0;
}

/* All that was announced, and not a byte more. */
static int copy_in(int fd, int64_t size, struct err *e)
{
	char data[CHUNK];
	int64_t done = 0;
	ssize_t n;

	for (;;) {
		n = read(STDIN_FILENO, data, sizeof(data));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read the data");
		done += n;
		if (n == 0 || done > size)
			break;
		if (fd_write_all(fd, data, (size_t)n, e) < 0)
			return e->r;
	}
	if (done == size)
		return 0;
	return err_set(e, -EIO, "io", "the data %s: %lld bytes of %lld",
		       done < size ? "ended early" : "go on too long",
		       (long long)done, (long long)size);
}

/* Owner first: changing it would clear bits of the mode. */
static int dress(int fd, const struct call *c, const struct stat *old,
		 struct err *e)
{
	mode_t mode = 0644;

	if (old) {
		mode = old->st_mode & 01777;
		if (fchown(fd, old->st_uid, old->st_gid) < 0 &&
		    fchown(fd, (uid_t)-1, old->st_gid) < 0 && errno != EPERM)
			return err_sys(e, errno, "owner");
	}
	if (c->given & ARG_MODE)
		mode = c->mode;
	if (fchmod(fd, mode) < 0)
		return err_sys(e, errno, "mode");
	return 0;
}

static int write_temp(int fd, const struct call *c, const struct stat *old,
		      struct err *e)
{
	int r = copy_in(fd, c->size, e);

	if (r == 0)
		r = dress(fd, c, old, e);
	if (r == 0 && c->sync && fsync(fd) < 0)
		r = err_sys(e, errno, "sync");
	return r;
}

static int replace(int dir, const char *name, const struct call *c,
		   const struct stat *old, struct err *e)
{
	char temp[EXTRACT_TEMP_SIZE];
	auto_close int fd = -1;
	int r;

	r = extract_temp_name(temp, e);
	if (r < 0)
		return r;
	fd = openat(dir, temp,
		    O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, errno, "create a file beside '%s'", c->path);
	r = write_temp(fd, c, old, e);
	if (r == 0 && renameat(dir, temp, dir, name) < 0)
		r = err_sys(e, errno, "rename to '%s'", name);
	if (r < 0) {
		unlinkat(dir, temp, 0);
		return r;
	}
	if (c->sync && fsync(dir) < 0)
		return err_sys(e, errno, "sync the directory");
	return 0;
}

int op_write(struct call *c, struct err *e)
{
	char name[NAME_MAX + 1];
	auto_close int dir = -1;
	struct stat st;
	bool there;
	int r = 0;

	if (c->parents)
		r = parent_make(c->path, e);
	if (r < 0)
		return r;
	dir = parent_open(c->path, true, name, e);
	if (dir < 0)
		return dir;
	r = look_at_old(dir, name, &st, &there, e);
	if (r == 0)
		r = replace(dir, name, c, there ? &st : NULL, e);
	if (r < 0)
		return r;
	if (json_object_set_new(c->res, "created", json_boolean(!there)) < 0)
		return err_sys(e, ENOMEM, "result");
	return set_counts(c, c->size, c->size, e);
}
