/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CONFINE_H
#define SYS_CONFINE_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * What a process of a daemon gives up for good.
 *
 * confine_state(e): no new privileges by exec, no traces.  An exec does not
 * keep the latter.
 * confine_ids(uid, gid, e): become ${uid}, without other groups and without
 * any capability, and confine_state().
 * confine_root(path, e): the directory ${path} is all of the file system there
 * is.
 */
int confine_state(struct err *e);
int confine_ids(uid_t uid, gid_t gid, struct err *e);
int confine_root(const char *path, struct err *e);

/*
 * confine_calls(calls, n, families, nfamilies, e):
 * Leave this process the system calls of those numbers, and socket() of those
 * address families; all others fail with ENOSYS.  The busiest first: they are
 * compared one by one.  CONFINE_MAX calls at most.
 */
#define CONFINE_MAX 128
int confine_calls(const unsigned *calls, size_t n, const unsigned *families,
		  size_t nfamilies, struct err *e);

#endif
