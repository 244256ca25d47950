/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_SHA256_H
#define IMG_SHA256_H

#include "base/cleanup.h"
#include "base/err.h"
#include "img/digest.h"

/*
 * SHA-256 by libcrypto.  Only programs that make or check digests link it.  All
 * that can fail is getting the memory, which sha256_new() does: what follows
 * cannot.
 */
struct sha256;

/* sha256_new(): NULL out of memory.  sha256_free(NULL) is fine. */
struct sha256 *sha256_new(void);
void sha256_free(struct sha256 *h);

#define auto_sha256 __attribute__((cleanup(sha256_cleanup)))
static inline void sha256_cleanup(struct sha256 **h)
{
	sha256_free(*h);
}

/* sha256_add(h, data, len), sha256_end(h, ret): the digest of what was added;
 * afterwards ${h} is as new. */
void sha256_add(struct sha256 *h, const void *data, size_t len);
void sha256_end(struct sha256 *h, struct digest *ret);

/* sha256_of(data, len, ret): of one piece; 0 or -ENOMEM.  For many pieces keep
 * a struct sha256. */
must_check int sha256_of(const void *data, size_t len, struct digest *ret);

/* sha256_fd(fd, ret, e): of a file from its start to its end; its position
 * stays. */
int sha256_fd(int fd, struct digest *ret, struct err *e);

#endif
