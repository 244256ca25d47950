/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_SHA256_H
#define IMG_SHA256_H

#include "base/err.h"
#include "img/digest.h"

/* SHA-256 by libcrypto.  Only programs that make or check digests link it. */
struct sha256;

/* sha256_new(): NULL out of memory.  sha256_free(NULL) is fine. */
struct sha256 *sha256_new(void);
void sha256_free(struct sha256 *h);

/* sha256_add(h, data, len), sha256_end(h, ret): the digest of what was added;
 * afterwards ${h} is as new. */
void sha256_add(struct sha256 *h, const void *data, size_t len);
void sha256_end(struct sha256 *h, struct digest *ret);

/* sha256_of(data, len, ret): of one piece. */
void sha256_of(const void *data, size_t len, struct digest *ret);

/* sha256_fd(fd, ret, e): of a file from its start to its end. */
int sha256_fd(int fd, struct digest *ret, struct err *e);

#endif
