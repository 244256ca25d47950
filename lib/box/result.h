/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_RESULT_H
#define BOX_RESULT_H

#include "box/tree.h"
#include "wire/json.h"

#define RESULT_INLINE_KB 64 /* of each stream, unless asked otherwise */

/*
 * result_add_output(t, id, rec, inline_kb, e):
 * ${rec} is a command's record as the supervisor wrote it: put the first
 * ${inline_kb} KiB of what is recorded of its streams in, as stdout and stderr
 * (or stdout_b64, stderr_b64), and set "truncated" where that is not all.
 */
int result_add_output(const struct tree *t, const char *id, json_t *rec,
		      unsigned inline_kb, struct err *e);

/*
 * result_of_helper(end, ret_status, e):
 * ${end} is the supervisor's last record of a file helper, which ended by
 * itself: 0, with its exit status; or it did not: "cancelled", "oom" or
 * "internal".
 */
int result_of_helper(const json_t *end, int *ret_status, struct err *e);

#endif
