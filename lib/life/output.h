/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_OUTPUT_H
#define LIFE_OUTPUT_H

#include <stdint.h>

#include "box/tree.h"
#include "wire/json.h"

/*
 * What a supervisor recorded of a command's output: files of $DSEC_LIB, which
 * box/recorder.h describes.
 */

/*
 * output_dir(tree, id, exec, e):
 * The directory of sandbox ${id}'s recordings; ${exec} is checked, so that the
 * names made of it stay inside.
 */
int output_dir(const struct tree *tree, const char *id, const char *exec,
	       struct err *e);

struct output_stream {
	int dir;
	const char *exec;   /* checked */
	const char *stream; /* "stdout" or "stderr" */
};

/*
 * output_parts(s, from, total, ret, e):
 * The bytes ${from} to ${total} of the stream as parts of files, in order, and
 * how many between are not kept.  The descriptors are the caller's.
 */
struct output_part {
	int fd;
	uint64_t at, len; /* of the file */
};
struct output_parts {
	struct output_part part[3];
	unsigned n;
	uint64_t lost;
};
int output_parts(const struct output_stream *s, uint64_t from, uint64_t total,
		 struct output_parts *ret, struct err *e);
void output_parts_done(struct output_parts *p);

/*
 * output_add(tree, id, req, rec, e):
 * Put the first "inline_kb" of what the command of record ${rec} wrote into it:
 * "stdout" and "stderr" as text, or "_b64" where they are none, cut between
 * characters; "truncated" where that is not all.
 */
int output_add(const struct tree *tree, const char *id, const json_t *req,
	       json_t *rec, struct err *e);

/*
 * output_read(tree, id, req, rec, e):
 * The answer of the operation "output" into ${rec}, which has the "execs" that
 * the supervisor knows (they are taken out).
 */
int output_read(const struct tree *tree, const char *id, const json_t *req,
		json_t *rec, struct err *e);

#endif
