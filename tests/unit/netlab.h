/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node in namespaces of its own, for tests of routed networking:
 *
 *   sandbox a (slot 7), b (slot 8) -- transit -- node 203.0.113.1 -- world
 *
 * The test itself is in the node's.  The world is 203.0.113.10 and has
 * 198.51.100.10 and .11.  Everything ends with the process but the mount of
 * the transit namespace, which lab_done() takes away.
 */
#ifndef TESTS_NETLAB_H
#define TESTS_NETLAB_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "net/route.h"
#include "net/transit.h"
#include "net/uplink.h"
#include "sys/netns.h"
#include "sys/rtnl.h"
#include "wire/json.h"

#define LAB_HELPER 64999
#define LAB_POOL   0x64600000u /* 100.96.0.0 */
#define LAB_A	   7
#define LAB_B	   8

struct lab {
	char dir[32];
	int transit, world, a, b;
	struct transit_socks socks;
	struct route *r;
	struct netdeny *deny;
	int packets;   /* of a, to send */
	int packets_b; /* of b */
	int capture;   /* of the world, all that arrives */
	int capture_a; /* of a */
};

static inline bool lab_ok(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %d %s\n", what, r, e->msg);
	return ok(r >= 0, "%s", what);
}

/* A network namespace that a descriptor keeps, with lo up. */
static inline int lab_space(void)
{
	auto_close int self = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	auto_netns int back = -1;
	auto_rtnl struct rtnl nl = {.fd = -1};
	int fd;

	if (self < 0 || netns_enter(self, &back, NULL) < 0 ||
	    unshare(CLONE_NEWNET) < 0)
		return -1;
	fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	if (fd < 0 || rtnl_open(-1, &nl, NULL) < 0 ||
	    rtnl_link_up(&nl, 1, NULL) < 0)
		return -1;
	return fd;
}

static inline void lab_bytes(const char *text, uint8_t *ret)
{
	if (inet_pton(strchr(text, ':') ? AF_INET6 : AF_INET, text, ret) != 1)
		abort();
}

static inline void lab_addr(struct rtnl *nl, const char *dev, const char *addr,
			    unsigned prefix)
{
	struct rtnl_addr a = {.family = AF_INET, .prefix = prefix};

	a.index = rtnl_index(nl, dev, NULL);
	lab_bytes(addr, a.addr);
	if (rtnl_addr_add(nl, &a, NULL) < 0 ||
	    rtnl_link_up(nl, a.index, NULL) < 0)
		abort();
}

static inline void lab_default(struct rtnl *nl, const char *dev, const char *gw)
{
	struct rtnl_route r = {.family = AF_INET, .has_gateway = true};

	r.index = rtnl_index(nl, dev, NULL);
	lab_bytes(gw, r.gateway);
	if (rtnl_route_add(nl, &r, NULL) < 0)
		abort();
}

/* The node's link to the world. */
static inline void lab_world(struct lab *l)
{
	auto_rtnl struct rtnl node = {.fd = -1};
	auto_rtnl struct rtnl world = {.fd = -1};
	const struct rtnl_veth v = {.name = "lan0",
				    .peer = "lan0",
				    .peer_netns = l->world};

	if (rtnl_open(-1, &node, NULL) < 0 ||
	    rtnl_open(l->world, &world, NULL) < 0 ||
	    rtnl_link_up(&node, 1, NULL) < 0 ||
	    rtnl_veth_add(&node, &v, NULL) < 0)
		abort();
	lab_addr(&world, "lan0", "203.0.113.10", 24);
	lab_addr(&world, "lo", "198.51.100.10", 32);
	lab_addr(&world, "lo", "198.51.100.11", 32);
	lab_addr(&node, "lan0", "203.0.113.1", 24);
	lab_default(&world, "lan0", "203.0.113.1");
	lab_default(&node, "lan0", "203.0.113.10");
	(void)rtnl_index(&world, "lan0", NULL);
	(void)rtnl_index(&node, "lan0", NULL);
}

static inline int lab_packets(int netns, const char *dev, bool listen)
{
	int fd = netns_socket(netns, AF_PACKET, SOCK_RAW,
			      listen ? htons(ETH_P_ALL) : 0, NULL);
	auto_netns int back = -1;
	struct sockaddr_ll to = {.sll_family = AF_PACKET};

	if (fd < 0 || netns_enter(netns, &back, NULL) < 0)
		abort();
	to.sll_ifindex = (int)if_nametoindex(dev);
	to.sll_protocol = listen ? htons(ETH_P_ALL) : 0;
	if (!to.sll_ifindex || bind(fd, (void *)&to, sizeof(to)) < 0)
		abort();
	return fd;
}

static inline struct uplink_conf lab_uplink(void)
{
	return (struct uplink_conf){.address = 0x647fff01, /* 100.127.255.1 */
				    .prefix = 30,
				    .pool = LAB_POOL,
				    .pool_prefix = 16,
				    .masquerade = true};
}

/* As the helper: no capability on the node. */
static inline void lab_helper(bool on)
{
	if (seteuid(on ? LAB_HELPER : 0) < 0)
		abort();
}

static inline struct netpol *lab_policy(const char *text)
{
	auto_json json_t *j = json_loads(text, 0, NULL);
	struct netpol *p = NULL;
	struct err e = {0};

	if (!j || netpol_compile(j, NULL, &p, &e) < 0) {
		printf("# policy: %s\n", e.msg);
		abort();
	}
	return p;
}

/* The slot's sandbox under a policy; what route_put() returns. */
static inline int lab_put_keep(struct lab *l, uint32_t slot, const char *policy,
			       route_keep_fn *keep, void *arg)
{
	auto_netpol struct netpol *p = lab_policy(policy);
	struct route_sandbox sb = {.slot = slot};
	struct err e = {0};
	int r;

	transit_mac(slot, sb.mac);
	if (transit_address(LAB_POOL, 16, slot, &sb.address, NULL) < 0)
		abort();
	lab_helper(true);
	r = route_put(l->r, &sb, p, keep, arg, &e);
	lab_helper(false);
	if (r < 0)
		printf("# put: %s\n", e.msg);
	return r;
}

static inline int lab_put(struct lab *l, uint32_t slot, const char *policy)
{
	return lab_put_keep(l, slot, policy, NULL, NULL);
}

static inline int lab_attach(struct lab *l, int inside, uint32_t slot)
{
	struct transit_link link = {.slot = slot};
	struct err e = {0};
	int r;

	if (transit_address(LAB_POOL, 16, slot, &link.address, NULL) < 0)
		abort();
	r = transit_attach(l->transit, inside, &link, &e);
	if (r < 0)
		printf("# attach: %s\n", e.msg);
	return r;
}

static inline int lab_open(struct lab *l)
{
	struct route_conf c;
	struct err e = {0};
	int r;

	route_conf_init(&c);
	c.nft = l->socks.nft;
	c.log = l->socks.log;
	lab_helper(true);
	r = route_open(&c, &l->r, &e);
	lab_helper(false);
	if (r < 0)
		printf("# open: %s\n", e.msg);
	return r;
}

/* false: this machine cannot (and the test was skipped). */
static inline bool lab_new(struct lab *l)
{
	struct uplink_conf up = lab_uplink();
	struct err e = {0};
	struct netaddr own = {.b = {203, 0, 113, 1}};
	bool set;

	*l = (struct lab){.dir = "/tmp/dsec-lab-XXXXXX"};
	if (geteuid() || unshare(CLONE_NEWNET) < 0) {
		skip("routed network", "needs root");
		return false;
	}
	if (!mkdtemp(l->dir))
		abort();
	l->transit = transit_make(l->dir, LAB_HELPER, LAB_HELPER, &e);
	if (!lab_ok(l->transit, &e, "transit namespace"))
		return false;
	if (!lab_ok(transit_socks_make(l->transit, &l->socks, &e), &e,
		    "sockets in it"))
		return false;
	l->world = lab_space();
	l->a = lab_space();
	l->b = lab_space();
	lab_world(l);
	if (!lab_ok(uplink_up(l->transit, &up, &set, &e), &e, "uplink"))
		return false;
	if (!ok(lab_open(l) == 0, "rules, without any capability"))
		return false;
	l->deny = netdeny_new();
	if (netdeny_set_node(l->deny, &own, 1) < 0)
		abort();
	lab_helper(true);
	lab_ok(route_deny(l->r, l->deny, &e), &e, "always denied ranges");
	lab_helper(false);
	if (lab_attach(l, l->a, LAB_A) < 0 || lab_attach(l, l->b, LAB_B) < 0)
		return false;
	l->packets = lab_packets(l->a, "eth0", false);
	l->packets_b = lab_packets(l->b, "eth0", false);
	l->capture = lab_packets(l->world, "lan0", true);
	l->capture_a = lab_packets(l->a, "eth0", true);
	return true;
}

static inline void lab_done(struct lab *l)
{
	const int fds[] = {l->transit, l->world,     l->a,	 l->b,
			   l->packets, l->packets_b, l->capture, l->capture_a};
	struct err e = {0};

	route_free(l->r);
	netdeny_free(l->deny);
	transit_socks_done(&l->socks);
	lab_ok(uplink_down(l->transit, &e), &e, "uplink down");
	for (size_t i = 0; i < array_len(fds); i++)
		if (fds[i] > 0)
			fd_close(fds[i]);
	lab_ok(transit_drop(l->dir, &e), &e, "transit gone");
	ok(!fd_remove_tree(AT_FDCWD, l->dir, NULL), "nothing left");
}

/* --- sockets ------------------------------------------------------------- */

static inline struct sockaddr_in lab_to(const char *addr, unsigned port)
{
	struct sockaddr_in to = {.sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port)};

	lab_bytes(addr, (uint8_t *)&to.sin_addr);
	return to;
}

/* A server of the world. */
static inline int lab_server(struct lab *l, int type, const char *addr,
			     unsigned port)
{
	struct in_addr a;
	int fd;

	lab_bytes(addr, (uint8_t *)&a);
	fd = netns_bind(l->world, type, a.s_addr, port, NULL);
	if (fd < 0)
		abort();
	return fd;
}

static inline bool lab_wait(int fd, short what, int ms)
{
	struct pollfd p = {.fd = fd, .events = what};

	return poll(&p, 1, ms) == 1;
}

/* 0, or the error that a connection from inside gets, within 3 seconds. */
static inline int lab_connect(int netns, const char *addr, unsigned port,
			      int *ret_fd)
{
	const struct sockaddr_in to = lab_to(addr, port);
	int fd = netns_socket(netns, AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0,
			      NULL);
	int er = 0;
	socklen_t len = sizeof(er);

	if (connect(fd, (const void *)&to, sizeof(to)) < 0) {
		er = errno;
		if (er == EINPROGRESS)
			er = lab_wait(fd, POLLOUT, 3000) ? 0 : ETIMEDOUT;
		if (!er)
			getsockopt(fd, SOL_SOCKET, SO_ERROR, &er, &len);
	}
	if (ret_fd && !er)
		*ret_fd = fd;
	else
		fd_close(fd);
	return er;
}

static inline int lab_accept(int server)
{
	return lab_wait(server, POLLIN, 6000)
		       ? accept4(server, NULL, NULL,
				 SOCK_CLOEXEC | SOCK_NONBLOCK)
		       : -1;
}

static inline uint64_t lab_denied(struct lab *l, uint32_t slot)
{
	struct route_stats s = {0};

	lab_helper(true);
	if (route_stats(l->r, slot, &s, NULL) < 0)
		s.denied = UINT64_MAX;
	lab_helper(false);
	return s.denied;
}

#endif
