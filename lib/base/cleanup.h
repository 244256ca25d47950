/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CLEANUP_H
#define BASE_CLEANUP_H

#include <dirent.h>
#include <stdlib.h>

#include "base/fd.h"

/*
 * Scope-bound ownership.  Declare with auto_free, auto_close or auto_dir and
 * initialise on the same line (NULL, -1, NULL); hand over with steal_ptr() or
 * steal_fd().
 */
#define auto_free  __attribute__((cleanup(cleanup_free)))
#define auto_close __attribute__((cleanup(cleanup_close)))
#define auto_dir   __attribute__((cleanup(cleanup_dir)))

#define must_check __attribute__((warn_unused_result))

/* steal_ptr(p): the pointer in ${p}, which becomes NULL. */
#define steal_ptr(p)                                                           \
	({                                                                     \
		__typeof__(p) steal_ptr_ = (p);                                \
		(p) = NULL;                                                    \
		steal_ptr_;                                                    \
	})

static inline void cleanup_free(void *p)
{
	free(*(void **)p);
}

static inline void cleanup_close(const int *fd)
{
	if (*fd >= 0)
		fd_close(*fd);
}

static inline void cleanup_dir(DIR **dir)
{
	if (*dir)
		closedir(*dir);
}

/* steal_fd(fd): the descriptor in *${fd}, which becomes -1. */
static inline int steal_fd(int *fd)
{
	int r = *fd;

	*fd = -1;
	return r;
}

#define array_len(a) (sizeof(a) / sizeof((a)[0]))

#endif
