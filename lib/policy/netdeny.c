/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/netpol_priv.h"
#include "policy/netdeny.h"

/*
 * For everybody and always.  The v6 ranges that carry v4 addresses are denied
 * whole, whatever they carry: nobody needs them, and some stacks translate.
 */
static const struct {
	const char *cidr, *what;
} constant[] = {
	{"0.0.0.0/8", "this network"},
	{"10.0.0.0/8", "private network"},
	{"100.64.0.0/10", "shared address space"},
	{"127.0.0.0/8", "loopback"},
	{"169.254.0.0/16", "link-local and metadata services"},
	{"172.16.0.0/12", "private network"},
	{"192.0.0.0/24", "protocol assignments"},
	{"192.168.0.0/16", "private network"},
	{"198.18.0.0/15", "benchmark network"},
	{"224.0.0.0/3", "multicast and reserved"},
	{"::/96", "v6 loopback and v4-compatible"},
	{"::ffff:0:0/96", "v4-mapped"},
	{"64:ff9b::/96", "NAT64"},
	{"64:ff9b:1::/48", "local NAT64"},
	{"100::/64", "discard-only"},
	{"2001::/32", "Teredo"},
	{"2002::/16", "6to4"},
	{"fc00::/7", "v6 private network"},
	{"fe80::/10", "v6 link-local"},
	{"fec0::/10", "v6 site-local"},
	{"ff00::/8", "v6 multicast"},
};

struct cidrs {
	struct netcidr *v;
	size_t n;
};

struct netdeny {
	struct cidrs node, cluster;
	struct netdeny_range *ranges; /* of all of them */
	size_t nranges;
	struct netpol_rules exceptions;
};

static int cmp_range(const void *a, const void *b)
{
	return netcidr_cmp(&((const struct netdeny_range *)a)->cidr,
			   &((const struct netdeny_range *)b)->cidr);
}

static void add_ranges(struct netdeny_range *v, size_t *n,
		       const struct cidrs *c, const char *what)
{
	for (size_t i = 0; i < c->n; i++)
		v[(*n)++] = (struct netdeny_range){c->v[i], what};
}

/* Two ranges are one within the other or disjoint: sorted, the wider one comes
 * first, so the last one kept is all there is to look at. */
static int build(struct netdeny *d)
{
	size_t max = array_len(constant) + d->node.n + d->cluster.n, n = 0;
	struct netdeny_range *v = calloc(max, sizeof(*v));
	size_t to = 0;

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < array_len(constant); i++) {
		v[n].what = constant[i].what;
		if (netcidr_parse(constant[i].cidr, &v[n++].cidr) < 0)
			abort();
	}
	add_ranges(v, &n, &d->cluster, "network of the cluster");
	add_ranges(v, &n, &d->node, "address of the node");
	qsort(v, n, sizeof(*v), cmp_range);
	for (size_t i = 0; i < n; i++)
		if (!to || !netcidr_within(&v[i].cidr, &v[to - 1].cidr))
			v[to++] = v[i];
	free(d->ranges);
	d->ranges = v;
	d->nranges = to;
	return 0;
}

struct netdeny *netdeny_new(void)
{
	struct netdeny *d = calloc(1, sizeof(*d));

	if (d && build(d) == 0)
		return d;
	free(d);
	return NULL;
}

void netdeny_free(struct netdeny *d)
{
	if (!d)
		return;
	free(d->node.v);
	free(d->cluster.v);
	free(d->ranges);
	rules_done(&d->exceptions);
	free(d);
}

int netdeny_set_node(struct netdeny *d, const struct netaddr *addrs, size_t n)
{
	struct cidrs was = d->node;
	struct netcidr *v = calloc(n + 1, sizeof(*v));

	if (!v)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		v[i] = (struct netcidr){addrs[i], addrs[i].v6 ? 128 : 32};
	d->node = (struct cidrs){v, n};
	if (build(d) < 0) {
		d->node = was;
		free(v);
		return -ENOMEM;
	}
	free(was.v);
	return 0;
}

int netdeny_add_cluster(struct netdeny *d, const struct netcidr *c)
{
	struct netcidr *v;

	v = reallocarray(d->cluster.v, d->cluster.n + 1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	d->cluster.v = v;
	v[d->cluster.n++] = *c;
	if (build(d) < 0) {
		d->cluster.n--;
		return -ENOMEM;
	}
	return 0;
}

int netdeny_add_exception(struct netdeny *d, const json_t *entry,
			  const char *where, struct err *e)
{
	struct netpol_rule rules[3];
	int n = netpol_rule_parse(entry, NETPOL_ALLOW, rules, where, e), r = 0;

	if (n > 0 && rules[0].name)
		r = err_set(e, -EBADMSG, "bad_value",
			    "%s: an exception is a cidr", where);
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = rules_add(&d->exceptions, &rules[i], e);
		else
			netpol_rule_done(&rules[i]);
	}
	return n < 0 ? n : r;
}

static bool is_exception(const struct netdeny *d, const struct netaddr *a,
			 enum netpol_proto proto, uint16_t port)
{
	for (size_t i = 0; i < d->exceptions.n; i++)
		if (netaddr_in(a, &d->exceptions.v[i].cidr) &&
		    netpol_rule_covers(&d->exceptions.v[i], proto, port))
			return true;
	return false;
}

const char *netdeny_denies(const struct netdeny *d, const struct netaddr *a,
			   enum netpol_proto proto, uint16_t port)
{
	for (size_t i = 0; i < d->nranges; i++)
		if (netaddr_in(a, &d->ranges[i].cidr))
			return is_exception(d, a, proto, port)
				       ? NULL
				       : d->ranges[i].what;
	return NULL;
}

const struct netdeny_range *netdeny_ranges(const struct netdeny *d,
					   size_t *ret_n)
{
	*ret_n = d->nranges;
	return d->ranges;
}

const struct netpol_rule *netdeny_exceptions(const struct netdeny *d,
					     size_t *ret_n)
{
	*ret_n = d->exceptions.n;
	return d->exceptions.v;
}
