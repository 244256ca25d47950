/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "sys/sockdiag.h"

int sockdiag_cut(int netns, struct err *e)
{
	(void)netns;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "cutting connections is not built in yet");
}
