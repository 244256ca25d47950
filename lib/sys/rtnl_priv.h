/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_RTNL_PRIV_H
#define SYS_RTNL_PRIV_H

#include <linux/netlink.h>
#include <linux/rtnetlink.h>

#include "sys/rtnl.h"

/* A request under construction; what does not fit sets full. */
#define RTNL_MSG_MAX 1024

struct rtnl_msg {
	union {
		struct nlmsghdr h;
		char room[RTNL_MSG_MAX];
	};
	bool full;
};

/* rtnl_start(m, type, flags, body, len): a request with its fixed part. */
void rtnl_start(struct rtnl_msg *m, uint16_t type, uint16_t flags,
		const void *body, size_t len);
void rtnl_put(struct rtnl_msg *m, uint16_t type, const void *data, size_t len);
void rtnl_put32(struct rtnl_msg *m, uint16_t type, uint32_t value);
void rtnl_put_str(struct rtnl_msg *m, uint16_t type, const char *text);

/* rtnl_nest(m, type): begin a nested attribute; rtnl_nest_end(m, at). */
size_t rtnl_nest(struct rtnl_msg *m, uint16_t type);
void rtnl_nest_end(struct rtnl_msg *m, size_t at);

/*
 * rtnl_do(nl, m): send it and wait for the kernel's word on it: 0 or -errno.
 * rtnl_put_in(nl, m): the same, but for rtnl_hold().
 * rtnl_ask(nl, m, fn, arg): the same, with an answer before it.
 * rtnl_dump(nl, m, fn, arg): send it and hand each answer to ${fn} until the
 * end or a negative value of it.
 */
int rtnl_do(struct rtnl *nl, struct rtnl_msg *m);
int rtnl_put_in(struct rtnl *nl, struct rtnl_msg *m);
int rtnl_ask(struct rtnl *nl, struct rtnl_msg *m,
	     int (*fn)(void *arg, const struct nlmsghdr *h), void *arg);
int rtnl_dump(struct rtnl *nl, struct rtnl_msg *m,
	      int (*fn)(void *arg, const struct nlmsghdr *h), void *arg);

/*
 * rtnl_attrs(attrs, len, ret, max):
 * The attributes by type, NULL where there is none; types from ${max} on are
 * left out.
 */
void rtnl_attrs(const struct rtattr *attrs, size_t len,
		const struct rtattr **ret, size_t max);

#endif
