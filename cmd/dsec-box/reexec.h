/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_REEXEC_H
#define DSEC_BOX_REEXEC_H

#include "box.h"

/*
 * What a supervisor knows, written down, for the program that is executed in
 * its place: its own next release, or dsec-ckpt, which brings the processes of
 * a sandbox back and then executes it again.  All that matters stays open, each
 * descriptor under its number; commands do not notice, clients do not notice.
 *
 * A copy of it lies in a checkpoint.  It knows no clients: what they waited for
 * or were attached to is not in it.
 */

/*
 * reexec_soon(b): as soon as nothing is half way through.  Where the new
 * program cannot be executed the old one goes on.
 */
void reexec_soon(struct box *b);

/* reexec_restore(b, e): become dsec-ckpt restore, which becomes us.  Returns
 * only when that fails. */
int reexec_restore(struct box *b, struct err *e);

/*
 * reexec_copy(b, level, ret, e): for a checkpoint of a sandbox that is frozen.
 * Who starts from it is running, or (BOX_DISK) waits to be resumed.
 */
int reexec_copy(struct box *b, enum box_level level, json_t **ret,
		struct err *e);

/*
 * In the new program.  reexec_read(b, fd, ret, e): what was written to ${fd},
 * which is closed; before anything else is opened, for numbers are taken here.
 * reexec_load(b, j, e): make all of it again.
 */
int reexec_read(struct box *b, int fd, json_t **ret, struct err *e);
int reexec_load(struct box *b, const json_t *j, struct err *e);

#endif
