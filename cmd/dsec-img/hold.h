/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_HOLD_H
#define DSEC_IMG_HOLD_H

#include "life/ctl.h"

/*
 * A sandbox that stands still while it is packed.  Its supervisor lets it run
 * again when we let go, whichever way we end; one that was paused before stays
 * so.
 */
struct hold {
	struct ctl *ctl;
	json_t *spec; /* its spec and state, owned */
};

#define auto_hold __attribute__((cleanup(hold_done)))

/* hold_take(t, sandbox, ret, e): codes as of ctl_open(). */
int hold_take(const struct tree *t, const char *sandbox, struct hold *ret,
	      struct err *e);

/* hold_check(h, e): "busy" if it ran meanwhile, "stopped" if it ended. */
int hold_check(struct hold *h, struct err *e);
void hold_done(struct hold *h);

#endif
