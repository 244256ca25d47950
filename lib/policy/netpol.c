/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/netpol_priv.h"

#define WHERE_MAX 128

/* What compiling works with. */
struct compile {
	struct netpol *p;
	const struct netpol_env *env;
	unsigned services; /* how deep: entries of a service name no other */
};

static int bad(struct err *e, const char *where, const char *what)
{
	return err_set(e, -EBADMSG, "bad_value", "%s: %s", where, what);
}

/* --- services ------------------------------------------------------------ */

static int add_entries(struct compile *c, const json_t *list,
		       enum netpol_list to, const char *where, struct err *e);

static int add_service(struct compile *c, const char *name, enum netpol_list to,
		       const char *where, struct err *e)
{
	const json_t *allow = NULL, *deny = NULL;
	char place[WHERE_MAX];
	int r;

	if (c->services)
		return bad(e, where,
			   "a service's entries are domains or cidrs");
	if (!c->env || !c->env->find)
		return err_set(e, -EBADMSG, "bad_value",
			       "%s: '%.64s': semantic names are not known here",
			       where, name);
	r = c->env->find(c->env->arg, name, &allow, &deny, e);
	if (r < 0)
		return err_wrap(e, r, "%s", where);
	snprintf(place, sizeof(place), "service %.64s: rules", name);
	c->services++;
	r = add_entries(c, to == NETPOL_ALLOW ? allow : deny, to, place, e);
	c->services--;
	return r;
}

/* --- lists --------------------------------------------------------------- */

/* Told when it is said, not when nothing comes of it. */
static int check_family(const struct compile *c, const struct netpol_rule *r,
			const char *where, struct err *e)
{
	if (r->name || !r->cidr.addr.v6 || !c->env || c->env->link6)
		return 0;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "%s: the link of a sandbox has no IPv6: a network that "
		       "is allowed is IPv4",
		       where);
}

static int add_entry(struct compile *c, const json_t *entry,
		     enum netpol_list to, const char *where, struct err *e)
{
	const json_t *service = json_object_get(entry, "service");
	struct netpol_rule rules[3];
	int n, r = 0;

	if (service && json_object_size(entry) != 1)
		return bad(e, where, "a service stands alone in its entry");
	if (service && !json_is_string(service))
		return bad(e, where, "service is a string");
	if (service)
		return add_service(c, json_string_value(service), to, where, e);
	n = netpol_rule_parse(entry, to, rules, where, e);
	if (n > 0 && to == NETPOL_ALLOW)
		r = check_family(c, &rules[0], where, e);
	for (int i = 0; i < n; i++) {
		if (r == 0)
			r = rules_add(&c->p->list[to], &rules[i], e);
		else
			netpol_rule_done(&rules[i]);
	}
	return n < 0 ? n : r;
}

static int add_entries(struct compile *c, const json_t *list,
		       enum netpol_list to, const char *where, struct err *e)
{
	char place[WHERE_MAX];
	json_t *entry;
	size_t i;
	int r = 0;

	if (!json_is_array(list))
		return bad(e, where, "not a list of entries");
	if (json_array_size(list) > NETPOL_RULES_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "%s: more than %d entries", where,
			       NETPOL_RULES_MAX);
	json_array_foreach(list, i, entry) {
		snprintf(place, sizeof(place), "%s[%zu]", where, i);
		r = add_entry(c, entry, to, place, e);
		if (r < 0)
			break;
	}
	return r;
}

/* --- the rest of the keys ------------------------------------------------ */

static int parse_default(struct netpol *p, const json_t *v, struct err *e)
{
	const char *word = json_is_string(v) ? json_string_value(v) : "";

	if (strcmp(word, "allow") && strcmp(word, "deny"))
		return bad(e, "default", "not \"deny\" or \"allow\"");
	p->default_allow = !strcmp(word, "allow");
	return 0;
}

static bool is_endpoint(const char *s)
{
	size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-");

	return n > 0 && n <= 63 && s[n] == '\0';
}

static int cmp_str(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int parse_brokers(struct netpol *p, const json_t *v, struct err *e)
{
	json_t *one;
	size_t i, n;

	if (!json_is_array(v))
		return bad(e, "broker", "not a list of endpoints");
	if (json_array_size(v) > NETPOL_BROKERS_MAX)
		return bad(e, "broker", "more than 64 endpoints");
	p->brokers = calloc(json_array_size(v) + 1, sizeof(*p->brokers));
	if (!p->brokers)
		return err_sys(e, ENOMEM, "policy");
	json_array_foreach(v, i, one) {
		if (!json_is_string(one) ||
		    !is_endpoint(json_string_value(one)))
			return err_set(e, -EBADMSG, "bad_value",
				       "broker[%zu]: not the name of an "
				       "endpoint (a-z, 0-9, '_', '-')",
				       i);
		p->brokers[i] = strdup(json_string_value(one));
		if (!p->brokers[i])
			return err_sys(e, ENOMEM, "policy");
		p->nbrokers++;
	}
	qsort(p->brokers, p->nbrokers, sizeof(*p->brokers), cmp_str);
	for (i = n = 0; i < p->nbrokers; i++) {
		if (n && !strcmp(p->brokers[i], p->brokers[n - 1]))
			free(p->brokers[i]);
		else
			p->brokers[n++] = p->brokers[i];
	}
	p->nbrokers = n;
	p->brokers[n] = NULL;
	return 0;
}

/* Not the fields' own address: they differ in size. */
struct limit {
	const char *key;
	uint64_t min, max, v;
};

int netpol_limits_parse(const json_t *j, struct netpol_limits *l, struct err *e)
{
	struct limit t[] = {
		{"connections", 1, 65535, l->connections},
		{"connections_per_s", 1, 1000000, l->connections_per_s},
		{"dns_per_s", 1, 1000000, l->dns_per_s},
		{"bandwidth_mbit", 0, 1000000, l->bandwidth_mbit},
		{"bytes_mb", 0, 1ULL << 40, l->bytes_mb},
	};
	const char *key;
	json_t *v;
	size_t i;

	if (!json_is_object(j))
		return bad(e, "limits", "not an object");
	json_object_foreach((json_t *)(uintptr_t)j, key, v) {
		for (i = 0; i < array_len(t) && strcmp(key, t[i].key); i++)
			;
		if (i == array_len(t))
			return err_set(e, -EBADMSG, "unknown_field",
				       "limits: unknown key '%.64s'", key);
		if (!json_is_integer(v) || json_integer_value(v) < 0 ||
		    (uint64_t)json_integer_value(v) < t[i].min ||
		    (uint64_t)json_integer_value(v) > t[i].max)
			return err_set(e, -EBADMSG, "bad_value",
				       "limits.%s: not an integer from %llu to "
				       "%llu",
				       key, (unsigned long long)t[i].min,
				       (unsigned long long)t[i].max);
		t[i].v = (uint64_t)json_integer_value(v);
	}
	*l = (struct netpol_limits){
		.connections = (uint32_t)t[0].v,
		.connections_per_s = (uint32_t)t[1].v,
		.dns_per_s = (uint32_t)t[2].v,
		.bandwidth_mbit = (uint32_t)t[3].v,
		.bytes_mb = t[4].v,
	};
	return 0;
}

static int parse_version(const json_t *v, struct err *e)
{
	if (!json_is_integer(v) || json_integer_value(v) != 1)
		return bad(e, "v", "only version 1 is known");
	return 0;
}

static int compile_key(struct compile *c, const char *key, const json_t *v,
		       struct err *e)
{
	char where[WHERE_MAX];

	if (!strcmp(key, "v"))
		return parse_version(v, e);
	if (!strcmp(key, "default"))
		return parse_default(c->p, v, e);
	if (!strcmp(key, "allow"))
		return add_entries(c, v, NETPOL_ALLOW, key, e);
	if (!strcmp(key, "deny"))
		return add_entries(c, v, NETPOL_DENY, key, e);
	if (!strcmp(key, "broker"))
		return parse_brokers(c->p, v, e);
	if (!strcmp(key, "limits"))
		return netpol_limits_parse(v, &c->p->limits, e);
	snprintf(where, sizeof(where), "'%.64s'", key);
	if (!json_is_boolean(v))
		return bad(e, where,
			   "neither a key of network rules nor a semantic name "
			   "with true or false");
	return add_service(c, key, json_is_true(v) ? NETPOL_ALLOW : NETPOL_DENY,
			   where, e);
}

/* --- the whole ----------------------------------------------------------- */

/* Under default allow a name is not looked at unless it is denied everywhere.
 */
static int check_denies(const struct netpol *p, struct err *e)
{
	const struct netpol_rules *l = &p->list[NETPOL_DENY];

	if (!p->default_allow)
		return 0;
	for (size_t i = 0; i < l->n; i++)
		if (l->v[i].name && !netpol_denies_whole(p, l->v[i].name))
			return err_set(e, -EBADMSG, "bad_value",
				       "deny: %s: with \"default\":\"allow\" a "
				       "domain can only be denied whole, "
				       "without ports and proto",
				       l->v[i].name);
	return 0;
}

void netpol_limits_default(struct netpol_limits *l)
{
	*l = (struct netpol_limits){.connections = 200,
				    .connections_per_s = 50,
				    .dns_per_s = 100};
}

static struct netpol *new_policy(const struct netpol_env *env)
{
	struct netpol *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->refs = 1;
	if (env && env->limits)
		p->limits = *env->limits;
	else
		netpol_limits_default(&p->limits);
	return p;
}

int netpol_compile(const json_t *rules, const struct netpol_env *env,
		   struct netpol **ret, struct err *e)
{
	auto_netpol struct netpol *p = new_policy(env);
	struct compile c = {.p = p, .env = env};
	const char *key;
	json_t *v;
	int r = 0;

	if (!p)
		return err_sys(e, ENOMEM, "policy");
	if (rules && !json_is_object(rules))
		return err_set(e, -EBADMSG, "bad_value",
			       "network rules are an object");
	json_object_foreach((json_t *)(uintptr_t)rules, key, v) {
		r = compile_key(&c, key, v, e);
		if (r < 0)
			return r;
	}
	r = rules_canon(&p->list[NETPOL_ALLOW], "allow", e);
	if (r == 0)
		r = rules_canon(&p->list[NETPOL_DENY], "deny", e);
	if (r == 0)
		r = check_denies(p, e);
	if (r == 0)
		r = netpol_seal(p, e);
	if (r == 0)
		*ret = steal_ptr(p);
	return r;
}

int netpol_load(const json_t *compiled, struct netpol **ret, struct err *e)
{
	auto_netpol struct netpol *p = NULL;
	int r = netpol_compile(compiled, NULL, &p, e);

	if (r < 0)
		return err_wrap(e, r, "compiled policy");
	if (!json_equal(compiled, p->json))
		return err_set(e, -EBADMSG, "bad_value",
			       "compiled policy: not in its canonical form");
	*ret = steal_ptr(p);
	return 0;
}

struct netpol *netpol_ref(struct netpol *p)
{
	p->refs++;
	return p;
}

void netpol_free(struct netpol *p)
{
	if (!p || --p->refs)
		return;
	rules_done(&p->list[NETPOL_ALLOW]);
	rules_done(&p->list[NETPOL_DENY]);
	for (size_t i = 0; i < p->nbrokers; i++)
		free(p->brokers[i]);
	free(p->brokers);
	json_decref(p->json);
	free(p);
}

const json_t *netpol_json(const struct netpol *p)
{
	return p->json;
}

const char *netpol_hash(const struct netpol *p)
{
	return p->hash;
}
