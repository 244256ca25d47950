/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/netns.h"

#include <errno.h>

int netns_of(pid_t pid, struct err *e)
{
	(void)pid;
	return err_set(e, -ENOSYS, "unsupported", "netns_of: not there yet");
}

int netns_at(const char *path, struct err *e)
{
	(void)path;
	return err_set(e, -ENOSYS, "unsupported", "netns_at: not there yet");
}

int netns_enter(int netns, int *ret_back, struct err *e)
{
	(void)netns;
	(void)ret_back;
	return err_set(e, -ENOSYS, "unsupported", "netns_enter: not there yet");
}

void netns_leave(int *back)
{
	(void)back;
}

int netns_socket(int netns, int domain, int type, int protocol, struct err *e)
{
	(void)netns;
	(void)domain;
	(void)type;
	(void)protocol;
	return err_set(e, -ENOSYS, "unsupported",
		       "netns_socket: not there yet");
}

int netns_bind(int netns, int type, uint32_t addr, unsigned port, struct err *e)
{
	(void)netns;
	(void)type;
	(void)addr;
	(void)port;
	return err_set(e, -ENOSYS, "unsupported", "netns_bind: not there yet");
}

int netns_sysctl(int netns, const char *name, const char *value, struct err *e)
{
	(void)netns;
	(void)name;
	(void)value;
	return err_set(e, -ENOSYS, "unsupported",
		       "netns_sysctl: not there yet");
}
