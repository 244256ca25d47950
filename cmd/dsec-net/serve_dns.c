/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "serve_worker.h"

/* How long a client may use what it was told (see FORWARDER in net/forwarder.h
 * and notes on caches of clients, which hold names longer than they should). */
#define LEARN_MIN_S   60
#define LEARN_MAX_S   3600
#define LEARN_GRACE_S 30

static struct netaddr addr_of(sa_family_t family, const void *addr)
{
	struct netaddr a = {.v6 = family == AF_INET6};

	memcpy(a.b, addr, a.v6 ? 16 : 4);
	return a;
}

static enum forwarder_verdict on_name(void *arg, const char *name)
{
	const struct sbox *b = arg;

	if (!netpol_name(b->policy, name))
		return FORWARDER_DENY;
	if (!strcmp(name, NETPOL_BROKER_NAME))
		return FORWARDER_OURS;
	return netpol_name_exact(b->policy, name) ? FORWARDER_EXACT
						  : FORWARDER_WILD;
}

/* An exception of the operator's that opens a part of these ports. */
static bool is_excepted(const struct netdeny *d, const struct netaddr *a,
			enum netpol_proto proto, const struct netpol_range *in)
{
	size_t n;
	const struct netpol_rule *x = netdeny_exceptions(d, &n);

	for (size_t i = 0; i < n; i++) {
		if (x[i].proto != proto || !netaddr_in(a, &x[i].cidr))
			continue;
		for (unsigned k = 0; k < x[i].nports; k++)
			if (x[i].ports[k].lo <= in->hi &&
			    x[i].ports[k].hi >= in->lo)
				return true;
	}
	return false;
}

static bool may_use(const struct sbox *b, const struct netaddr *a,
		    enum netpol_proto proto, const struct netpol_range *ports)
{
	const struct netdeny *d = b->worker->deny;

	return !netdeny_denies(d, a, proto, ports->lo) ||
	       is_excepted(d, a, proto, ports);
}

/* Is there a way to use it as this name? */
static bool on_addr(void *arg, const char *name, sa_family_t family,
		    const void *addr)
{
	struct netpol_range ports[NETPOL_NAME_RANGES_MAX];
	const struct netaddr a = addr_of(family, addr);
	const struct sbox *b = arg;

	for (int proto = NETPOL_TCP; proto <= NETPOL_UDP; proto++) {
		size_t n = netpol_name_ports(b->policy, name,
					     (enum netpol_proto)proto, ports);

		for (size_t i = 0; i < n; i++)
			if (may_use(b, &a, (enum netpol_proto)proto, &ports[i]))
				return true;
	}
	/* By default: whatever is not always denied. */
	return netpol_default_allow(b->policy) &&
	       !netdeny_denies(b->worker->deny, &a, NETPOL_TCP, 443);
}

static size_t learned(const struct sbox *b, const char *name,
		      const struct netaddr *a, struct route_learned *ret,
		      size_t room)
{
	struct netpol_range ports[NETPOL_NAME_RANGES_MAX];
	size_t n = 0;

	for (int proto = NETPOL_TCP; proto <= NETPOL_UDP; proto++) {
		size_t k = netpol_name_ports(b->policy, name,
					     (enum netpol_proto)proto, ports);

		for (size_t i = 0; i < k && n < room; i++)
			if (may_use(b, a, (enum netpol_proto)proto, &ports[i]))
				ret[n++] = (struct route_learned){
					*a, (enum netpol_proto)proto,
					ports[i].lo, ports[i].hi};
	}
	return n;
}

#define LEARN_ROOM 1024

static int on_learn(void *arg, const char *name, const struct dns_addrs *addrs)
{
	static struct route_learned list[LEARN_ROOM]; /* too much for a stack */
	struct sbox *b = arg;
	unsigned ttl = addrs->ttl;
	struct err e = {0};
	size_t n = 0;
	int r;

	if (!b->worker->route || !netpol_name(b->policy, name))
		return -1;
	for (unsigned i = 0; i < addrs->n; i++) {
		const struct netaddr a =
			addr_of(addrs->family,
				addrs->family == AF_INET
					? (const void *)&addrs->v4[i]
					: (const void *)&addrs->v6[i]);

		n += learned(b, name, &a, list + n, LEARN_ROOM - n);
	}
	if (n == 0)
		return 0;
	ttl = ttl < LEARN_MIN_S	  ? LEARN_MIN_S
	      : ttl > LEARN_MAX_S ? LEARN_MAX_S
				  : ttl;
	r = route_learn(b->worker->route, b->route.slot, name, list, n,
			ttl + LEARN_GRACE_S, &e);
	if (r >= 0)
		return 0;
	note("sandbox %s: '%s': %s", b->id, name, e.msg);
	return r;
}

static void on_denied(void *arg, const char *name, const char *why)
{
	const struct denied_event ev = {.name = name,
					.port = 53,
					.proto = NETPOL_UDP,
					.why = why};
	struct sbox *b = arg;

	denied_add(b->denied, &ev);
}

const struct forwarder_ops sbox_dns_ops = {
	.name = on_name,
	.addr = on_addr,
	.learn = on_learn,
	.denied = on_denied,
};
