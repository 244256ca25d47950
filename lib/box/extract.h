/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_EXTRACT_H
#define BOX_EXTRACT_H

#include <stdint.h>

#include "wire/tar.h"

/*
 * A tar stream from a stranger, extracted beneath one directory:
 *
 * - No link is followed, neither one that was there nor one extracted before:
 *   every directory on the way is opened by itself, without following.
 *   Names with ".." are refused; a leading "/" is dropped, as tar does.
 * - Links are made as the data they are.  Hard links are made only to files
 *   extracted in the same run.
 * - Devices are refused; FIFOs unless asked for.  set-user-ID, set-group-ID
 *   and sticky bits are dropped unless asked for, and so is ownership:
 *   everything belongs to the caller.  Of the extended attributes those of
 *   user.* are set, of ACLs none.
 * - A file is written under a name of ours (".dsec-" and hexadecimal digits)
 *   and renamed when complete.  What is there already: a file or link is
 *   replaced, a directory is merged into and keeps its mode, and one kind in
 *   the way of another is refused.
 *
 * What is refused is told and counted, and the rest is extracted.
 */
enum extract_flags {
	EXTRACT_OWNER = 1 << 0, /* chown to the numbers of the archive */
	EXTRACT_SETID = 1 << 1, /* keep mode 07000 */
	EXTRACT_FIFOS = 1 << 2,
};

struct extract {
	int dirfd; /* beneath this */
	unsigned flags;
	const char *top; /* not NULL: only this name and what is below it */
	uint64_t max_entries, max_bytes; /* 0: any number */
	void (*refused)(void *arg, const char *path, const struct err *why);
	/* NULL, or called as data is written. */
	void (*progress)(void *arg, uint64_t bytes);
	void *arg;
};

struct extract_result {
	uint64_t entries, bytes, refused;
};

/*
 * extract_tree(x, r, ret, e):
 * Extract all of ${r}.  *${ret} is set also on failure: a damaged or cut
 * archive, a full disk, a limit ("too_large").  What was extracted before
 * that stays; no half file does.
 */
int extract_tree(const struct extract *x, struct tar_reader *r,
		 struct extract_result *ret, struct err *e);

/* extract_fd_source(arg, ...): a tar_source for the fd in *(int *)${arg}. */
ssize_t extract_fd_source(void *arg, void *data, size_t cap, struct err *e);

/* extract_temp_name(name): a new ".dsec-XXXXXXXXXXXXXXXX" into name[24]. */
#define EXTRACT_TEMP_SIZE 24
int extract_temp_name(char *name, struct err *e);

#endif
