/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_MEASURE_H
#define DSEC_BOX_MEASURE_H

#include "conn.h"

/*
 * What the sandbox's processes have in memory: the kernel walks all of their
 * address spaces for that, so a worker asks it.
 */

/*
 * measure_inspect(a, e): answer an inspect with those numbers, or after
 * MEASURE_MS without them.  1: the ask waits; -errno.
 */
#define MEASURE_MS 1000
int measure_inspect(struct ask *a, struct err *e);

/*
 * measure_abort(b): answer those who wait now; the worker is ended, but not
 * waited for: it may be in the kernel.
 */
void measure_abort(struct box *b);

#endif
