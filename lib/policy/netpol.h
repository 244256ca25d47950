/* SPDX-License-Identifier: Apache-2.0 */
#ifndef POLICY_NETPOL_H
#define POLICY_NETPOL_H

#include "base/cleanup.h"
#include "policy/netaddr.h"
#include "policy/netname.h"
#include "wire/json.h"

/*
 * What a sandbox may reach.  People write *rules* (the field network_rules,
 * each value of phases):
 *
 *   {"pypi":true,"npm":false,                     semantic names
 *    "default":"deny"|"allow",                    deny
 *    "allow":[ENTRY..], "deny":[ENTRY..],
 *    "broker":["anthropic"],                      endpoints of the broker
 *    "limits":{"connections":200,"connections_per_s":50,"bandwidth_mbit":N,
 *              "bytes_mb":N,"dns_per_s":100}}
 *
 * An ENTRY is one of
 *   {"domain":"*.example.org","ports":PORTS,"proto":"tcp"|"udp"|"any"}
 *   {"cidr":"203.0.113.0/24","ports":PORTS,"proto":..|"icmp"}
 *   {"service":"pypi"}
 * and PORTS is "all" or a list of numbers and "LO-HI".  What an entry leaves
 * out: in allow the protocol is tcp, the ports of a domain 80 and 443 and those
 * of a CIDR all; in deny every protocol and every port.  icmp has no ports.
 *
 * They are compiled once, when they are given, into a *policy*: service names
 * replaced by their entries, everything checked.  It is itself written as rules
 * (so it can be read, and compiling it gives itself) but canonical:
 *
 *   - all keys are there: v, default, allow, deny, broker, limits;
 *   - an entry has one protocol ("any" became two or three entries), all its
 *     ports, as "all" or sorted ranges that do not touch; no two have the same
 *     domain or cidr and protocol; one that another of its list covers is
 *     gone;
 *   - names and CIDRs are in their canonical form; domains come before CIDRs,
 *     then sorted by bytes, CIDRs by netcidr_cmp(), then protocol;
 *   - its text has sorted keys and no spaces, and its hash is the SHA-256 of
 *     that text.
 *
 * So policies that say the same have the same hash, and may share what is made
 * of them.
 *
 * Who wins: a deny that matches wins over every allow, however much more exact
 * the allow is ("*.b" denied and "a.b" allowed: a.b is denied).  What no entry
 * matches gets the default.  With the default "allow", a domain can only be
 * denied as a whole (all ports), for what has no rule of its own is not looked
 * at by name.  What netdeny.h says is denied before and after all of this.
 */
struct netpol;

enum netpol_proto { NETPOL_TCP, NETPOL_UDP, NETPOL_ICMP };
enum netpol_list { NETPOL_ALLOW, NETPOL_DENY };

/* What has to be there for a policy to be enforced: the more the higher. */
enum netpol_strength { NETPOL_NONE, NETPOL_NAMES, NETPOL_ROUTED };

#define NETPOL_HASH	   64	/* hex digits */
#define NETPOL_RULES_MAX   1024 /* of each list, compiled */
#define NETPOL_RANGES_MAX  64	/* of ports, in one entry */
#define NETPOL_LISTEN_MAX  64	/* ports that names may need, all phases */
#define NETPOL_BROKERS_MAX 64
#define NETPOL_BROKER_NAME "broker.internal"
#define NETPOL_BROKER_PORT 80

struct netpol_range {
	uint16_t lo, hi; /* 1 to 65535, both included */
};

struct netpol_rule {
	char *name; /* a domain's pattern; NULL: cidr counts */
	struct netcidr cidr;
	enum netpol_proto proto;
	unsigned nports; /* 0 for icmp; all ports are one range */
	struct netpol_range ports[NETPOL_RANGES_MAX];
};

struct netpol_limits {
	uint32_t connections;	    /* at once */
	uint32_t connections_per_s; /* and twice that as burst */
	uint32_t dns_per_s;
	uint32_t bandwidth_mbit; /* 0: not limited */
	uint64_t bytes_mb;	 /* both directions; 0: not limited */
};

/*
 * Where compiling finds a semantic name.  find() gives the entries that
 * ${name}:true adds to allow and those that ${name}:false adds to deny, as
 * lists of ENTRY (borrowed from ${arg}); -ENOENT with ${e} set: there is none.
 */
struct netpol_env {
	int (*find)(void *arg, const char *name, const json_t **ret_allow,
		    const json_t **ret_deny, struct err *e);
	void *arg;
	const struct netpol_limits *limits; /* defaults; NULL: those above */
	bool link6; /* may a network that is allowed be IPv6: has a link any? */
};

/*
 * netpol_compile(rules, env, ret, e):
 * ${rules} NULL or {} denies everything.  Code "bad_value", or "unsupported"
 * where only ${env}->link6 is missing; the message names the place, as
 * "allow[2].ports[0]".  ${env} NULL: no semantic names, and IPv6.
 *
 * netpol_load(compiled, ret, e):
 * A policy that netpol_json() gave.  Trusts nothing; what is not canonical is
 * -EBADMSG.
 *
 * Both give one reference; netpol_ref() another, netpol_free() takes one back.
 */
int netpol_compile(const json_t *rules, const struct netpol_env *env,
		   struct netpol **ret, struct err *e);
int netpol_load(const json_t *compiled, struct netpol **ret, struct err *e);
struct netpol *netpol_ref(struct netpol *p);
void netpol_free(struct netpol *p);

#define auto_netpol __attribute__((cleanup(netpol_cleanup)))
static inline void netpol_cleanup(struct netpol **p)
{
	netpol_free(*p);
}

/*
 * netpol_limits_default(l): those above.  netpol_limits_parse(j, l, e): what
 * an object of limits says, into ${l}, which keeps the others; for
 * configuration.
 */
void netpol_limits_default(struct netpol_limits *l);
int netpol_limits_parse(const json_t *j, struct netpol_limits *l,
			struct err *e);

/* netpol_json(p): the canonical form, borrowed.  netpol_hash(p): 64 digits. */
const json_t *netpol_json(const struct netpol *p);
const char *netpol_hash(const struct netpol *p);

/*
 * netpol_merge(rules, more, ret, e):
 * ${rules} with the entries of ${more} added; both uncompiled.  A semantic name
 * that either calls false is false; limits of ${more} replace by key.  A
 * default other than that of ${rules} is "bad_value": only replacing changes
 * it.
 */
int netpol_merge(const json_t *rules, const json_t *more, json_t **ret,
		 struct err *e);

/*
 * netpol_strength(ps, n): the strongest any of ${ps} needs.  NETPOL_NAMES:
 * their allows are domains with TCP ports, or brokers, and no more than
 * NETPOL_LISTEN_MAX ports in all.
 * netpol_listen(ps, n, ports): those ports (80 for brokers), sorted, into
 * ports[NETPOL_LISTEN_MAX]; returns how many, -E2BIG: too many.
 */
enum netpol_strength netpol_strength(const struct netpol *const *ps, size_t n);
int netpol_listen(const struct netpol *const *ps, size_t n, uint16_t *ports);

/* "none", "names", "routed" and back (-EINVAL). */
const char *netpol_strength_word(enum netpol_strength s);
int netpol_strength_of(const char *word);
/* "tcp", "udp", "icmp" and back. */
const char *netpol_proto_word(enum netpol_proto proto);
int netpol_proto_of(const char *word);

/* --- decisions ----------------------------------------------------------- */

enum netpol_by {
	NETPOL_BY_RULE,	   /* rule */
	NETPOL_BY_BROKER,  /* the broker's own name and port */
	NETPOL_BY_DEFAULT, /* nothing matched */
};

struct netpol_why {
	bool allowed;
	enum netpol_by by;
	enum netpol_list list;		/* of rule */
	const struct netpol_rule *rule; /* borrowed; NULL unless by rule */
	/* Refused: "name" or "address" (nothing knows it, or a deny of it), or
	 * "port" (it is known, but not for this port): the why of a record of a
	 * denied attempt.  "" when allowed.  A literal. */
	const char *word;
};

/*
 * netpol_name(p, name): may the canonical ${name} be resolved: is there a
 * protocol and port for which it is allowed?  True for NETPOL_BROKER_NAME where
 * there are brokers.
 * netpol_name_exact(p, name): does an allow have it in full, not by a wildcard?
 */
bool netpol_name(const struct netpol *p, const char *name);
bool netpol_name_exact(const struct netpol *p, const char *name);

/*
 * netpol_allows_name(p, name, proto, port, why),
 * netpol_allows_addr(p, addr, proto, port, why):
 * The verdict on a connection to a name, or to an address that no name stands
 * for.  ${why} may be NULL.
 * netpol_denies_addr(p, addr, proto, port, why): after a name was allowed and
 * resolved: does a deny of a CIDR hit the address?  (true: refuse.)
 */
bool netpol_allows_name(const struct netpol *p, const char *name,
			enum netpol_proto proto, uint16_t port,
			struct netpol_why *why);
bool netpol_allows_addr(const struct netpol *p, const struct netaddr *addr,
			enum netpol_proto proto, uint16_t port,
			struct netpol_why *why);
bool netpol_denies_addr(const struct netpol *p, const struct netaddr *addr,
			enum netpol_proto proto, uint16_t port,
			struct netpol_why *why);

/*
 * netpol_name_ports(p, name, proto, ret): the ports ${name} is allowed for, all
 * its allows together minus its denies, sorted, into
 * ret[NETPOL_NAME_RANGES_MAX]; returns how many ranges.  What does not fit is
 * left out (fail closed).  The default does not count.
 */
#define NETPOL_NAME_RANGES_MAX 128
size_t netpol_name_ports(const struct netpol *p, const char *name,
			 enum netpol_proto proto, struct netpol_range *ret);

/* netpol_denies_whole(p, pattern): every tcp and udp port of all the names that
 * the canonical ${pattern} matches. */
bool netpol_denies_whole(const struct netpol *p, const char *pattern);

/* netpol_why_text(why, buf, size): for people: "allow domain *.example.org tcp
 * 443", "default deny". */
void netpol_why_text(const struct netpol_why *why, char *buf, size_t size);

/* --- what it is made of -------------------------------------------------- */

/* netpol_rules(p, list, ret_n): in canonical order, borrowed; take those you
 * can use (name set or not). */
const struct netpol_rule *netpol_rules(const struct netpol *p,
				       enum netpol_list list, size_t *ret_n);
bool netpol_default_allow(const struct netpol *p);
const struct netpol_limits *netpol_limits(const struct netpol *p);

/*
 * netpol_has_domains(p): is there an allow of a domain?
 * netpol_asks_name(p): does a name decide about TCP 443, so that it has to be
 * looked for in the handshake?  Not with the default "allow".
 */
bool netpol_has_domains(const struct netpol *p);
bool netpol_asks_name(const struct netpol *p);

/* netpol_broker(p, endpoint): may it be used?  netpol_brokers(p, ret_n): all,
 * sorted. */
bool netpol_broker(const struct netpol *p, const char *endpoint);
const char *const *netpol_brokers(const struct netpol *p, size_t *ret_n);

/* netpol_rule_json(r): as an entry; the caller's, NULL out of memory. */
json_t *netpol_rule_json(const struct netpol_rule *r);

/* netpol_rule_covers(r, proto, port): its protocol and one of its ports. */
bool netpol_rule_covers(const struct netpol_rule *r, enum netpol_proto proto,
			uint16_t port);

/* netpol_rule_parse(entry, list, ret, n, where, e): one ENTRY (no service) into
 * at most three rules at ${ret}; returns how many.  For configuration that is
 * written like rules; netpol_rule_done() frees one. */
int netpol_rule_parse(const json_t *entry, enum netpol_list list,
		      struct netpol_rule *ret, const char *where,
		      struct err *e);
void netpol_rule_done(struct netpol_rule *r);

#endif
