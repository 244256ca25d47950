/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/netns.h"
#include "sys/rtnl_priv.h"

/* The kernel's dumps come in pieces of at most this, other answers in one. */
#define DUMP_SIZE   32768
#define ANSWER_SIZE 4096

int rtnl_open(int netns, struct rtnl *ret_nl, struct err *e)
{
	int one = 1, fd;

	fd = netns_socket(netns, AF_NETLINK, SOCK_RAW, NETLINK_ROUTE, e);
	if (fd < 0)
		return fd;
	/* Shorter refusals, and strict checks of what we ask; both optional. */
	(void)setsockopt(fd, SOL_NETLINK, NETLINK_CAP_ACK, &one, sizeof(one));
	(void)setsockopt(fd, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &one,
			 sizeof(one));
	*ret_nl = (struct rtnl){.fd = fd};
	return 0;
}

void rtnl_close(struct rtnl *nl)
{
	if (nl->fd >= 0)
		fd_close(nl->fd);
	nl->fd = -1;
}

void rtnl_start(struct rtnl_msg *m, uint16_t type, uint16_t flags,
		const void *body, size_t len)
{
	memset(m, 0, sizeof(*m));
	m->h.nlmsg_len = (uint32_t)NLMSG_LENGTH(len);
	m->h.nlmsg_type = type;
	m->h.nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
	memcpy(NLMSG_DATA(&m->h), body, len);
}

void rtnl_put(struct rtnl_msg *m, uint16_t type, const void *data, size_t len)
{
	const size_t at = NLMSG_ALIGN(m->h.nlmsg_len);
	struct rtattr *a = (struct rtattr *)(void *)(m->room + at);

	if (at + RTA_SPACE(len) > sizeof(m->room)) {
		m->full = true;
		return;
	}
	a->rta_type = type;
	a->rta_len = (unsigned short)RTA_LENGTH(len);
	if (len)
		memcpy(RTA_DATA(a), data, len);
	m->h.nlmsg_len = (uint32_t)(at + RTA_SPACE(len));
}

void rtnl_put32(struct rtnl_msg *m, uint16_t type, uint32_t value)
{
	rtnl_put(m, type, &value, sizeof(value));
}

void rtnl_put_str(struct rtnl_msg *m, uint16_t type, const char *text)
{
	rtnl_put(m, type, text, strlen(text) + 1);
}

size_t rtnl_nest(struct rtnl_msg *m, uint16_t type)
{
	const size_t at = NLMSG_ALIGN(m->h.nlmsg_len);

	rtnl_put(m, type | NLA_F_NESTED, NULL, 0);
	return at;
}

void rtnl_nest_end(struct rtnl_msg *m, size_t at)
{
	struct rtattr *a = (struct rtattr *)(void *)(m->room + at);

	if (!m->full)
		a->rta_len = (unsigned short)(m->h.nlmsg_len - at);
}

static int send_msg(struct rtnl *nl, struct rtnl_msg *m, uint16_t flags)
{
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	ssize_t n;

	if (m->full)
		return -EMSGSIZE;
	m->h.nlmsg_flags |= flags;
	m->h.nlmsg_seq = ++nl->seq;
	n = sendto(nl->fd, m, m->h.nlmsg_len, 0, (const void *)&kernel,
		   sizeof(kernel));
	return n < 0 ? -errno : 0;
}

/* One message of an answer; 1: the end. */
static int take(const struct rtnl *nl, const struct nlmsghdr *h,
		int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	const struct nlmsgerr *er = NLMSG_DATA(h);

	if (h->nlmsg_seq != nl->seq)
		return 0; /* of a request that was given up */
	if (h->nlmsg_type == NLMSG_DONE)
		return 1;
	if (h->nlmsg_type == NLMSG_ERROR) {
		if (h->nlmsg_len < NLMSG_LENGTH(sizeof(*er)))
			return -EBADMSG;
		return er->error ? er->error : 1;
	}
	return fn ? fn(arg, h) : 0;
}

static int receive(struct rtnl *nl, char *reply, size_t size,
		   int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	const struct nlmsghdr *h;
	ssize_t n;
	int r;

	for (;;) {
		n = recv(nl->fd, reply, size, 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		for (h = (const void *)reply; NLMSG_OK(h, (size_t)n);
		     h = NLMSG_NEXT(h, n)) {
			r = take(nl, h, fn, arg);
			if (r)
				return r < 0 ? r : 0;
		}
	}
}

int rtnl_do(struct rtnl *nl, struct rtnl_msg *m)
{
	return rtnl_ask(nl, m, NULL, NULL);
}

/* Callers may share their memory with a process that waits: no malloc(). */
int rtnl_ask(struct rtnl *nl, struct rtnl_msg *m,
	     int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	char reply[ANSWER_SIZE] __attribute__((aligned(4)));
	int r = send_msg(nl, m, NLM_F_ACK);

	return r < 0 ? r : receive(nl, reply, sizeof(reply), fn, arg);
}

/* --- several at once ----------------------------------------------------- */

void rtnl_hold(struct rtnl *nl)
{
	nl->holding = true;
	nl->held_len = 0;
}

int rtnl_put_in(struct rtnl *nl, struct rtnl_msg *m)
{
	const size_t len = NLMSG_ALIGN(m->h.nlmsg_len);

	if (!nl->holding)
		return rtnl_do(nl, m);
	if (m->full || len > sizeof(nl->held) - nl->held_len)
		return -EMSGSIZE;
	m->h.nlmsg_seq = ++nl->seq;
	memcpy(nl->held + nl->held_len, m->room, len);
	nl->held_len += len;
	return 0;
}

/* The last is acknowledged, the others are heard of when they are refused. */
static int answers(struct rtnl *nl)
{
	char reply[ANSWER_SIZE] __attribute__((aligned(4)));
	const struct nlmsghdr *h;
	const struct nlmsgerr *er;
	int first = 0;
	ssize_t n;

	for (;;) {
		n = recv(nl->fd, reply, sizeof(reply), 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		for (h = (const void *)reply; NLMSG_OK(h, (size_t)n);
		     h = NLMSG_NEXT(h, n)) {
			if (h->nlmsg_type != NLMSG_ERROR ||
			    h->nlmsg_len < NLMSG_LENGTH(sizeof(*er)))
				continue;
			er = NLMSG_DATA(h);
			if (!first)
				first = er->error;
			if (h->nlmsg_seq == nl->seq)
				return first;
		}
	}
}

static int send_held(struct rtnl *nl)
{
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
	struct nlmsghdr *h = (void *)nl->held, *last = h;
	size_t left = nl->held_len;

	for (; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left))
		last = h;
	last->nlmsg_flags |= NLM_F_ACK;
	return sendto(nl->fd, nl->held, nl->held_len, 0, (const void *)&kernel,
		      sizeof(kernel)) < 0
		       ? -errno
		       : answers(nl);
}

int rtnl_flush(struct rtnl *nl, struct err *e)
{
	int r = nl->held_len ? send_held(nl) : 0;

	nl->holding = false;
	nl->held_len = 0;
	return r < 0 ? err_sys(e, -r, "set up an interface") : 0;
}

int rtnl_dump(struct rtnl *nl, struct rtnl_msg *m,
	      int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	auto_free char *reply = malloc(DUMP_SIZE);
	int r = reply ? send_msg(nl, m, NLM_F_DUMP) : -ENOMEM;

	return r < 0 ? r : receive(nl, reply, DUMP_SIZE, fn, arg);
}

void rtnl_attrs(const struct rtattr *attrs, size_t len,
		const struct rtattr **ret, size_t max)
{
	const struct rtattr *a;

	for (size_t i = 0; i < max; i++)
		ret[i] = NULL;
	for (a = attrs; RTA_OK(a, len); a = RTA_NEXT(a, len)) {
		const unsigned type = a->rta_type & NLA_TYPE_MASK;

		if (type < max)
			ret[type] = a;
	}
}
