/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_REPEAT_H
#define DSEC_BOX_REPEAT_H

#include "conn.h"

/*
 * Requests that must not be done twice: those with a "key", and commands with a
 * "step".  Their records are kept in keys.jsonl and steps.jsonl.
 */

/* repeat_hash(req): what a request asks for, its id and the like apart. */
uint64_t repeat_hash(const json_t *req);

/*
 * repeat_check(a, req, e): 1: it was done, or is being done, and the ask is
 * taken care of; 0: it is new; "key_conflict" when its key stands for another.
 */
int repeat_check(struct ask *a, const json_t *req, struct err *e);

/*
 * repeat_keep(b, step, key, hash, rec, e): keep the record of a step (-1: none)
 * and of a key (NULL: none), durably.
 */
int repeat_keep(struct box *b, int64_t step, const char *key, uint64_t hash,
		const json_t *rec, struct err *e);

#endif
