/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_LISTING_H
#define LIFE_LISTING_H

#include "wire/json.h"

/* listing_line(rec, ret): a sandbox's record as a line for people, without its
 * newline; ${rec} NULL: the heading. */
#define LISTING_MAX 1024
void listing_line(const json_t *rec, char ret[LISTING_MAX]);

#endif
