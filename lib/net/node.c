/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <ifaddrs.h>

#include "net/node.h"

#define WHAT "addresses of the node"

int node_addrs(struct netdeny *d, struct err *e)
{
	auto_free struct netaddr *v = NULL;
	struct ifaddrs *all, *i;
	size_t n = 0;

	if (getifaddrs(&all) < 0)
		return err_sys(e, errno, WHAT);
	for (i = all; i; i = i->ifa_next)
		n++;
	v = calloc(n + 1, sizeof(*v));
	n = 0;
	for (i = all; v && i; i = i->ifa_next)
		if (i->ifa_addr && netaddr_of(i->ifa_addr, &v[n]) == 0)
			n++;
	freeifaddrs(all);
	if (!v || netdeny_set_node(d, v, n) < 0)
		return err_sys(e, ENOMEM, WHAT);
	return 0;
}
