/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_SOCKDIAG_H
#define SYS_SOCKDIAG_H

#include "base/err.h"

/*
 * sockdiag_cut(netns, e):
 * Destroy every TCP connection in the network namespace ${netns} (a
 * descriptor) whose peer is not in that namespace: its user gets ECONNABORTED.
 * Those between two sockets of the namespace (loopback) and listeners stay.
 * Return how many were cut, or -errno: -EOPNOTSUPP ("unsupported") where the
 * kernel lacks INET_DIAG_DESTROY.  Runs in a child; the caller stays where it
 * is.
 */
int sockdiag_cut(int netns, struct err *e);

#endif
