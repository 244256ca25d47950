/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "net/resolver.h"

int resolver_new(struct loop *l, const struct resolver_conf *conf,
		 struct resolver **ret, struct err *e)
{
	(void)l, (void)conf, (void)ret;
	return err_set(e, -ENOSYS, "unsupported", "no resolver yet");
}

void resolver_free(struct resolver *r)
{
	(void)r;
}

int resolver_ask(struct resolver *r, const char *name, sa_family_t family,
		 struct resolver_wait *w, const struct resolver_result **ret)
{
	(void)r, (void)name, (void)family, (void)w, (void)ret;
	return -EBUSY;
}

void resolver_cancel(struct resolver *r, struct resolver_wait *w)
{
	(void)r, (void)w;
}

void resolver_stats(const struct resolver *r, struct resolver_stats *ret)
{
	(void)r;
	*ret = (struct resolver_stats){0};
}

bool resolver_server(const char *text, struct sockaddr_storage *ret)
{
	(void)text, (void)ret;
	return false;
}

int resolver_conf_file(const char *path, struct resolver_conf *conf,
		       struct err *e)
{
	(void)path, (void)conf;
	return err_set(e, -ENOSYS, "unsupported", "no resolver yet");
}
