/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_IMAGE_PRIV_H
#define IMG_IMAGE_PRIV_H

#include "img/image.h"

/* image_way_parse(s, ret): 0 or -EINVAL. */
int image_way_parse(const char *s, enum image_way *ret);

/* image_add_dir(img, path, e): a directory of ours as one more layer. */
int image_add_dir(struct image *img, const char *path, struct err *e);

/* image_add_stored(where, name, layers, img, e): the layers of the store that
 * ${name} (or NULL) and ${layers} (or NULL) lead to, and their configuration.
 */
int image_add_stored(const struct image_where *where, const char *name,
		     const json_t *layers, struct image *img, struct err *e);

#endif
