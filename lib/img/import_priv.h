/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_IMPORT_PRIV_H
#define IMG_IMPORT_PRIV_H

#include "img/import.h"

/* The data of a file on its way into chunks. */
struct filling {
	struct import *x;
	char *chunk; /* of FS_CHUNK bytes */
	struct fsnode *node;
	uint64_t base; /* where in the file this chunk begins */
	size_t have;   /* bytes of it that are there */
	uint64_t holes;
};

/* filling_init(f, x, e), filling_done(f): for any number of files. */
int filling_init(struct filling *f, struct import *x, struct err *e);
void filling_done(struct filling *f);

/* filling_start(f, node): ${node} has its size and no chunks. */
void filling_start(struct filling *f, struct fsnode *node);

/* filling_add(f, off, data, len, e): offsets only grow; what is left out reads
 * as zeros.  filling_end(f, e): the rest is zeros. */
int filling_add(struct filling *f, uint64_t off, const void *data, size_t len,
		struct err *e);
int filling_end(struct filling *f, struct err *e);

/* Set an attribute of a stranger's, or drop it. */
int import_xattr(struct import *x, struct fsnode *n, const char *name,
		 const void *value, size_t len, struct err *e);

/* import_nodes(x, e): may there be one more node?  import_room(): or entry? */
int import_nodes(const struct import *x, struct err *e);
int import_room(const struct import *x, struct err *e);

/* import_text(x, len, e): so much of IMPORT_TEXT_MAX is used. */
int import_text(struct import *x, size_t len, struct err *e);

/* import_name(path, buf): ${path} for a message, into buf[IMPORT_NAME_SIZE]. */
#define IMPORT_NAME_SIZE 256
char *import_name(const char *path, char *buf);

#endif
