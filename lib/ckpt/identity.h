/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_IDENTITY_H
#define CKPT_IDENTITY_H

#include "ckpt/restore.h"

/*
 * What a copy of a sandbox must not share with its source, and how it is told
 * that it is one.  All of it happens while the commands are frozen.
 */
struct identity {
	const struct restore *rs;
	pid_t init;	/* its pid 1, on the node */
	int init_pidfd; /* borrowed, as are both ends of pid 1's pipe */
	int report[2];
	bool merge; /* it was restored with memory to be merged */

	json_t *reset, *not_reset, *warnings; /* of identity_take() */
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
int identity_take(struct identity *i, json_t **ret_rec, struct err *e);

/* identity_warn(i, fmt, ...): one more of its warnings. */
void identity_warn(struct identity *i, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * identity_hooks(i, e): run the image's /etc/dsec/fork.d, each program after
 * the other in the order of names: as root inside, confined as every command,
 * with DSEC_FORK=1 in its environment and 32 random bytes as its input.  One
 * that fails or takes too long is a warning.
 */
#define IDENTITY_HOOKS_MS 10000
int identity_hooks(struct identity *i, struct err *e);

#endif
