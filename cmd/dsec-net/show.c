/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/net.h"
#include "net/node.h"
#include "work.h"

/* Every rule that holds for a sandbox, whoever made it. */

/* --- where a rule comes from --------------------------------------------- */

/* The semantic names of ${rules}, with what they are on this node now. */
static int put_services(struct work *w, const json_t *rules, json_t *rec,
			struct err *e)
{
	auto_json json_t *list = json_array();
	const char *name;
	json_t *v, *about;

	if (!list)
		return err_sys(e, ENOMEM, "record");
	json_object_foreach((json_t *)(uintptr_t)rules, name, v) {
		if (!json_is_boolean(v))
			continue;
		/* It may have been taken away since. */
		if (services_about(w->services, name, &about, NULL) < 0)
			about = json_pack("{s:s, s:s}", "name", name, "from",
					  "gone");
		if (!about)
			return err_sys(e, ENOMEM, "record");
		json_object_set(about, "allowed", v);
		json_array_append_new(list, about);
	}
	if (json_array_size(list) == 0)
		return 0;
	return json_object_set(rec, "services", list) < 0
		       ? err_sys(e, ENOMEM, "record")
		       : 0;
}

/* --- the lists ----------------------------------------------------------- */

static int add(json_t *list, json_t *one, const char *does, const char *why)
{
	if (!one)
		return -ENOMEM;
	json_object_set_new(one, "does", json_string(does));
	if (why)
		json_object_set_new(one, "why", json_string(why));
	return json_array_append_new(list, one);
}

static int add_rules(json_t *list, const struct netpol *p,
		     enum netpol_list which)
{
	size_t n;
	const struct netpol_rule *v = netpol_rules(p, which, &n);
	int r = 0;

	for (size_t i = 0; i < n; i++)
		r |= add(list, netpol_rule_json(&v[i]),
			 which == NETPOL_ALLOW ? "allow" : "deny", NULL);
	return r;
}

static json_t *to_port(const char *cidr, int port, const char *proto)
{
	return json_pack("{s:s, s:[i], s:s}", "cidr", cidr, "ports", port,
			 "proto", proto);
}

static int add_brokers(json_t *list, const struct netpol *p)
{
	size_t n;
	const char *const *v = netpol_brokers(p, &n);
	int r = 0;

	for (size_t i = 0; i < n; i++)
		r |= add(list,
			 json_pack("{s:s, s:s}", "broker", v[i], "domain",
				   NETPOL_BROKER_NAME),
			 "allow", NULL);
	return r;
}

/* In the order in which they are asked. */
static json_t *rules_list(const struct netpol *p, enum netpol_strength s)
{
	json_t *list = json_array();
	bool open = netpol_default_allow(p);
	int r;

	r = add_rules(list, p, NETPOL_DENY);
	r |= add_brokers(list, p);
	r |= add_rules(list, p, NETPOL_ALLOW);
	if (s != NETPOL_NONE)
		r |= add(list, json_pack("{s:b}", "default", 1),
			 open ? "allow" : "deny", NULL);
	if (r < 0) {
		json_decref(list);
		return NULL;
	}
	return list;
}

static int add_implicit(json_t *list, enum netpol_strength s,
			const struct netpol *p)
{
	int r = 0;

	if (s == NETPOL_NONE)
		return add(list, json_pack("{s:s}", "cidr", "any"), "deny",
			   "there is no way out: no rule of any phase allows "
			   "anything");
	r |= add(list, to_port("198.18.0.1/32", 53, "udp"), "allow",
		 "the node's resolver, for names that a rule allows");
	r |= add(list, to_port("198.18.0.1/32", 53, "tcp"), "allow",
		 "the same over TCP");
	if (s == NETPOL_NAMES)
		return r |
		       add(list, json_pack("{s:s}", "cidr", "any"), "deny",
			   "no link: names alone, by TCP, through the node");
	r |= add(list, json_pack("{s:s, s:[i]}", "cidr", "any", "ports", 53),
		 "redirect", "every resolver is the node's");
	if (netpol_asks_name(p)) {
		r |= add(list, to_port("any", 443, "tcp"), "redirect",
			 "where no network is allowed for it, the name in the "
			 "TLS handshake decides");
		r |= add(list, to_port("any", 443, "udp"), "deny",
			 "of what a name led to: in QUIC there is no name to "
			 "look at");
	}
	return r | add(list, json_pack("{s:s}", "cidr", "::/0"), "deny",
		       "the link has no IPv6");
}

int node_deny(struct work *w, struct netdeny **ret, struct err *e)
{
	auto_netdeny struct netdeny *d = NULL;
	int r = work_conf(w, e);

	if (r == 0)
		r = netconf_deny(&w->conf, &d, e);
	if (r == 0)
		r = node_addrs(d, e);
	if (r == 0)
		*ret = steal_ptr(d);
	return r;
}

static int add_always(json_t *list, const struct netdeny *d)
{
	size_t n;
	const struct netpol_rule *ex = netdeny_exceptions(d, &n);
	const struct netdeny_range *v;
	char cidr[NETCIDR_TEXT];
	int r = 0;

	for (size_t i = 0; i < n; i++)
		r |= add(list, netpol_rule_json(&ex[i]), "except",
			 "the operator's (net.json): may be allowed");
	v = netdeny_ranges(d, &n);
	for (size_t i = 0; i < n; i++)
		r |= add(list,
			 json_pack("{s:s}", "cidr",
				   netcidr_text(&v[i].cidr, cidr)),
			 "deny", v[i].what);
	return r;
}

static int put_lists(struct work *w, const json_t *spec, const struct netpol *p,
		     json_t *rec, struct err *e)
{
	enum netpol_strength s = net_strength(spec);
	auto_netdeny struct netdeny *d = NULL;
	auto_json json_t *implicit = json_array();
	int r;

	r = node_deny(w, &d, e);
	if (r < 0)
		return r;
	r = add_implicit(implicit, s, p);
	if (s != NETPOL_NONE)
		r |= add_always(implicit, d);
	r |= json_object_set_new(rec, "rules", rules_list(p, s));
	r |= json_object_set(rec, "implicit", implicit);
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

/* --- the rest ------------------------------------------------------------ */

static int put_head(const json_t *spec, const struct netpol *p, json_t *rec,
		    struct err *e)
{
	auto_json json_t *phases = json_array();
	json_t *phase = json_object_get(spec, "phase"), *v;
	const char *name;
	int r = 0;

	json_object_foreach(json_object_get(spec, "phases"), name, v)
		r |= json_array_append_new(phases, json_string(name));
	if (phase)
		r |= json_object_set(rec, "phase", phase);
	r |= json_object_set(rec, "phases", phases);
	r |= json_object_set_new(rec, "network",
				 json_string(netpol_strength_word(
					 net_strength(spec))));
	r |= json_object_set_new(rec, "hash", json_string(netpol_hash(p)));
	r |= json_object_set(rec, "limits",
			     json_object_get(netpol_json(p), "limits"));
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

/* Ports that the sandbox took while nobody held them. */
static int put_unserved(struct work *w, const char *id, const json_t *spec,
			json_t *rec, struct err *e)
{
	uint16_t port[HELPER_PORTS_MAX];
	json_t *list;
	size_t n;
	int r;

	if (net_unserved(w->helper, id, spec, port, &n, NULL) < 0 || n == 0)
		return 0;
	list = json_array();
	r = list ? 0 : -1;
	for (size_t i = 0; i < n; i++)
		r |= json_array_append_new(list, json_integer(port[i]));
	r |= json_object_set_new(rec, "unserved", list);
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

/* What the helper says; that it is not there is an answer too. */
static int put_helper(struct work *w, const char *id, const json_t *spec,
		      json_t *rec, struct err *e)
{
	auto_json json_t *stats = NULL;
	struct err why = {0};
	json_t *one;
	int r;

	r = work_helper(w, &why);
	if (r == 0)
		r = helper_stats(w->helper, id, &stats, &why);
	if (r < 0) {
		work_lost(w);
		return json_object_set_new(rec, "in_force", json_false()) < 0 ||
				       json_object_set_new(rec, "in_force_why",
							   json_string(
								   why.msg)) < 0
			       ? err_sys(e, ENOMEM, "record")
			       : 0;
	}
	one = json_object_get(json_object_get(stats, "sandboxes"), id);
	r = json_object_set_new(rec, "in_force",
				json_boolean(!strcmp(json_str(one, "hash"),
						     json_str(rec, "hash"))));
	if (one)
		r |= json_object_set(rec, "counters", one);
	return r < 0 ? err_sys(e, ENOMEM, "record")
		     : put_unserved(w, id, spec, rec, e);
}

const json_t *rules_of(const json_t *spec)
{
	const char *phase = json_str(spec, "phase");

	return *phase ? json_object_get(json_object_get(spec, "phases"), phase)
		      : json_object_get(spec, "network_rules");
}

int policy_of(const json_t *spec, struct netpol **ret, struct err *e)
{
	const json_t *policy = json_object_get(spec, "policy");

	return policy ? netpol_load(json_object_get(policy, "compiled"), ret, e)
		      : netpol_compile(NULL, NULL, ret, e);
}

int show(struct work *w, const char *id, json_t *rec, struct err *e)
{
	auto_json json_t *spec = NULL;
	auto_netpol struct netpol *p = NULL;
	int r;

	r = work_spec(w, id, &spec, e);
	if (r == 0)
		r = work_conf(w, e);
	if (r == 0)
		r = policy_of(spec, &p, e);
	if (r < 0)
		return r;
	r = put_head(spec, p, rec, e);
	if (r == 0)
		r = put_services(w, rules_of(spec), rec, e);
	if (r == 0)
		r = put_lists(w, spec, p, rec, e);
	if (r == 0 && net_strength(spec) != NETPOL_NONE)
		r = put_helper(w, id, spec, rec, e);
	return r;
}
