/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/net.h"

static const char *const names[] = {
	[NET_NONE] = "none",
	[NET_NAMES] = "names",
	[NET_ROUTED] = "routed",
};

enum net_strength net_strength(const json_t *spec)
{
	const char *word = json_str(spec, "network");

	for (size_t i = 0; i < array_len(names); i++)
		if (!strcmp(word, names[i]))
			return (enum net_strength)i;
	return NET_NONE;
}

const char *net_strength_name(enum net_strength s)
{
	return names[s];
}

int net_plan(const struct tree *t, json_t *spec, struct err *e)
{
	(void)t;
	return json_object_set_new(spec, "network", json_string("none")) < 0
		       ? err_sys(e, ENOMEM, "network")
		       : 0;
}

static int unsupported(const json_t *spec, struct err *e)
{
	if (net_strength(spec) == NET_NONE)
		return 0;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "network policy is not in this release");
}

int net_attach(const struct tree *t, const char *id, pid_t pid,
	       const json_t *spec, struct err *e)
{
	(void)t;
	(void)id;
	(void)pid;
	return unsupported(spec, e);
}

void net_detach(const struct tree *t, const char *id, const json_t *spec)
{
	(void)t;
	(void)id;
	(void)spec;
}

int net_clean(const struct tree *t, unsigned *ret_n, struct err *e)
{
	(void)t;
	(void)e;
	if (ret_n)
		*ret_n = 0;
	return 0;
}

int net_begin(struct net *n, const struct tree *t, const char *id,
	      const json_t *spec, struct err *e)
{
	*n = (struct net){.tree = t,
			  .id = id,
			  .spec = spec,
			  .strength = net_strength(spec),
			  .udp53 = -1,
			  .tcp53 = -1,
			  .rtnl = -1,
			  .ctl = -1};
	return unsupported(spec, e);
}

int net_inside(struct net *n)
{
	(void)n;
	return 0;
}

int net_send(struct net *n, struct err *e)
{
	(void)n;
	(void)e;
	return 0;
}

int net_finish(struct net *n, struct err *e)
{
	(void)n;
	(void)e;
	return 0;
}

void net_undo(struct net *n)
{
	(void)n;
}

void net_done(struct net *n)
{
	(void)n;
}
