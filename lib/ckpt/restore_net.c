/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network of what is restored.  Connections to outside are made again by
 * the engine, which needs for each of them its address and a route, and are cut
 * before anything runs: their peers know nothing of this sandbox.  So its
 * network namespace leads nowhere at first, with the addresses of the one that
 * was dumped; then these go, and the sandbox gets its own.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "ckpt/restore_priv.h"
#include "sys/netns.h"
#include "sys/rtnl.h"
#include "sys/sockdiag.h"

#define LO 1

/* Everything leads to lo, which has none of it. */
static const struct rtnl_route nowhere = {
	.family = AF_INET,
	.kind = RTNL_UNICAST,
	.index = LO,
	.link = true,
};

/* The address that it had as if it were ours; false: it had none. */
static bool old_address(const struct restore *rs, struct rtnl_route *ret)
{
	*ret = (struct rtnl_route){
		.family = AF_INET,
		.kind = RTNL_LOCAL,
		.prefix = 32,
		.index = LO,
	};
	return inet_pton(AF_INET, json_str(rs->ck->spec, "network_address"),
			 ret->dst) == 1;
}

int restore_net_lay(const struct restore *rs)
{
	enum netpol_strength s = net_strength(rs->ck->spec);
	auto_rtnl struct rtnl nl = {.fd = -1};
	struct rtnl_route was;
	int r;

	if (s == NETPOL_NONE)
		return 0;
	r = net_addresses(s);
	if (r == 0)
		r = rtnl_open(-1, &nl, NULL);
	if (r == 0)
		r = rtnl_route_add(&nl, &nowhere, NULL);
	if (r == 0 && old_address(rs, &was))
		r = rtnl_route_add(&nl, &was, NULL);
	return r;
}

static int lift(const struct restore *rs, int netns, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	struct rtnl_route was;
	int r;

	if (net_strength(rs->ck->spec) == NETPOL_NONE)
		return 0;
	r = rtnl_open(netns, &nl, e);
	if (r == 0)
		r = rtnl_route_del(&nl, &nowhere, e);
	if (r == 0 && old_address(rs, &was))
		r = rtnl_route_del(&nl, &was, e);
	return r;
}

/* A copy that could still speak to its source's peers must not run; who has no
 * network, and is the same sandbox again, has peers inside alone. */
static int cut(const struct restore *rs, int netns, struct err *e)
{
	int r = sockdiag_cut(netns, e);

	if (r < 0 && !rs->fork && net_strength(rs->spec) == NETPOL_NONE)
		return 0;
	return r < 0 ? err_wrap(e, r, "connections to outside are not cut") : 0;
}

int restore_net(const struct restore *rs, pid_t init, struct err *e)
{
	auto_close int netns = netns_of(init, e);
	struct net net = {
		.tree = rs->tree,
		.id = rs->id,
		.spec = rs->spec,
		.follow = rs->follow,
	};
	int r;

	if (netns < 0)
		return netns;
	r = cut(rs, netns, e);
	if (r == 0)
		r = lift(rs, netns, e);
	return r < 0 ? err_wrap(e, r, "the network of what is restored")
		     : net_put(&net, init, e);
}
