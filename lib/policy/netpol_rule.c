/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "policy/netpol_priv.h"

/* One entry of a list, as text and as rules. */

static const char *const proto_words[] =
	{[NETPOL_TCP] = "tcp", [NETPOL_UDP] = "udp", [NETPOL_ICMP] = "icmp"};

#define NPROTO array_len(proto_words)

const char *netpol_proto_word(enum netpol_proto proto)
{
	return proto_words[proto];
}

int netpol_proto_of(const char *word)
{
	for (size_t i = 0; i < NPROTO; i++)
		if (!strcmp(word, proto_words[i]))
			return (int)i;
	return -EINVAL;
}

static int bad(struct err *e, const char *where, const char *what)
{
	return err_set(e, -EBADMSG, "bad_value", "%s: %s", where, what);
}

/* "LO-HI", exactly. */
static int parse_range(const char *text, struct netpol_range *ret)
{
	unsigned v[2] = {0, 0};
	const char *p = text;

	for (int i = 0; i < 2; i++) {
		size_t n = strspn(p, "0123456789");

		if (n < 1 || n > 5 || p[0] == '0' || p[n] != (i ? '\0' : '-'))
			return -EINVAL;
		for (; n; n--)
			v[i] = v[i] * 10 + (unsigned)(*p++ - '0');
		p++;
	}
	if (v[0] > v[1] || v[1] > 65535)
		return -EINVAL;
	*ret = (struct netpol_range){(uint16_t)v[0], (uint16_t)v[1]};
	return 0;
}

static int parse_port(const json_t *j, struct netpol_range *ret)
{
	json_int_t n;

	if (json_is_string(j))
		return parse_range(json_string_value(j), ret);
	if (!json_is_integer(j))
		return -EINVAL;
	n = json_integer_value(j);
	if (n < 1 || n > 65535)
		return -EINVAL;
	*ret = (struct netpol_range){(uint16_t)n, (uint16_t)n};
	return 0;
}

static int parse_ports(const json_t *j, struct ports *ports, const char *where,
		       struct err *e)
{
	struct netpol_range r;
	json_t *one;
	size_t i;

	if (json_is_string(j) && !strcmp(json_string_value(j), "all"))
		return ports_add(ports, (struct netpol_range){1, 65535});
	if (!json_is_array(j) || json_array_size(j) == 0)
		return bad(e, where,
			   "ports are \"all\" or a list of numbers and "
			   "\"LO-HI\"");
	json_array_foreach(j, i, one) {
		if (parse_port(one, &r) < 0)
			return err_set(e, -EBADMSG, "bad_value",
				       "%s.ports[%zu] is not a port (1 to "
				       "65535) or \"LO-HI\"",
				       where, i);
		if (ports_add(ports, r) < 0)
			return err_set(e, -EBADMSG, "bad_value",
				       "%s.ports: more than %d ranges", where,
				       NETPOL_RANGES_MAX);
	}
	return 0;
}

static int parse_domain(const char *text, struct netpol_rule *r,
			const char *where, struct err *e)
{
	char name[NETNAME_MAX + 1];
	struct netaddr a;

	if (netname_pattern(text, name) < 0)
		return err_set(e, -EBADMSG, "bad_value",
			       "%s: '%.128s' is not a domain: %s", where, text,
			       netaddr_parse(text, &a) == 0
				       ? "an address is a \"cidr\""
				       : "a name (a.example.org) or all below "
					 "one (*.example.org), without scheme, "
					 "path or port");
	if (!strcmp(name, NETPOL_BROKER_NAME) || !strcmp(name, "localhost"))
		return err_set(e, -EBADMSG, "bad_value",
			       "%s: '%s' is no name of the network%s", where,
			       name,
			       name[0] == 'b' ? ": say \"broker\":[..]" : "");
	r->name = strdup(name);
	return r->name ? 0 : err_sys(e, ENOMEM, "rule");
}

static int parse_cidr(const char *text, struct netpol_rule *r,
		      const char *where, struct err *e)
{
	int bits = netcidr_parse(text, &r->cidr);

	if (bits == 0)
		return 0;
	return err_set(e, -EBADMSG, "bad_value", "%s: '%.64s' %s", where, text,
		       bits == -EDOM ? "has bits set after its prefix"
				     : "is not a network such as "
				       "203.0.113.0/24 or 2001:db8::/32");
}

/* Which protocols: a bit each. */
static int parse_protos(const json_t *entry, enum netpol_list list, bool domain,
			const char *where, struct err *e)
{
	unsigned all = 1 << NETPOL_TCP | 1 << NETPOL_UDP;
	const json_t *j = json_object_get(entry, "proto");
	int p;

	if (!domain)
		all |= 1 << NETPOL_ICMP;
	if (!j)
		return list == NETPOL_DENY ? (int)all : 1 << NETPOL_TCP;
	if (json_is_string(j) && !strcmp(json_string_value(j), "any"))
		return (int)all;
	p = json_is_string(j) ? netpol_proto_of(json_string_value(j)) : -1;
	if (p < 0 || !(all & 1U << p))
		return bad(e, where,
			   domain ? "the proto of a domain is tcp, udp or any"
				  : "proto is tcp, udp, icmp or any");
	return 1 << p;
}

static int parse_target(const json_t *entry, struct netpol_rule *r,
			const char *where, struct err *e)
{
	const json_t *domain = json_object_get(entry, "domain");
	const json_t *cidr = json_object_get(entry, "cidr");
	const json_t *j = domain ? domain : cidr;

	if (!domain == !cidr)
		return bad(e, where,
			   "an entry has one of domain, cidr and service");
	if (!json_is_string(j))
		return bad(e, where,
			   domain ? "domain is a string" : "cidr is a string");
	return domain ? parse_domain(json_string_value(j), r, where, e)
		      : parse_cidr(json_string_value(j), r, where, e);
}

static int check_keys(const json_t *entry, const char *where, struct err *e)
{
	static const char *const keys[] = {"domain", "cidr", "ports", "proto"};
	const char *key = json_unknown(entry, keys, array_len(keys));

	if (!json_is_object(entry))
		return bad(e, where, "an entry is an object");
	if (key)
		return err_set(e, -EBADMSG, "unknown_field",
			       "%s: unknown key '%.64s'", where, key);
	return 0;
}

static int fill_ports(const json_t *entry, enum netpol_list list,
		      struct netpol_rule *r, const char *where, struct err *e)
{
	const json_t *j = json_object_get(entry, "ports");
	struct ports ports = {r->ports, 0, NETPOL_RANGES_MAX};
	int ret = 0;

	if (j) {
		ret = parse_ports(j, &ports, where, e);
	} else if (r->name && list == NETPOL_ALLOW) {
		ports_add(&ports, (struct netpol_range){80, 80});
		ports_add(&ports, (struct netpol_range){443, 443});
	} else {
		ports_add(&ports, (struct netpol_range){1, 65535});
	}
	r->nports = ports.n;
	return ret;
}

void netpol_rule_done(struct netpol_rule *r)
{
	free(r->name);
	r->name = NULL;
}

/* ${r} as each of the protocols ${set}, into ${ret}. */
static int spread(struct netpol_rule *r, unsigned set, bool partial,
		  struct netpol_rule *ret)
{
	int n = 0;

	for (unsigned p = 0; p < NPROTO; p++) {
		/* Ports were said: then "any" is what has ports. */
		if (!(set & 1U << p) || (p == NETPOL_ICMP && partial))
			continue;
		ret[n] = *r;
		ret[n].proto = (enum netpol_proto)p;
		if (p == NETPOL_ICMP)
			ret[n].nports = 0;
		ret[n].name = NULL;
		if (r->name && !(ret[n].name = strdup(r->name))) {
			while (n > 0)
				netpol_rule_done(&ret[--n]);
			return -ENOMEM;
		}
		n++;
	}
	return n;
}

int netpol_rule_parse(const json_t *entry, enum netpol_list list,
		      struct netpol_rule *ret, const char *where, struct err *e)
{
	struct netpol_rule r = {.name = NULL};
	int protos = 0, n;

	n = check_keys(entry, where, e);
	if (n == 0)
		n = parse_target(entry, &r, where, e);
	if (n == 0)
		n = protos = parse_protos(entry, list, r.name, where, e);
	if (n > 0)
		n = fill_ports(entry, list, &r, where, e);
	if (n == 0 && protos == 1 << NETPOL_ICMP &&
	    json_object_get(entry, "ports"))
		n = bad(e, where, "icmp has no ports");
	if (n == 0) {
		n = spread(&r, (unsigned)protos, !ports_all(r.ports, r.nports),
			   ret);
		if (n < 0)
			err_sys(e, ENOMEM, "rule");
	}
	netpol_rule_done(&r);
	return n;
}

/* --- lists --------------------------------------------------------------- */

int rules_add(struct netpol_rules *l, struct netpol_rule *r, struct err *e)
{
	struct netpol_rule *v;
	size_t cap = l->cap ? l->cap * 2 : 8;

	if (l->n == l->cap) {
		v = reallocarray(l->v, cap, sizeof(*v));
		if (!v) {
			netpol_rule_done(r);
			return err_sys(e, ENOMEM, "rules");
		}
		l->v = v;
		l->cap = cap;
	}
	l->v[l->n++] = *r;
	return 0;
}

void rules_done(struct netpol_rules *l)
{
	for (size_t i = 0; i < l->n; i++)
		netpol_rule_done(&l->v[i]);
	free(l->v);
	*l = (struct netpol_rules){0};
}

static int cmp_target(const struct netpol_rule *a, const struct netpol_rule *b)
{
	if (!a->name != !b->name)
		return a->name ? -1 : 1;
	return a->name ? strcmp(a->name, b->name)
		       : netcidr_cmp(&a->cidr, &b->cidr);
}

static int cmp(const void *pa, const void *pb)
{
	const struct netpol_rule *a = pa, *b = pb;
	int r = cmp_target(a, b);

	return r ? r : (int)a->proto - (int)b->proto;
}

static int merge_same(struct netpol_rules *l, const char *where, struct err *e)
{
	size_t to = 0;

	for (size_t i = 1; i < l->n; i++) {
		struct netpol_rule *a = &l->v[to], *b = &l->v[i];
		struct ports set = {a->ports, a->nports, NETPOL_RANGES_MAX};
		int r = 0;

		if (cmp(a, b)) {
			if (++to != i) {
				l->v[to] = *b;
				b->name = NULL;
			}
			continue;
		}
		for (unsigned k = 0; k < b->nports && r == 0; k++)
			r = ports_add(&set, b->ports[k]);
		netpol_rule_done(b);
		a->nports = set.n;
		if (r < 0)
			return err_set(e, -EBADMSG, "bad_value",
				       "%s: more than %d ranges of ports for "
				       "one domain or cidr",
				       where, NETPOL_RANGES_MAX);
	}
	for (size_t i = to + 1; i < l->n; i++)
		netpol_rule_done(&l->v[i]);
	if (l->n)
		l->n = to + 1;
	return 0;
}

static bool covers(const struct netpol_rule *out, const struct netpol_rule *in)
{
	if (!out->name != !in->name || out->proto != in->proto)
		return false;
	if (out->name ? !netname_within(in->name, out->name)
		      : !netcidr_within(&in->cidr, &out->cidr))
		return false;
	return ports_within(in->ports, in->nports, out->ports, out->nports);
}

static bool is_covered(const struct netpol_rules *l, size_t i)
{
	for (size_t k = 0; k < l->n; k++)
		if (k != i && covers(&l->v[k], &l->v[i]))
			return true;
	return false;
}

/* No two have the same target, so none of two covers both ways. */
static int drop_covered(struct netpol_rules *l, struct err *e)
{
	auto_free bool *gone = calloc(l->n + 1, sizeof(*gone));
	size_t to = 0;

	if (!gone)
		return err_sys(e, ENOMEM, "rules");
	for (size_t i = 0; i < l->n; i++)
		gone[i] = is_covered(l, i);
	for (size_t i = 0; i < l->n; i++) {
		if (gone[i])
			netpol_rule_done(&l->v[i]);
		else
			l->v[to++] = l->v[i];
	}
	l->n = to;
	return 0;
}

int rules_canon(struct netpol_rules *l, const char *where, struct err *e)
{
	int r;

	if (l->n == 0)
		return 0;
	qsort(l->v, l->n, sizeof(*l->v), cmp);
	r = merge_same(l, where, e);
	if (r == 0 && l->n > NETPOL_RULES_MAX)
		r = err_set(e, -EBADMSG, "bad_value", "%s: more than %d rules",
			    where, NETPOL_RULES_MAX);
	return r < 0 ? r : drop_covered(l, e);
}
