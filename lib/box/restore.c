/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "box/restore.h"

int restore_run(const struct restore *rs, json_t **ret_rec, struct err *e)
{
	(void)rs;
	(void)ret_rec;
	return err_set(e, -ENOSYS, "unsupported", "not yet");
}
