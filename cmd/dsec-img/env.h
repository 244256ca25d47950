/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_ENV_H
#define DSEC_IMG_ENV_H

#include "img/diff.h"
#include "item.h"

/* Layers that are to be one environment, lowest first. */
struct stack {
	struct stack_layer {
		struct digest digest;
		struct layer layer;
		struct diff_side side; /* while conflicts are looked for */
		char *name;	       /* of the store, or its digest */
	} at[ENV_LAYERS_MAX];
	size_t n;
	json_t *config; /* joined */
};
void stack_done(struct stack *st);
#define auto_stack __attribute__((cleanup(stack_done)))

struct stack_conflicts {
	uint64_t different, same;
};

/*
 * stack_conflicts(c, s, st, ret, e):
 * An event "conflict" for every path that several layers have, directories in
 * all of them apart: "file", "type" (a directory in one, none in another),
 * "whiteout" or "opaque" (the upper one hides what is below).  Those that are
 * the same in all are only counted.
 */
int stack_conflicts(struct img_ctx *c, const struct store *s, struct stack *st,
		    struct stack_conflicts *ret, struct err *e);

#endif
