/* SPDX-License-Identifier: Apache-2.0 */
#include "net/route.h"

#include <errno.h>

void route_conf_init(struct route_conf *c)
{
	(void)c;
}

int route_open(const struct route_conf *c, struct route **ret, struct err *e)
{
	(void)c;
	(void)ret;
	return err_set(e, -ENOSYS, "unsupported", "route_open: not there yet");
}

void route_free(struct route *r)
{
	(void)r;
}

int route_deny(struct route *r, const struct netdeny *d, struct err *e)
{
	(void)r;
	(void)d;
	return err_set(e, -ENOSYS, "unsupported", "route_deny: not there yet");
}

int route_put(struct route *r, const struct route_sandbox *sb,
	      const struct netpol *p, route_keep_fn *keep, void *arg,
	      struct err *e)
{
	(void)r;
	(void)sb;
	(void)p;
	(void)keep;
	(void)arg;
	return err_set(e, -ENOSYS, "unsupported", "route_put: not there yet");
}

int route_del(struct route *r, uint32_t slot, struct err *e)
{
	(void)r;
	(void)slot;
	return err_set(e, -ENOSYS, "unsupported", "route_del: not there yet");
}

int route_sweep(struct route *r, const uint32_t *slots, size_t n, struct err *e)
{
	(void)r;
	(void)slots;
	(void)n;
	return err_set(e, -ENOSYS, "unsupported", "route_sweep: not there yet");
}

int route_learn(struct route *r, uint32_t slot, const char *name,
		const struct route_learned *l, size_t n, unsigned timeout_s,
		struct err *e)
{
	(void)r;
	(void)slot;
	(void)name;
	(void)l;
	(void)n;
	(void)timeout_s;
	return err_set(e, -ENOSYS, "unsupported", "route_learn: not there yet");
}

int route_stats(struct route *r, uint32_t slot, struct route_stats *ret,
		struct err *e)
{
	(void)r;
	(void)slot;
	(void)ret;
	return err_set(e, -ENOSYS, "unsupported", "route_stats: not there yet");
}

int route_stats_all(struct route *r, struct route_stats *ret, size_t max,
		    struct err *e)
{
	(void)r;
	(void)ret;
	(void)max;
	return err_set(e, -ENOSYS, "unsupported",
		       "route_stats_all: not there yet");
}

int route_log(struct route *r,
	      void (*fn)(void *arg, const struct route_denied *d), void *arg,
	      struct err *e)
{
	(void)r;
	(void)fn;
	(void)arg;
	return err_set(e, -ENOSYS, "unsupported", "route_log: not there yet");
}
