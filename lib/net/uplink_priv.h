/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_UPLINK_PRIV_H
#define NET_UPLINK_PRIV_H

#include "net/uplink.h"

/* uplink_rules(c, e), uplink_no_rules(e): our table in the node's namespace,
 * made anew or gone.  uplink_has_rules(e): 1 or 0. */
int uplink_rules(const struct uplink_conf *c, struct err *e);
int uplink_no_rules(struct err *e);
int uplink_has_rules(struct err *e);

#endif
