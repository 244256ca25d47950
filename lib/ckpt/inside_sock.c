/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/unix_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "ckpt/inside_priv.h"
#include "sys/netns.h"
#include "sys/sockdiag.h"

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

/* Whom a connected one names as its peer. */
static int check_peer(struct survey *s, int fd, int num, struct err *e)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	if (opt(fd, SO_DOMAIN) != AF_UNIX ||
	    getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
	    peer.pid == 0)
		return 0;
	return inside_owner(s, num, peer.uid,
			    "the peer (SO_PEERCRED) of a unix socket", e);
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
	if (r == 0)
		r = check_peer(s, fd, num, e);
	if (r == 0 && opt(fd, SO_DOMAIN) == AF_UNIX &&
	    json_object_set_new(s->unix_sks, link,
				json_integer((json_int_t)(s->at -
							  s->in->procs))) < 0)
		r = err_sys(e, ENOMEM, "survey");
	return r;
}

static int unknown_peer(struct survey *s, const char *key, struct err *e)
{
	json_int_t i = json_integer_value(json_object_get(s->unix_sks, key));

	s->at = &s->in->procs[i];
	return inside_refuse(s, e,
			     "has a unix socket whose peer is not in the "
			     "sandbox");
}

struct peers {
	struct survey *s;
	struct err *e;
};

/* One of the sandbox's sockets that says who its peer is. */
static int look_at_peer(const void *msg, size_t len, void *arg)
{
	const struct unix_diag_msg *m = msg;
	const struct rtattr *a = (const struct rtattr *)(const void *)(m + 1);
	const struct peers *p = arg;
	const json_t *known = p->s->unix_sks;
	char key[40], peer_key[40];
	int left = (int)(len - sizeof(*m));
	uint32_t peer = 0;

	for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == UNIX_DIAG_PEER &&
		    RTA_PAYLOAD(a) >= sizeof(peer))
			memcpy(&peer, RTA_DATA(a), sizeof(peer));
	snprintf(key, sizeof(key), "socket:[%u]", m->udiag_ino);
	snprintf(peer_key, sizeof(peer_key), "socket:[%u]", peer);
	/* 0: it hangs in a listener's queue, not accepted yet. */
	if (!peer || !json_object_get(known, key) ||
	    json_object_get(known, peer_key))
		return 0;
	return unknown_peer(p->s, key, p->e);
}

int inside_unix_peers(struct survey *s, struct err *e)
{
	const struct unix_diag_req req = {
		.sdiag_family = AF_UNIX,
		.udiag_states = ~0U,
		.udiag_show = UDIAG_SHOW_PEER,
	};
	struct err found = {0};
	struct peers p = {s, &found};
	auto_close int netns = -1, fd = -1;
	int r;

	if (json_object_size(s->unix_sks) == 0)
		return 0;
	netns = netns_of(s->ask->init, e);
	if (netns < 0)
		return netns;
	fd = netns_socket(netns, AF_NETLINK, SOCK_RAW, NETLINK_SOCK_DIAG, e);
	if (fd < 0)
		return fd;
	r = sockdiag_dump(fd, &req, sizeof(req), sizeof(struct unix_diag_msg),
			  look_at_peer, &p);
	if (r < 0 && found.r == 0)
		return err_sys(e, -r, "ask for sockets");
	if (r < 0 && e)
		*e = found;
	return r;
}
