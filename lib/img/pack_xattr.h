/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_PACK_XATTR_H
#define IMG_PACK_XATTR_H

#include "base/buf.h"
#include "img/fstree.h"

/*
 * The attributes of a file in an upper, as a layer has them: what pack_upper.h
 * says of them.  Ids in them are those inside, 0..PACK_ID_MAX.
 */
#define PACK_ID_MAX 65535U

struct pack_xattr {
	uint32_t uid_base; /* host uid of the sandbox's root */
	uint64_t bytes;	   /* of all so far */
	char *names, *value;
};

int pack_xattr_init(struct pack_xattr *x);
void pack_xattr_done(struct pack_xattr *x);

/* pack_xattr_apply(x, fd, t, n, e): those of ${fd}, O_PATH too, onto ${n}. */
int pack_xattr_apply(struct pack_xattr *x, int fd, struct fstree *t,
		     struct fsnode *n, struct err *e);

/* pack_xattr_whiteout(fd): 1: overlay means this file as a whiteout. */
int pack_xattr_whiteout(int fd);

#endif
