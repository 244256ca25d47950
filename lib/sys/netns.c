/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/netns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/cleanup.h"

int netns_at(const char *path, struct err *e)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return err_sys(e, errno, "open network namespace %s", path);
	if (ioctl(fd, NS_GET_NSTYPE) != CLONE_NEWNET)
		return err_sys(e, ENOENT, "%s: no network namespace", path);
	return steal_fd(&fd);
}

int netns_of(pid_t pid, struct err *e)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)pid);
	return netns_at(path, e);
}

int netns_enter(int netns, int *ret_back, struct err *e)
{
	auto_close int back = open("/proc/thread-self/ns/net",
				   O_RDONLY | O_CLOEXEC);

	if (back < 0)
		return err_sys(e, errno, "open our own network namespace");
	if (setns(netns, CLONE_NEWNET) < 0)
		return err_sys(e, errno, "enter a network namespace");
	*ret_back = steal_fd(&back);
	return 0;
}

void netns_leave(int *back)
{
	if (*back < 0)
		return;
	if (setns(*back, CLONE_NEWNET) < 0)
		abort();
	fd_close(*back);
	*back = -1;
}

int netns_socket(int netns, int domain, int type, int protocol, struct err *e)
{
	auto_netns int back = -1;
	int fd, r;

	if (netns >= 0) {
		r = netns_enter(netns, &back, e);
		if (r < 0)
			return r;
	}
	fd = socket(domain, type | SOCK_CLOEXEC, protocol);
	return fd < 0 ? err_sys(e, errno, "make a socket") : fd;
}

uint64_t netns_cookie(int sock)
{
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	return getsockopt(sock, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) < 0
		       ? 0
		       : cookie;
}

int netns_bind(int netns, int type, uint32_t addr, unsigned port, struct err *e)
{
	const struct sockaddr_in to = {.sin_family = AF_INET,
				       .sin_addr.s_addr = addr,
				       .sin_port = htons((uint16_t)port)};
	auto_close int fd = -1;
	int one = 1;

	fd = netns_socket(netns, AF_INET, type | SOCK_NONBLOCK, 0, e);
	if (fd < 0)
		return fd;
	if (type == SOCK_STREAM &&
	    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0)
		return err_sys(e, errno, "reuse port %u", port);
	if (bind(fd, (const void *)&to, sizeof(to)) < 0)
		return err_sys(e, errno, "bind to port %u", port);
	if (type == SOCK_STREAM && listen(fd, SOMAXCONN) < 0)
		return err_sys(e, errno, "listen on port %u", port);
	return steal_fd(&fd);
}

int netns_sysctl(int netns, const char *name, const char *value, struct err *e)
{
	auto_netns int back = -1;
	char path[128];
	int r, n;

	n = snprintf(path, sizeof(path), "/proc/sys/net/%s", name);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_sys(e, ENAMETOOLONG, "sysctl %s", name);
	if (netns >= 0) {
		r = netns_enter(netns, &back, e);
		if (r < 0)
			return r;
	}
	return fd_write_str(AT_FDCWD, path, value, e);
}
