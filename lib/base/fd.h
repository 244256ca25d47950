/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_FD_H
#define BASE_FD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * fd_close(fd):
 * Close ${fd}; errno stays as it was.  A descriptor that is not open is a bug
 * of ours and aborts.
 */
void fd_close(int fd);

/*
 * fd_openat2(dirfd, path, flags, resolve):
 * openat2(), close-on-exec, with RESOLVE_* flags.  Where resolution is confined
 * the kernel gives up with EAGAIN at a ".." (of a link, mostly) when anything
 * on the machine was renamed or mounted meanwhile: then it is asked again.
 * Returns the fd or -errno.
 */
int fd_openat2(int dirfd, const char *path, uint64_t flags, uint64_t resolve);

/*
 * fd_read_all(fd, max, ret_text, ret_len, e):
 * Read ${fd} to its end into a new buffer, NUL-terminated, the caller's to
 * free.  More than ${max} bytes: -EFBIG, code "too_large".
 */
int fd_read_all(int fd, size_t max, char **ret_text, size_t *ret_len,
		struct err *e);

/* fd_read_file(dirfd, path, max, ret_text, ret_len, e): the same, by name. */
int fd_read_file(int dirfd, const char *path, size_t max, char **ret_text,
		 size_t *ret_len, struct err *e);

/* fd_write_all(fd, data, len, e): write all of it, however many calls. */
int fd_write_all(int fd, const void *data, size_t len, struct err *e);

enum fd_replace_flags {
	FD_REPLACE_SYNC = 1 << 0,   /* durable: fsync file and directory */
	FD_REPLACE_PUBLIC = 1 << 1, /* mode 0644, whatever the umask; or 0600 */
};

/*
 * fd_replace(dirfd, name, data, len, flags, e):
 * Write ${data} to ${name}, an entry of ${dirfd} (no path), so that a reader
 * sees the old content or the new, never a part.  On failure the old content is
 * there still, but for one to sync the directory, and nothing else is left.
 */
int fd_replace(int dirfd, const char *name, const void *data, size_t len,
	       unsigned flags, struct err *e);

/*
 * fd_write_str(dirfd, path, text, e):
 * Write ${text} to an existing kernel file (cgroup, proc) in a single write.
 */
int fd_write_str(int dirfd, const char *path, const char *text, struct err *e);

/*
 * fd_send(sock, data, len, fds, nfds, flags), fd_recv(...):
 * One message with descriptors.  fd_send makes one sendmsg(), the descriptors
 * (borrowed, FD_PASS_MAX at most) riding on the first byte of ${data}; ${flags}
 * is 0 or MSG_DONTWAIT.  It returns the bytes sent, which may be fewer, or
 * -errno.
 * fd_recv makes one recvmsg() of at most ${cap} bytes; descriptors arrive
 * close-on-exec, *${nfds} is in: room, out: how many.  It returns the bytes
 * read, 0 at end of file, -EAGAIN (with ${e} set) on a non-blocking socket
 * with nothing to read.  More descriptors than there is room for are closed.
 */
#define FD_PASS_MAX 8
ssize_t fd_send(int sock, const void *data, size_t len, const int *fds,
		size_t nfds, int flags);
ssize_t fd_recv(int sock, void *data, size_t cap, int *fds, size_t *nfds,
		struct err *e);

/*
 * fd_unix_listen(path, e), fd_unix_connect(path, e):
 * A stream socket on ${path} (mode 0600, close-on-exec); paths longer than a
 * sockaddr go through /proc/self/fd of their directory.  Return the fd.
 */
int fd_unix_listen(const char *path, struct err *e);
int fd_unix_connect(const char *path, struct err *e);

/*
 * fd_mkdir_p(path, mode, e): make ${path} and its parents; existing is fine.
 * fd_remove_tree(dirfd, name, e): remove ${name} and what is below, following
 * no link and crossing no mount (-EXDEV at one, with the rest left).  Absent
 * is fine.
 */
int fd_mkdir_p(const char *path, mode_t mode, struct err *e);
int fd_remove_tree(int dirfd, const char *name, struct err *e);

#endif
