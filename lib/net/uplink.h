/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_UPLINK_H
#define NET_UPLINK_H

#include <stdbool.h>
#include <stdint.h>

#include "net/conf.h"

/*
 * From the transit namespace to the world: a veth pair `dsec-up`, and in the
 * node's namespace one table of our own, `dsec-uplink`, with a masquerade rule
 * for the pool and rules that keep the node itself out of reach.  The node's
 * own tables are not touched.  Links libnftnl: for dynamic programs.
 */
struct uplink_conf {
	uint32_t address; /* of the node's end, host order; transit has +1 */
	unsigned prefix;
	uint32_t pool; /* host order */
	unsigned pool_prefix;
	bool masquerade; /* or the network routes the pool to this node */
};

/* uplink_conf_of(n, c): what the node's configuration says of it. */
void uplink_conf_of(const struct netconf *n, struct uplink_conf *c);

struct uplink_state {
	bool up;	 /* link, route and table are as configured */
	bool link;	 /* the pair exists */
	bool table;	 /* the rules exist */
	bool forwarding; /* the node forwards IPv4 */
};

/*
 * uplink_up(transit, c, ret_set_forwarding, e):
 * Make what is missing (idempotent; another configuration replaces it).
 * *${ret_set_forwarding}: the node did not forward and does now, which the
 * caller tells.  A clash: see below. uplink_down(transit, e): take link and
 * table away; forwarding stays as it is.
 * ${transit} is the namespace's descriptor (down: or -1).
 * uplink_show(transit, c, ret, e): what there is.
 */
int uplink_up(int transit, const struct uplink_conf *c,
	      bool *ret_set_forwarding, struct err *e);
int uplink_down(int transit, struct err *e);
int uplink_show(int transit, const struct uplink_conf *c,
		struct uplink_state *ret, struct err *e);

/*
 * uplink_clash(c, e):
 * Do the node's addresses and routes overlap the pool or the uplink's network
 * (our own link apart)?  -EADDRINUSE, code "configuration", naming both; 0: no.
 */
int uplink_clash(const struct uplink_conf *c, struct err *e);

/* uplink_has(transit, e): 1 if there is an uplink in the namespace, else 0. */
int uplink_has(int transit, struct err *e);

#endif
