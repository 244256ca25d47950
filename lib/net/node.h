/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_NODE_H
#define NET_NODE_H

#include "policy/netdeny.h"

/*
 * node_addrs(d, e):
 * The addresses that the node has at this moment become those that ${d} denies
 * as the node's.
 */
must_check int node_addrs(struct netdeny *d, struct err *e);

#endif
