/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/sockios.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "ckpt/inside_priv.h"

#ifndef SIOCGSKNS
#define SIOCGSKNS 0x894C
#endif

int inside_getfd(struct survey *s, int num)
{
	int fd;

	if (s->at_pidfd < 0) {
		s->at_pidfd = (int)syscall(SYS_pidfd_open, s->at->pid, 0);
		if (s->at_pidfd < 0)
			return -errno;
	}
	fd = (int)syscall(SYS_pidfd_getfd, s->at_pidfd, num, 0);
	return fd < 0 ? -errno : fd;
}

static int opt(int fd, int name)
{
	socklen_t len = sizeof(int);
	int v;

	return getsockopt(fd, SOL_SOCKET, name, &v, &len) < 0 ? -1 : v;
}

static int check_kind(const struct survey *s, int fd, int num, struct err *e)
{
	int domain = opt(fd, SO_DOMAIN), type = opt(fd, SO_TYPE);
	int proto = opt(fd, SO_PROTOCOL);

	if (domain == AF_UNIX || domain == AF_NETLINK)
		return 0;
	if (domain != AF_INET && domain != AF_INET6)
		return inside_refuse(s, e,
				     "has a socket of family %d (descriptor "
				     "%d)",
				     domain, num);
	if ((type == SOCK_STREAM && proto == IPPROTO_TCP) ||
	    (type == SOCK_DGRAM &&
	     (proto == IPPROTO_UDP || proto == IPPROTO_UDPLITE)))
		return 0;
	return inside_refuse(s, e,
			     "has a socket of protocol %d (descriptor %d), "
			     "neither TCP nor UDP",
			     proto, num);
}

static int check_netns(const struct survey *s, int fd, int num, struct err *e)
{
	auto_close int ns = -1;
	char link[40];
	struct stat st;

	ns = ioctl(fd, SIOCGSKNS);
	/* Asking takes CAP_NET_ADMIN over that one, which we have over ours. */
	if (ns < 0 || fstat(ns, &st) < 0)
		return err_sys(e, errno, "the network namespace of a socket");
	snprintf(link, sizeof(link), "net:[%llu]",
		 (unsigned long long)st.st_ino);
	if (!strcmp(link, s->ns[3]))
		return 0;
	/* One that was accepted is of the namespace of who connected. */
	if (opt(fd, SO_DOMAIN) == AF_UNIX)
		return inside_refuse(s, e,
				     "has a unix socket whose peer is not in "
				     "the sandbox (descriptor %d)",
				     num);
	return inside_refuse(s, e,
			     "has a socket of another network namespace "
			     "(descriptor %d)",
			     num);
}

/*
 * Connections that a listener has not accepted yet are left out.  One that is
 * asked for and not answered yet cannot be made again, as often as not.
 */
static int check_tcp(const struct survey *s, int fd, int num, struct err *e)
{
	struct tcp_info info;
	socklen_t len = sizeof(info);

	if (opt(fd, SO_PROTOCOL) != IPPROTO_TCP)
		return 0;
	memset(&info, 0, sizeof(info));
	if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return 0;
	if (info.tcpi_state == TCP_SYN_SENT)
		return inside_refuse(s, e,
				     "has a TCP connection that is not made "
				     "yet (descriptor %d)",
				     num);
	/* Of a listener these are the ones that wait. */
	if (opt(fd, SO_ACCEPTCONN) != 1 || info.tcpi_unacked == 0)
		return 0;
	return inside_warn(s, e,
			   "%u TCP connections (descriptor %d) that were not "
			   "accepted are lost in what is restored",
			   info.tcpi_unacked, num);
}

int inside_socket(struct survey *s, int num, const char *link, struct err *e)
{
	auto_close int fd = -1;
	int r;

	fd = inside_getfd(s, num);
	if (fd < 0)
		return err_sys(e, -fd, "look at a socket of process %d",
			       (int)s->at->pid);
	r = check_kind(s, fd, num, e);
	if (r == 0)
		r = check_netns(s, fd, num, e);
	if (r == 0)
		r = check_tcp(s, fd, num, e);
	if (r == 0 && opt(fd, SO_DOMAIN) == AF_UNIX &&
	    json_object_set_new(s->unix_sks, link,
				json_integer((json_int_t)(s->at -
							  s->in->procs))) < 0)
		r = err_sys(e, ENOMEM, "survey");
	return r;
}

/* A netlink socket that stands in the sandbox's network namespace. */
static int diag_socket(const struct survey *s, struct err *e)
{
	auto_close int own = -1, theirs = -1, fd = -1;
	char path[40];
	int err = 0;

	snprintf(path, sizeof(path), "/proc/%d/ns/net", (int)s->ask->init);
	own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	theirs = open(path, O_RDONLY | O_CLOEXEC);
	if (own < 0 || theirs < 0 || setns(theirs, CLONE_NEWNET) < 0)
		return err_sys(e, errno, "enter the sandbox's network");
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	if (fd < 0)
		err = errno;
	if (setns(own, CLONE_NEWNET) < 0)
		return err_sys(e, errno, "leave the sandbox's network");
	return fd < 0 ? err_sys(e, err, "ask for sockets") : steal_fd(&fd);
}

static int diag_ask(int fd, struct err *e)
{
	struct {
		struct nlmsghdr head;
		struct unix_diag_req req;
	} msg = {
		.head = {.nlmsg_len = sizeof(msg),
			 .nlmsg_type = SOCK_DIAG_BY_FAMILY,
			 .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
		.req = {.sdiag_family = AF_UNIX,
			.udiag_states = ~0U,
			.udiag_show = UDIAG_SHOW_PEER},
	};

	if (send(fd, &msg, sizeof(msg), 0) != (ssize_t)sizeof(msg))
		return err_sys(e, errno, "ask for sockets");
	return 0;
}

static int unknown_peer(struct survey *s, const char *key, struct err *e)
{
	json_int_t i = json_integer_value(json_object_get(s->unix_sks, key));

	s->at = &s->in->procs[i];
	return inside_refuse(s, e,
			     "has a unix socket whose peer is not in the "
			     "sandbox");
}

/* One of the sandbox's sockets that says who its peer is. */
static int diag_one(struct survey *s, const struct nlmsghdr *h, struct err *e)
{
	const struct unix_diag_msg *m = NLMSG_DATA(h);
	const struct rtattr *a = (const struct rtattr *)(const void *)(m + 1);
	int len = (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof(*m)));
	char key[40], peer_key[40];
	uint32_t peer = 0;

	for (; RTA_OK(a, len); a = RTA_NEXT(a, len))
		if (a->rta_type == UNIX_DIAG_PEER &&
		    RTA_PAYLOAD(a) >= sizeof(peer))
			memcpy(&peer, RTA_DATA(a), sizeof(peer));
	snprintf(key, sizeof(key), "socket:[%u]", m->udiag_ino);
	snprintf(peer_key, sizeof(peer_key), "socket:[%u]", peer);
	/* 0: it hangs in a listener's queue, not accepted yet. */
	if (!peer || !json_object_get(s->unix_sks, key) ||
	    json_object_get(s->unix_sks, peer_key))
		return 0;
	return unknown_peer(s, key, e);
}

/* 1: there is more to read. */
static int diag_read(struct survey *s, int fd, struct err *e)
{
	_Alignas(struct nlmsghdr) char buf[32768];
	const struct nlmsghdr *h = (const struct nlmsghdr *)(void *)buf;
	ssize_t n;
	size_t len;
	int r;

	n = recv(fd, buf, sizeof(buf), 0);
	if (n <= 0)
		return err_sys(e, n < 0 ? errno : EIO, "ask for sockets");
	for (len = (size_t)n; NLMSG_OK(h, len); h = NLMSG_NEXT(h, len)) {
		if (h->nlmsg_type == NLMSG_DONE)
			return 0;
		if (h->nlmsg_type == NLMSG_ERROR)
			return err_set(e, -EIO, "system",
				       "ask for sockets: "
				       "the kernel refuses");
		if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
			continue;
		r = diag_one(s, h, e);
		if (r < 0)
			return r;
	}
	return 1;
}

int inside_unix_peers(struct survey *s, struct err *e)
{
	auto_close int fd = -1;
	int r;

	if (json_object_size(s->unix_sks) == 0)
		return 0;
	fd = diag_socket(s, e);
	if (fd < 0)
		return fd;
	r = diag_ask(fd, e);
	if (r < 0)
		return r;
	while ((r = diag_read(s, fd, e)) == 1)
		;
	return r;
}
