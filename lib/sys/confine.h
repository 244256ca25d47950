/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CONFINE_H
#define SYS_CONFINE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * What a process of a daemon gives up for good: for those that read what
 * strangers send.
 *
 * confine_state(e):
 * No new privileges; not to be traced or dumped by others of the same uid,
 * which an exec does not keep.
 *
 * confine_caps(keep, e):
 * As root: no supplementary groups, of the capabilities (1U << CAP_..) ${keep}
 * alone, and no way to get others.  It may be called again for less.
 *
 * confine_user(uid, gid, e):
 * As root: become ${uid} with the group ${gid} and no other, without
 * capabilities and without a way to get any; then confine_state().
 *
 * confine_root(path, e):
 * The directory ${path} is all of the file system there is.
 *
 * confine_calls(calls, n, families, nfamilies, e):
 * Leave this process the system calls of those numbers, CONFINE_MAX at most,
 * and socket() of those address families, CONFINE_FAMILIES at most; all others
 * fail with ENOSYS.  The busiest first: they are compared one by one.
 * confine_state() comes first.  Nothing on architectures this was not written
 * for, and in sanitizer builds.
 *
 * confine_internet(e):
 * The same, with what a relay needs: it may use the descriptors it has, make
 * sockets of the internet and pipes, have memory and time.  It opens no file,
 * starts no program and reaches no other process.
 */
#define CONFINE_MAX	 128
#define CONFINE_FAMILIES 8
int confine_state(struct err *e);
int confine_caps(uint32_t keep, struct err *e);
int confine_user(uid_t uid, gid_t gid, struct err *e);
int confine_root(const char *path, struct err *e);
int confine_calls(const unsigned *calls, size_t n, const unsigned *families,
		  size_t nfamilies, struct err *e);
int confine_internet(struct err *e);

#endif
