/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/types.h>

#include <sha2.h>

#include "base/hash.h"

void hash_sha256(const void *data, size_t len, char *hex)
{
	static const char digits[] = "0123456789abcdef";
	uint8_t out[SHA256_DIGEST_LENGTH];
	SHA2_CTX ctx;

	SHA256Init(&ctx);
	SHA256Update(&ctx, data, len);
	SHA256Final(out, &ctx);
	for (size_t i = 0; i < sizeof(out); i++) {
		hex[2 * i] = digits[out[i] >> 4];
		hex[2 * i + 1] = digits[out[i] & 15];
	}
	hex[2 * sizeof(out)] = '\0';
}

uint64_t hash_fnv_more(uint64_t h, const void *data, size_t len)
{
	const unsigned char *p = data;

	for (size_t i = 0; i < len; i++)
		h = (h ^ p[i]) * 1099511628211u;
	return h;
}

uint64_t hash_fnv(const void *data, size_t len)
{
	return hash_fnv_more(14695981039346656037u, data, len);
}
