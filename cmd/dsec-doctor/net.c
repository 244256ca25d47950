/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "box/claim.h"
#include "box/net.h"
#include "doctor.h"
#include "net/conf.h"
#include "net/helper.h"
#include "net/transit.h"
#include "net/uplink.h"

/*
 * The network of sandboxes: the helper, the way to outside, and what the dead
 * left of theirs.
 */

static void check_helper(struct doctor *d)
{
	auto_helper struct helper *h = NULL;
	struct err e = {0};
	int r;

	r = helper_open(d->tree.run, 0, &h, &e);
	if (r == 0)
		r = helper_ping(h, &e);
	d_feature(d, "network_helper", r == 0);
	/* It is started when a sandbox needs it. */
	if (r < 0 && r != -ECONNREFUSED)
		d_finding(d, "network", SEV_WARNING, "dsec-doctor --fix",
			  "the network helper does not answer: %s", e.msg);
}

static void on_taken(void *arg, const char *id, const uint16_t *ports, size_t n)
{
	d_finding(arg, "network", SEV_WARNING, NULL,
		  "sandbox %s listens on port %u%s itself: what its policy "
		  "allows there is not served",
		  id, ports[0], n > 1 ? " and others" : "");
}

static void check_uplink(struct doctor *d, const struct uplink_conf *c)
{
	auto_close int transit = transit_open(d->tree.run, NULL);
	struct uplink_state st = {.up = false};
	struct err e = {0};

	if (transit >= 0 && uplink_show(transit, c, &st, &e) < 0)
		d_finding(d, "uplink", SEV_WARNING, NULL, "%s", e.msg);
	d_feature(d, "network_uplink", st.up);
	if (st.link && !st.up)
		d_finding(d, "uplink", SEV_WARNING, "dsec-net --uplink up",
			  "the link of sandboxes to outside is not as it is "
			  "configured");
	else if (!st.up)
		d_finding(d, "uplink", SEV_INFO, "dsec-net --uplink up",
			  "no link of sandboxes to outside: network rules of "
			  "addresses, of other protocols than TCP and of all "
			  "ports are refused");
}

/* An address is a slot's, by its number. */
static void check_addresses(struct doctor *d, const struct netconf *conf)
{
	const uint64_t size = 1ull << (32 - conf->pool.bits);
	const uint64_t have = size > 2 ? size - 2 : 0; /* all but the ends */
	uint32_t slots;

	if (claim_slots(&d->tree, &slots, NULL) < 0 || have >= slots)
		return;
	d_finding(d, "network", SEV_WARNING, NULL,
		  "the pool of net.json (/%u) has %llu addresses and the node "
		  "%u uid ranges: two sandboxes can come to have one address",
		  conf->pool.bits, (unsigned long long)have, slots);
}

void check_network(struct doctor *d)
{
	auto_netconf struct netconf conf = {0};
	struct uplink_conf c;
	struct err e = {0};

	check_helper(d);
	net_taken(&d->tree, on_taken, d);
	if (netconf_load(d->tree.config, &conf, &e) < 0) {
		d_finding(d, "network", SEV_ERROR, NULL, "%s", e.msg);
		return;
	}
	uplink_conf_of(&conf, &c);
	check_uplink(d, &c);
	check_addresses(d, &conf);
	check_services(d, &conf);
	if (uplink_clash(&c, &e) < 0)
		d_finding(d, "network", SEV_WARNING, NULL, "%s", e.msg);
}

unsigned count_networks(const struct tree *t)
{
	unsigned n = 0;

	return net_clean(t, false, &n, NULL) < 0 ? 0 : n;
}

int fix_networks(struct doctor *d, struct err *e)
{
	unsigned n = 0;
	int r;

	r = net_clean(&d->tree, true, &n, e);
	if (n > 0)
		d_fixed(d, "removed the networks of %u dead sandboxes", n);
	if (r < 0)
		return r;
	n = 0;
	r = net_mend(&d->tree, &n, e);
	if (n > 0)
		d_fixed(d, "put %u networks of live sandboxes in force again",
			n);
	return r;
}
