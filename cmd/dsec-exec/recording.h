/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_RECORDING_H
#define DSEC_EXEC_RECORDING_H

#include "life/output.h"
#include "pump.h"

/*
 * recording_pump(rec, total, p, ret_lost, e):
 * Make the first ${total} bytes of the stream sources of ${p}; how many of
 * them are not kept into *${ret_lost}.
 */
int recording_pump(const struct output_stream *rec, uint64_t total,
		   struct pump *p, uint64_t *ret_lost, struct err *e);

#endif
