/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "img.h"

/* Operations that are not written yet: op_NAME.c takes the place of one. */
#define STUB(name)                                                             \
	__attribute__((weak)) int name(struct img_ctx *c, const json_t *req,   \
				       json_t *answer, struct err *e)          \
	{                                                                      \
		(void)c;                                                       \
		(void)req;                                                     \
		(void)answer;                                                  \
		return err_set(e, -EOPNOTSUPP, "unsupported",                  \
			       #name " is not in this release");               \
	}

STUB(op_import)
STUB(op_pull)
STUB(op_mount)
STUB(op_unmount)
STUB(op_pack)
STUB(op_export)
STUB(op_lint)
STUB(op_diff)
STUB(op_ls)
STUB(op_inspect)
STUB(op_tag)
STUB(op_rm)
STUB(op_du)
STUB(op_env)
STUB(op_verify)
STUB(op_prune)
