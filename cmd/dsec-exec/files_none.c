/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "base/cleanup.h"
#include "exec.h"

/* Until files.c and copy.c are there. */
__attribute__((weak)) int file_run(struct file_call *c, json_t **ret_rec,
				   struct err *e)
{
	(void)c;
	(void)ret_rec;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "file operations are not in this build");
}

__attribute__((weak)) bool file_is_op(const char *op)
{
	(void)op;
	return false;
}

__attribute__((weak)) int copy_main(const struct tree *tree, const char *from,
				    const char *to, struct err *e)
{
	(void)tree;
	(void)from;
	(void)to;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "--cp is not in this build");
}
