/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_ALLOW_H
#define BOX_ALLOW_H

#include "base/err.h"

/*
 * allow_mount(config, source, target, e):
 * May a sandbox have the host directory ${source}, at ${target}?  Yes when it
 * is, or lies below, a directory that ${config}/mounts.allow lists (a line
 * each, '#' for comments), and no link leads there.  "mount_denied" otherwise,
 * and when there is no such file.  Of what is not listed nothing is told, not
 * even whether it is there: who asks may be far away.  Errors name ${target}
 * alone, so that nothing in them is the node's.
 */
int allow_mount(const char *config, const char *source, const char *target,
		struct err *e);

#endif
