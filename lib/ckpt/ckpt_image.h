/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_CKPT_IMAGE_H
#define CKPT_CKPT_IMAGE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * The files of a checkpoint are protobuf messages of the engine.  Nearly all
 * hold ids as they are inside; which ids of the host those are stands in one
 * file alone, the maps of the user namespace (userns-N.img).  So a copy gets a
 * range of its own by another pair of maps.
 */

/*
 * ckpt_image_uid(imgdir, uid_base, e):
 * Make the checkpoint in the directory ${imgdir} (a descriptor) one whose ids
 * 0 to 65535 are ${uid_base} and following on the host.  "engine" where it is
 * not the checkpoint of one sandbox as we launch them; nothing has changed
 * then.  The file is replaced, so a hard link elsewhere keeps its content.
 */
int ckpt_image_uid(int imgdir, uid_t uid_base, struct err *e);

/*
 * ckpt_image_parse_maps(data, len, ret_base, e):
 * The host's id of id 0, from the content of userns-N.img.  "engine" unless
 * both maps are one range of 65536 ids from 0 on, to the same base.
 */
int ckpt_image_parse_maps(const void *data, size_t len, uint32_t *ret_base,
			  struct err *e);

#endif
