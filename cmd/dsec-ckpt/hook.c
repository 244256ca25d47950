/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/restore.h"
#include "ckpt_cmd.h"
#include "wire/exit.h"

int hook_restore(const char *action)
{
	return restore_hook(action) < 0 ? EXIT_SYSTEM : EXIT_OK;
}
