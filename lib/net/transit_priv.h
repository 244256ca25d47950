/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_TRANSIT_PRIV_H
#define NET_TRANSIT_PRIV_H

#include "net/transit.h"
#include "sys/rtnl.h"

#define TRANSIT_STABLE 0xc6120002u /* 198.18.0.2, host order */
#define TRANSIT_INNER  "eth0"

/* The sandboxes' links, to be removed together; those of the dead. */
#define TRANSIT_GROUP	    0x6473
#define TRANSIT_GROUP_STALE 0x6474

/* Worse than any route that leads somewhere. */
#define TRANSIT_METRIC_NONE 0x7fffffff

/* transit_bytes(address, ret): of host order, into network order. */
static inline void transit_bytes(uint32_t address, uint8_t *ret)
{
	for (int i = 0; i < 4; i++)
		ret[i] = (uint8_t)(address >> (24 - 8 * i));
}

#endif
