/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_CKPT_IMAGE_H
#define BOX_CKPT_IMAGE_H

#include <sys/types.h>

#include "base/err.h"

/*
 * The files of a checkpoint are protobuf messages of the engine.  Few of them
 * hold ids of the host; they are rewritten here for another uid range, so that
 * a copy gets its own.  A file that is not as it must be is refused: it was
 * made by a program that read the memory of hostile processes.
 */

/*
 * ckpt_image_uid(imgdir, uid_base, e):
 * Make the checkpoint in the directory ${imgdir} (a descriptor) one whose ids
 * 0 to 65535 are ${uid_base} and following on the host.  "engine" where a file
 * is malformed; files are replaced one by one, so on failure the directory is
 * of no use.
 */
int ckpt_image_uid(int imgdir, uid_t uid_base, struct err *e);

#endif
