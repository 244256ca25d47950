/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_EROFS_H
#define SYS_EROFS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

/*
 * erofs_mount(w, target, e):
 * Mount the EROFS image ${w}->meta with its devices, in the order of its device
 * table, on the directory ${target}: read-only, without devices and set-ID
 * programs.  The mount appears whole or not at all.  Straight from the files,
 * or, with ${w}->loop, from loop devices, which go when it is unmounted and
 * when this fails.  Reads by-pass the page cache of the files where that can
 * be. The image must have been verified: the kernel takes it at its word.
 *
 * -ENODEV: no EROFS in this kernel; -ENOTBLK: not from files, here or at all.
 */
struct erofs_want {
	int meta; /* descriptors of regular files, borrowed */
	const int *devices;
	size_t ndevices;
	bool loop;
};
int erofs_mount(const struct erofs_want *w, const char *target, struct err *e);

#endif
