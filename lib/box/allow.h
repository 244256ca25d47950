/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_ALLOW_H
#define BOX_ALLOW_H

#include "base/err.h"

/*
 * allow_mount(config, source, e):
 * May a sandbox have the host directory ${source}?  Yes when it is, or lies
 * below, a directory that ${config}/mounts.allow lists (a line each, '#' for
 * comments), after links are resolved.  "mount_denied" otherwise, and when
 * there is no such file.
 */
int allow_mount(const char *config, const char *source, struct err *e);

#endif
