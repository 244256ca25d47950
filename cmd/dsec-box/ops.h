/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_OPS_H
#define DSEC_BOX_OPS_H

#include "conn.h"

/* ops_take(a, req): do what ${req} says, by its "op"; the ask gets its answer
 * now or later. */
void ops_take(struct ask *a, json_t *req);

#endif
