/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../tap.h"
#include "base/fd.h"
#include "net/services.h"

static char config[64];

/* ${text} with ' for " as ${name} of the configuration. */
static void put(const char *name, const char *text)
{
	char path[128], buf[2048];
	size_t n = 0;
	FILE *f;

	for (; *text && n < sizeof(buf); text++)
		buf[n++] = *text == '\'' ? '"' : *text;
	snprintf(path, sizeof(path), "%s/%s", config, name);
	f = fopen(path, "we");
	if (!f || fwrite(buf, 1, n, f) != n || fclose(f))
		ok(false, "write %s", path);
}

static void test_default(void)
{
	auto_netconf struct netconf c = {.file = NULL};
	struct err e = {0};
	char buf[NETCIDR_TEXT];

	ok(netconf_load(config, &c, &e) == 0, "no file is all defaults");
	is_str(netcidr_text(&c.pool, buf), "100.96.0.0/16", "the pool");
	is_str(netcidr_text(&c.uplink, buf), "100.127.255.0/30", "the uplink");
	ok(c.masquerade && c.dns.nservers >= 1 && c.limits.connections == 200 &&
		   c.open_files == 1048576,
	   "and the rest");
}

static bool is_server(const struct netconf *c, size_t i, sa_family_t family,
		      uint16_t port)
{
	const struct sockaddr_storage *s = &c->dns.servers[i];

	return s->ss_family == family &&
	       ((const struct sockaddr_in *)s)->sin_port == htons(port);
}

static void test_file(void)
{
	auto_netconf struct netconf c = {.file = NULL};
	auto_netdeny struct netdeny *d = NULL;
	struct err e = {0};
	struct netaddr a;

	put("net.json", "{'dns':['192.0.2.53','192.0.2.54:5353','2001:db8::53',"
			"'[2001:db8::54]:54'],'pool':'10.64.0.0/12',"
			"'uplink':{'address':'10.1.0.0/30','masquerade':false},"
			"'exceptions':[{'cidr':'10.2.0.0/16','ports':[3141]}],"
			"'cluster':['203.0.113.0/24'],"
			"'limits':{'connections':7},'open_files':512}");
	ok(netconf_load(config, &c, &e) == 0, "a whole file %s", e.msg);
	ok(c.dns.nservers == 4 && is_server(&c, 0, AF_INET, 53) &&
		   is_server(&c, 1, AF_INET, 5353) &&
		   is_server(&c, 2, AF_INET6, 53) &&
		   is_server(&c, 3, AF_INET6, 54),
	   "four servers");
	ok(!c.masquerade && c.limits.connections == 7 &&
		   c.limits.dns_per_s == 100 && c.open_files == 512,
	   "what it says, and defaults for the rest");
	ok(netconf_deny(&c, &d, &e) == 0, "what is denied");
	netaddr_parse("203.0.113.9", &a);
	ok(netdeny_denies(d, &a, NETPOL_TCP, 443) != NULL, "the cluster");
	netaddr_parse("10.2.0.9", &a);
	ok(!netdeny_denies(d, &a, NETPOL_TCP, 3141) &&
		   netdeny_denies(d, &a, NETPOL_TCP, 443),
	   "but not the exception");
}

static void test_bad_files(void)
{
	static const struct {
		const char *text, *says;
	} t[] = {
		{"{'dns':[]}", "dns"},
		{"{'dns':['1.1.1.1','1.1.1.2','1.1.1.3','1.1.1.4','1.1.1.5']}",
		 "dns"},
		{"{'dns':['a.org']}", "dns[0]"},
		{"{'dns':['1.2.3.4:0']}", "dns[0]"},
		{"{'dns':['1.2.3.4:70000']}", "dns[0]"},
		{"{'dns':['[::1']}", "dns[0]"},
		{"{'pool':'100.96.0.1/16'}", "pool"},
		{"{'pool':'2001:db8::/32'}", "pool"},
		{"{'pool':'100.96.0.0/30'}", "pool"},
		{"{'uplink':{'address':'10.0.0.0/31'}}", "uplink"},
		{"{'uplink':{'adress':'10.0.0.0/30'}}", "adress"},
		{"{'uplink':{'masquerade':1}}", "masquerade"},
		{"{'uplink':{'address':'100.96.0.0/30'}}", "overlap"},
		{"{'exceptions':[{'domain':'a.org'}]}", "exceptions[0]"},
		{"{'cluster':['a']}", "cluster[0]"},
		{"{'mirrors':{'pypi':[{'domain':'x y'}]}}", "mirrors.pypi[0]"},
		{"{'limits':{'connections':0}}", "limits"},
		{"{'open_files':31}", "open_files"},
		{"{'open_files':1048577}", "open_files"},
		{"{'open_files':'512'}", "open_files"},
		{"{'pools':1}", "pools"},
		{"nonsense", "net.json"},
	};

	for (size_t i = 0; i < array_len(t); i++) {
		struct netconf c = {.file = NULL};
		struct err e = {0};

		put("net.json", t[i].text);
		ok(netconf_load(config, &c, &e) < 0 &&
			   !strcmp(e.code, "configuration") &&
			   strstr(e.msg, t[i].says),
		   "refused: %s", t[i].text);
		if (!strstr(e.msg, t[i].says))
			printf("# said %s\n", e.msg);
	}
}

static int compile(struct services *s, const char *text, struct netpol **ret,
		   struct err *e)
{
	struct netpol_env env = services_env(s);
	auto_json json_t *rules = NULL;
	char buf[256];
	size_t n = 0;

	for (; *text; text++)
		buf[n++] = *text == '\'' ? '"' : *text;
	if (json_parse(buf, n, &rules, e) < 0)
		return -EBADMSG;
	return netpol_compile(rules, &env, ret, e);
}

/* All that came with the programs are good, and deny what they allow. */
static void test_services(void)
{
	auto_netconf struct netconf c = {.file = NULL};
	auto_services struct services *s = NULL;
	auto_json json_t *names = NULL;
	struct err e = {0};
	json_t *name;
	char text[64];
	size_t i;

	put("net.json", "{}");
	ok(netconf_load(config, &c, &e) == 0 &&
		   services_open(config, &c, &s, &e) == 0 &&
		   services_names(s, &names, &e) == 0,
	   "the services");
	is_int((long long)json_array_size(names), 12, "there are twelve");
	json_array_foreach(names, i, name) {
		auto_netpol struct netpol *p = NULL, *q = NULL;
		const struct netpol_rule *v;
		size_t n, bad = 0;

		snprintf(text, sizeof(text), "{'%s':true}",
			 json_string_value(name));
		ok(compile(s, text, &p, &e) == 0, "%s compiles", text);
		snprintf(text, sizeof(text),
			 "{'%s':true,'deny':[{'service':"
			 "'%s'}]}",
			 json_string_value(name), json_string_value(name));
		if (!p || compile(s, text, &q, &e) < 0) {
			ok(false, "%s: %s", text, e.msg);
			continue;
		}
		v = netpol_rules(q, NETPOL_ALLOW, &n);
		for (size_t k = 0; k < n; k++)
			bad += !v[k].name || !netpol_denies_whole(q, v[k].name);
		ok(n > 0 && bad == 0, "denied, nothing of it is allowed");
	}
}

/* A domain of what came with the programs, without a wildcard. */
static void built_in(const char *service, char domain[256])
{
	auto_netconf struct netconf c = {.file = NULL};
	auto_services struct services *s = NULL;
	auto_netpol struct netpol *p = NULL;
	const struct netpol_rule *v;
	struct err e = {0};
	char text[64];
	size_t n = 0;

	put("net.json", "{}");
	snprintf(text, sizeof(text), "{'%s':true}", service);
	ok(netconf_load(config, &c, &e) == 0 &&
		   services_open(config, &c, &s, &e) == 0 &&
		   compile(s, text, &p, &e) == 0,
	   "%s, as it came", service);
	*domain = '\0';
	v = p ? netpol_rules(p, NETPOL_ALLOW, &n) : NULL;
	for (size_t i = 0; i < n; i++)
		if (v[i].name && v[i].name[0] != '*')
			snprintf(domain, 256, "%s", v[i].name);
	ok(*domain && netpol_name(p, domain), "has a domain: %s", domain);
}

static void test_operator(void)
{
	auto_netconf struct netconf c = {.file = NULL};
	auto_services struct services *s = NULL;
	auto_netpol struct netpol *p = NULL, *q = NULL, *bad = NULL;
	auto_json json_t *about = NULL, *mirrored = NULL;
	struct err e = {0};
	char dir[128], npm[256], pypi[256];

	built_in("npm", npm);
	built_in("pypi", pypi);
	snprintf(dir, sizeof(dir), "%s/net.d", config);
	mkdir(dir, 0755);
	put("net.d/npm.json", "{'v':1,'name':'npm','version':'ours-1','rules':"
			      "[{'domain':'npm.example.org','ports':[4873]}]}");
	put("net.d/broken.json", "{'v':1,'name':'other','version':'1',"
				 "'rules':[]}");
	put("net.json",
	    "{'mirrors':{'pypi':[{'domain':'pypi.example.org','ports':[3141]}]}}");
	ok(netconf_load(config, &c, &e) == 0 &&
		   services_open(config, &c, &s, &e) == 0,
	   "an operator's own: %s", e.msg);
	ok(compile(s, "{'npm':true,'pypi':true}", &p, &e) == 0 &&
		   netpol_allows_name(p, "npm.example.org", NETPOL_TCP, 4873,
				      NULL) &&
		   !netpol_name(p, npm),
	   "stands in place of ours");
	ok(netpol_allows_name(p, "pypi.example.org", NETPOL_TCP, 3141, NULL) &&
		   !netpol_name(p, pypi),
	   "a mirror stands in place of the service");
	ok(compile(s, "{'pypi':false,'allow':[{'domain':'*.org'}]}", &q, &e) ==
			   0 &&
		   !netpol_name(q, "pypi.example.org") &&
		   !netpol_name(q, pypi) && netpol_name(q, "x.org"),
	   "and both are denied");
	ok(services_about(s, "npm", &about, &e) == 0 &&
		   !strcmp(json_str(about, "from"), "operator") &&
		   !strcmp(json_str(about, "version"), "ours-1"),
	   "which is told");
	ok(services_about(s, "pypi", &mirrored, &e) == 0 &&
		   json_flag(mirrored, "mirror"),
	   "the mirror as well");
	ok(compile(s, "{'broken':true}", &bad, &e) < 0 &&
		   !strcmp(e.code, "configuration"),
	   "a broken file is named");
	ok(compile(s, "{'../net':true}", &bad, &e) < 0 &&
		   !strcmp(e.code, "bad_value"),
	   "no path is a name");
	put("net.json", "{'mirrors':{'nosuch':[]}}");
	netconf_done(&c);
	services_free(s);
	s = NULL;
	ok(netconf_load(config, &c, &e) == 0 &&
		   services_open(config, &c, &s, &e) < 0 &&
		   strstr(e.msg, "nosuch"),
	   "a mirror of nothing is an error");
}

int main(void)
{
	char template[] = "/tmp/netconf.XXXXXX";

	if (!mkdtemp(template))
		return 1;
	snprintf(config, sizeof(config), "%s", template);
	setenv("DSEC_SHARE", "share", 1);
	test_default();
	test_file();
	test_bad_files();
	test_services();
	test_operator();
	fd_remove_tree(AT_FDCWD, template, NULL);
	return tap_done();
}
