/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "policy/netpol_priv.h"

/* The canonical text, and rules that are added to rules. */

static json_t *ports_json(const struct netpol_rule *r)
{
	json_t *list;
	char text[16];

	if (ports_all(r->ports, r->nports))
		return json_string("all");
	list = json_array();
	for (unsigned i = 0; i < r->nports; i++) {
		const struct netpol_range *p = &r->ports[i];
		json_t *one;

		snprintf(text, sizeof(text), "%u-%u", p->lo, p->hi);
		one = p->lo == p->hi ? json_integer(p->lo) : json_string(text);
		if (json_array_append_new(list, one) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

json_t *netpol_rule_json(const struct netpol_rule *r)
{
	char cidr[NETCIDR_TEXT];
	json_t *j = json_pack("{s:s, s:s}", r->name ? "domain" : "cidr",
			      r->name ? r->name : netcidr_text(&r->cidr, cidr),
			      "proto", netpol_proto_word(r->proto));

	if (!j || r->proto == NETPOL_ICMP)
		return j;
	if (json_object_set_new(j, "ports", ports_json(r)) < 0) {
		json_decref(j);
		return NULL;
	}
	return j;
}

static json_t *rules_json(const struct netpol_rules *l)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < l->n; i++) {
		if (json_array_append_new(list, netpol_rule_json(&l->v[i])) <
		    0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *brokers_json(const struct netpol *p)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < p->nbrokers; i++) {
		if (json_array_append_new(list, json_string(p->brokers[i])) <
		    0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *limits_json(const struct netpol_limits *l)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "connections",
			 (json_int_t)l->connections, "connections_per_s",
			 (json_int_t)l->connections_per_s, "dns_per_s",
			 (json_int_t)l->dns_per_s, "bandwidth_mbit",
			 (json_int_t)l->bandwidth_mbit, "bytes_mb",
			 (json_int_t)l->bytes_mb);
}

int netpol_seal(struct netpol *p, struct err *e)
{
	auto_free char *text = NULL;
	int r;

	/* "o" takes a NULL as failure and frees the others. */
	r = json_pack_or(&p->json, e, "{s:i, s:s, s:o, s:o, s:o, s:o}", "v", 1,
			 "default", p->default_allow ? "allow" : "deny",
			 "allow", rules_json(&p->list[NETPOL_ALLOW]), "deny",
			 rules_json(&p->list[NETPOL_DENY]), "broker",
			 brokers_json(p), "limits", limits_json(&p->limits));
	if (r < 0)
		return r;
	text = json_dumps(p->json, JSON_COMPACT | JSON_SORT_KEYS);
	if (!text)
		return err_sys(e, ENOMEM, "policy");
	hash_sha256(text, strlen(text), p->hash);
	return 0;
}

/* --- merging ------------------------------------------------------------- */

static int add_list(json_t *to, const char *key, const json_t *more,
		    struct err *e)
{
	json_t *list = json_object_get(to, key);

	if (!json_is_array(more) || (list && !json_is_array(list)))
		return err_set(e, -EBADMSG, "bad_value", "%s: not a list", key);
	if (!list)
		return json_object_set_new(to, key,
					   json_copy(
						   (json_t *)(uintptr_t)more));
	return json_array_extend(list, (json_t *)(uintptr_t)more);
}

static int add_limits(json_t *to, const json_t *more, struct err *e)
{
	json_t *limits = json_object_get(to, "limits");

	if (!json_is_object(more))
		return err_set(e, -EBADMSG, "bad_value",
			       "limits: not an object");
	if (!limits)
		return json_object_set_new(to, "limits",
					   json_copy(
						   (json_t *)(uintptr_t)more));
	return json_object_update(limits, (json_t *)(uintptr_t)more);
}

static int same_default(const json_t *rules, const json_t *more, struct err *e)
{
	const char *was = json_str(rules, "default");

	if (json_is_string(more) &&
	    !strcmp(json_string_value(more), *was ? was : "deny"))
		return 0;
	return err_set(e, -EBADMSG, "bad_value",
		       "default: merging adds rules and cannot change it; "
		       "replace does");
}

static int add_key(json_t *to, const char *key, json_t *v, struct err *e)
{
	if (!strcmp(key, "allow") || !strcmp(key, "deny") ||
	    !strcmp(key, "broker"))
		return add_list(to, key, v, e);
	if (!strcmp(key, "limits"))
		return add_limits(to, v, e);
	if (!strcmp(key, "default"))
		return same_default(to, v, e);
	if (json_is_false(json_object_get(to, key)) && json_is_true(v))
		return 0; /* false beats true */
	return json_object_set(to, key, v);
}

int netpol_merge(const json_t *rules, const json_t *more, json_t **ret,
		 struct err *e)
{
	auto_json json_t *to = rules ? json_deep_copy(rules) : json_object();
	struct err why = {0};
	const char *key;
	json_t *v;

	if (!json_is_object(to) || !json_is_object(more))
		return err_set(e, -EBADMSG, "bad_value",
			       "network rules are an object");
	json_object_foreach((json_t *)(uintptr_t)more, key, v) {
		if (add_key(to, key, v, &why) == 0)
			continue;
		if (why.r == 0)
			return err_sys(e, ENOMEM, "rules");
		if (e)
			*e = why;
		return why.r;
	}
	*ret = steal_ptr(to);
	return 0;
}
