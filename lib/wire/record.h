/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_RECORD_H
#define WIRE_RECORD_H

#include "wire/field.h"

/*
 * Requests in, records out.
 */

enum record_kind {
	RECORD_REQUEST, /* a request, checked against the program's fields */
	RECORD_PASS,	/* somebody's failure: pass it on, count it as one */
};

/*
 * record_take(text, len, line, fields, n, defaults, ret_kind, ret_req, e):
 * Read one line of input.  A line without "ok" is a request and strict.  A line
 * with "ok":true is a record of another program: it becomes a request for its
 * "sandbox" (and "id") whose other keys stand under "in".  "ok":false is
 * RECORD_PASS.  ${defaults} (flags, or NULL) fill fields the line does not
 * have.  Without "id", the line's number is the id.  On an error *${ret_req} is
 * still set (NULL only without memory), so that the id can be echoed.
 */
struct record_line {
	const char *text;
	size_t len;
	uint64_t line;
};
int record_take(const struct record_line *line, const struct field *fields,
		size_t n, json_t *defaults, enum record_kind *ret_kind,
		json_t **ret_req, struct err *e);

/*
 * record_to_request(rec, ret_req, e): a record with "ok":true of another
 * program as a request, as above.
 */
int record_to_request(json_t *rec, json_t **ret_req, struct err *e);

/* record_write(fd, rec, e): one line, one write; "stdout_lost" when it fails,
 * "too_large" when it is over JSON_LINE_MAX. */
int record_write(int fd, const json_t *rec, struct err *e);

/* record_lost(errnum, e): output did not get out: -EPIPE, "stdout_lost".  A
 * reader who has seen enough, as head does, is nothing to tell people of. */
int record_lost(int errnum, struct err *e);

/*
 * record_error(req, why): {"id":..,"sandbox":..,"ok":false,"error":{..}} with
 * the ids (and "in") of ${req} (may be NULL); NULL when out of memory.
 */
json_t *record_error(const json_t *req, const struct err *why);

/* record_ok(req): {"id":..,"sandbox":..,"ok":true}, "in" as well. */
json_t *record_ok(const json_t *req);

/*
 * record_to_err(rec, e): a failure record of a program of ours (tolerant) back
 * into ${e}; its -errno, or 0 if ${rec} has "ok":true.  The code is one of the
 * table, "internal" for words we do not know.
 */
int record_to_err(const json_t *rec, struct err *e);

#endif
