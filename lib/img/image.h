/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_IMAGE_H
#define IMG_IMAGE_H

#include <limits.h>
#include <stdbool.h>

#include "wire/json.h"

/*
 * What a sandbox's root is made of: layers for overlay, directories of the host
 * mounted on top, and the image's configuration.  So far there is one image,
 * "host": this machine's own /usr, read-only, on a small root made from parts
 * of /etc that hold no secret.
 */
#define IMAGE_BINDS_MAX 8

struct image {
	char lower[PATH_MAX];			/* overlay's lowerdir */
	const char *binds[IMAGE_BINDS_MAX + 1]; /* host directories, "/usr" */
	json_t *env;				/* owned */
	const char *cwd, *user;
	bool checkpointable;
	const char *why_not; /* "" where it is */
};

/*
 * image_open(lib, name, ret, e):
 * Resolve ${name} in the library at ${lib} ($DSEC_LIB), preparing what is
 * prepared once per node.  "image_unknown" if there is none of that name.
 */
int image_open(const char *lib, const char *name, struct image *ret,
	       struct err *e);
void image_done(struct image *img);

#endif
