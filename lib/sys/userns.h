/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_USERNS_H
#define SYS_USERNS_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"

/* Ids 0 to 65535 of a sandbox are base to base + 65535 of the host. */
#define USERNS_IDS 65536

/*
 * userns_new(base, nested, stack, stack_size, e):
 * A user namespace that maps the range at ${base}, as a close-on-exec
 * descriptor.  It is owned by uid ${base}, so that the kernel's per-user limits
 * (inotify, namespaces) are charged to the sandbox's own range.  Unless
 * ${nested}, no user namespace can be made inside it.  ${stack} is scratch for
 * the short-lived child that makes it.
 */
int userns_new(uid_t base, bool nested, void *stack, size_t stack_size,
	       struct err *e);

#endif
