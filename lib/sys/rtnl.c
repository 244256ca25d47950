/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/rtnl.h"

#include <errno.h>

int rtnl_open(int netns, struct rtnl *ret_nl, struct err *e)
{
	(void)netns;
	(void)ret_nl;
	return err_set(e, -ENOSYS, "unsupported", "rtnl_open: not there yet");
}

void rtnl_close(struct rtnl *nl)
{
	(void)nl;
}

int rtnl_index(struct rtnl *nl, const char *name, struct err *e)
{
	(void)nl;
	(void)name;
	return err_set(e, -ENOSYS, "unsupported", "rtnl_index: not there yet");
}

int rtnl_veth_add(struct rtnl *nl, const struct rtnl_veth *v, struct err *e)
{
	(void)nl;
	(void)v;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_veth_add: not there yet");
}

int rtnl_link_up(struct rtnl *nl, int index, struct err *e)
{
	(void)nl;
	(void)index;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_link_up: not there yet");
}

int rtnl_link_del(struct rtnl *nl, const char *name, struct err *e)
{
	(void)nl;
	(void)name;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_link_del: not there yet");
}

int rtnl_addr_add(struct rtnl *nl, const struct rtnl_addr *a, struct err *e)
{
	(void)nl;
	(void)a;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_addr_add: not there yet");
}

int rtnl_addrs(struct rtnl *nl, struct rtnl_addr *ret, size_t max,
	       struct err *e)
{
	(void)nl;
	(void)ret;
	(void)max;
	return err_set(e, -ENOSYS, "unsupported", "rtnl_addrs: not there yet");
}

int rtnl_route_add(struct rtnl *nl, const struct rtnl_route *r, struct err *e)
{
	(void)nl;
	(void)r;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_route_add: not there yet");
}

int rtnl_route_del(struct rtnl *nl, const struct rtnl_route *r, struct err *e)
{
	(void)nl;
	(void)r;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_route_del: not there yet");
}

int rtnl_routes(struct rtnl *nl, int family, struct rtnl_route *ret, size_t max,
		struct err *e)
{
	(void)nl;
	(void)family;
	(void)ret;
	(void)max;
	return err_set(e, -ENOSYS, "unsupported", "rtnl_routes: not there yet");
}

int rtnl_neigh_add(struct rtnl *nl, int index, int family, const uint8_t *addr,
		   const uint8_t *mac, struct err *e)
{
	(void)nl;
	(void)index;
	(void)family;
	(void)addr;
	(void)mac;
	return err_set(e, -ENOSYS, "unsupported",
		       "rtnl_neigh_add: not there yet");
}

int rtnl_tbf(struct rtnl *nl, int index, unsigned mbit, struct err *e)
{
	(void)nl;
	(void)index;
	(void)mbit;
	return err_set(e, -ENOSYS, "unsupported", "rtnl_tbf: not there yet");
}

int rtnl_links(struct rtnl *nl, const char *prefix,
	       int (*fn)(void *arg, const char *name, int index), void *arg,
	       struct err *e)
{
	(void)nl;
	(void)prefix;
	(void)fn;
	(void)arg;
	return err_set(e, -ENOSYS, "unsupported", "rtnl_links: not there yet");
}
