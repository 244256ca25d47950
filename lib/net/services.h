/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_SERVICES_H
#define NET_SERVICES_H

#include "net/conf.h"

/*
 * The semantic names of network rules.  NAME is NAME.json in $DSEC_CONFIG/net.d
 * or, where the operator has none, in share/dsec/net beside the program
 * ($DSEC_SHARE/net where that is set):
 *
 *   {"v":1,"name":"example","version":"2026-11-30",
 *    "rules":[{"domain":"*.example.org","ports":[443]},..]}
 *
 * Entries are domains or CIDRs as in rules.  A mirror of net.json stands in
 * their place where the name is true; where it is false, both are denied,
 * whole. Files are read when their name is first asked for.
 */
struct services;

/* services_open(config, conf, ret, e): both borrowed for its life. */
int services_open(const char *config, const struct netconf *conf,
		  struct services **ret, struct err *e);
void services_free(struct services *s);

#define auto_services __attribute__((cleanup(services_cleanup)))
static inline void services_cleanup(struct services **s)
{
	services_free(*s);
}

/* services_env(s): for netpol_compile(); valid as long as ${s}. */
struct netpol_env services_env(struct services *s);

/*
 * services_about(s, name, ret, e): {"name","version","from":"built-in"|
 * "operator","path","mirror":bool} of one; -ENOENT.
 * services_names(s, ret, e): a sorted list of all names there are.
 */
int services_about(struct services *s, const char *name, json_t **ret,
		   struct err *e);
int services_names(struct services *s, json_t **ret, struct err *e);

#endif
