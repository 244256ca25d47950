/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/if_link.h>
#include <linux/pkt_sched.h>
#include <linux/veth.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "base/cleanup.h"
#include "sys/rtnl_priv.h"

struct found {
	const char *prefix;
	int (*fn)(void *arg, const char *name, int index);
	void *arg;
};

static void start_link(struct rtnl_msg *m, uint16_t type, uint16_t flags,
		       int index)
{
	const struct ifinfomsg i = {.ifi_index = index};

	rtnl_start(m, type, flags, &i, sizeof(i));
}

/* Any socket of the namespace will do, and nothing is locked for it. */
static int get_index(struct rtnl *nl, const char *name)
{
	struct ifreq ifr = {0};

	if (strlen(name) >= IFNAMSIZ)
		return -ENODEV;
	memcpy(ifr.ifr_name, name, strlen(name));
	return ioctl(nl->fd, SIOCGIFINDEX, &ifr) < 0 ? -errno : ifr.ifr_ifindex;
}

int rtnl_index(struct rtnl *nl, const char *name, struct err *e)
{
	int r = get_index(nl, name);

	return r < 0 ? err_sys(e, -r, "interface %s", name) : r;
}

/* Whoever asks for a link is told how it is, so that the kernel looks first. */
int rtnl_settle(struct rtnl *nl, int index, struct err *e)
{
	struct rtnl_msg m;
	int r;

	start_link(&m, RTM_GETLINK, 0, index);
	rtnl_put32(&m, IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
	r = rtnl_do(nl, &m);
	return r < 0 ? err_sys(e, -r, "look at interface %d", index) : 0;
}

static void put_end(struct rtnl_msg *m, const char *name, const uint8_t *mac,
		    unsigned mtu)
{
	rtnl_put_str(m, IFLA_IFNAME, name);
	if (mac)
		rtnl_put(m, IFLA_ADDRESS, mac, 6);
	if (mtu)
		rtnl_put32(m, IFLA_MTU, mtu);
}

int rtnl_veth_add(struct rtnl *nl, const struct rtnl_veth *v, struct err *e)
{
	const struct ifinfomsg ours = {.ifi_flags = v->up ? IFF_UP : 0,
				       .ifi_change = v->up ? IFF_UP : 0};
	const struct ifinfomsg none = {0};
	struct rtnl_msg m;
	size_t info, data, peer;
	int r;

	rtnl_start(&m, RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, &ours,
		   sizeof(ours));
	put_end(&m, v->name, v->mac, v->mtu);
	if (v->group)
		rtnl_put32(&m, IFLA_GROUP, v->group);
	info = rtnl_nest(&m, IFLA_LINKINFO);
	rtnl_put(&m, IFLA_INFO_KIND, "veth", 4);
	data = rtnl_nest(&m, IFLA_INFO_DATA);
	peer = rtnl_nest(&m, VETH_INFO_PEER);
	/* The peer's own fixed part comes before its attributes. */
	memcpy(m.room + m.h.nlmsg_len, &none, sizeof(none));
	m.h.nlmsg_len += (uint32_t)NLMSG_ALIGN(sizeof(none));
	put_end(&m, v->peer, v->peer_mac, v->mtu);
	if (v->peer_netns >= 0)
		rtnl_put32(&m, IFLA_NET_NS_FD, (uint32_t)v->peer_netns);
	rtnl_nest_end(&m, peer);
	rtnl_nest_end(&m, data);
	rtnl_nest_end(&m, info);
	r = rtnl_do(nl, &m);
	return r < 0 ? err_sys(e, -r, "make veth %s and %s", v->name, v->peer)
		     : 0;
}

int rtnl_link_up(struct rtnl *nl, int index, struct err *e)
{
	const struct ifinfomsg i = {.ifi_index = index,
				    .ifi_flags = IFF_UP,
				    .ifi_change = IFF_UP};
	struct rtnl_msg m;
	int r;

	rtnl_start(&m, RTM_NEWLINK, 0, &i, sizeof(i));
	r = rtnl_put_in(nl, &m);
	return r < 0 ? err_sys(e, -r, "bring interface %d up", index) : 0;
}

int rtnl_link_del(struct rtnl *nl, const char *name, struct err *e)
{
	struct rtnl_msg m;
	int r;

	if (strlen(name) >= IFNAMSIZ)
		return err_sys(e, ENODEV, "interface %s", name);
	start_link(&m, RTM_DELLINK, 0, 0);
	rtnl_put_str(&m, IFLA_IFNAME, name);
	r = rtnl_do(nl, &m);
	return r < 0 ? err_sys(e, -r, "remove interface %s", name) : 0;
}

int rtnl_group_set(struct rtnl *nl, int index, uint32_t group, struct err *e)
{
	struct rtnl_msg m;
	int r;

	start_link(&m, RTM_SETLINK, 0, index);
	rtnl_put32(&m, IFLA_GROUP, group);
	r = rtnl_put_in(nl, &m);
	return r < 0 ? err_sys(e, -r, "group of interface %d", index) : 0;
}

int rtnl_group_del(struct rtnl *nl, uint32_t group, struct err *e)
{
	struct rtnl_msg m;
	int r;

	start_link(&m, RTM_DELLINK, 0, 0);
	rtnl_put32(&m, IFLA_GROUP, group);
	r = rtnl_do(nl, &m);
	if (r < 0 && r != -ENODEV)
		return err_sys(e, -r, "remove the links of group %u", group);
	return 0;
}

static int each_link(void *arg, const struct nlmsghdr *h)
{
	const struct found *f = arg;
	const struct ifinfomsg *i = NLMSG_DATA(h);
	const struct rtattr *a[IFLA_IFNAME + 1];
	const char *name;

	if (h->nlmsg_type != RTM_NEWLINK ||
	    h->nlmsg_len < NLMSG_LENGTH(sizeof(*i)))
		return 0;
	rtnl_attrs(IFLA_RTA(i), IFLA_PAYLOAD(h), a, array_len(a));
	if (!a[IFLA_IFNAME])
		return 0;
	name = RTA_DATA(a[IFLA_IFNAME]);
	if (strncmp(name, f->prefix, strlen(f->prefix)) != 0)
		return 0;
	return f->fn(f->arg, name, i->ifi_index);
}

int rtnl_links(struct rtnl *nl, const char *prefix,
	       int (*fn)(void *arg, const char *name, int index), void *arg,
	       struct err *e)
{
	struct found f = {prefix, fn, arg};
	struct rtnl_msg m;
	int r;

	start_link(&m, RTM_GETLINK, 0, 0);
	rtnl_put32(&m, IFLA_EXT_MASK, RTEXT_FILTER_SKIP_STATS);
	r = rtnl_dump(nl, &m, each_link, &f);
	return r < 0 ? err_sys(e, -r, "list the interfaces") : 0;
}

/* The kernel counts in ticks of 64 ns whatever its clock is. */
static uint32_t ticks(uint64_t ns)
{
	return (uint32_t)(ns / 64);
}

static int set_tbf(struct rtnl *nl, int index, unsigned mbit)
{
	const struct tcmsg t = {.tcm_family = AF_UNSPEC,
				.tcm_ifindex = index,
				.tcm_handle = 0x10000,
				.tcm_parent = TC_H_ROOT};
	const uint64_t rate = (uint64_t)mbit * 1000000 / 8;
	/* A burst of 4 ms, but never less than one big segment. */
	const uint64_t burst = rate / 250 > 65536 ? rate / 250 : 65536;
	struct tc_tbf_qopt q = {.limit = (uint32_t)(rate / 20 + burst)};
	struct rtnl_msg m;
	size_t at;

	q.rate.rate = rate >= UINT32_MAX ? UINT32_MAX : (uint32_t)rate;
	q.rate.linklayer = 1; /* Ethernet */
	q.buffer = ticks(burst * 1000000000 / rate);
	rtnl_start(&m, RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE, &t,
		   sizeof(t));
	rtnl_put(&m, TCA_KIND, "tbf", 4);
	at = rtnl_nest(&m, TCA_OPTIONS);
	rtnl_put(&m, TCA_TBF_PARMS, &q, sizeof(q));
	rtnl_put32(&m, TCA_TBF_BURST, (uint32_t)burst);
	if (rate >= UINT32_MAX)
		rtnl_put(&m, TCA_TBF_RATE64, &rate, sizeof(rate));
	rtnl_nest_end(&m, at);
	return rtnl_do(nl, &m);
}

int rtnl_tbf(struct rtnl *nl, int index, unsigned mbit, struct err *e)
{
	const struct tcmsg t = {.tcm_family = AF_UNSPEC,
				.tcm_ifindex = index,
				.tcm_parent = TC_H_ROOT};
	struct rtnl_msg m;
	int r;

	if (mbit > RTNL_MBIT_MAX)
		return err_set(e, -ERANGE, "bad_value",
			       "bandwidth of %u Mbit/s: at most %u", mbit,
			       RTNL_MBIT_MAX);
	if (mbit) {
		r = set_tbf(nl, index, mbit);
		return r < 0 ? err_sys(e, -r, "limit the bandwidth") : 0;
	}
	rtnl_start(&m, RTM_DELQDISC, 0, &t, sizeof(t));
	r = rtnl_do(nl, &m);
	if (r < 0 && r != -ENOENT && r != -EINVAL)
		return err_sys(e, -r, "lift the limit of bandwidth");
	return 0;
}
