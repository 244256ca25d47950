/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_HOST_H
#define IMG_HOST_H

#include <stddef.h>

#include "base/err.h"

/*
 * host_root(lib, path, size, e):
 * The root of the image "host" into ${path}, made under ${lib}/img if it is not
 * there yet.  Its name carries the times of the host files it was made from, so
 * that a node whose packages changed gets a new one.
 */
int host_root(const char *lib, char *path, size_t size, struct err *e);

/*
 * host_etc(lib, path, size, e):
 * The directory that lies on top of every image of the store, made the same
 * way: etc/hosts, etc/hostname and etc/resolv.conf, which are the platform's to
 * say.  An image's own, files or links, are covered and never written.
 */
int host_etc(const char *lib, char *path, size_t size, struct err *e);

#endif
