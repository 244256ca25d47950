/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_NEAR_H
#define BASE_NEAR_H

#include <stddef.h>

/*
 * What somebody may have meant by a word that is none: begin with {.word = W},
 * call near_try() with each word that is one (NULL is skipped); best is the
 * nearest then (borrowed), or NULL where none is near.
 */
struct near {
	const char *word, *best;
	size_t letters; /* that best differs by */
};

void near_try(struct near *n, const char *name);

#endif
