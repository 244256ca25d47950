/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "net/fakename.h"

int fakename_new(int fd, struct fakename **ret, struct err *e)
{
	(void)fd, (void)ret;
	return err_set(e, -ENOSYS, "unsupported", "no names yet");
}

void fakename_free(struct fakename *f)
{
	(void)f;
}

int fakename_get(struct fakename *f, const char *name, bool wild,
		 struct in_addr *ret)
{
	(void)f, (void)name, (void)wild, (void)ret;
	return -EIO;
}

const char *fakename_name(const struct fakename *f, struct in_addr addr)
{
	(void)f, (void)addr;
	return NULL;
}

size_t fakename_count(const struct fakename *f)
{
	(void)f;
	return 0;
}

unsigned fakename_cost(const struct fakename *f)
{
	(void)f;
	return 0;
}
