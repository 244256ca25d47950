/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_EXEC_H
#define DSEC_EXEC_EXEC_H

#include "life/ctl.h"
#include "wire/field.h"

/*
 * What the parts of dsec-exec share.
 */

/* Every field of every operation, and every flag (fields.c). */
extern const struct field exec_fields[];
extern const size_t exec_fields_len;

/* Exit statuses of raw mode beside the command's own; those of a shell. */
enum { RAW_TIMEOUT = 124, RAW_NOT_EXECUTABLE = 126, RAW_NOT_FOUND = 127 };

/*
 * op_check(req, e):
 * ${req} passed field_check(): fill in "op", and hold it against what that
 * operation takes and needs.  "bad_value", "unknown_field", "missing_field".
 */
int op_check(json_t *req, struct err *e);

/* op_fit(req, defaults): take out of ${req} what it has only from
 * ${defaults} and its operation has no use for. */
void op_fit(json_t *req, json_t *defaults);

/* op_request(req, ret, e): the request for the supervisor: what is ours to do
 * (deadline_ms, inline_kb, in) is left out. */
int op_request(json_t *req, json_t **ret, struct err *e);

/*
 * A file operation.  file_run() is written straight ahead and may block: a
 * single one runs in the program itself, those of a stream each in a process
 * of its own, which a cancel or a deadline simply ends.
 */
struct file_call {
	const struct tree *tree;
	const json_t *req;    /* checked against the table */
	struct ctl *ctl;      /* connected to the sandbox */
	uint64_t deadline_ms; /* clock_ms(); 0: none */
	int events;	      /* record_write() events here, with the id */
	const char *key;      /* of an operation that must not be done twice */
	bool repeated;	      /* out: it was done before, and is not again */
};

/*
 * file_run(c, ret_rec, e): (files.c)
 * Do ${c}->req, whose op is one of the file operations, and make its final
 * record (record_ok(c->req) and more keys).  On failure ${e} is set and the
 * caller makes the record; with -EREMOTEIO and *${ret_rec} set, that record
 * (with "ok":false) is written instead.
 */
int file_run(struct file_call *c, json_t **ret_rec, struct err *e);

/* file_is_op(op): is it one of ours?  (files.c) */
bool file_is_op(const char *op);

/*
 * copy_main(tree, from, to, e): (copy.c)
 * dsec-exec --cp FROM TO, where one of them is SANDBOX:/PATH and the other a
 * path of the host or "-" (a tar stream on stdin or stdout).  Return the exit
 * status, or -errno with ${e} set.
 */
int copy_main(const struct tree *tree, const char *from, const char *to,
	      struct err *e);

/*
 * The sealed helper inside the sandbox (helper.c).
 *
 * file_helper_start(c, args, user, ret, e):
 * Ask the supervisor to start it with ${args} (an array of strings, a new
 * reference is taken) as ${user} (NULL: the sandbox's) and take its
 * descriptors: blocking pipes, the caller's.  -EALREADY when ${c}->key was used
 * before and that went well: ${c}->repeated is set, and nothing runs.
 *
 * helper_end(c, ret_status, e):
 * Wait for its end, after the caller closed or drained what it was given.  0
 * with its exit status, or a failure ("stopped", "deadline", a signal that
 * killed it as "internal").
 */
struct helper {
	int in, out, err;
};
int file_helper_start(struct file_call *c, json_t *args, const char *user,
		      struct helper *ret, struct err *e);
int helper_end(struct file_call *c, int *ret_status, struct err *e);

#endif
