/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_RECORDING_H
#define DSEC_EXEC_RECORDING_H

#include <stdint.h>

#include "box/tree.h"
#include "pump.h"

/*
 * What a supervisor recorded of a command's output: files of $DSEC_LIB, which
 * box/recorder.h describes.
 */

/*
 * recording_dir(tree, id, exec, e):
 * The directory of sandbox ${id}'s recordings; ${exec} is checked, so that the
 * names made of it stay inside.
 */
int recording_dir(const struct tree *tree, const char *id, const char *exec,
		  struct err *e);

struct recording {
	int dir;
	const char *exec;   /* checked */
	const char *stream; /* "stdout" or "stderr" */
};

/*
 * recording_pump(rec, total, p, ret_lost, e):
 * Make the first ${total} bytes of the stream sources of ${p}; how many of
 * them are not kept into *${ret_lost}.
 */
int recording_pump(const struct recording *rec, uint64_t total, struct pump *p,
		   uint64_t *ret_lost, struct err *e);

#endif
