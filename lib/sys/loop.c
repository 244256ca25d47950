/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/loop.h"

/* How often others may be faster than we. */
#define TRIES 64

static int configure(int fd, int file_fd, bool direct)
{
	struct loop_config c = {
		.fd = (unsigned)file_fd,
		.info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR |
				 (direct ? LO_FLAGS_DIRECT_IO : 0),
	};

	return ioctl(fd, LOOP_CONFIGURE, &c) < 0 ? -errno : 0;
}

/* 1: taken by somebody else. */
static int try_device(int control, int file_fd, char *path, int *ret_fd,
		      struct err *e)
{
	auto_close int fd = -1;
	int n, r;

	n = ioctl(control, LOOP_CTL_GET_FREE);
	if (n < 0)
		return err_sys(e, errno, "get a free loop device");
	snprintf(path, LOOP_PATH_MAX, "/dev/loop%d", n);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 && errno == EBUSY)
		return 1;
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = configure(fd, file_fd, true);
	if (r < 0 && r != -EBUSY)
		r = configure(fd, file_fd, false);
	if (r == -EBUSY)
		return 1;
	if (r < 0)
		return err_sys(e, -r, "set up '%s'", path);
	*ret_fd = steal_fd(&fd);
	return 0;
}

int loop_attach(int file_fd, char *path, struct err *e)
{
	auto_close int control = -1;
	int fd = -1, r = 1;

	control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (control < 0)
		return err_sys(e, errno, "open /dev/loop-control");
	for (int i = 0; r == 1 && i < TRIES; i++)
		r = try_device(control, file_fd, path, &fd, e);
	if (r == 1)
		return err_sys(e, EBUSY, "get a free loop device");
	return r < 0 ? r : fd;
}
