/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/node.h"
#include "serve_worker.h"

#define SETTLE_MS 100 /* of a change, which brings others along */

static int reread(struct worker *w, struct err *e)
{
	int r = node_addrs(w->deny, e);

	if (r == 0 && w->route)
		r = route_deny(w->route, w->deny, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < SBOX_BUCKETS; i++)
		for (struct sbox *b = w->by_id[i]; b; b = b->next)
			(void)proxy_client_recheck(b->client);
	return 0;
}

static void on_settled(struct loop *l, struct loop_timer *t)
{
	struct worker *w = t->arg;
	struct err e = {0};

	if (reread(w, &e) == 0)
		return;
	note("%s", e.msg);
	loop_timer_set(l, t, clock_ms() + 1000);
}

/* What it says does not matter, and neither does that some was lost. */
static void on_rtnl(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *w = s->arg;
	char buf[8192];

	(void)events;
	while (recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT) > 0 ||
	       errno == ENOBUFS)
		;
	if (!w->rtnl_timer.at_ms)
		loop_timer_set(l, &w->rtnl_timer, clock_ms() + SETTLE_MS);
}

int worker_node(struct worker *w, struct err *e)
{
	struct sockaddr_nl me = {
		.nl_family = AF_NETLINK,
		.nl_groups = RTMGRP_IPV4_IFADDR | RTMGRP_IPV6_IFADDR,
	};
	int r;

	w->rtnl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK,
			 NETLINK_ROUTE);
	if (w->rtnl < 0)
		return err_sys(e, errno, "netlink socket");
	if (bind(w->rtnl, (struct sockaddr *)&me, sizeof(me)) < 0)
		return err_sys(e, errno, "listen for addresses");
	w->rtnl_timer = (struct loop_timer){.fn = on_settled, .arg = w};
	r = loop_add(w->loop, &w->rtnl_src, w->rtnl, EPOLLIN, on_rtnl, w, e);
	return r < 0 ? r : reread(w, e);
}
