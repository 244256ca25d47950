/* SPDX-License-Identifier: Apache-2.0 */
#include "net/uplink.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "net/transit_priv.h"
#include "net/uplink_priv.h"
#include "sys/netns.h"
#include "sys/rtnl.h"

#define FORWARD "/proc/sys/net/ipv4/ip_forward"

/* More than a node has by far; the rest is not looked at. */
#define ADDRS_MAX  4096
#define ROUTES_MAX 4096

static uint32_t word(const uint8_t *b)
{
	return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 |
	       (uint32_t)b[2] << 8 | b[3];
}

void uplink_conf_of(const struct netconf *n, struct uplink_conf *c)
{
	*c = (struct uplink_conf){
		.address = word(n->uplink.addr.b) + 1,
		.prefix = n->uplink.bits,
		.pool = word(n->pool.addr.b),
		.pool_prefix = n->pool.bits,
		.masquerade = n->masquerade,
	};
}

/* --- link ---------------------------------------------------------------- */

static int set_address(struct rtnl *nl, int index, uint32_t address,
		       unsigned prefix, struct err *e)
{
	struct rtnl_addr a = {.family = AF_INET,
			      .prefix = prefix,
			      .index = index};
	int r;

	transit_bytes(address, a.addr);
	r = rtnl_addr_add(nl, &a, e);
	return r < 0 ? r : rtnl_link_up(nl, index, e);
}

static int set_route(struct rtnl *nl, int index, uint32_t to, unsigned prefix,
		     uint32_t gateway, struct err *e)
{
	struct rtnl_route r = {.family = AF_INET,
			       .prefix = prefix,
			       .index = index,
			       .has_gateway = true};

	transit_bytes(to, r.dst);
	transit_bytes(gateway, r.gateway);
	return rtnl_route_add(nl, &r, e);
}

/* Half of a pair, or the end of another node's, is of no use. */
static int make_link(struct rtnl *node, struct rtnl *in, int transit,
		     struct err *e)
{
	const struct rtnl_veth v = {.name = TRANSIT_UPLINK,
				    .peer = TRANSIT_UPLINK,
				    .peer_netns = transit};
	int r;

	if (rtnl_index(node, TRANSIT_UPLINK, NULL) >= 0 &&
	    rtnl_index(in, TRANSIT_UPLINK, NULL) >= 0)
		return 0;
	r = rtnl_link_del(node, TRANSIT_UPLINK, e);
	if (r < 0 && r != -ENODEV)
		return r;
	r = rtnl_link_del(in, TRANSIT_UPLINK, e);
	if (r < 0 && r != -ENODEV)
		return r;
	return rtnl_veth_add(node, &v, e);
}

static int set_links(const struct uplink_conf *c, int transit, struct err *e)
{
	auto_rtnl struct rtnl node = {.fd = -1};
	auto_rtnl struct rtnl in = {.fd = -1};
	int r, a, b;

	r = rtnl_open(-1, &node, e);
	if (!r)
		r = rtnl_open(transit, &in, e);
	if (!r)
		r = make_link(&node, &in, transit, e);
	if (r < 0)
		return r;
	a = rtnl_index(&node, TRANSIT_UPLINK, e);
	if (a < 0)
		return a;
	b = rtnl_index(&in, TRANSIT_UPLINK, e);
	if (b < 0)
		return b;
	/* No neighbour discovery of ours on it; a kernel without is fine. */
	(void)netns_sysctl(-1, "ipv6/conf/" TRANSIT_UPLINK "/disable_ipv6", "1",
			   NULL);
	r = set_address(&node, a, c->address, c->prefix, e);
	if (!r)
		r = set_address(&in, b, c->address + 1, c->prefix, e);
	if (!r)
		r = set_route(&node, a, c->pool, c->pool_prefix, c->address + 1,
			      e);
	if (!r)
		r = set_route(&in, b, 0, 0, c->address, e);
	/* Both ends notice that the other is there. */
	if (!r)
		r = rtnl_index(&node, TRANSIT_UPLINK, e) < 0 ? -ENODEV : 0;
	return r;
}

/* --- forwarding ---------------------------------------------------------- */

static int forwards(struct err *e)
{
	auto_close int fd = open(FORWARD, O_RDONLY | O_CLOEXEC);
	char c = 0;

	if (fd < 0 || read(fd, &c, 1) != 1)
		return err_sys(e, errno, "read %s", FORWARD);
	return c != '0';
}

static int set_forwarding(bool *ret_set, struct err *e)
{
	int r = forwards(e);

	if (r < 0)
		return r;
	*ret_set = !r;
	return r ? 0 : fd_write_str(AT_FDCWD, FORWARD, "1", e);
}

/* --- clashes ------------------------------------------------------------- */

struct net {
	uint32_t addr;
	unsigned bits;
	const char *what;
};

static bool overlap(const struct net *n, uint32_t addr, unsigned bits)
{
	const unsigned less = bits < n->bits ? bits : n->bits;
	const uint32_t mask = less ? ~0u << (32 - less) : 0;

	return ((addr ^ n->addr) & mask) == 0;
}

static int tell(const struct net *n, uint32_t addr, unsigned bits, int index,
		const char *what, struct err *e)
{
	char name[IF_NAMESIZE] = "?";

	if (index > 0)
		(void)if_indextoname((unsigned)index, name);
	return err_set(e, -EADDRINUSE, "configuration",
		       "the %s %u.%u.%u.%u/%u overlaps the node's %s "
		       "%u.%u.%u.%u/%u on %s: net.json needs another",
		       n->what, n->addr >> 24, n->addr >> 16 & 255,
		       n->addr >> 8 & 255, n->addr & 255, n->bits, what,
		       addr >> 24, addr >> 16 & 255, addr >> 8 & 255,
		       addr & 255, bits, name);
}

static int check(const struct net *nets, size_t n, const uint8_t *addr,
		 unsigned bits, int index, const char *what, struct err *e)
{
	for (size_t i = 0; i < n; i++)
		if (overlap(&nets[i], word(addr), bits))
			return tell(&nets[i], word(addr), bits, index, what, e);
	return 0;
}

static int clash_addrs(struct rtnl *nl, const struct net *nets, size_t n,
		       int own, struct err *e)
{
	auto_free struct rtnl_addr *a = calloc(ADDRS_MAX, sizeof(*a));
	int k, r = 0;

	if (!a)
		return err_sys(e, ENOMEM, "addresses of the node");
	k = rtnl_addrs(nl, a, ADDRS_MAX, e);
	if (k < 0)
		return k;
	for (int i = 0; !r && i < k && i < ADDRS_MAX; i++)
		if (a[i].family == AF_INET && a[i].index != own)
			r = check(nets, n, a[i].addr, 32, a[i].index, "address",
				  e);
	return r;
}

static int clash_routes(struct rtnl *nl, const struct net *nets, size_t n,
			int own, struct err *e)
{
	auto_free struct rtnl_route *t = calloc(ROUTES_MAX, sizeof(*t));
	int k, r = 0;

	if (!t)
		return err_sys(e, ENOMEM, "routes of the node");
	k = rtnl_routes(nl, AF_INET, t, ROUTES_MAX, e);
	if (k < 0)
		return k;
	for (int i = 0; !r && i < k && i < ROUTES_MAX; i++)
		if (t[i].prefix && t[i].index != own)
			r = check(nets, n, t[i].dst, t[i].prefix, t[i].index,
				  "route", e);
	return r;
}

int uplink_clash(const struct uplink_conf *c, struct err *e)
{
	const struct net nets[] = {
		{c->pool, c->pool_prefix, "pool"},
		{c->address - 1, c->prefix, "uplink's network"},
	};
	auto_rtnl struct rtnl nl = {.fd = -1};
	int r, own;

	if (overlap(&nets[0], nets[1].addr, nets[1].bits))
		return tell(&nets[0], nets[1].addr, nets[1].bits, 0,
			    "own uplink", e);
	r = rtnl_open(-1, &nl, e);
	if (r < 0)
		return r;
	own = rtnl_index(&nl, TRANSIT_UPLINK, NULL);
	r = clash_addrs(&nl, nets, array_len(nets), own, e);
	return r < 0 ? r : clash_routes(&nl, nets, array_len(nets), own, e);
}

/* --- the whole ----------------------------------------------------------- */

int uplink_up(int transit, const struct uplink_conf *c,
	      bool *ret_set_forwarding, struct err *e)
{
	bool set = false;
	int r = uplink_clash(c, e);

	if (r < 0)
		return r;
	/* The rules before there is anything that they keep out. */
	r = uplink_rules(c, e);
	if (!r)
		r = set_forwarding(&set, e);
	if (!r)
		r = set_links(c, transit, e);
	if (r < 0)
		return err_wrap(e, r, "uplink");
	*ret_set_forwarding = set;
	return 0;
}

static int drop_link(int netns, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	int r = rtnl_open(netns, &nl, e);

	if (r < 0)
		return r;
	r = rtnl_link_del(&nl, TRANSIT_UPLINK, e);
	return r == -ENODEV ? 0 : r;
}

int uplink_down(int transit, struct err *e)
{
	int r = drop_link(-1, e);

	if (!r && transit >= 0)
		r = drop_link(transit, e);
	return r < 0 ? r : uplink_no_rules(e);
}

static bool has_address(struct rtnl *nl, uint32_t address)
{
	auto_free struct rtnl_addr *a = calloc(ADDRS_MAX, sizeof(*a));
	int k = a ? rtnl_addrs(nl, a, ADDRS_MAX, NULL) : 0;

	for (int i = 0; i < k && i < ADDRS_MAX; i++)
		if (a[i].family == AF_INET && word(a[i].addr) == address)
			return true;
	return false;
}

int uplink_show(int transit, const struct uplink_conf *c,
		struct uplink_state *ret, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	struct uplink_state s = {.up = false};
	int r;

	r = rtnl_open(-1, &nl, e);
	if (r < 0)
		return r;
	s.link = rtnl_index(&nl, TRANSIT_UPLINK, NULL) >= 0;
	r = uplink_has_rules(e);
	if (r < 0)
		return r;
	s.table = r;
	r = forwards(e);
	if (r < 0)
		return r;
	s.forwarding = r;
	s.up = s.link && s.table && s.forwarding &&
	       has_address(&nl, c->address) && transit >= 0 &&
	       uplink_has(transit, NULL) > 0;
	*ret = s;
	return 0;
}

int uplink_has(int transit, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	int r = rtnl_open(transit, &nl, e);

	if (r < 0)
		return r;
	r = rtnl_index(&nl, TRANSIT_UPLINK, NULL);
	return r >= 0;
}
