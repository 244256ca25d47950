/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "img/image_priv.h"

int image_add_stored(const struct image_where *where, const char *name,
		     const json_t *layers, struct image *img, struct err *e)
{
	(void)where;
	(void)layers;
	(void)img;
	return err_set(e, -ENOENT, "image_unknown",
		       "no image '%s': this release has the image 'host' alone",
		       name ? name : "");
}
