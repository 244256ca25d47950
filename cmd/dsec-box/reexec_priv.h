/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_REEXEC_PRIV_H
#define DSEC_BOX_REEXEC_PRIV_H

#include "box.h"

/* Of what one program writes down and the next one reads.  Releases that wrote
 * REEXEC_OLDEST knew neither levels nor checkpoints. */
#define REEXEC_VERSION 2
#define REEXEC_OLDEST  1

/*
 * reexec_save(b, copy, e): written down; ${copy}: without clients and what is
 * theirs.  NULL: ${e} has why.
 */
json_t *reexec_save(struct box *b, bool copy, struct err *e);

/* reexec_save_asks(list): those that wait in ${list}; reexec_load_asks(b, j,
 * list): into it again, as far as their connections are there. */
json_t *reexec_save_asks(const struct ask *list);
void reexec_load_asks(struct box *b, const json_t *j, struct ask **list);

#endif
