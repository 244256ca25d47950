/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "box/ckpt_image.h"

int ckpt_image_uid(int imgdir, uid_t uid_base, struct err *e)
{
	(void)imgdir;
	(void)uid_base;
	return err_set(e, -ENOTSUP, "unsupported",
		       "rewriting a checkpoint's ids is not built in yet");
}
