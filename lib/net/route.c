/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/netfilter/nfnetlink_log.h>
#include <linux/netfilter/nfnetlink_conntrack.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/cleanup.h"
#include "net/route_priv.h"

#include <libmnl/libmnl.h>
#include <linux/netfilter/nfnetlink.h>
#include <libnftnl/common.h>

void route_conf_init(struct route_conf *c)
{
	*c = (struct route_conf){
		.nft = -1,
		.log = -1,
		.pool = 0x64600000, /* 100.96.0.0 */
		.pool_prefix = 16,
		.gateway = TRANSIT_GATEWAY,
		.dns_port = TRANSIT_PORT_DNS,
		.sni_port = TRANSIT_PORT_SNI,
		.broker_port = TRANSIT_PORT_BROKER,
		.log_group = TRANSIT_LOG_GROUP,
	};
}

/* --- profiles ------------------------------------------------------------ */

struct route_profile *route_profile_get(struct route *r, const char *hash)
{
	struct route_profile **grown, *p;

	for (size_t i = 0; i < r->nprofiles; i++)
		if (strcmp(r->profiles[i]->hash, hash) == 0)
			return r->profiles[i];
	grown = reallocarray(r->profiles, r->nprofiles + 1,
			     sizeof(struct route_profile *));
	if (!grown)
		return NULL;
	r->profiles = grown;
	p = calloc(1, sizeof(*p));
	if (!p)
		return NULL;
	snprintf(p->hash, sizeof(p->hash), "%s", hash);
	p->number = ++r->last_number;
	r->profiles[r->nprofiles++] = p;
	return p;
}

void route_profile_put(struct route *r, struct route_profile *p)
{
	if (!p || p->refs)
		return;
	for (size_t i = 0; i < r->nprofiles; i++) {
		if (r->profiles[i] != p)
			continue;
		r->profiles[i] = r->profiles[--r->nprofiles];
		free(p);
		return;
	}
}

/* --- the table ----------------------------------------------------------- */

static int has_chain(const struct nlmsghdr *h, void *arg)
{
	(void)h;
	*(bool *)arg = true;
	return MNL_CB_OK;
}

/* Is the table there, and made by the same rules as ours would be? */
static int is_ours(const struct route *r, const char *marker, struct err *e)
{
	char room[512] __attribute__((aligned(8)));
	struct nlmsghdr *h = nftnl_nlmsg_build_hdr(room, NFT_MSG_GETCHAIN,
						   ROUTE_INET, NLM_F_ACK, 1);
	bool found = false;
	int n;

	mnl_attr_put_strz(h, NFTA_CHAIN_TABLE, ROUTE_TABLE);
	mnl_attr_put_strz(h, NFTA_CHAIN_NAME, marker);
	n = nft_talk(r->c.nft, h, has_chain, &found);
	if (n < 0 && n != -ENOENT)
		return err_sys(e, -n, "look for our nftables rules");
	return found;
}

static int make(struct route *r, const char *marker, struct err *e)
{
	int n;

	/* Away with what another version of us made, all in one. */
	nft_table_add(&r->t);
	nft_table_del(&r->t);
	route_base(&r->t, &r->c, marker);
	n = nft_commit(&r->t, r->c.nft, e);
	/* Epochs begin anew. */
	if (!n)
		route_flush_tracking(r, 0, 0);
	return n;
}

static int log_command(const struct route *r, uint16_t type, const void *data,
		       size_t len)
{
	char room[256] __attribute__((aligned(8)));
	struct nlmsghdr *h = mnl_nlmsg_put_header(room);
	struct nfgenmsg *g;

	h->nlmsg_type = NFNL_SUBSYS_ULOG << 8 | NFULNL_MSG_CONFIG;
	h->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	g = mnl_nlmsg_put_extra_header(h, sizeof(*g));
	g->nfgen_family = AF_UNSPEC;
	g->res_id = htons(r->c.log_group);
	mnl_attr_put(h, type, len, data);
	return nft_talk(r->c.log, h, NULL, NULL);
}

/* One message per packet, at once.  A socket of a previous worker is bound. */
static int open_log(const struct route *r, struct err *e)
{
	const struct nfulnl_msg_config_cmd bind = {NFULNL_CFG_CMD_BIND};
	const struct nfulnl_msg_config_mode mode =
		{.copy_range = htonl(ROUTE_SNAPLEN),
		 .copy_mode = NFULNL_COPY_PACKET};
	const uint32_t threshold = htonl(1);
	int n;

	if (r->c.log < 0)
		return 0;
	n = log_command(r, NFULA_CFG_CMD, &bind, sizeof(bind));
	if (n == -EBUSY)
		n = 0;
	if (!n)
		n = log_command(r, NFULA_CFG_MODE, &mode, sizeof(mode));
	if (!n)
		n = log_command(r, NFULA_CFG_QTHRESH, &threshold,
				sizeof(threshold));
	return n < 0 ? err_sys(e, -n, "listen to refused packets") : 0;
}

static void forget(struct route *r)
{
	for (size_t i = 0; i < TRANSIT_SLOTS; i++) {
		route_box_free(r->boxes[i]);
		r->boxes[i] = NULL;
	}
	r->nboxes = 0;
	for (size_t i = 0; i < r->nprofiles; i++)
		free(r->profiles[i]);
	r->nprofiles = 0;
}

int route_open(const struct route_conf *c, struct route **ret, struct err *e)
{
	struct route *r = calloc(1, sizeof(*r));
	char marker[24];
	int n;

	if (!r)
		return err_sys(e, ENOMEM, "rules");
	r->c = *c;
	nft_init(&r->t, ROUTE_INET, ROUTE_TABLE);
	r->boxes = calloc(TRANSIT_SLOTS, sizeof(struct route_box *));
	n = r->boxes ? route_marker(c, marker) : -ENOMEM;
	if (n < 0)
		n = err_sys(e, -n, "rules");
	else
		n = is_ours(r, marker, e);
	if (n > 0 && route_read(r, e) < 0) {
		forget(r);
		n = 0;
	}
	if (n >= 0)
		n = n ? 0 : make(r, marker, e);
	if (!n)
		n = open_log(r, e);
	if (n < 0) {
		route_free(r);
		return n;
	}
	*ret = r;
	return 0;
}

void route_free(struct route *r)
{
	if (!r)
		return;
	if (r->boxes)
		forget(r);
	free(r->boxes);
	free(r->profiles);
	nft_done(&r->t);
	free(r);
}

static void put_family(struct nft_batch *t, const struct netdeny_range *d,
		       size_t n, bool v6)
{
	auto_free struct netcidr *c = calloc(n + 1, sizeof(*c));
	size_t k = 0;

	if (!c) {
		t->r = -ENOMEM;
		return;
	}
	for (size_t i = 0; i < n; i++)
		if (d[i].cidr.addr.v6 == v6)
			c[k++] = d[i].cidr;
	nft_set_flush(t, v6 ? "deny6" : "deny4");
	route_ranges(t, v6 ? "deny6" : "deny4", 0, c, k);
}

int route_deny(struct route *r, const struct netdeny *d, struct err *e)
{
	size_t n;
	const struct netdeny_range *ranges = netdeny_ranges(d, &n);
	const struct netpol_rule *x;

	put_family(&r->t, ranges, n, false);
	put_family(&r->t, ranges, n, true);
	nft_chain_flush(&r->t, "denied");
	x = netdeny_exceptions(d, &n);
	for (size_t i = 0; i < n; i++)
		if (!x[i].name)
			route_rule(&r->t, "denied", &x[i].cidr, 1, x[i].proto,
				   x[i].ports, x[i].nports, NFT_RETURN, NULL);
	nft_rule(&r->t, "denied");
	nft_verdict(&r->t, NFT_GOTO, "no_private");
	nft_rule_end(&r->t);
	return nft_commit(&r->t, r->c.nft, e);
}

/* --- sandboxes ----------------------------------------------------------- */

/*
 * The mark of the flows that a policy has allowed: the slot above, so that all
 * of a sandbox's flows are found whatever policy it was that allowed them, and
 * below a number that grows.  0 is what no policy has allowed.  Where the
 * numbers begin anew nothing may have been left of the last time; so before a
 * part of them is used, flows with such go.
 */
#define EPOCH_BITS 16
#define EPOCH_MASK ((1u << EPOCH_BITS) - 1)
#define EPOCH_PART 4096u

static uint32_t new_epoch(struct route *r, uint32_t slot,
			  const struct route_box *old)
{
	uint16_t n = old ? (uint16_t)(old->mark & EPOCH_MASK) : 0;

	/* Where it begins is any number, in case that something was left. */
	if (!old && getrandom(&n, sizeof(n), 0) != sizeof(n))
		n = 0;
	n++;
	if (!n)
		n = 1;
	if (n % EPOCH_PART == 0 || n == 1)
		route_flush_tracking(r, slot << EPOCH_BITS | n,
				     ~(EPOCH_PART - 1));
	return slot << EPOCH_BITS | n;
}

static bool same_sandbox(const struct route_sandbox *a,
			 const struct route_sandbox *b)
{
	return a->address == b->address &&
	       memcmp(a->mac, b->mac, sizeof(a->mac)) == 0 &&
	       a->has6 == b->has6 &&
	       (!a->has6 || memcmp(a->address6, b->address6, 16) == 0);
}

/* Everywhere that the policy wants it. */
static unsigned wanted(const struct route_box *b, const struct netpol *p)
{
	unsigned has = (1u << IN_COUNT) - 1;
	size_t brokers;

	netpol_brokers(p, &brokers);
	if (!b->sb.has6)
		has &= ~(1u << IN_BIND6);
	if (!b->limits.connections)
		has &= ~(1u << IN_CONNS);
	if (!b->limits.connections_per_s)
		has &= ~(1u << IN_RATES);
	if (!b->limits.dns_per_s)
		has &= ~(1u << IN_DNSRATES | 1u << IN_DNSFLOWS);
	if (!b->limits.bytes_mb)
		has &= ~(1u << IN_QUOTAS);
	if (!brokers)
		has &= ~(1u << IN_BROKER);
	return has;
}

/* Does the element say something else for ${b} than for ${a}? */
static bool differs(enum route_in in, const struct route_box *a,
		    const struct route_box *b)
{
	switch (in) {
	case IN_LIVE:
	case IN_CUR:
		return true;
	case IN_PROF:
		return a->profile != b->profile;
	case IN_CONNS:
		return a->limits.connections != b->limits.connections;
	case IN_RATES:
		return a->limits.connections_per_s !=
		       b->limits.connections_per_s;
	case IN_DNSRATES:
	case IN_DNSFLOWS:
		return a->limits.dns_per_s != b->limits.dns_per_s;
	case IN_QUOTAS:
		/* Added again, it is changed and what was used up stays. */
		return false;
	default:
		return false;
	}
}

static void put_all(struct nft_batch *t, const struct route_box *b, bool add)
{
	for (unsigned i = 0; i < IN_COUNT; i++)
		if (b->has & 1u << i)
			route_elem(t, b, i, add);
}

static void put_changes(struct nft_batch *t, const struct route_box *a,
			const struct route_box *b)
{
	unsigned bit;

	for (unsigned i = 0; i < IN_COUNT; i++) {
		bit = 1u << i;
		if ((a->has & bit) && (!(b->has & bit) || differs(i, a, b)))
			route_elem(t, a, i, false);
	}
	for (unsigned i = 0; i < IN_COUNT; i++) {
		bit = 1u << i;
		if ((b->has & bit) &&
		    (!(a->has & bit) || differs(i, a, b) || i == IN_QUOTAS))
			route_elem(t, b, i, true);
	}
}

/* ${new} takes the place of ${old} (NULL: there was none). */
static int replace(struct route *r, struct route_box *old,
		   struct route_box *new, const struct netpol *p,
		   route_keep_fn *keep, void *arg, struct err *e)
{
	const bool same = old && new &&same_sandbox(&old->sb, &new->sb);
	struct nft_batch *t = &r->t;
	int n;

	if (new && !new->profile->refs)
		route_profile_add(t, p, new->profile);
	if (same)
		put_changes(t, old, new);
	if (old)
		route_learn_drop(t, &old->learn, same ? keep : NULL, arg);
	if (old && !same)
		put_all(t, old, false);
	if (new && !same)
		put_all(t, new, true);
	if (old && old->profile->refs == 1 &&
	    (!new || new->profile != old->profile))
		route_profile_del(t, old->profile);
	n = nft_commit(t, r->c.nft, e);
	if (old)
		route_learn_settle(&old->learn, !n);
	if (n < 0)
		return n;
	if (same) {
		new->learn = old->learn;
		memset(&old->learn, 0, sizeof(old->learn));
	}
	return 0;
}

/* The kernel has changed: so do we. */
static void take(struct route *r, uint32_t slot, struct route_box *new)
{
	struct route_box *old = r->boxes[slot];

	if (new)
		new->profile->refs++;
	r->nboxes += !!new - !!old;
	r->boxes[slot] = new;
	if (!old)
		return;
	old->profile->refs--;
	route_profile_put(r, old->profile);
	route_box_free(old);
}

int route_put(struct route *r, const struct route_sandbox *sb,
	      const struct netpol *p, route_keep_fn *keep, void *arg,
	      struct err *e)
{
	struct route_box *old, *new;
	char hash[33];
	bool another;
	int n;

	if (sb->slot >= TRANSIT_SLOTS)
		return err_sys(e, ERANGE, "slot %u", sb->slot);
	snprintf(hash, sizeof(hash), "%.32s", netpol_hash(p));
	old = r->boxes[sb->slot];
	if (old && same_sandbox(&old->sb, sb) &&
	    strcmp(old->profile->hash, hash) == 0)
		return 0;
	new = route_box_new(sb->slot);
	if (!new)
		return err_sys(e, ENOMEM, "rules of a sandbox");
	new->sb = *sb;
	new->limits = *netpol_limits(p);
	new->mark = new_epoch(r, sb->slot, old);
	new->profile = route_profile_get(r, hash);
	if (!new->profile) {
		route_box_free(new);
		return err_sys(e, ENOMEM, "rules of a policy");
	}
	if (!new->profile->refs)
		new->profile->sni = netpol_asks_name(p);
	new->has = wanted(new, p);
	another = !old || !same_sandbox(&old->sb, sb);
	n = replace(r, old, new, p, keep, arg, e);
	if (n < 0) {
		route_profile_put(r, new->profile);
		route_box_free(new);
		return n;
	}
	if (another && old)
		route_flush_tracking(r, sb->slot << EPOCH_BITS, ~EPOCH_MASK);
	take(r, sb->slot, new);
	return 1;
}

void route_flush_tracking(struct route *r, uint32_t mark, uint32_t mask)
{
	char room[256] __attribute__((aligned(8)));
	struct nlmsghdr *h = mnl_nlmsg_put_header(room);
	struct nfgenmsg *g;

	h->nlmsg_type = NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE;
	h->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK;
	g = mnl_nlmsg_put_extra_header(h, sizeof(*g));
	g->nfgen_family = AF_UNSPEC;
	mnl_attr_put_u32(h, CTA_MARK, htonl(mark & mask));
	mnl_attr_put_u32(h, CTA_MARK_MASK, htonl(mask));
	/* A flow that is left is judged anew, as every one of an old epoch. */
	(void)nft_talk(r->c.nft, h, NULL, NULL);
}

int route_del(struct route *r, uint32_t slot, struct err *e)
{
	struct route_box *b = slot < TRANSIT_SLOTS ? r->boxes[slot] : NULL;
	int n;

	if (!b)
		return 0;
	n = replace(r, b, NULL, NULL, NULL, NULL, e);
	if (n < 0)
		return n;
	take(r, slot, NULL);
	route_flush_tracking(r, slot << EPOCH_BITS, ~EPOCH_MASK);
	return 0;
}

int route_sweep(struct route *r, const uint32_t *slots, size_t n, struct err *e)
{
	auto_free bool *keep = calloc(TRANSIT_SLOTS, sizeof(*keep));
	int gone = 0, k;

	if (!keep)
		return err_sys(e, ENOMEM, "rules");
	for (size_t i = 0; i < n; i++)
		if (slots[i] < TRANSIT_SLOTS)
			keep[slots[i]] = true;
	for (uint32_t s = 0; s < TRANSIT_SLOTS; s++) {
		if (keep[s] || !r->boxes[s])
			continue;
		k = route_del(r, s, e);
		if (k < 0)
			return k;
		gone++;
	}
	return gone;
}
