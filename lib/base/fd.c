/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

void fd_close(int fd)
{
	int was = errno;

	if (close(fd) < 0 && errno == EBADF)
		abort();
	errno = was;
}

/* Each try is a few microseconds, which a storm of renames lets pass mostly. */
#define OPEN_TRIES 1000

int fd_openat2(int dirfd, const char *path, uint64_t flags, uint64_t resolve)
{
	const struct open_how how = {
		.flags = flags | O_CLOEXEC,
		.resolve = resolve,
	};
	int fd;

	for (int i = 0; i < OPEN_TRIES; i++) {
		fd = (int)syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
		if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
		if (i >= OPEN_TRIES / 2)
			sched_yield();
	}
	return fd < 0 ? -errno : fd;
}

static int read_grow(int fd, size_t max, char **buf, size_t *len, size_t *cap,
		     struct err *e)
{
	ssize_t n;
	char *p;

	if (*len + 1 >= *cap) {
		*cap = *cap ? *cap * 2 : 4096;
		p = realloc(*buf, *cap);
		if (!p)
			return err_sys(e, ENOMEM, "read");
		*buf = p;
	}
	do
		n = read(fd, *buf + *len, *cap - *len - 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "read");
	*len += (size_t)n;
	if (*len > max)
		return err_set(e, -EFBIG, "too_large",
			       "more than the %zu bytes allowed", max);
	return n > 0;
}

int fd_read_all(int fd, size_t max, char **ret_text, size_t *ret_len,
		struct err *e)
{
	auto_free char *buf = NULL;
	size_t len = 0, cap = 0;
	int r;

	do
		r = read_grow(fd, max, &buf, &len, &cap, e);
	while (r > 0);
	if (r < 0)
		return r;
	buf[len] = '\0';
	*ret_text = steal_ptr(buf);
	if (ret_len)
		*ret_len = len;
	return 0;
}

int fd_read_file(int dirfd, const char *path, size_t max, char **ret_text,
		 size_t *ret_len, struct err *e)
{
	auto_close int fd = -1;
	int r;

	fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = fd_read_all(fd, max, ret_text, ret_len, e);
	return r < 0 ? err_wrap(e, r, "'%s'", path) : 0;
}

int fd_write_all(int fd, const void *data, size_t len, struct err *e)
{
	struct pollfd pfd = {.fd = fd, .events = POLLOUT};
	const char *p = data;
	ssize_t n;

	while (len > 0) {
		n = write(fd, p, len);
		if (n < 0 && errno == EINTR)
			continue;
		/* Somebody we share the file with made it non-blocking. */
		if (n < 0 && errno == EAGAIN) {
			poll(&pfd, 1, -1);
			continue;
		}
		if (n < 0)
			return err_sys(e, errno, "write");
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

/* New, whatever is there: what a process of this id left, or what a stranger
 * put where others may write. */
static int make_new(int dirfd, const char *name)
{
	const int how = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
	int fd = openat(dirfd, name, how, 0600);

	if (fd >= 0 || errno != EEXIST || unlinkat(dirfd, name, 0) < 0)
		return fd;
	return openat(dirfd, name, how, 0600);
}

int fd_replace(int dirfd, const char *name, const void *data, size_t len,
	       unsigned flags, struct err *e)
{
	auto_close int fd = -1;
	char tmp[NAME_MAX + 1];
	int r;

	assert(!strchr(name, '/'));
	if (snprintf(tmp, sizeof(tmp), ".%s.%d", name, (int)getpid()) >=
	    (int)sizeof(tmp))
		return err_sys(e, ENAMETOOLONG, "write '%s'", name);
	fd = make_new(dirfd, tmp);
	if (fd < 0)
		return err_sys(e, errno, "create '%s'", name);
	r = fd_write_all(fd, data, len, e);
	if (r < 0)
		goto err;
	if ((flags & FD_REPLACE_PUBLIC) && fchmod(fd, 0644) < 0) {
		r = err_sys(e, errno, "mode of '%s'", name);
		goto err;
	}
	if ((flags & FD_REPLACE_SYNC) && fsync(fd) < 0) {
		r = err_sys(e, errno, "sync '%s'", name);
		goto err;
	}
	if (renameat(dirfd, tmp, dirfd, name) < 0) {
		r = err_sys(e, errno, "rename to '%s'", name);
		goto err;
	}
	if ((flags & FD_REPLACE_SYNC) && fsync(dirfd) < 0)
		return err_sys(e, errno, "sync the directory of '%s'", name);
	return 0;
err:
	unlinkat(dirfd, tmp, 0);
	return err_wrap(e, r, "write '%s'", name);
}

int fd_write_str(int dirfd, const char *path, const char *text, struct err *e)
{
	auto_close int fd = -1;
	size_t len = strlen(text);
	ssize_t n;

	fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	do
		n = write(fd, text, len);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "write '%s' to '%s'", text, path);
	if ((size_t)n != len)
		return err_sys(e, EIO, "write '%s' to '%s': cut", text, path);
	return 0;
}

ssize_t fd_send(int sock, const void *data, size_t len, const int *fds,
		size_t nfds, int flags)
{
	union {
		char buf[CMSG_SPACE(FD_PASS_MAX * sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;
	ssize_t n;

	assert(nfds <= FD_PASS_MAX && len > 0);
	if (nfds > 0) {
		memset(&u, 0, sizeof(u));
		msg.msg_control = u.buf;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		c = CMSG_FIRSTHDR(&msg);
		assert(c);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(c), fds, nfds * sizeof(int));
	}
	do
		n = sendmsg(sock, &msg, MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static void take_fds(struct cmsghdr *c, int *fds, size_t room, size_t *n)
{
	size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
	int fd;

	for (size_t i = 0; i < count; i++) {
		memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
		if (*n < room)
			fds[(*n)++] = fd;
		else
			fd_close(fd);
	}
}

ssize_t fd_recv(int sock, void *data, size_t cap, int *fds, size_t *nfds,
		struct err *e)
{
	union {
		char buf[CMSG_SPACE(FD_PASS_MAX * sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec iov = {data, cap};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = u.buf,
			     .msg_controllen = sizeof(u.buf)};
	size_t room = *nfds;
	struct cmsghdr *c;
	ssize_t n;

	*nfds = 0;
	do
		n = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "receive");
	for (c = CMSG_FIRSTHDR(&msg); c; c = CMSG_NXTHDR(&msg, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			take_fds(c, fds, room, nfds);
	return n;
}

/* A sockaddr holds 107 bytes of path; longer ones go by their directory. */
static int unix_addr(const char *path, struct sockaddr_un *addr, int *ret_dir,
		     struct err *e)
{
	const char *base = strrchr(path, '/');
	char dir[PATH_MAX];

	memset(addr, 0, sizeof(*addr));
	addr->sun_family = AF_UNIX;
	if (strlen(path) < sizeof(addr->sun_path)) {
		memcpy(addr->sun_path, path, strlen(path) + 1);
		return 0;
	}
	if (!base || (size_t)(base - path) >= sizeof(dir) ||
	    strlen(base) > sizeof(addr->sun_path) - 32)
		return err_sys(e, ENAMETOOLONG, "socket '%s'", path);
	memcpy(dir, path, (size_t)(base - path));
	dir[base - path] = '\0';
	*ret_dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*ret_dir < 0)
		return err_sys(e, errno, "open '%s'", dir);
	snprintf(addr->sun_path, sizeof(addr->sun_path), "/proc/self/fd/%d%s",
		 *ret_dir, base);
	return 0;
}

int fd_unix_listen(const char *path, struct err *e)
{
	auto_close int dir = -1;
	auto_close int fd = -1;
	struct sockaddr_un addr;
	int r;

	r = unix_addr(path, &addr, &dir, e);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return err_sys(e, errno, "socket");
	/* The mode of the socket file is that of the socket's inode. */
	if (fchmod(fd, 0600) < 0)
		return err_sys(e, errno, "mode of '%s'", path);
	if (bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
		return err_sys(e, errno, "bind '%s'", path);
	if (listen(fd, 128) < 0)
		return err_sys(e, errno, "listen on '%s'", path);
	return steal_fd(&fd);
}

int fd_unix_connect(const char *path, struct err *e)
{
	auto_close int dir = -1;
	auto_close int fd = -1;
	struct sockaddr_un addr;
	int r;

	r = unix_addr(path, &addr, &dir, e);
	if (r < 0)
		return r;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(e, errno, "socket");
	do
		r = connect(fd, (struct sockaddr *)&addr, sizeof(addr));
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return err_sys(e, errno, "connect '%s'", path);
	return steal_fd(&fd);
}

static int make_dir(const char *path, mode_t mode, struct err *e)
{
	struct stat st;

	if (mkdir(path, mode) == 0)
		return 0;
	if (errno != EEXIST)
		return err_sys(e, errno, "make '%s'", path);
	if (stat(path, &st) < 0)
		return err_sys(e, errno, "make '%s'", path);
	return S_ISDIR(st.st_mode) ? 0 : err_sys(e, ENOTDIR, "make '%s'", path);
}

int fd_mkdir_p(const char *path, mode_t mode, struct err *e)
{
	char buf[PATH_MAX];
	size_t len = strlen(path);
	int r;

	if (len >= sizeof(buf))
		return err_sys(e, ENAMETOOLONG, "make '%s'", path);
	r = make_dir(path, mode, e);
	if (r != -ENOENT)
		return r;
	memcpy(buf, path, len + 1);
	for (char *p = buf + 1; *p; p++) {
		if (*p != '/' || p[-1] == '/')
			continue;
		*p = '\0';
		r = make_dir(buf, mode, e);
		if (r < 0)
			return r;
		*p = '/';
	}
	return make_dir(path, mode, e);
}

static int open_beneath(int dirfd, const char *name)
{
	return fd_openat2(dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW,
			  RESOLVE_BENEATH | RESOLVE_NO_XDEV);
}

/*
 * Depth is the tree's, and a tree may come from a sandbox: so many levels are
 * gone down with a descriptor each, and what is deeper is moved up beside the
 * root, for the next pass.
 */
#define REMOVE_LEVELS 12

struct removal {
	int root;
	unsigned moved; /* so far: the next name to move to */
};

static int empty_dir(struct removal *rm, int *fd, unsigned level,
		     struct err *e);

/* A directory that is not empty.  What cannot go yet is left: see the caller
 * of all this. */
static int empty_sub(struct removal *rm, int dir, const char *name,
		     unsigned level, struct err *e)
{
	auto_close int sub = -1;
	char flat[32];
	int r;

	if (level == REMOVE_LEVELS) {
		do
			snprintf(flat, sizeof(flat), ".rm.%u", rm->moved++);
		while (renameat2(dir, name, rm->root, flat, RENAME_NOREPLACE) <
			       0 &&
		       errno == EEXIST);
		return 0;
	}
	sub = open_beneath(dir, name);
	if (sub < 0)
		return sub == -ENOENT ? 0 : err_sys(e, -sub, "open '%s'", name);
	r = empty_dir(rm, &sub, level + 1, e);
	if (r == 0)
		(void)unlinkat(dir, name, AT_REMOVEDIR);
	return r;
}

static int remove_entry(struct removal *rm, int dir, const char *name,
			unsigned level, struct err *e)
{
	if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
		return 0;
	if ((errno == EISDIR || errno == EPERM) &&
	    unlinkat(dir, name, AT_REMOVEDIR) == 0)
		return 0;
	if (errno == EBUSY)
		return err_sys(e, EXDEV, "a mount at '%s'", name);
	if (errno != ENOTEMPTY && errno != EEXIST)
		return err_sys(e, errno, "remove '%s'", name);
	return empty_sub(rm, dir, name, level, e);
}

/* Takes *${fd} over. */
static int empty_dir(struct removal *rm, int *fd, unsigned level, struct err *e)
{
	auto_dir DIR *d = fdopendir(*fd);
	const struct dirent *de;
	int r = 0;

	if (!d)
		return err_sys(e, errno, "read directory");
	steal_fd(fd);
	while (r == 0 && (de = readdir(d)))
		if (strcmp(de->d_name, ".") && strcmp(de->d_name, ".."))
			r = remove_entry(rm, dirfd(d), de->d_name, level, e);
	return r;
}

static int empty_root(struct removal *rm, struct err *e)
{
	auto_close int fd = -1;

	fd = openat(rm->root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open a directory");
	return empty_dir(rm, &fd, 0, e);
}

int fd_remove_tree(int dirfd, const char *name, struct err *e)
{
	auto_close int root = -1;
	struct removal rm;
	unsigned was, stuck = 0;
	int r;

	if (unlinkat(dirfd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EBUSY && unlinkat(dirfd, name, AT_REMOVEDIR) == 0)
		return 0;
	if (errno == EBUSY)
		return err_sys(e, EXDEV, "a mount at '%s'", name);
	/* The way to it may be any; what is below stays beneath. */
	root = openat(dirfd, name,
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (root < 0)
		return err_sys(e, errno, "remove '%s'", name);
	rm = (struct removal){.root = root};
	for (;;) {
		was = rm.moved;
		r = empty_root(&rm, e);
		if (r < 0)
			return err_wrap(e, r, "remove '%s'", name);
		if (unlinkat(dirfd, name, AT_REMOVEDIR) == 0 || errno == ENOENT)
			return 0;
		/* What was moved up, or came meanwhile, is for another pass. */
		if ((errno != ENOTEMPTY && errno != EEXIST) ||
		    (rm.moved == was && ++stuck > 100))
			return err_sys(e, errno, "remove '%s'", name);
	}
}
