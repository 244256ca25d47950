/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "net/forwarder.h"

int forwarder_new(const struct forwarder_conf *conf, struct forwarder **ret,
		  struct err *e)
{
	(void)conf, (void)ret;
	return err_set(e, -ENOSYS, "unsupported", "no forwarder yet");
}

void forwarder_free(struct forwarder *f)
{
	(void)f;
}

void forwarder_rate(struct forwarder *f, unsigned per_s)
{
	(void)f, (void)per_s;
}

void forwarder_stats(const struct forwarder *f, struct forwarder_stats *ret)
{
	(void)f;
	*ret = (struct forwarder_stats){0};
}

int forwarder_port_new(struct loop *l, int udp, int tcp, forwarder_find *find,
		       void *arg, struct forwarder_port **ret, struct err *e)
{
	(void)l, (void)udp, (void)tcp, (void)find, (void)arg, (void)ret;
	return err_set(e, -ENOSYS, "unsupported", "no forwarder yet");
}

void forwarder_port_free(struct forwarder_port *p)
{
	(void)p;
}
