/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_NET_PRIV_H
#define BOX_NET_PRIV_H

#include "box/net.h"

#define NET_FILE	 "net.json" /* of sb/<id> in the run directory */
#define NET_LOCK	 "net.lock" /* beside it */
#define NET_POLICIES_MAX 64
#define NET_HAS		 (-2) /* instead of a socket: the helper has it */

/* net_lock_shared(t, id, ret_fd, e): net_lock() beside others that share it. */
int net_lock_shared(const struct tree *t, const char *id, int *ret_fd,
		    struct err *e);

#endif
