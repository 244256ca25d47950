/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_NETNS_H
#define SYS_NETNS_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * Network namespaces: a socket belongs for ever to the one its maker was in, so
 * that programs enter one for a moment, make what they need and go back.  For
 * callers without threads and with CAP_SYS_ADMIN over both namespaces.
 */

/*
 * netns_of(pid, e), netns_at(path, e):
 * The namespace of a process, or the one that is mounted at ${path}, as a
 * close-on-exec descriptor.  Nothing there, or something else: -ENOENT.
 */
int netns_of(pid_t pid, struct err *e);
int netns_at(const char *path, struct err *e);

/*
 * netns_enter(netns, ret_back, e), netns_leave(back):
 * Move into ${netns}; *${ret_back} is what leads back.  netns_leave(&back)
 * closes it; that it fails is a bug or a kernel that broke its word, and
 * aborts, because all that follows would happen in the wrong place.  It is fine
 * on -1.
 */
int netns_enter(int netns, int *ret_back, struct err *e);
void netns_leave(int *back);

#define auto_netns __attribute__((cleanup(netns_leave)))

/* netns_socket(netns, domain, type, protocol, e): socket(), made inside. */
int netns_socket(int netns, int domain, int type, int protocol, struct err *e);

/*
 * netns_bind(netns, type, addr, port, e):
 * An IPv4 socket of ${type} (SOCK_STREAM: listening; SOCK_DGRAM), non-blocking,
 * bound to ${addr} (network order) and ${port}.
 */
int netns_bind(int netns, int type, uint32_t addr, unsigned port,
	       struct err *e);

/* netns_cookie(sock): the kernel's number, never used again, of the namespace
 * that a socket is of; 0: unknown. */
uint64_t netns_cookie(int sock);

/* netns_sysctl(netns, name, value, e): write /proc/sys/net/${name} of it. */
int netns_sysctl(int netns, const char *name, const char *value, struct err *e);

#endif
