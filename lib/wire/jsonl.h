/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_JSONL_H
#define WIRE_JSONL_H

#include "base/buf.h"
#include "wire/json.h"

/*
 * Lines from a descriptor, as they come.  All zero but fd is a fresh reader.
 */
struct jsonl {
	int fd;
	struct buf buf;
	size_t used; /* of buf, by the lines returned so far */
	bool eof;
	bool skipping; /* the rest of a line that was too long */
	uint64_t line; /* number of the line last returned, from 1 */
};

void jsonl_done(struct jsonl *j);

/*
 * jsonl_next(j, ret_text, ret_len, e):
 * The next line that is not blank, without its newline; it is valid until the
 * next call and the byte after it is NUL.  1: a line; 0: end of input; -EAGAIN:
 * none yet (only on a non-blocking fd); -EMSGSIZE (code "too_large"): a line
 * over JSON_LINE_MAX, which is skipped: call again; another -errno is final.
 */
int jsonl_next(struct jsonl *j, char **ret_text, size_t *ret_len,
	       struct err *e);

/* jsonl_feed(j, data, len): bytes that somebody else read; 0 or -ENOMEM.  A
 * reader that is fed has fd -1 and answers -EAGAIN where it would read. */
int jsonl_feed(struct jsonl *j, const void *data, size_t len);

#endif
