/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <string.h>

#include "../tap.h"
#include "policy/netdeny.h"
#include "policy/netpol.h"

/* Rules in these tests are written with ' for ". */
static json_t *rules(const char *text)
{
	json_t *obj = NULL;
	char buf[8192];
	size_t n = 0;

	for (; *text && n < sizeof(buf) - 1; text++)
		buf[n++] = *text == '\'' ? '"' : *text;
	buf[n] = '\0';
	if (json_parse(buf, n, &obj, NULL) < 0)
		printf("# not JSON: %s\n", buf);
	return obj;
}

static int find(void *arg, const char *name, const json_t **ret_allow,
		const json_t **ret_deny, struct err *e)
{
	const json_t *all = arg, *one = json_object_get(all, name);

	if (!one)
		return err_set(e, -ENOENT, "bad_value",
			       "unknown semantic name '%s'", name);
	*ret_allow = json_object_get(one, "allow");
	*ret_deny = json_object_get(one, "deny");
	return 0;
}

static json_t *services;

static struct netpol *compile(const char *text, struct err *e)
{
	struct netpol_env env = {.find = find, .arg = services, .link6 = true};
	auto_json json_t *j = rules(text);
	struct netpol *p = NULL;

	return netpol_compile(j, &env, &p, e) == 0 ? p : NULL;
}

/* As where links have no IPv6: nothing that is allowed may be. */
static void test_without_v6(void)
{
	struct netpol_env env = {.find = find, .arg = services};
	auto_json json_t *allowed = rules(
		"{'allow':[{'cidr':'198.51.100.0/24'},"
		"{'cidr':'2001:db8::/32'}]}");
	auto_json json_t *denied = rules("{'default':'allow',"
					 "'deny':[{'cidr':'2001:db8::/32'}]}");
	auto_netpol struct netpol *p = NULL;
	struct err e = {0};

	is_int(netpol_compile(allowed, &env, &p, &e), -EOPNOTSUPP,
	       "a v6 network is not allowed without a v6 link");
	is_str(e.code, "unsupported", "by its own code");
	ok(!strncmp(e.msg, "allow[1]: ", 10), "%s", e.msg);
	is_int(netpol_compile(denied, &env, &p, &e), 0, "but may be denied");
}

/* --- names and addresses ------------------------------------------------- */

static const struct {
	const char *in, *out;
} names[] = {
	{"A.Example.ORG.", "a.example.org"},
	{"a_b.x-y.org", "a_b.x-y.org"},
	{"localhost", "localhost"},
	{"xn--bcher-kva.example", "xn--bcher-kva.example"},
	{"", NULL},
	{".", NULL},
	{"a..b", NULL},
	{".a", NULL},
	{"a.b..", NULL},
	{"-a.b", NULL},
	{"a-.b", NULL},
	{"a b", NULL},
	{"a/b", NULL},
	{"b\xc3\xbc.org", NULL},
	{"1.2.3.4", NULL},
	{"2130706433", NULL},
	{"0x7f000001", NULL},
	{"a.0x1", NULL},
	{"127.1", NULL},
	{"1.org", "1.org"},
	{"a.b:80", NULL},
	{"*.a", NULL},
};

static void test_names(void)
{
	char out[NETNAME_MAX + 1], lng[300];

	for (size_t i = 0; i < array_len(names); i++) {
		int r = netname_canon(names[i].in, strlen(names[i].in), out);

		ok(names[i].out ? r == 0 && !strcmp(out, names[i].out)
				: r == -EINVAL,
		   "canonical form of '%s'", names[i].in);
	}
	memset(lng, 'a', sizeof(lng));
	for (size_t i = 0; i < sizeof(lng); i += 50)
		lng[i + 1] = '.';
	lng[0] = 'a';
	ok(netname_canon(lng, 253, out) == 0, "253 bytes are a name");
	ok(netname_canon(lng, 254, out) == -EINVAL, "254 are not");
	memset(lng, 'a', 64);
	ok(netname_canon(lng, 63, out) == 0, "a label of 63");
	ok(netname_canon(lng, 64, out) == -EINVAL, "not one of 64");
	ok(netname_pattern("*.B.org.", out) == 0 && !strcmp(out, "*.b.org"),
	   "a pattern");
	ok(netname_pattern("*", out) < 0 && netname_pattern("*.", out) < 0 &&
		   netname_pattern("a.*.b", out) < 0 &&
		   netname_pattern("*a.b", out) < 0 &&
		   netname_pattern("*.b..", out) < 0 &&
		   netname_pattern("*.*.b", out) < 0,
	   "what is no pattern");
	ok(netname_match("*.b.org", "a.b.org") &&
		   netname_match("*.b.org", "c.a.b.org"),
	   "a wildcard matches at any depth");
	ok(!netname_match("*.b.org", "b.org") &&
		   !netname_match("*.b.org", "ab.org") &&
		   !netname_match("*.b.org", ".b.org"),
	   "and neither its own name nor a longer label");
	ok(netname_match("b.org", "b.org") &&
		   !netname_match("b.org", "a.b.org"),
	   "an exact one matches itself");
	ok(netname_within("*.a.b", "*.b") && netname_within("a.b", "*.b") &&
		   netname_within("*.b", "*.b") &&
		   !netname_within("*.b", "b") && !netname_within("b", "*.b") &&
		   !netname_within("*.b", "*.a.b"),
	   "patterns within patterns");
}

static void test_addresses(void)
{
	static const char *const not [] = {
		"1.2.3", "1.2.3.4.5",  "01.2.3.4", "0x1.2.3.4", "1.2.3.256",
		"",	 "fe80::1%lo", "::g",	   "1.2.3.4 ",	"[::1]",
	};
	struct netcidr c, big;
	struct netaddr a;
	char buf[NETCIDR_TEXT];

	for (size_t i = 0; i < array_len(not ); i++)
		ok(netaddr_parse(not [i], &a) < 0, "'%s' is no address",
		   not [i]);
	ok(netcidr_parse("10.0.0.1/8", &c) == -EDOM, "host bits are told");
	ok(netcidr_parse("10.0.0.0/33", &c) == -EINVAL &&
		   netcidr_parse("10.0.0.0/08", &c) == -EINVAL &&
		   netcidr_parse("10.0.0.0/", &c) == -EINVAL &&
		   netcidr_parse("10.0.0.0/-1", &c) == -EINVAL,
	   "bad prefixes");
	ok(netcidr_parse("2001:DB8:0:0::/33", &c) == 0 &&
		   !strcmp(netcidr_text(&c, buf), "2001:db8::/33"),
	   "the canonical form of v6");
	ok(netcidr_parse("192.0.2.4", &c) == 0 && c.bits == 32,
	   "one address is a range");
	netcidr_parse("192.0.2.0/23", &big);
	netaddr_parse("192.0.3.255", &a);
	ok(netaddr_in(&a, &big) && netcidr_within(&c, &big) &&
		   !netcidr_within(&big, &c),
	   "in a range");
	netaddr_parse("::ffff:192.0.2.4", &a);
	ok(!netaddr_in(&a, &big), "a mapped address is another one");
	netcidr_parse("0.0.0.0/0", &big);
	netaddr_parse("255.1.2.3", &a);
	ok(netaddr_in(&a, &big), "all of v4");
}

/* --- compiling ----------------------------------------------------------- */

static void is_compiled(const char *in, const char *out, const char *what)
{
	struct err e = {0};
	auto_netpol struct netpol *p = compile(in, &e);
	auto_json json_t *want = rules(out);
	auto_free char *got = NULL;
	const json_t *list;
	const char *key;
	json_t *v;
	bool good = p != NULL;

	if (p) {
		got = json_dumps(netpol_json(p), JSON_COMPACT | JSON_SORT_KEYS);
		json_object_foreach(want, key, v) {
			list = json_object_get(netpol_json(p), key);
			good = good && json_equal(list, v);
		}
	}
	ok(good, "%s", what);
	if (!good)
		printf("# got %s\n", p ? got : e.msg);
}

static void test_compile(void)
{
	is_compiled("{}",
		    "{'v':1,'default':'deny','allow':[],'deny':[],"
		    "'broker':[],'limits':{'connections':200,"
		    "'connections_per_s':50,'dns_per_s':100,"
		    "'bandwidth_mbit':0,'bytes_mb':0}}",
		    "no rules: nothing is allowed, and all keys are there");
	is_compiled(
		"{'allow':[{'domain':'A.org.'}]}",
		"{'allow':[{'domain':'a.org','proto':'tcp','ports':[80,443]}]}",
		"what an allowed domain leaves out");
	is_compiled("{'deny':[{'domain':'a.org'}]}",
		    "{'deny':[{'domain':'a.org','proto':'tcp','ports':'all'},"
		    "{'domain':'a.org','proto':'udp','ports':'all'}]}",
		    "what a denied domain leaves out");
	is_compiled(
		"{'allow':[{'cidr':'203.0.113.0/24'}],"
		"'deny':[{'cidr':'203.0.113.7'}]}",
		"{'allow':[{'cidr':'203.0.113.0/24','proto':'tcp','ports':'all'}],"
		"'deny':[{'cidr':'203.0.113.7/32','proto':'tcp','ports':'all'},"
		"{'cidr':'203.0.113.7/32','proto':'udp','ports':'all'},"
		"{'cidr':'203.0.113.7/32','proto':'icmp'}]}",
		"what a cidr leaves out");
	is_compiled(
		"{'allow':[{'cidr':'203.0.113.0/24','proto':'any','ports':[53]}]}",
		"{'allow':[{'cidr':'203.0.113.0/24','proto':'tcp','ports':[53]},"
		"{'cidr':'203.0.113.0/24','proto':'udp','ports':[53]}]}",
		"any with ports is tcp and udp");
	is_compiled(
		"{'allow':[{'domain':'b.org','ports':[81,80,'90-100',100,101]},"
		"{'domain':'a.org','ports':[1]},"
		"{'domain':'b.org','ports':[82]}]}",
		"{'allow':[{'domain':'a.org','proto':'tcp','ports':[1]},"
		"{'domain':'b.org','proto':'tcp','ports':['80-82','90-101']}]}",
		"sorted, joined, ranges that touch are one");
	is_compiled(
		"{'allow':[{'domain':'x.a.org','ports':[443]},{'domain':'*.a.org'},"
		"{'domain':'y.a.org','ports':[8443]}]}",
		"{'allow':[{'domain':'*.a.org','proto':'tcp','ports':[80,443]},"
		"{'domain':'y.a.org','proto':'tcp','ports':[8443]}]}",
		"what another entry covers is gone");
	is_compiled(
		"{'allow':[{'cidr':'203.0.113.0/25'},{'cidr':'203.0.113.0/24'},"
		"{'cidr':'2001:db8::/32'}]}",
		"{'allow':[{'cidr':'203.0.113.0/24','proto':'tcp','ports':'all'},"
		"{'cidr':'2001:db8::/32','proto':'tcp','ports':'all'}]}",
		"the same for networks");
	is_compiled(
		"{'allow':[{'domain':'a.org','ports':['1-65535']}]}",
		"{'allow':[{'domain':'a.org','proto':'tcp','ports':'all'}]}",
		"every port is all");
}

static void test_compile_names(void)
{
	is_compiled(
		"{'pypi':true,'npm':false}",
		"{'allow':[{'domain':'*.pypi.test','proto':'tcp','ports':[443]}],"
		"'deny':[{'domain':'*.npm.test','proto':'tcp','ports':'all'},"
		"{'domain':'*.npm.test','proto':'udp','ports':'all'}]}",
		"semantic names");
	is_compiled(
		"{'allow':[{'service':'pypi'}],'deny':[{'service':'npm'}]}",
		"{'allow':[{'domain':'*.pypi.test','proto':'tcp','ports':[443]}],"
		"'deny':[{'domain':'*.npm.test','proto':'tcp','ports':'all'},"
		"{'domain':'*.npm.test','proto':'udp','ports':'all'}]}",
		"the same as entries");
	is_compiled(
		"{'broker':['b','a','b'],'limits':{'connections':3,'bytes_mb':9}}",
		"{'broker':['a','b'],'limits':{'connections':3,"
		"'connections_per_s':50,'dns_per_s':100,"
		"'bandwidth_mbit':0,'bytes_mb':9}}",
		"brokers and limits");
}

static const struct {
	const char *in, *says;
} bad_rules[] = {
	{"{'pipy':true}", "'pipy'"},
	{"{'pypi':1}", "'pypi'"},
	{"{'allows':[]}", "'allows'"},
	{"{'default':'open'}", "default"},
	{"{'default':true}", "default"},
	{"{'allow':{}}", "allow"},
	{"{'allow':['a.org']}", "allow[0]"},
	{"{'allow':[{'domain':'a.org'},{'domain':'b.org','port':80}]}",
	 "allow[1]"},
	{"{'allow':[{'domain':'https://a.org'}]}", "allow[0]"},
	{"{'allow':[{'domain':'a.org/x'}]}", "allow[0]"},
	{"{'allow':[{'domain':'a.org:443'}]}", "allow[0]"},
	{"{'allow':[{'domain':'1.2.3.4'}]}", "\"cidr\""},
	{"{'allow':[{'domain':'*'}]}", "allow[0]"},
	{"{'allow':[{'domain':'localhost'}]}", "localhost"},
	{"{'allow':[{'domain':'broker.internal'}]}", "broker"},
	{"{'allow':[{'domain':'a.org','cidr':'1.2.3.4'}]}", "one of"},
	{"{'allow':[{'ports':[1]}]}", "one of"},
	{"{'allow':[{'cidr':'1.2.3.4/24'}]}", "bits"},
	{"{'allow':[{'cidr':'1.2.3/24'}]}", "allow[0]"},
	{"{'allow':[{'cidr':7}]}", "cidr"},
	{"{'allow':[{'domain':'a.org','ports':[]}]}", "ports"},
	{"{'allow':[{'domain':'a.org','ports':[0]}]}", "ports[0]"},
	{"{'allow':[{'domain':'a.org','ports':[443,65536]}]}", "ports[1]"},
	{"{'allow':[{'domain':'a.org','ports':['9-8']}]}", "ports[0]"},
	{"{'allow':[{'domain':'a.org','ports':['8-']}]}", "ports[0]"},
	{"{'allow':[{'domain':'a.org','ports':['08-9']}]}", "ports[0]"},
	{"{'allow':[{'domain':'a.org','ports':['1-70000']}]}", "ports[0]"},
	{"{'allow':[{'domain':'a.org','ports':[1.5]}]}", "ports[0]"},
	{"{'allow':[{'domain':'a.org','ports':443}]}", "ports"},
	{"{'allow':[{'domain':'a.org','proto':'icmp'}]}", "proto"},
	{"{'allow':[{'domain':'a.org','proto':'sctp'}]}", "proto"},
	{"{'allow':[{'cidr':'1.2.3.4','proto':'icmp','ports':[1]}]}", "icmp"},
	{"{'allow':[{'service':'pypi','ports':[1]}]}", "alone"},
	{"{'allow':[{'service':'nix'}]}", "nix"},
	{"{'broker':'a'}", "broker"},
	{"{'broker':['A b']}", "broker[0]"},
	{"{'limits':{'connection':1}}", "connection"},
	{"{'limits':{'connections':0}}", "connections"},
	{"{'limits':{'connections':-1}}", "connections"},
	{"{'limits':{'bytes_mb':1.5}}", "bytes_mb"},
	{"{'v':2}", "v:"},
	{"{'default':'allow','deny':[{'domain':'a.org','ports':[80]}]}",
	 "whole"},
	{"{'default':'allow','deny':[{'domain':'a.org','proto':'tcp'}]}",
	 "whole"},
	{"{'loop':true}", "service"},
};

static void test_bad(void)
{

	for (size_t i = 0; i < array_len(bad_rules); i++) {
		struct err e = {0};
		auto_netpol struct netpol *p = compile(bad_rules[i].in, &e);

		ok(!p && strstr(e.msg, bad_rules[i].says) &&
			   (!strcmp(e.code, "bad_value") ||
			    !strcmp(e.code, "unknown_field")),
		   "refused: %s", bad_rules[i].in);
		if (p || !strstr(e.msg, bad_rules[i].says))
			printf("# said %s\n", p ? "fine" : e.msg);
	}
}

static void test_hash(void)
{
	auto_netpol struct netpol *a =
		compile("{'allow':[{'domain':'b.org'},{'domain':'a.org'}]}",
			NULL);
	auto_netpol struct netpol *b = compile(
		"{'default':'deny','allow':[{'domain':'a.org','ports':[443]},"
		"{'domain':'B.org','proto':'tcp'},{'domain':'a.org',"
		"'ports':[80]}],'deny':[]}",
		NULL);
	auto_netpol struct netpol *c = compile("{'allow':[{'domain':'b.org'}]}",
					       NULL);
	auto_netpol struct netpol *back = NULL, *again = NULL;
	auto_json json_t *odd = NULL;
	struct err e = {0};

	ok(!strcmp(netpol_hash(a), netpol_hash(b)),
	   "policies that say the same have the same hash");
	ok(strcmp(netpol_hash(a), netpol_hash(c)), "others have not");
	ok(strlen(netpol_hash(a)) == NETPOL_HASH, "64 digits");
	ok(netpol_load(netpol_json(a), &back, &e) == 0 &&
		   !strcmp(netpol_hash(back), netpol_hash(a)),
	   "a compiled policy loads as itself");
	ok(netpol_compile(netpol_json(a), NULL, &again, &e) == 0 &&
		   !strcmp(netpol_hash(again), netpol_hash(a)),
	   "and compiles to itself");
	odd = rules("{'allow':[{'domain':'a.org'}]}");
	netpol_free(back);
	back = NULL;
	ok(netpol_load(odd, &back, &e) == -EBADMSG &&
		   strstr(e.msg, "canonical"),
	   "what is not canonical does not load");
}

/* --- verdicts ------------------------------------------------------------ */

struct verdict {
	const char *to;
	enum netpol_proto proto;
	uint16_t port;
	const char *word; /* "": allowed */
};

static void are_verdicts(const char *text, const struct verdict *v, size_t n)
{
	struct err e = {0};
	auto_netpol struct netpol *p = compile(text, &e);
	struct netpol_why why;
	struct netaddr a;
	char buf[256];

	if (!p) {
		ok(false, "%s: %s", text, e.msg);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		if (netaddr_parse(v[i].to, &a) == 0)
			netpol_allows_addr(p, &a, v[i].proto, v[i].port, &why);
		else
			netpol_allows_name(p, v[i].to, v[i].proto, v[i].port,
					   &why);
		netpol_why_text(&why, buf, sizeof(buf));
		ok(!strcmp(why.word, v[i].word) &&
			   why.allowed == (why.word[0] == '\0'),
		   "%s %s %u: %s%s", v[i].to, netpol_proto_word(v[i].proto),
		   v[i].port, v[i].word, buf);
	}
}

static void test_verdicts(void)
{
	static const struct verdict by_name[] = {
		{"x.a.org", NETPOL_TCP, 443, ""},
		{"x.a.org", NETPOL_TCP, 22, "port"},
		{"x.a.org", NETPOL_UDP, 443, "port"},
		{"a.org", NETPOL_TCP, 443, "name"},
		{"bad.a.org", NETPOL_TCP, 443, "name"},
		{"good.bad.a.org", NETPOL_TCP, 443, "name"},
		{"x.b.org", NETPOL_TCP, 80, ""},
		{"x.b.org", NETPOL_TCP, 443, "name"},
		{"broker.internal", NETPOL_TCP, 80, ""},
		{"broker.internal", NETPOL_TCP, 443, "port"},
		{"192.0.2.1", NETPOL_TCP, 443, "address"},
	};
	static const struct verdict nets[] = {
		{"203.0.113.9", NETPOL_TCP, 5432, ""},
		{"203.0.113.9", NETPOL_TCP, 5433, "port"},
		{"203.0.113.9", NETPOL_ICMP, 0, "port"},
		{"203.0.113.7", NETPOL_TCP, 5432, "address"},
		{"203.0.114.1", NETPOL_TCP, 5432, "address"},
		{"2001:db8::1", NETPOL_UDP, 53, ""},
		{"::ffff:203.0.113.9", NETPOL_TCP, 5432, "address"},
		{"broker.internal", NETPOL_TCP, 80, "name"},
	};
	static const struct verdict open[] = {
		{"x.org", NETPOL_TCP, 25, ""},
		{"192.0.2.1", NETPOL_ICMP, 0, ""},
		{"x.bad.org", NETPOL_TCP, 443, "name"},
		{"203.0.113.9", NETPOL_UDP, 1, "address"},
		{"broker.internal", NETPOL_TCP, 80, "name"},
	};

	are_verdicts("{'allow':[{'domain':'*.a.org','ports':[443]},"
		     "{'domain':'good.bad.a.org'},{'domain':'x.b.org'}],"
		     "'deny':[{'domain':'bad.a.org'},{'domain':'*.bad.a.org'},"
		     "{'domain':'*.b.org','ports':[443]}],'broker':['x']}",
		     by_name, array_len(by_name));
	are_verdicts("{'allow':[{'cidr':'203.0.113.0/24','ports':[5432]},"
		     "{'cidr':'2001:db8::/32','proto':'any'}],"
		     "'deny':[{'cidr':'203.0.113.7'}]}",
		     nets, array_len(nets));
	are_verdicts("{'default':'allow','deny':[{'domain':'*.bad.org'},"
		     "{'cidr':'203.0.113.0/24'}]}",
		     open, array_len(open));
}

static void test_resolve(void)
{
	auto_netpol struct netpol *p = compile(
		"{'allow':[{'domain':'*.a.org','ports':['1-100']},"
		"{'domain':'u.org','proto':'udp','ports':[5]}],"
		"'deny':[{'domain':'x.a.org','ports':['40-50',60]},"
		"{'domain':'y.a.org'},{'domain':'z.a.org','ports':['1-100']},"
		"{'cidr':'203.0.113.0/24'}]}",
		NULL);
	struct netpol_range r[NETPOL_NAME_RANGES_MAX];
	struct netpol_why why;
	struct netaddr a;
	size_t n;

	ok(netpol_name(p, "x.a.org") && netpol_name(p, "u.org"),
	   "names that are allowed for something resolve");
	ok(!netpol_name(p, "y.a.org") && !netpol_name(p, "z.a.org") &&
		   !netpol_name(p, "a.org") &&
		   !netpol_name(p, "broker.internal"),
	   "others do not");
	n = netpol_name_ports(p, "x.a.org", NETPOL_TCP, r);
	ok(n == 3 && r[0].lo == 1 && r[0].hi == 39 && r[1].lo == 51 &&
		   r[1].hi == 59 && r[2].lo == 61 && r[2].hi == 100,
	   "the ports of a name are its allows without its denies");
	ok(netpol_name_ports(p, "x.a.org", NETPOL_UDP, r) == 0, "by protocol");
	netaddr_parse("203.0.113.4", &a);
	ok(netpol_denies_addr(p, &a, NETPOL_TCP, 80, &why) && !why.allowed &&
		   why.rule && !strcmp(why.word, "address"),
	   "a deny of a cidr counts for what a name resolved to");
	netaddr_parse("203.0.114.4", &a);
	ok(!netpol_denies_addr(p, &a, NETPOL_TCP, 80, &why),
	   "addresses that are not denied do not need an allow");
}

static void test_strength(void)
{
	static const struct {
		const char *rules;
		enum netpol_strength s;
		int ports;
	} t[] = {
		{"{}", NETPOL_NONE, 0},
		{"{'deny':[{'cidr':'203.0.113.0/24'}]}", NETPOL_NONE, 0},
		{"{'pypi':true,'npm':false}", NETPOL_NAMES, 1},
		{"{'allow':[{'domain':'a.org'}]}", NETPOL_NAMES, 2},
		{"{'broker':['a']}", NETPOL_NAMES, 1},
		{"{'allow':[{'domain':'a.org','ports':['1-64']}]}",
		 NETPOL_NAMES, 64},
		{"{'allow':[{'domain':'a.org','ports':['1-65']}]}",
		 NETPOL_ROUTED, -E2BIG},
		{"{'allow':[{'domain':'a.org','proto':'udp','ports':[5]}]}",
		 NETPOL_ROUTED, -E2BIG},
		{"{'allow':[{'cidr':'203.0.113.0/24'}]}", NETPOL_ROUTED,
		 -E2BIG},
		{"{'default':'allow'}", NETPOL_ROUTED, -E2BIG},
	};
	uint16_t ports[NETPOL_LISTEN_MAX];
	const struct netpol *two[2];
	auto_netpol struct netpol *a = NULL, *b = NULL;

	for (size_t i = 0; i < array_len(t); i++) {
		auto_netpol struct netpol *p = compile(t[i].rules, NULL);
		const struct netpol *one = p;

		ok(netpol_strength(&one, 1) == t[i].s &&
			   netpol_listen(&one, 1, ports) == t[i].ports,
		   "strength %s: %s", netpol_strength_word(t[i].s), t[i].rules);
	}
	a = compile("{'allow':[{'domain':'a.org','ports':['1-40']}]}", NULL);
	b = compile("{'allow':[{'domain':'b.org','ports':['30-64']}]}", NULL);
	two[0] = a;
	two[1] = b;
	ok(netpol_strength(two, 2) == NETPOL_NAMES &&
		   netpol_listen(two, 2, ports) == 64 && ports[63] == 64,
	   "the ports of all phases together");
	netpol_free(b);
	b = compile("{'allow':[{'domain':'b.org','ports':['41-66']}]}", NULL);
	two[1] = b;
	ok(netpol_strength(two, 2) == NETPOL_ROUTED, "too many of them");
}

static void test_merge(void)
{
	auto_json json_t *was = rules("{'pypi':true,'npm':false,'allow':"
				      "[{'domain':'a.org'}]}");
	auto_json json_t *more = rules("{'npm':true,'github':true,'deny':"
				       "[{'domain':'b.org'}],'allow':"
				       "[{'domain':'c.org'}],"
				       "'limits':{'connections':5}}");
	auto_json json_t *want = rules(
		"{'pypi':true,'npm':false,'github':true,'allow':"
		"[{'domain':'a.org'},{'domain':'c.org'}],'deny':"
		"[{'domain':'b.org'}],'limits':{'connections':5}}");
	auto_json json_t *open = rules("{'default':'allow'}");
	auto_json json_t *got = NULL, *none = NULL;
	struct err e = {0};

	ok(netpol_merge(was, more, &got, &e) == 0 && json_equal(got, want),
	   "merging adds, and false stays false");
	ok(json_array_size(json_object_get(was, "allow")) == 1,
	   "and leaves what it was given");
	ok(netpol_merge(was, open, &none, &e) < 0 && strstr(e.msg, "default"),
	   "it does not change the default");
	ok(netpol_merge(NULL, more, &none, &e) == 0, "into nothing");
}

/* --- always denied ------------------------------------------------------- */

static const struct {
	const char *addr;
	bool denied;
} addresses[] = {
	{"127.0.0.1", true},
	{"0.0.0.0", true},
	{"10.255.0.1", true},
	{"100.96.0.1", true},
	{"169.254.169.254", true},
	{"172.31.0.1", true},
	{"172.32.0.1", false},
	{"192.168.1.1", true},
	{"198.18.0.1", true},
	{"198.20.0.1", false},
	{"224.0.0.1", true},
	{"255.255.255.255", true},
	{"93.184.216.34", false},
	{"::1", true},
	{"::", true},
	{"::ffff:93.184.216.34", true},
	{"64:ff9b::a00:1", true},
	{"64:ff9b:1::1", true},
	{"2002:a00:1::", true},
	{"2001:0:1::", true},
	{"fd00::1", true},
	{"fe80::1", true},
	{"ff02::1", true},
	{"2606:4700::1", false},
	{"203.0.113.5", true},
	{"203.0.113.6", false},
	{"192.0.2.77", true},
	{"2001:db8:1::9", true},
};

static void test_deny(void)
{
	auto_netdeny struct netdeny *d = netdeny_new();
	auto_json json_t *ex = rules("{'cidr':'10.1.0.0/16','ports':[443]}");
	auto_json json_t *name = rules("{'domain':'a.org'}");
	const struct netdeny_range *v;
	struct netaddr node[2], a;
	struct netcidr c;
	struct err e = {0};
	size_t n, bad = 0;

	netaddr_parse("203.0.113.5", &node[0]);
	netaddr_parse("10.0.0.5", &node[1]);
	ok(netdeny_set_node(d, node, 2) == 0, "the node's own");
	netcidr_parse("192.0.2.0/24", &c);
	ok(netdeny_add_cluster(d, &c) == 0, "a network of the cluster");
	netcidr_parse("2001:db8:1::/48", &c);
	ok(netdeny_add_cluster(d, &c) == 0, "another");
	for (size_t i = 0; i < array_len(addresses); i++) {
		netaddr_parse(addresses[i].addr, &a);
		ok(!!netdeny_denies(d, &a, NETPOL_TCP, 443) ==
			   addresses[i].denied,
		   "%s is %sdenied", addresses[i].addr,
		   addresses[i].denied ? "" : "not ");
	}
	ok(netdeny_add_exception(d, ex, "exceptions[0]", &e) == 0,
	   "an exception");
	ok(netdeny_add_exception(d, name, "exceptions[1]", &e) < 0 &&
		   strstr(e.msg, "exceptions[1]"),
	   "not of a name");
	netaddr_parse("10.1.2.3", &a);
	ok(!netdeny_denies(d, &a, NETPOL_TCP, 443) &&
		   netdeny_denies(d, &a, NETPOL_TCP, 80) &&
		   netdeny_denies(d, &a, NETPOL_UDP, 443),
	   "holds for its protocol and ports");
	netaddr_parse("::ffff:10.1.2.3", &a);
	ok(netdeny_denies(d, &a, NETPOL_TCP, 443) != NULL,
	   "and not for the mapped form");
	v = netdeny_ranges(d, &n);
	for (size_t i = 1; i < n; i++)
		bad += netcidr_cmp(&v[i - 1].cidr, &v[i].cidr) >= 0 ||
		       netcidr_within(&v[i].cidr, &v[i - 1].cidr);
	ok(n > 20 && bad == 0, "the ranges are sorted and disjoint");
}

int main(void)
{
	services = rules(
		"{'pypi':{'allow':[{'domain':'*.pypi.test','ports':[443]}],"
		"'deny':[{'domain':'*.pypi.test'}]},"
		"'npm':{'allow':[{'domain':'*.npm.test','ports':[443]}],"
		"'deny':[{'domain':'*.npm.test'}]},"
		"'loop':{'allow':[{'service':'loop'}],'deny':[]}}");
	test_names();
	test_addresses();
	test_compile();
	test_compile_names();
	test_bad();
	test_without_v6();
	test_hash();
	test_verdicts();
	test_resolve();
	test_strength();
	test_merge();
	test_deny();
	json_decref(services);
	return tap_done();
}
