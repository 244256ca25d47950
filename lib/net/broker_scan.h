/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_BROKER_SCAN_H
#define NET_BROKER_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

/*
 * Finds secrets in a stream of bytes, whatever pieces it comes in: as they are,
 * in base64 at any offset (of a credential "user:secret" too), in hexadecimal,
 * percent-encoded and as JSON writes them.
 */

#define SCAN_PATTERNS	96
#define SCAN_SECRET_MIN 8
#define SCAN_SECRET_MAX 1024
#define SCAN_HOLD_FROM	4 /* bytes of a beginning that are held back */

/*
 * Memory that is locked, in no core dump, and wiped when it is given back; all
 * of it at once.  What is derived from secrets lies in it.
 */
struct vault {
	uint8_t *mem;
	size_t size, used;
};

must_check int vault_init(struct vault *v, size_t size, struct err *e);
void vault_done(struct vault *v);

/* vault_lock(v, e): again, in a child, which does not inherit it. */
must_check int vault_lock(const struct vault *v, struct err *e);

/* vault_get(v, n): aligned for anything, zeros; NULL: it is full. */
void *vault_get(struct vault *v, size_t n);

struct scan_pattern {
	const uint8_t *text;
	const uint16_t *back; /* where to go on after a mismatch */
	uint16_t len;
};

struct scan {
	size_t n;
	struct scan_pattern p[SCAN_PATTERNS];
	bool first[256]; /* bytes that some pattern begins with */
};

/* scan_add(s, secret, len, v, e): look for ${secret} too. */
must_check int scan_add(struct scan *s, const void *secret, size_t len,
			struct vault *v, struct err *e);

/* Where a stream is; all zero at its beginning. */
struct scan_state {
	uint16_t at[SCAN_PATTERNS];
	bool any;
};

/*
 * scan_feed(s, st, data, len): the next bytes.  -1: a secret ends among them.
 * Else how many bytes at the end of all so far may be the beginning of one, and
 * should be held back until more has come; beginnings shorter than
 * SCAN_HOLD_FROM are not worth a delay and count as 0.  So the first bytes of
 * what is to be held may have been passed on already.
 */
int scan_feed(const struct scan *s, struct scan_state *st, const void *data,
	      size_t len);

#endif
