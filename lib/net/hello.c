/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "net/hello.h"

int hello_feed(struct hello *h, const void *data, size_t len)
{
	(void)h, (void)data, (void)len;
	return -EPROTO;
}
