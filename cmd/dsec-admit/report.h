/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_ADMIT_REPORT_H
#define DSEC_ADMIT_REPORT_H

#include "box/tree.h"
#include "policy/admit.h"
#include "wire/json.h"

/*
 * What of claims was read before: a claim's task, project, user and backend do
 * not change, so each is read once; of many sandboxes the states are looked at
 * anew in turns, some with each report.  All zero is an empty one.
 */
struct report_cache {
	json_t *seen;	 /* by id */
	unsigned turn;	 /* whose states are looked at anew */
	uint64_t cpu[2]; /* ticks used and in all when last asked */
};

void report_done(struct report_cache *c);

/* report_make(t, c, rec, e): the node's report (PROTOCOL.md, section 12) into
 * the record ${rec}. */
int report_make(const struct tree *t, struct report_cache *c, json_t *rec,
		struct err *e);

/* report_amounts(rec, key, a, e): amounts as an object of ${rec}. */
int report_amounts(json_t *rec, const char *key, const struct admit_amounts *a,
		   struct err *e);

#endif
