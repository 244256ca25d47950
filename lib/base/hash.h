/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/*
 * hash_sha256(data, len, hex):
 * The SHA-256 of a short text as 64 hex digits into hex[HASH_SHA256_HEX + 1].
 * By libmd, which static programs can link without the weight of a TLS library;
 * digests of whole images are img/sha256.h's, which is faster.
 */
#define HASH_SHA256_HEX 64
void hash_sha256(const void *data, size_t len, char *hex);

/*
 * hash_fnv(data, len): FNV-1a of 64 bits, for tables and torn files: fast, and
 * no obstacle to an enemy who chooses ${data}.
 * hash_fnv_more(h, data, len): goes on from the hash ${h} of what was before.
 */
uint64_t hash_fnv(const void *data, size_t len);
uint64_t hash_fnv_more(uint64_t h, const void *data, size_t len);

#endif
