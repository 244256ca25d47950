/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_NODE_H
#define DSEC_SERVE_NODE_H

#include "net/chan.h"

/*
 * dsec-serve node is three processes.  The *starter* has the configuration,
 * the listening socket and nothing to do but to see that the others live, and
 * to exec itself anew for an upgrade.  The *keeper*, root and without network,
 * runs the programs and speaks to supervisors (node_keeper.h).  The *worker*
 * speaks to the network, and is nobody: a uid of its own, an empty root, few
 * system calls.  Each is an exec of the program; any of them may be killed.
 * Lines go over the sockets between them (net/chan.h):
 *
 * starter to keeper: {"op":"clients","clients":[..]}, {"op":"channel"} with the
 *   descriptor "channel", {"op":"reopen"}: the audit log, if it was moved away,
 *   {"op":"retire"}: end when there is nothing to do
 * starter to worker: {"op":"start","name","user","group","root","limits"} with
 *   "listen"; {"op":"tls","ca","cert","key","crl"}: texts; and as above.
 * worker to starter: {"event":"ready","address":..}, {"event":"alone"}: it has
 *   no way to a keeper any more
 */
#define ROLE_FD 3 /* of the other two: to the starter */

/* errand_repeats(req): may it be asked again when nobody knows whether it was
 * done?  (node_errand.c) */
bool errand_repeats(const json_t *req);

/* node_adopt(fd, e): the starter that another one execs, its state in ${fd}.
 * node_upgrade(dir, e): have the one that serves exec this program, if both
 * find
 * ${dir} fit for it. */
int node_adopt(int fd, struct err *e);
int node_upgrade(const char *dir, struct err *e);

#endif
