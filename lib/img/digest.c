/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "img/digest.h"

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int digest_parse(const char *s, struct digest *ret)
{
	struct digest d;

	if (!strncmp(s, "sha256:", 7))
		s += 7;
	if (strlen(s) != DIGEST_HEX)
		return -EINVAL;
	for (size_t i = 0; i < DIGEST_LEN; i++) {
		int hi = hex_value(s[2 * i]), lo = hex_value(s[2 * i + 1]);

		if (hi < 0 || lo < 0)
			return -EINVAL;
		d.b[i] = (uint8_t)(hi << 4 | lo);
	}
	*ret = d;
	return 0;
}

char *digest_hex(const struct digest *d, char *hex)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < DIGEST_LEN; i++) {
		hex[2 * i] = digits[d->b[i] >> 4];
		hex[2 * i + 1] = digits[d->b[i] & 15];
	}
	hex[DIGEST_HEX] = '\0';
	return hex;
}

bool digest_eq(const struct digest *a, const struct digest *b)
{
	return !memcmp(a->b, b->b, DIGEST_LEN);
}
