/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_NETPOL_PRIV_H
#define POLICY_NETPOL_PRIV_H

#include "policy/netpol.h"

struct netpol_rules {
	struct netpol_rule *v;
	size_t n, cap;
};

struct netpol {
	unsigned refs;
	bool default_allow;
	struct netpol_rules list[2]; /* by enum netpol_list */
	char **brokers;
	size_t nbrokers;
	struct netpol_limits limits;
	json_t *json;
	char hash[NETPOL_HASH + 1];
};

/* Sets of ports: sorted ranges that do not touch. */
struct ports {
	struct netpol_range *v;
	unsigned n, max;
};

/* ports_add(s, r), ports_sub(s, r): 0, or -E2BIG: it does not fit, and ${s} has
 * fewer ports than it should. */
int ports_add(struct ports *s, struct netpol_range r);
int ports_sub(struct ports *s, struct netpol_range r);
bool ports_has(const struct netpol_range *v, unsigned n, uint16_t port);
/* ports_within(in, nin, out, nout): is each port of ${in} in ${out}? */
bool ports_within(const struct netpol_range *in, unsigned nin,
		  const struct netpol_range *out, unsigned nout);
bool ports_all(const struct netpol_range *v, unsigned n);

/* rules_add(l, r, e): take ${r} over. */
int rules_add(struct netpol_rules *l, struct netpol_rule *r, struct err *e);
/* rules_canon(l, where, e): into the canonical form. */
int rules_canon(struct netpol_rules *l, const char *where, struct err *e);
void rules_done(struct netpol_rules *l);

/* netpol_seal(p, e): make json and hash. */
int netpol_seal(struct netpol *p, struct err *e);

#endif
