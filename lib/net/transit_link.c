/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "net/transit_priv.h"
#include "sys/netns.h"

/* Both ends of an attachment. */
struct ends {
	struct rtnl out, in;
	int netns, inside;
	const struct transit_link *link;
	char name[16];
	uint8_t out_mac[6], in_mac[6];
	int out_index, in_index;
};

static void ends_done(struct ends *x)
{
	rtnl_close(&x->out);
	rtnl_close(&x->in);
}

#define auto_ends __attribute__((cleanup(ends_done)))

int transit_address(uint32_t pool, unsigned prefix, uint32_t slot,
		    uint32_t *ret, struct err *e)
{
	const uint64_t size = prefix > 32 ? 0 : 1ull << (32 - prefix);

	/* The first and the last are nobody's. */
	if (size < 4)
		return err_set(e, -ERANGE, "configuration",
			       "the pool (/%u) has no address: net.json needs "
			       "a larger one",
			       prefix);
	*ret = pool + 1 + (uint32_t)(slot % (size - 2));
	return 0;
}

void transit_name(uint32_t slot, char ret[16])
{
	snprintf(ret, 16, "ds%u", slot);
}

/* Locally administered; the third byte tells the ends apart. */
static void mac_of(uint32_t slot, uint8_t end, uint8_t *ret)
{
	ret[0] = 0x02;
	ret[1] = 0x64;
	ret[2] = end;
	ret[3] = (uint8_t)(slot >> 16);
	ret[4] = (uint8_t)(slot >> 8);
	ret[5] = (uint8_t)slot;
}

void transit_mac(uint32_t slot, uint8_t ret[6])
{
	mac_of(slot, 1, ret);
}

static int add_pair(struct ends *x, struct err *e)
{
	const struct rtnl_veth v = {
		.name = x->name,
		.mac = x->out_mac,
		.peer = TRANSIT_INNER,
		.peer_mac = x->in_mac,
		.peer_netns = x->inside,
		.group = TRANSIT_GROUP,
		.up = true,
	};

	return rtnl_veth_add(&x->out, &v, e);
}

/* Fresh ones: what is left of the last user of slot or namespace goes. */
static int make_pair(struct ends *x, struct err *e)
{
	int r = add_pair(x, e);

	if (r != -EEXIST)
		return r;
	r = rtnl_link_del(&x->out, x->name, e);
	if (r < 0 && r != -ENODEV)
		return r;
	r = rtnl_link_del(&x->in, TRANSIT_INNER, e);
	if (r < 0 && r != -ENODEV)
		return r;
	return add_pair(x, e);
}

static int set_outer(struct ends *x, struct err *e)
{
	struct rtnl_route to = {.family = AF_INET,
				.prefix = 32,
				.link = true,
				.exclusive = true};
	int r;

	x->out_index = rtnl_index(&x->out, x->name, e);
	if (x->out_index < 0)
		return x->out_index;
	to.index = x->out_index;
	transit_bytes(x->link->address, to.dst);
	rtnl_hold(&x->out);
	r = rtnl_route_add(&x->out, &to, e);
	if (r == 0)
		r = rtnl_neigh_add(&x->out, x->out_index, AF_INET, to.dst,
				   x->in_mac, e);
	if (r == 0)
		r = rtnl_flush(&x->out, e);
	if (r == -EEXIST)
		return err_set(e, r, "configuration",
			       "the address of slot %u is another sandbox's: "
			       "net.json needs a larger pool",
			       x->link->slot);
	return r;
}

static int add_address(struct rtnl *nl, int index, uint32_t address,
		       struct err *e)
{
	struct rtnl_addr a = {.family = AF_INET, .prefix = 32, .index = index};
	int r;

	transit_bytes(address, a.addr);
	r = rtnl_addr_add(nl, &a, e);
	return r < 0 ? r : rtnl_link_up(nl, index, e);
}

#define LO 1 /* the first interface of every namespace */

static int add_inside(struct ends *x, struct err *e)
{
	struct rtnl_route gw = {.family = AF_INET,
				.prefix = 32,
				.index = x->in_index,
				.link = true};
	struct rtnl_route to = {.family = AF_INET,
				.index = x->in_index,
				.has_gateway = true,
				.has_src = true,
				.onlink = true};
	int r;

	transit_bytes(TRANSIT_GATEWAY, gw.dst);
	transit_bytes(TRANSIT_GATEWAY, to.gateway);
	transit_bytes(x->link->address, to.src);
	r = add_address(&x->in, LO, TRANSIT_STABLE, e);
	if (r == 0)
		r = add_address(&x->in, x->in_index, x->link->address, e);
	if (r == 0)
		r = rtnl_neigh_add(&x->in, x->in_index, AF_INET, gw.dst,
				   x->out_mac, e);
	if (r == 0)
		r = rtnl_route_add(&x->in, &gw, e);
	return r < 0 ? r : rtnl_route_add(&x->in, &to, e);
}

static int set_inner(struct ends *x, struct err *e)
{
	int r;

	r = netns_sysctl(x->inside, "ipv6/conf/" TRANSIT_INNER "/disable_ipv6",
			 "1", e);
	if (r < 0 && r != -ENOENT)
		return r;
	x->in_index = rtnl_index(&x->in, TRANSIT_INNER, e);
	if (x->in_index < 0)
		return x->in_index;
	rtnl_hold(&x->in);
	r = add_inside(x, e);
	return r < 0 ? r : rtnl_flush(&x->in, e);
}

static int set_limit(struct ends *x, unsigned mbit, struct err *e)
{
	int r = rtnl_tbf(&x->out, x->out_index, mbit, e);

	return r < 0 ? r : rtnl_tbf(&x->in, x->in_index, mbit, e);
}

static int open_ends(int netns, int inside, uint32_t slot, struct ends *x,
		     struct err *e)
{
	int r;

	*x = (struct ends){.out.fd = -1,
			   .in.fd = -1,
			   .netns = netns,
			   .inside = inside};
	if (slot >= TRANSIT_SLOTS)
		return err_sys(e, ERANGE, "slot %u", slot);
	transit_name(slot, x->name);
	mac_of(slot, 0, x->out_mac);
	mac_of(slot, 1, x->in_mac);
	r = rtnl_open(netns, &x->out, e);
	return r < 0 || inside < 0 ? r : rtnl_open(inside, &x->in, e);
}

int transit_attach(int netns, int inside, const struct transit_link *link,
		   struct err *e)
{
	auto_ends struct ends x = {.out.fd = -1, .in.fd = -1};
	int r;

	r = open_ends(netns, inside, link->slot, &x, e);
	if (r < 0)
		return r;
	x.link = link;
	r = make_pair(&x, e);
	if (r < 0)
		return r;
	r = set_outer(&x, e);
	if (!r)
		r = set_inner(&x, e);
	/* It came up first, got its carrier with the other, and would drop
	 * what it sends until that was noticed. */
	if (!r)
		r = rtnl_settle(&x.out, x.out_index, e);
	if (!r && link->mbit)
		r = set_limit(&x, link->mbit, e);
	if (r < 0)
		(void)rtnl_link_del(&x.out, x.name, NULL);
	return r < 0 ? err_wrap(e, r, "link of the sandbox") : 0;
}

int transit_limit(int netns, int inside, uint32_t slot, unsigned mbit,
		  struct err *e)
{
	auto_ends struct ends x = {.out.fd = -1, .in.fd = -1};
	int r;

	r = open_ends(netns, inside, slot, &x, e);
	if (r < 0)
		return r;
	x.out_index = rtnl_index(&x.out, x.name, e);
	if (x.out_index < 0)
		return x.out_index;
	x.in_index = rtnl_index(&x.in, TRANSIT_INNER, e);
	return x.in_index < 0 ? x.in_index : set_limit(&x, mbit, e);
}

static int64_t slot_of(const char *name)
{
	unsigned long slot;
	char *end;

	slot = strtoul(name + 2, &end, 10);
	if (end == name + 2 || *end || slot >= TRANSIT_SLOTS)
		return -1;
	return (int64_t)slot;
}

struct slots {
	uint32_t *ret;
	size_t max, n;
};

static int keep_slot(void *arg, const char *name, int index)
{
	struct slots *s = arg;
	int64_t slot = slot_of(name);

	(void)index;
	if (slot < 0)
		return 0;
	if (s->n < s->max)
		s->ret[s->n] = (uint32_t)slot;
	s->n++;
	return 0;
}

int transit_slots(int netns, uint32_t *ret, size_t max, struct err *e)
{
	auto_rtnl struct rtnl nl = {.fd = -1};
	struct slots s = {ret, max, 0};
	int r;

	r = rtnl_open(netns, &nl, e);
	if (r < 0)
		return r;
	r = rtnl_links(&nl, "ds", keep_slot, &s, e);
	return r < 0 ? r : (int)s.n;
}

/* --- left over ------------------------------------------------------------ */

#define STALE_MAX 1024 /* taken away at once; more wait for the next time */

struct stale {
	bool (*held)(void *arg, uint32_t slot);
	void *arg;
	int index[STALE_MAX];
	unsigned n;
};

static int keep_stale(void *arg, const char *name, int index)
{
	struct stale *s = arg;
	int64_t slot = slot_of(name);

	if (slot >= 0 && s->n < STALE_MAX && !s->held(s->arg, (uint32_t)slot))
		s->index[s->n++] = index;
	return 0;
}

int transit_sweep(int netns, unsigned spare,
		  bool (*held)(void *arg, uint32_t slot), void *arg,
		  struct err *e)
{
	struct stale s = {.held = held, .arg = arg};
	auto_rtnl struct rtnl nl = {.fd = -1};
	unsigned gone = 0;
	int r;

	r = rtnl_open(netns, &nl, e);
	if (r == 0)
		r = rtnl_links(&nl, "ds", keep_stale, &s, e);
	if (r < 0 || s.n <= spare)
		return r < 0 ? r : 0;
	/* By number: whoever has the name by now keeps his. */
	for (unsigned i = 0; i < s.n; i++)
		gone += rtnl_group_set(&nl, s.index[i], TRANSIT_GROUP_STALE,
				       NULL) == 0;
	r = rtnl_group_del(&nl, TRANSIT_GROUP_STALE, e);
	return r < 0 ? r : (int)gone;
}
