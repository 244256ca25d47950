/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_RECOVER_CHILD_H
#define LIFE_RECOVER_CHILD_H

#include "base/cleanup.h"
#include "base/loop.h"
#include "box/tree.h"

/*
 * recover() (life/recover.h) beside a loop that has others to serve: in a
 * process of its own, which goes on if this one ends.
 */
struct recovery;

/* ${why} NULL: it answers now.  The recovery is gone when this is called. */
typedef void recovery_fn(void *arg, const struct err *why);

/*
 * recovery_new(l, t, id, fn, arg, ret, e):
 * Begin for the sandbox ${id}; ${fn} comes from the loop, later.  -EBUSY,
 * "busy": somebody is at it.
 * recovery_free(r): nobody waits for it any more; it goes on.
 */
must_check int recovery_new(struct loop *l, const struct tree *t,
			    const char *id, recovery_fn *fn, void *arg,
			    struct recovery **ret, struct err *e);
void recovery_free(struct recovery *r);

#endif
