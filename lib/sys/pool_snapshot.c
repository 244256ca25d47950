/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "sys/pool.h"

const char *pool_copy_name(enum pool_copy how)
{
	static const char *const names[] = {"snapshot", "reflink", "copied"};

	return names[how];
}

int pool_snapshot(const struct pool *p, const struct pool_snapshot *want,
		  enum pool_copy *ret_how, struct err *e)
{
	(void)p;
	(void)want;
	(void)ret_how;
	return err_set(e, -ENOSYS, "unsupported", "copying a layer");
}

int pool_flush(int home, struct err *e)
{
	return pool_sync(home, e);
}

int pool_sync(int home, struct err *e)
{
	auto_close int fd = openat(home, "upper", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return err_sys(e, errno, "open a layer");
	if (syncfs(fd) < 0)
		return err_sys(e, errno, "sync a layer");
	return 0;
}

int pool_work_new(int home, struct err *e)
{
	auto_close int fd = openat(home, "work", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return err_sys(e, errno, "open a layer");
	return fd_remove_tree(fd, "work", e);
}
