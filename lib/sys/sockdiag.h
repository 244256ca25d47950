/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_SOCKDIAG_H
#define SYS_SOCKDIAG_H

#include <stddef.h>

#include "base/err.h"

/*
 * sockdiag_dump(sock, req, len, min, fn, arg):
 * Ask ${sock}, a netlink socket of NETLINK_SOCK_DIAG, for all that ${req} (a
 * family's request, of ${len} bytes) describes, and call ${fn} with the
 * family's message of each, which has at least ${min} bytes.  0, -errno (of the
 * kernel too, -EBADMSG for an answer that is none), or what ${fn} returned
 * below 0; then the socket is of no more use.
 */
typedef int sockdiag_fn(const void *msg, size_t len, void *arg);
int sockdiag_dump(int sock, const void *req, size_t len, size_t min,
		  sockdiag_fn *fn, void *arg);

/*
 * sockdiag_cut(netns, e):
 * Destroy every TCP connection and connected UDP socket in the network
 * namespace ${netns} (a descriptor) whose peer has no address of that
 * namespace: its user gets ECONNABORTED.  Connections between two sockets
 * inside and listeners stay; one that is established with a peer inside that
 * is not there (it was not restored) goes too.  Call it when its addresses are
 * set up and before it has a link to outside: the kernel says goodbye to each
 * peer, which may be talking with the process that was copied. Return how many
 * were cut, or -errno: -EOPNOTSUPP ("unsupported") where the kernel lacks
 * INET_DIAG_DESTROY.  The caller, who has no threads, is in that namespace for
 * a moment.
 */
int sockdiag_cut(int netns, struct err *e);

#endif
