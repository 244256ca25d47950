/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_USES_H
#define LIFE_USES_H

#include "box/tree.h"
#include "img/digest.h"

/*
 * uses_layers(t, fn, arg, e):
 * Whatever on this node needs layers of the store: sandboxes, by their claims
 * or, where they are paused to disk and nobody holds them, by their specs; and
 * snapshots.  ${type} is "sandbox" or "snapshot", ${name} "" where there is
 * none, ${layers} lowest first.  Ends early with what ${fn} returned if that is
 * not 0.  Of whom the library is closed to, the claims alone are told: for the
 * rest leases must do.  Whoever acts on the answer calls it under claim_hold():
 * a snapshot is complete before its source's claim ends, and held until the
 * claims of what is made from it have begun.
 */
typedef int uses_fn(void *arg, const char *type, const char *id,
		    const char *name, const struct digest *layers, size_t n,
		    struct err *e);
int uses_layers(const struct tree *t, uses_fn *fn, void *arg, struct err *e);

#endif
