/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network rules: what compiles has a canonical form, which compiles to itself,
 * loads, and decides as the policy does.
 */
#include <assert.h>
#include <string.h>

#include "fuzz.h"
#include "policy/netdeny.h"
#include "policy/netpol.h"

static void names(const struct netpol *p, const struct netpol *q)
{
	static const char *const list[] = {"a.org", "x.a.org",
					   "broker.internal", "localhost"};
	struct netpol_range ports[NETPOL_NAME_RANGES_MAX];
	struct netpol_why why;
	bool any = false;
	char text[256];
	size_t n;

	for (size_t i = 0; i < array_len(list); i++) {
		any = netpol_allows_name(p, list[i], NETPOL_TCP, 443, &why);
		netpol_why_text(&why, text, sizeof(text));
		assert(why.allowed == any && (why.word[0] == '\0') == any);
		assert(any ==
		       netpol_allows_name(q, list[i], NETPOL_TCP, 443, NULL));
		if (any)
			assert(netpol_name(p, list[i]));
		n = netpol_name_ports(p, list[i], NETPOL_TCP, ports);
		for (size_t k = 0; k < n; k++) {
			assert(ports[k].lo >= 1 && ports[k].lo <= ports[k].hi);
			assert(!k || ports[k - 1].hi + 1 < ports[k].lo);
		}
	}
}

/* The names that the rules themselves have. */
static void own_names(const struct netpol *p)
{
	struct netpol_why why;
	size_t n;
	const struct netpol_rule *v = netpol_rules(p, NETPOL_DENY, &n);
	char name[NETNAME_MAX + 3];

	for (size_t i = 0; i < n; i++) {
		if (!v[i].name || v[i].proto == NETPOL_ICMP ||
		    strlen(v[i].name) > NETNAME_MAX - 2)
			continue;
		strcpy(name, v[i].name);
		if (name[0] == '*')
			name[0] = 'x';
		assert(!netpol_allows_name(p, name, v[i].proto,
					   v[i].ports[0].lo, &why));
	}
	v = netpol_rules(p, NETPOL_ALLOW, &n);
	for (size_t i = 0; i < n; i++)
		if (!v[i].name)
			(void)netpol_allows_addr(p, &v[i].cidr.addr, v[i].proto,
						 v[i].nports ? v[i].ports[0].lo
							     : 0,
						 &why);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_json json_t *rules = NULL;
	auto_netpol struct netpol *p = NULL, *q = NULL;
	uint16_t ports[NETPOL_LISTEN_MAX];
	const struct netpol *one;
	struct err e = {0};

	if (json_parse((const char *)data, size, &rules, &e) < 0)
		return 0;
	if (netpol_compile(rules, NULL, &p, &e) < 0) {
		assert(e.code);
		return 0;
	}
	assert(netpol_load(netpol_json(p), &q, &e) == 0);
	assert(!strcmp(netpol_hash(p), netpol_hash(q)));
	one = p;
	if (netpol_strength(&one, 1) != NETPOL_ROUTED)
		assert(netpol_listen(&one, 1, ports) >= 0);
	names(p, q);
	own_names(p);
	return 0;
}
