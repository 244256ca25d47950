/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "serve.h"

int verb_client(const struct args *a, struct err *e)
{
	(void)a;
	return err_set(e, -EOPNOTSUPP, "unsupported", "no client yet");
}
