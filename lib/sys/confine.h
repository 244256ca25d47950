/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CONFINE_H
#define SYS_CONFINE_H

#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * For processes that read what strangers send: the helper's worker, that of the
 * credential broker.
 *
 * confine_state(e):
 * No new privileges; not to be traced or dumped by others of the same uid,
 * which an exec does not keep.
 *
 * confine_caps(keep, e):
 * As root: no supplementary groups, of the capabilities (1U << CAP_..) ${keep}
 * alone, and no way to get others.  It may be called again for less.
 *
 * confine_user(uid, e):
 * As root: become ${uid}, its group and no other, without capabilities and
 * without a way to get any; then confine_state().
 *
 * confine_calls(e):
 * From here on this process may use the descriptors it has, make sockets of the
 * internet and pipes, have memory and time.  It opens no file, starts no
 * program and reaches no other process; what is not in the list fails with
 * ENOSYS.  confine_state() comes first.  Nothing on architectures
 * the list was not written for, and in sanitizer builds.
 */
int confine_state(struct err *e);
int confine_caps(uint32_t keep, struct err *e);
int confine_user(uid_t uid, struct err *e);
int confine_calls(struct err *e);

#endif
