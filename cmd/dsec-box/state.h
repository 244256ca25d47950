/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_STATE_H
#define DSEC_BOX_STATE_H

#include "box.h"

/*
 * state.json is for those who look without asking.  It changes with every pause
 * and resume, so there are two files of one length that change names: nothing
 * is made, nothing is freed, and a reader finds the one or the other.
 *
 * state_write(b, rec):
 * Write ${rec}.  Where that fails the old one stays.
 *
 * state_close(b): what is open for it, until the next one.
 */
void state_write(struct box *b, const json_t *rec);
void state_close(struct box *b);

#endif
