/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/netpol_priv.h"

static const char *const strength_words[] = {[NETPOL_NONE] = "none",
					     [NETPOL_NAMES] = "names",
					     [NETPOL_ROUTED] = "routed"};

const char *netpol_strength_word(enum netpol_strength s)
{
	return strength_words[s];
}

int netpol_strength_of(const char *word)
{
	for (size_t i = 0; i < array_len(strength_words); i++)
		if (!strcmp(word, strength_words[i]))
			return (int)i;
	return -EINVAL;
}

/* --- verdicts ------------------------------------------------------------ */

bool netpol_rule_covers(const struct netpol_rule *r, enum netpol_proto proto,
			uint16_t port)
{
	return r->proto == proto &&
	       (proto == NETPOL_ICMP || ports_has(r->ports, r->nports, port));
}

/* Whom a connection is for: a name, or else an address. */
struct target {
	const char *name;
	const struct netaddr *addr;
	enum netpol_proto proto;
	uint16_t port;
};

static bool is_for(const struct netpol_rule *r, const struct target *t)
{
	if (t->name)
		return r->name && netname_match(r->name, t->name);
	return !r->name && netaddr_in(t->addr, &r->cidr);
}

/*
 * The first rule of ${l} that has the target and its port; *${ret_known}: one
 * had the target.
 */
static const struct netpol_rule *find(const struct netpol_rules *l,
				      const struct target *t, bool *ret_known)
{
	for (size_t i = 0; i < l->n; i++) {
		if (!is_for(&l->v[i], t))
			continue;
		*ret_known = true;
		if (netpol_rule_covers(&l->v[i], t->proto, t->port))
			return &l->v[i];
	}
	return NULL;
}

static const char *unknown_word(const struct target *t)
{
	return t->name ? "name" : "address";
}

static struct netpol_why decide(const struct netpol *p, const struct target *t)
{
	struct netpol_why why = {.by = NETPOL_BY_RULE, .list = NETPOL_DENY};
	bool known = false;

	why.rule = find(&p->list[NETPOL_DENY], t, &known);
	if (why.rule) {
		why.word = unknown_word(t);
		return why;
	}
	known = false;
	why.rule = find(&p->list[NETPOL_ALLOW], t, &known);
	why.allowed = why.rule || p->default_allow;
	why.by = why.rule ? NETPOL_BY_RULE : NETPOL_BY_DEFAULT;
	why.list = NETPOL_ALLOW;
	why.word = why.allowed ? "" : known ? "port" : unknown_word(t);
	return why;
}

static struct netpol_why decide_broker(const struct netpol *p,
				       const struct target *t)
{
	struct netpol_why why = {.by = NETPOL_BY_BROKER};

	why.allowed = p->nbrokers && t->proto == NETPOL_TCP &&
		      t->port == NETPOL_BROKER_PORT;
	why.word = why.allowed ? "" : p->nbrokers ? "port" : "name";
	return why;
}

bool netpol_allows_name(const struct netpol *p, const char *name,
			enum netpol_proto proto, uint16_t port,
			struct netpol_why *why)
{
	struct target t = {.name = name, .proto = proto, .port = port};
	struct netpol_why w = strcmp(name, NETPOL_BROKER_NAME)
				      ? decide(p, &t)
				      : decide_broker(p, &t);

	if (why)
		*why = w;
	return w.allowed;
}

bool netpol_allows_addr(const struct netpol *p, const struct netaddr *addr,
			enum netpol_proto proto, uint16_t port,
			struct netpol_why *why)
{
	struct target t = {.addr = addr, .proto = proto, .port = port};
	struct netpol_why w = decide(p, &t);

	if (why)
		*why = w;
	return w.allowed;
}

bool netpol_denies_addr(const struct netpol *p, const struct netaddr *addr,
			enum netpol_proto proto, uint16_t port,
			struct netpol_why *why)
{
	struct target t = {.addr = addr, .proto = proto, .port = port};
	bool known = false;
	const struct netpol_rule *r = find(&p->list[NETPOL_DENY], &t, &known);

	if (r && why)
		*why = (struct netpol_why){.by = NETPOL_BY_RULE,
					   .list = NETPOL_DENY,
					   .rule = r,
					   .word = "address"};
	return r;
}

/* --- names --------------------------------------------------------------- */

static bool is_denied_for(const struct netpol *p, const char *name,
			  enum netpol_proto proto)
{
	const struct netpol_rules *l = &p->list[NETPOL_DENY];

	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].name && l->v[i].proto == proto &&
		    netname_within(name, l->v[i].name) &&
		    ports_all(l->v[i].ports, l->v[i].nports))
			return true;
	return false;
}

bool netpol_denies_whole(const struct netpol *p, const char *pattern)
{
	return is_denied_for(p, pattern, NETPOL_TCP) &&
	       is_denied_for(p, pattern, NETPOL_UDP);
}

size_t netpol_name_ports(const struct netpol *p, const char *name,
			 enum netpol_proto proto, struct netpol_range *ret)
{
	struct ports set = {ret, 0, NETPOL_NAME_RANGES_MAX};

	/* What does not fit is missing, and must not be put in later. */
	for (int list = NETPOL_ALLOW; list <= NETPOL_DENY; list++) {
		const struct netpol_rules *l = &p->list[list];

		for (size_t i = 0; i < l->n; i++) {
			const struct netpol_rule *r = &l->v[i];

			if (!r->name || r->proto != proto ||
			    !netname_match(r->name, name))
				continue;
			for (unsigned k = 0; k < r->nports; k++) {
				if (list == NETPOL_ALLOW)
					(void)ports_add(&set, r->ports[k]);
				else
					(void)ports_sub(&set, r->ports[k]);
			}
		}
	}
	return set.n;
}

bool netpol_name(const struct netpol *p, const char *name)
{
	struct netpol_range ports[NETPOL_NAME_RANGES_MAX];

	if (!strcmp(name, NETPOL_BROKER_NAME))
		return p->nbrokers;
	if (p->default_allow)
		return !netpol_denies_whole(p, name);
	return netpol_name_ports(p, name, NETPOL_TCP, ports) > 0 ||
	       netpol_name_ports(p, name, NETPOL_UDP, ports) > 0;
}

bool netpol_name_exact(const struct netpol *p, const char *name)
{
	const struct netpol_rules *l = &p->list[NETPOL_ALLOW];

	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].name && !strcmp(l->v[i].name, name))
			return true;
	return false;
}

/* --- strength ------------------------------------------------------------ */

/* The ports ${p} listens on, added to ${set}; false: it needs a link. */
static bool add_listen(const struct netpol *p, struct ports *set)
{
	const struct netpol_rules *l = &p->list[NETPOL_ALLOW];
	struct netpol_range broker = {NETPOL_BROKER_PORT, NETPOL_BROKER_PORT};

	if (p->default_allow)
		return false;
	if (p->nbrokers && ports_add(set, broker) < 0)
		return false;
	for (size_t i = 0; i < l->n; i++) {
		if (!l->v[i].name || l->v[i].proto != NETPOL_TCP)
			return false;
		for (unsigned k = 0; k < l->v[i].nports; k++)
			if (ports_add(set, l->v[i].ports[k]) < 0)
				return false;
	}
	return true;
}

static unsigned count_ports(const struct ports *set)
{
	unsigned n = 0;

	for (unsigned i = 0; i < set->n; i++)
		n += set->v[i].hi - set->v[i].lo + 1U;
	return n;
}

enum netpol_strength netpol_strength(const struct netpol *const *ps, size_t n)
{
	struct netpol_range v[NETPOL_LISTEN_MAX];
	struct ports set = {v, 0, NETPOL_LISTEN_MAX};

	for (size_t i = 0; i < n; i++)
		if (!add_listen(ps[i], &set))
			return NETPOL_ROUTED;
	if (count_ports(&set) > NETPOL_LISTEN_MAX)
		return NETPOL_ROUTED;
	return set.n ? NETPOL_NAMES : NETPOL_NONE;
}

int netpol_listen(const struct netpol *const *ps, size_t n, uint16_t *ports)
{
	struct netpol_range v[NETPOL_LISTEN_MAX];
	struct ports set = {v, 0, NETPOL_LISTEN_MAX};
	int count = 0;

	for (size_t i = 0; i < n; i++)
		if (!add_listen(ps[i], &set))
			return -E2BIG;
	if (count_ports(&set) > NETPOL_LISTEN_MAX)
		return -E2BIG;
	for (unsigned i = 0; i < set.n; i++)
		for (unsigned port = v[i].lo; port <= v[i].hi; port++)
			ports[count++] = (uint16_t)port;
	return count;
}

/* --- looking at it ------------------------------------------------------- */

const struct netpol_rule *netpol_rules(const struct netpol *p,
				       enum netpol_list list, size_t *ret_n)
{
	*ret_n = p->list[list].n;
	return p->list[list].v;
}

bool netpol_default_allow(const struct netpol *p)
{
	return p->default_allow;
}

const struct netpol_limits *netpol_limits(const struct netpol *p)
{
	return &p->limits;
}

bool netpol_has_domains(const struct netpol *p)
{
	const struct netpol_rules *l = &p->list[NETPOL_ALLOW];

	/* They come first. */
	return l->n && l->v[0].name;
}

bool netpol_asks_name(const struct netpol *p)
{
	const struct netpol_rules *l = &p->list[NETPOL_ALLOW];

	if (p->default_allow)
		return false;
	for (size_t i = 0; i < l->n && l->v[i].name; i++)
		if (netpol_rule_covers(&l->v[i], NETPOL_TCP, 443))
			return true;
	return false;
}

const char *const *netpol_brokers(const struct netpol *p, size_t *ret_n)
{
	*ret_n = p->nbrokers;
	return (const char *const *)p->brokers;
}

bool netpol_broker(const struct netpol *p, const char *endpoint)
{
	for (size_t i = 0; i < p->nbrokers; i++)
		if (!strcmp(p->brokers[i], endpoint))
			return true;
	return false;
}

static void rule_text(const struct netpol_rule *r, char *buf, size_t size)
{
	char cidr[NETCIDR_TEXT];
	size_t len;

	snprintf(buf, size, "%s %s %s", r->name ? "domain" : "cidr",
		 r->name ? r->name : netcidr_text(&r->cidr, cidr),
		 netpol_proto_word(r->proto));
	if (ports_all(r->ports, r->nports)) {
		len = strlen(buf);
		snprintf(buf + len, size - len, " all ports");
		return;
	}
	for (unsigned i = 0; i < r->nports; i++) {
		len = strlen(buf);
		snprintf(buf + len, size - len,
			 r->ports[i].lo == r->ports[i].hi ? "%c%u" : "%c%u-%u",
			 i ? ',' : ' ', r->ports[i].lo, r->ports[i].hi);
	}
}

void netpol_why_text(const struct netpol_why *why, char *buf, size_t size)
{
	size_t len;

	if (why->by == NETPOL_BY_BROKER) {
		snprintf(buf, size, "the broker's endpoints, tcp %d",
			 NETPOL_BROKER_PORT);
	} else if (why->by == NETPOL_BY_DEFAULT) {
		snprintf(buf, size, "default %s",
			 why->allowed ? "allow" : "deny");
	} else {
		snprintf(buf, size, "%s ",
			 why->list == NETPOL_DENY ? "deny" : "allow");
		len = strlen(buf);
		rule_text(why->rule, buf + len, size - len);
	}
}
