/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_CONF_H
#define NET_CONF_H

#include "net/resolver.h"
#include "policy/netdeny.h"

/*
 * $DSEC_CONFIG/net.json, checked: unknown keys, bad addresses and host bits are
 * errors ("configuration") that name the place.  An absent file is all
 * defaults.
 *
 *   {"dns":["192.0.2.53","[2001:db8::53]:5353"],  the node's resolv.conf
 *    "pool":"100.96.0.0/16",
 *    "uplink":{"address":"100.127.255.0/30","masquerade":true},
 *    "exceptions":[{"cidr","ports","proto"}],
 *    "cluster":["192.0.2.0/24"],
 *    "mirrors":{"pypi":[{"domain","ports"}]},     see net/services.h
 *    "limits":{..},                               what policies leave out
 *    "open_files":1048576}                        of the helper's processes
 */
struct netconf {
	struct resolver_conf dns; /* the servers */
	struct netcidr pool;	  /* v4 */
	struct netcidr uplink; /* v4; the first address the node's, the second
				  the transit's */
	bool masquerade;
	struct netpol_limits limits;
	unsigned open_files;
	json_t *file; /* as read; {} where there is none */
};

/* netconf_load(config, c, e): ${config} is the directory ($DSEC_CONFIG). */
int netconf_load(const char *config, struct netconf *c, struct err *e);
/* netconf_of(file, c, e): the same of what the file holds (borrowed). */
int netconf_of(json_t *file, struct netconf *c, struct err *e);
void netconf_done(struct netconf *c);

#define auto_netconf __attribute__((cleanup(netconf_done)))

/* netconf_deny(c, ret, e): the always-denied ranges with cluster, pool, uplink
 * and exceptions of ${c}; the node's addresses are the caller's to set. */
int netconf_deny(const struct netconf *c, struct netdeny **ret, struct err *e);

#endif
