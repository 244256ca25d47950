/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_REEXEC_H
#define DSEC_BOX_REEXEC_H

#include "box.h"

/*
 * The upgrade of a supervisor: it executes its program anew, in the same
 * process, with all that matters open and the rest written down.  Commands do
 * not notice, clients do not notice.
 */

/*
 * reexec_soon(b): as soon as no line and no input is half way through.  Where
 * the new program cannot be executed the old one goes on.
 */
void reexec_soon(struct box *b);

/* reexec_load(b, fd, e): in the new program: what save wrote to memfd ${fd}. */
int reexec_load(struct box *b, int fd, struct err *e);

#endif
