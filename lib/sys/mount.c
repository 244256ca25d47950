/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "sys/mount.h"

/* <sys/mount.h> and <linux/mount.h> do not go together in glibc 2.36. */
#define UMOUNT_DETACH 2

static int mount_call(const char *source, const char *target, const char *type,
		      unsigned long flags, const void *data)
{
	return syscall(SYS_mount, source, target, type, flags, data) < 0
		       ? -errno
		       : 0;
}

int mount_fs(const char *type, const char *target, unsigned long flags,
	     const char *data)
{
	return mount_call(type, target, type, flags, data);
}

int mount_bind(const char *source, const char *target)
{
	return mount_call(source, target, NULL, MS_BIND, NULL);
}

int mount_bind_ro(const char *path)
{
	int r = mount_bind(path, path);

	if (r < 0)
		return r;
	return mount_call(NULL, path, NULL,
			  MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID |
				  MS_NODEV | MS_NOEXEC,
			  NULL);
}

int mount_copy_take(const struct mount_copy *m)
{
	unsigned rec = m->recursive ? AT_RECURSIVE : 0;
	struct mount_attr attr = {.attr_set = m->attrs};
	int fd, r;

	fd = (int)syscall(SYS_open_tree, AT_FDCWD, m->source,
			  OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | rec);
	if (fd < 0)
		return -errno;
	if (m->userns >= 0) {
		attr.attr_set |= MOUNT_ATTR_IDMAP;
		attr.userns_fd = (uint64_t)m->userns;
	}
	if (attr.attr_set &&
	    syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH | rec, &attr,
		    sizeof(attr)) < 0) {
		r = -errno;
		close(fd);
		return r;
	}
	return fd;
}

int mount_copy_put(const struct mount_copy *m, int fd)
{
	unsigned flags = MOVE_MOUNT_F_EMPTY_PATH;

	if (!*m->target)
		flags |= MOVE_MOUNT_T_EMPTY_PATH;
	return syscall(SYS_move_mount, fd, "", m->target_fd, m->target, flags) <
			       0
		       ? -errno
		       : 0;
}

int mount_is_erofs(int fd)
{
	struct statfs st;

	if (fstatfs(fd, &st) < 0)
		return -errno;
	return (uint32_t)st.f_type == MOUNT_EROFS_MAGIC ? 0 : -ESTALE;
}

int mount_idmapped(const struct mount_copy *m)
{
	int fd, r;

	fd = mount_copy_take(m);
	if (fd < 0)
		return fd;
	r = mount_copy_put(m, fd);
	close(fd);
	return r;
}

static int open_path(int root, const char *path, uint64_t resolve)
{
	return fd_openat2(root, path, O_PATH, resolve | RESOLVE_NO_MAGICLINKS);
}

int mount_source(const char *path)
{
	return open_path(AT_FDCWD, path, RESOLVE_NO_SYMLINKS);
}

/* The first ${n} bytes of ${path}. */
static int open_prefix(int root, const char *path, size_t n, uint64_t resolve)
{
	char prefix[PATH_MAX];

	if (n >= sizeof(prefix))
		return -ENAMETOOLONG;
	memcpy(prefix, path, n);
	prefix[n] = '\0';
	return open_path(root, n ? prefix : ".", resolve);
}

static int make_part(int root, const char *path, size_t at, size_t len,
		     uint64_t resolve)
{
	char name[NAME_MAX + 1];
	int parent, r = 0;

	if (len >= sizeof(name))
		return -ENAMETOOLONG;
	memcpy(name, path + at, len);
	name[len] = '\0';
	parent = open_prefix(root, path, at, resolve);
	if (parent < 0)
		return parent;
	if (mkdirat(parent, name, 0755) < 0)
		r = -errno;
	close(parent);
	return r;
}

/* 1 the last was made, 0 it was there, or -errno. */
static int make_parts(int root, const char *path, uint64_t resolve)
{
	mode_t mask = umask(022);
	size_t at = 0, len;
	int r = -EEXIST;

	while (r == 0 || r == -EEXIST) {
		at += strspn(path + at, "/");
		len = strcspn(path + at, "/");
		if (len == 0)
			break;
		r = make_part(root, path, at, len, resolve);
		at += len;
	}
	umask(mask);
	return r == 0 ? 1 : r == -EEXIST ? 0 : r;
}

int mount_target_made(int root, const char *path)
{
	uint64_t resolve = RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH;
	int fd, r;

	fd = open_path(root, path, resolve);
	if (fd != -ENOENT)
		return fd;
	r = make_parts(root, path, resolve);
	return r < 0 ? r : open_path(root, path, resolve);
}

int mount_make_dir(int root, const char *path)
{
	int fd;

	fd = open_path(root, path, RESOLVE_IN_ROOT);
	if (fd == -ENOENT)
		return make_parts(root, path, RESOLVE_IN_ROOT);
	if (fd < 0)
		return fd;
	close(fd);
	return 0;
}

const char *mount_on_fd(char *buf, int fd)
{
	char digits[12];
	unsigned n = 0;

	memcpy(buf, "/proc/self/fd/", sizeof("/proc/self/fd/"));
	do
		digits[n++] = (char)('0' + fd % 10);
	while (fd /= 10);
	for (size_t at = strlen(buf); n > 0;) {
		buf[at++] = digits[--n];
		buf[at] = '\0';
	}
	return buf;
}

int mount_pivot(void)
{
	if (syscall(SYS_pivot_root, ".", ".") < 0)
		return -errno;
	/* The old root now lies on top of the new one at ".". */
	return syscall(SYS_umount2, ".", UMOUNT_DETACH) < 0 ? -errno : 0;
}
