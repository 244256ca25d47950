/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_MOUNT_H
#define SYS_MOUNT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The mount calls a launch makes.  They are raw, return 0 or an fd or -errno,
 * allocate nothing, and are safe in a child that shares our memory.
 */

/* mount_fs(type, target, flags, data): mount(2) of a file system. */
int mount_fs(const char *type, const char *target, unsigned long flags,
	     const char *data);

/* mount_bind(source, target): MS_BIND with the source mount's own flags. */
int mount_bind(const char *source, const char *target);

/* mount_bind_ro(path): bind ${path} on itself and make that read-only. */
int mount_bind_ro(const char *path);

/*
 * mount_idmapped(source, userns, attrs, target_fd, target):
 * Mount a copy of the tree at ${source} on ${target}, with the ids of ${userns}
 * (-1: as they are) and the MOUNT_ATTR_* ${attrs}.  With ${target} "" the
 * target is ${target_fd} itself.  -EINVAL or -EPERM where the file system
 * cannot be idmapped.
 */
struct mount_copy {
	const char *source;
	int userns;
	uint64_t attrs;
	bool recursive;
	int target_fd;
	const char *target;
};
int mount_idmapped(const struct mount_copy *m);

/* The same in two steps: the copy, an fd, and where it goes. */
int mount_copy_take(const struct mount_copy *m);
int mount_copy_put(const struct mount_copy *m, int fd);

#define MOUNT_EROFS_MAGIC 0xE0F5E1E2U

/* mount_is_erofs(fd): 0, or -ESTALE: it is of another file system. */
int mount_is_erofs(int fd);

/*
 * mount_source(path): an O_PATH descriptor of the absolute ${path}, which leads
 * through no link: who may write to a directory on the way cannot put another
 * tree in its place.
 */
int mount_source(const char *path);

/*
 * mount_target_made(root, path): an O_PATH descriptor of ${path} (relative)
 * below the directory ${root}, through no link and no mount of somebody else,
 * for a mount to land on: an image cannot point it elsewhere.  What is not
 * there of it is made: directories, 0755, never through a link.
 */
int mount_target_made(int root, const char *path);

/* mount_make_dir(root, path): make the directory ${path} and its parents, links
 * followed as if ${root} were the root.  1 made, 0 there already. */
int mount_make_dir(int root, const char *path);

/* mount_on_fd(buf, fd): "/proc/self/fd/N" into buf[32], for mount(2). */
const char *mount_on_fd(char *buf, int fd);

/* mount_pivot(): the working directory becomes the root, the old one goes. */
int mount_pivot(void);

#endif
