/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/netns.h"
#include "sys/rtnl_priv.h"

/* The kernel's dumps come in pieces of at most this. */
#define REPLY_SIZE 32768

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

static int receive(struct rtnl *nl,
		   int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	auto_free char *reply = malloc(REPLY_SIZE);
	const struct nlmsghdr *h;
	ssize_t n;
	int r;

	if (!reply)
		return -ENOMEM;
	for (;;) {
		n = recv(nl->fd, reply, REPLY_SIZE, 0);
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

int rtnl_ask(struct rtnl *nl, struct rtnl_msg *m,
	     int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	int r = send_msg(nl, m, NLM_F_ACK);

	return r < 0 ? r : receive(nl, fn, arg);
}

int rtnl_dump(struct rtnl *nl, struct rtnl_msg *m,
	      int (*fn)(void *arg, const struct nlmsghdr *h), void *arg)
{
	int r = send_msg(nl, m, NLM_F_DUMP);

	return r < 0 ? r : receive(nl, fn, arg);
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
