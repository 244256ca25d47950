/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_IDENTITY_H
#define BOX_IDENTITY_H

#include "box/restore.h"

/*
 * What a copy of a sandbox must not share with its source, and how it is told
 * that it is one.  All of it happens while the commands are frozen.
 */
struct identity {
	const struct restore *rs;
	pid_t init; /* its pid 1, on the node */
	bool merge; /* it was restored with memory to be merged */
};

/*
 * identity_merge(t, ret, e): may KSM merge memory of this node's sandboxes?
 * $DSEC_CONFIG/node.json says {"single_tenant":true}: it merges across all that
 * let it, and who shares can be measured.
 */
int identity_merge(const struct tree *t, bool *ret, struct err *e);

/*
 * identity_take(i, ret_rec, e): a new identity where a fork asks for one, and
 * the record of restore_run() about it.  What cannot be reset is said there
 * and is no failure.
 */
int identity_take(const struct identity *i, json_t **ret_rec, struct err *e);

#endif
