/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_OPS_H
#define DSEC_BOX_OPS_H

#include "conn.h"

/* ops_take(a, req): do what ${req} says, by its "op"; the ask gets its answer
 * now or later.  Again is fine for one that was parked. */
void ops_take(struct ask *a, json_t *req);

/* ops_deadline(a, at_ms): give up then (clock_ms(); 0: never). */
void ops_deadline(struct ask *a, uint64_t at_ms);

#endif
