/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stddef.h>

#include "base/cleanup.h"

/*
 * A byte string that grows.  All zero is an empty one; buf_done() frees it and
 * makes it empty again.  data is NUL-terminated whenever it is not NULL.
 * Running out of memory is -ENOMEM and leaves it as it was.
 */
struct buf {
	char *data;
	size_t len, cap;
};

#define auto_buf __attribute__((cleanup(buf_done)))

void buf_done(struct buf *b);
must_check int buf_reserve(struct buf *b, size_t more);
must_check int buf_add(struct buf *b, const void *data, size_t len);
must_check int buf_addf(struct buf *b, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* buf_drop(b, n): forget the first ${n} bytes. */
void buf_drop(struct buf *b, size_t n);

#endif
