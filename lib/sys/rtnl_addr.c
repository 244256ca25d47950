/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/if_addr.h>
#include <linux/neighbour.h>
#include <netinet/in.h>
#include <string.h>

#include "base/cleanup.h"
#include "sys/rtnl_priv.h"

static size_t width(int family)
{
	return family == AF_INET6 ? 16 : 4;
}

int rtnl_addr_add(struct rtnl *nl, const struct rtnl_addr *a, struct err *e)
{
	const struct ifaddrmsg i = {
		.ifa_family = (uint8_t)a->family,
		.ifa_prefixlen = (uint8_t)a->prefix,
		.ifa_scope = a->host ? RT_SCOPE_HOST : RT_SCOPE_UNIVERSE,
		.ifa_index = (uint32_t)a->index,
		/* No duplicates on links of two: usable at once. */
		.ifa_flags = a->family == AF_INET6 ? IFA_F_NODAD : 0,
	};
	struct rtnl_msg m;
	int r;

	rtnl_start(&m, RTM_NEWADDR, NLM_F_CREATE | NLM_F_REPLACE, &i,
		   sizeof(i));
	rtnl_put(&m, IFA_LOCAL, a->addr, width(a->family));
	rtnl_put(&m, IFA_ADDRESS, a->addr, width(a->family));
	r = rtnl_put_in(nl, &m);
	return r < 0 && r != -EEXIST ? err_sys(e, -r, "add an address") : 0;
}

struct addrs {
	struct rtnl_addr *ret;
	size_t max, n;
};

static int keep_addr(void *arg, const struct nlmsghdr *h)
{
	struct addrs *l = arg;
	const struct ifaddrmsg *i = NLMSG_DATA(h);
	const struct rtattr *a[IFA_LOCAL + 1], *addr;
	struct rtnl_addr *to;

	if (h->nlmsg_type != RTM_NEWADDR ||
	    h->nlmsg_len < NLMSG_LENGTH(sizeof(*i)))
		return 0;
	rtnl_attrs(IFA_RTA(i), IFA_PAYLOAD(h), a, array_len(a));
	addr = a[IFA_LOCAL] ? a[IFA_LOCAL] : a[IFA_ADDRESS];
	if (!addr || RTA_PAYLOAD(addr) != width(i->ifa_family))
		return 0;
	if (l->n++ >= l->max)
		return 0;
	to = &l->ret[l->n - 1];
	memset(to, 0, sizeof(*to));
	to->family = i->ifa_family;
	to->prefix = i->ifa_prefixlen;
	to->index = (int)i->ifa_index;
	to->host = i->ifa_scope == RT_SCOPE_HOST;
	memcpy(to->addr, RTA_DATA(addr), RTA_PAYLOAD(addr));
	return 0;
}

int rtnl_addrs(struct rtnl *nl, struct rtnl_addr *ret, size_t max,
	       struct err *e)
{
	const struct ifaddrmsg any = {0};
	struct addrs l = {ret, max, 0};
	struct rtnl_msg m;
	int r;

	rtnl_start(&m, RTM_GETADDR, 0, &any, sizeof(any));
	r = rtnl_dump(nl, &m, keep_addr, &l);
	return r < 0 ? err_sys(e, -r, "list the addresses") : (int)l.n;
}

static void start_route(struct rtnl_msg *m, uint16_t type, uint16_t flags,
			const struct rtnl_route *r)
{
	static const uint8_t kind[] = {[RTNL_UNICAST] = RTN_UNICAST,
				       [RTNL_LOCAL] = RTN_LOCAL,
				       [RTNL_BLACKHOLE] = RTN_BLACKHOLE};
	const struct rtmsg t = {
		.rtm_family = (uint8_t)r->family,
		.rtm_dst_len = (uint8_t)r->prefix,
		.rtm_table = r->kind == RTNL_LOCAL ? RT_TABLE_LOCAL
						   : RT_TABLE_MAIN,
		.rtm_protocol = RTPROT_STATIC,
		.rtm_scope = r->kind == RTNL_LOCAL ? RT_SCOPE_HOST
			     : r->link		   ? RT_SCOPE_LINK
						   : RT_SCOPE_UNIVERSE,
		.rtm_type = kind[r->kind],
		.rtm_flags = r->onlink ? RTNH_F_ONLINK : 0,
	};
	const size_t w = width(r->family);

	rtnl_start(m, type, flags, &t, sizeof(t));
	if (r->prefix)
		rtnl_put(m, RTA_DST, r->dst, w);
	if (r->index)
		rtnl_put32(m, RTA_OIF, (uint32_t)r->index);
	if (r->has_gateway)
		rtnl_put(m, RTA_GATEWAY, r->gateway, w);
	if (r->has_src)
		rtnl_put(m, RTA_PREFSRC, r->src, w);
	if (r->metric)
		rtnl_put32(m, RTA_PRIORITY, r->metric);
}

int rtnl_route_add(struct rtnl *nl, const struct rtnl_route *rt, struct err *e)
{
	struct rtnl_msg m;
	int r;

	start_route(&m, RTM_NEWROUTE,
		    rt->exclusive ? NLM_F_CREATE | NLM_F_EXCL
				  : NLM_F_CREATE | NLM_F_REPLACE,
		    rt);
	r = rtnl_put_in(nl, &m);
	return r < 0 ? err_sys(e, -r, "add a route") : 0;
}

int rtnl_route_del(struct rtnl *nl, const struct rtnl_route *rt, struct err *e)
{
	struct rtnl_msg m;
	int r;

	start_route(&m, RTM_DELROUTE, 0, rt);
	r = rtnl_do(nl, &m);
	return r < 0 ? err_sys(e, -r, "remove a route") : 0;
}

struct routes {
	struct rtnl_route *ret;
	size_t max, n;
};

static int keep_route(void *arg, const struct nlmsghdr *h)
{
	struct routes *l = arg;
	const struct rtmsg *t = NLMSG_DATA(h);
	const struct rtattr *a[RTA_PREFSRC + 1];
	struct rtnl_route *to;

	if (h->nlmsg_type != RTM_NEWROUTE ||
	    h->nlmsg_len < NLMSG_LENGTH(sizeof(*t)) ||
	    t->rtm_type != RTN_UNICAST || t->rtm_table == RT_TABLE_LOCAL)
		return 0;
	if (l->n++ >= l->max)
		return 0;
	rtnl_attrs(RTM_RTA(t), RTM_PAYLOAD(h), a, array_len(a));
	to = &l->ret[l->n - 1];
	memset(to, 0, sizeof(*to));
	to->family = t->rtm_family;
	to->prefix = t->rtm_dst_len;
	to->link = t->rtm_scope == RT_SCOPE_LINK;
	if (a[RTA_DST] && RTA_PAYLOAD(a[RTA_DST]) == width(t->rtm_family))
		memcpy(to->dst, RTA_DATA(a[RTA_DST]), width(t->rtm_family));
	if (a[RTA_OIF] && RTA_PAYLOAD(a[RTA_OIF]) == sizeof(to->index))
		memcpy(&to->index, RTA_DATA(a[RTA_OIF]), sizeof(to->index));
	return 0;
}

int rtnl_routes(struct rtnl *nl, int family, struct rtnl_route *ret, size_t max,
		struct err *e)
{
	const struct rtmsg any = {.rtm_family = (uint8_t)family};
	struct routes l = {ret, max, 0};
	struct rtnl_msg m;
	int r;

	rtnl_start(&m, RTM_GETROUTE, 0, &any, sizeof(any));
	r = rtnl_dump(nl, &m, keep_route, &l);
	return r < 0 ? err_sys(e, -r, "list the routes") : (int)l.n;
}

int rtnl_neigh_add(struct rtnl *nl, int index, int family, const uint8_t *addr,
		   const uint8_t *mac, struct err *e)
{
	const struct ndmsg n = {.ndm_family = (uint8_t)family,
				.ndm_ifindex = index,
				.ndm_state = NUD_PERMANENT};
	struct rtnl_msg m;
	int r;

	rtnl_start(&m, RTM_NEWNEIGH, NLM_F_CREATE | NLM_F_REPLACE, &n,
		   sizeof(n));
	rtnl_put(&m, NDA_DST, addr, width(family));
	rtnl_put(&m, NDA_LLADDR, mac, 6);
	r = rtnl_put_in(nl, &m);
	return r < 0 ? err_sys(e, -r, "add a neighbour") : 0;
}
