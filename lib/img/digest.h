/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_DIGEST_H
#define IMG_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * SHA-256 digests as names.  Text from outside becomes 32 bytes before any path
 * is made of it.  This file needs no crypto library; sha256.h computes.
 */
#define DIGEST_LEN 32
#define DIGEST_HEX (2 * DIGEST_LEN)

struct digest {
	uint8_t b[DIGEST_LEN];
};

/* digest_parse(s, ret): 64 lower-case hex digits, "sha256:" before them or
 * not; 0 or -EINVAL. */
int digest_parse(const char *s, struct digest *ret);

/* digest_hex(d, hex): into hex[DIGEST_HEX + 1]; returns ${hex}. */
char *digest_hex(const struct digest *d, char *hex);

bool digest_eq(const struct digest *a, const struct digest *b);

#endif
