/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_RESULT_H
#define DSEC_EXEC_RESULT_H

#include "exec.h"

/*
 * result_add_output(tree, id, req, rec, e):
 * Put the first "inline_kb" of what the command of record ${rec} wrote into it:
 * "stdout" and "stderr" as text, or "_b64" where they are none, cut between
 * characters; "truncated" where that is not all.
 */
int result_add_output(const struct tree *tree, const char *id,
		      const json_t *req, json_t *rec, struct err *e);

/*
 * result_output(tree, id, req, rec, e):
 * The answer of the operation "output" into ${rec}, which has the "execs" that
 * the supervisor knows (they are taken out).
 */
int result_output(const struct tree *tree, const char *id, const json_t *req,
		  json_t *rec, struct err *e);

#endif
