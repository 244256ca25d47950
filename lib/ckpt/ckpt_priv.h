/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_CKPT_PRIV_H
#define CKPT_CKPT_PRIV_H

#include "ckpt/ckpt.h"

/*
 * ckpt_sum(dirfd, path, ret, e): size, and a checksum of the content, in hex.
 * It finds damage, not malice.  Files of memory pages, which are large and read
 * once more by the engine anyway, have a size alone: "".
 */
struct ckpt_sum {
	uint64_t size;
	char sum[17];
};
int ckpt_sum(int dirfd, const char *path, struct ckpt_sum *ret, struct err *e);

/* ckpt_seal(obj, sum): the checksum of a manifest without its own; 0 or -errno.
 */
int ckpt_seal(const json_t *obj, char *sum, size_t size);

int ckpt_damaged(struct err *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
