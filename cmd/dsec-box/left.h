/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_LEFT_H
#define DSEC_BOX_LEFT_H

#include "box.h"

/*
 * Pipes whose command has ended while processes it was to leave behind hold
 * them: what they print is thrown away, so that they neither wait nor die of
 * it.  A pipe goes with its last writer.
 */
struct left {
	struct box *box;
	struct left *next;
	int fd;
	char leaf[24]; /* removed with it, if it is empty then */
	struct loop_source src;
};

/* left_add(b, fd, leaf): ${fd} is taken over. */
void left_add(struct box *b, int *fd, const char *leaf);
void left_drop_all(struct box *b);

#endif
