/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_AUDIT_PRIV_H
#define SERVE_AUDIT_PRIV_H

#include "serve/audit.h"

#define AUDIT_GENESIS                                                          \
	"0000000000000000000000000000000000000000000000000000000000000000"

/*
 * audit_line(text, len, seq, prev, ret_hash):
 * Is this, without its newline, line ${seq} after ${prev}?  (${seq} 0, ${prev}
 * NULL: any.)  NULL and its hash, or what is wrong, a literal.
 */
const char *audit_line(const char *text, size_t len, uint64_t *seq,
		       const char *prev, char *ret_hash);

/* audit_hash(prev, body, len, hex): of a line without its last member and
 * brace. */
void audit_hash(const char *prev, const char *body, size_t len, char *hex);

#endif
