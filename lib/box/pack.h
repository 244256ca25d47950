/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_PACK_H
#define BOX_PACK_H

#include <stdint.h>

#include "wire/tar.h"

/*
 * A file or a tree as a tar stream: holes stay holes, second names of a file
 * are hard links, links are kept as links, user.* attributes and nanoseconds
 * are kept.  Memory grows with the number of entries that have several names,
 * not with what they hold.
 */
struct pack {
	int dirfd;
	const char *path; /* the last component is not followed */
	const char *name; /* what the root is called in the archive; "." makes
			     its content the archive's */
	uint64_t max_entries; /* 0: any number */
	/* An entry that could not be packed; the rest still is. */
	void (*left_out)(void *arg, const char *path, const struct err *why);
	void *arg;
};

struct pack_result {
	uint64_t entries, bytes, left_out;
};

/*
 * pack_tree(p, w, ret, e):
 * Write the tree and the end of the archive to ${w}.  A root that is missing
 * or unreadable is an error; what vanishes or cannot be read below it is left
 * out and told.  A file that shrinks while it is read is filled with zeros.
 */
int pack_tree(const struct pack *p, struct tar_writer *w,
	      struct pack_result *ret, struct err *e);

/* pack_fd_sink(arg, ...): a tar_sink for the descriptor in *(int *)${arg}. */
int pack_fd_sink(void *arg, const void *data, size_t len, struct err *e);

#endif
