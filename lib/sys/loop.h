/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_LOOP_H
#define SYS_LOOP_H

#include "base/err.h"

#define LOOP_PATH_MAX 32

/*
 * loop_attach(file_fd, path, e):
 * A loop device, read-only, over ${file_fd}; its name into path[LOOP_PATH_MAX].
 * Returns a descriptor of the device, close-on-exec: the device is gone when
 * the last user is, so it lives until the caller closes it and, if it was
 * mounted meanwhile, until that is unmounted.  Reads by-pass the page cache of
 * the file where that can be.  Others that take the same free device first are
 * no error.
 */
int loop_attach(int file_fd, char *path, struct err *e);

#endif
