/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/conf.h"

#define FILE_NAME "net.json"
#define POOL_MIN  8
#define POOL_MAX  28
#define FILES_MIN 32
#define FILES_MAX 1048576 /* fs.nr_open, as it comes */

static int bad(struct err *e, const char *what, const char *is)
{
	return err_set(e, -EINVAL, "configuration", FILE_NAME ": %s %s", what,
		       is);
}

static int check_keys(const json_t *obj, const char *const *keys, size_t n,
		      const char *what, struct err *e)
{
	const char *key = json_unknown(obj, keys, n);

	if (!json_is_object(obj))
		return bad(e, what, "is not an object");
	if (key)
		return err_set(e, -EINVAL, "configuration",
			       FILE_NAME ": unknown key '%.64s'%s%s", key,
			       *what ? " in " : "", what);
	return 0;
}

/* --- resolvers ----------------------------------------------------------- */

static int load_dns(const json_t *j, struct resolver_conf *dns, struct err *e)
{
	json_t *one;
	size_t i;

	if (!json_is_array(j) || json_array_size(j) < 1 ||
	    json_array_size(j) > RESOLVER_SERVERS_MAX)
		return bad(e, "dns", "is not a list of 1 to 4 servers");
	json_array_foreach(j, i, one) {
		if (!json_is_string(one) ||
		    !resolver_server(json_string_value(one), &dns->servers[i]))
			return err_set(e, -EINVAL, "configuration",
				       FILE_NAME ": dns[%zu] is not an "
						 "address, with :PORT or not",
				       i);
		dns->nservers++;
	}
	return 0;
}

/* What the node itself uses; as its libc, the node where it names none. */
static void node_dns(struct resolver_conf *dns)
{
	if (resolver_conf_file("/etc/resolv.conf", dns, NULL) == 0 &&
	    dns->nservers)
		return;
	resolver_server("127.0.0.1", &dns->servers[0]);
	dns->nservers = 1;
}

/* --- addresses ----------------------------------------------------------- */

static int load_cidr(const json_t *j, const char *what, struct netcidr *ret,
		     struct err *e)
{
	int r = json_is_string(j) ? netcidr_parse(json_string_value(j), ret)
				  : -EINVAL;

	if (r == -EDOM)
		return bad(e, what, "has bits set after its prefix");
	return r < 0 ? bad(e, what, "is not a network") : 0;
}

static int load_pool(const json_t *j, struct netconf *c, struct err *e)
{
	int r = load_cidr(j, "pool", &c->pool, e);

	if (r < 0)
		return r;
	if (c->pool.addr.v6 || c->pool.bits < POOL_MIN ||
	    c->pool.bits > POOL_MAX)
		return bad(e, "pool", "is not a v4 network of /8 to /28");
	return 0;
}

static int load_uplink(const json_t *j, struct netconf *c, struct err *e)
{
	static const char *const keys[] = {"address", "masquerade"};
	const json_t *address = json_object_get(j, "address");
	const json_t *masquerade = json_object_get(j, "masquerade");
	int r = check_keys(j, keys, array_len(keys), "uplink", e);

	if (r == 0 && address)
		r = load_cidr(address, "uplink.address", &c->uplink, e);
	if (r < 0)
		return r;
	if (c->uplink.addr.v6 || c->uplink.bits < 8 || c->uplink.bits > 30)
		return bad(e, "uplink.address",
			   "is not a v4 network of /8 to /30");
	if (masquerade && !json_is_boolean(masquerade))
		return bad(e, "uplink.masquerade", "is not true or false");
	if (masquerade)
		c->masquerade = json_is_true(masquerade);
	return 0;
}

/* --- what is checked here and used by others ----------------------------- */

static int check_mirrors(const json_t *mirrors, struct err *e)
{
	struct netpol_rule rules[3];
	const char *name;
	json_t *list, *one;
	char where[128];
	size_t i;
	int n;

	if (!json_is_object(mirrors))
		return bad(e, "mirrors", "is not an object");
	json_object_foreach((json_t *)(uintptr_t)mirrors, name, list) {
		if (!json_is_array(list))
			return bad(e, "mirrors", "has a name without a list");
		json_array_foreach(list, i, one) {
			snprintf(where, sizeof(where),
				 FILE_NAME ": mirrors.%.40s[%zu]", name, i);
			n = netpol_rule_parse(one, NETPOL_ALLOW, rules, where,
					      e);
			if (n < 0)
				return n;
			while (n > 0)
				netpol_rule_done(&rules[--n]);
		}
	}
	return 0;
}

static int add_cluster(const json_t *list, struct netdeny *d, struct err *e)
{
	struct netcidr c;
	char what[32];
	json_t *one;
	size_t i;
	int r;

	if (!json_is_array(list))
		return bad(e, "cluster", "is not a list of networks");
	json_array_foreach(list, i, one) {
		snprintf(what, sizeof(what), "cluster[%zu]", i);
		r = load_cidr(one, what, &c, e);
		if (r < 0)
			return r;
		if (netdeny_add_cluster(d, &c) < 0)
			return err_sys(e, ENOMEM, "networks");
	}
	return 0;
}

static int add_exceptions(const json_t *list, struct netdeny *d, struct err *e)
{
	char where[64];
	json_t *one;
	size_t i;
	int r;

	if (!json_is_array(list))
		return bad(e, "exceptions", "is not a list");
	json_array_foreach(list, i, one) {
		snprintf(where, sizeof(where), FILE_NAME ": exceptions[%zu]",
			 i);
		r = netdeny_add_exception(d, one, where, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int netconf_deny(const struct netconf *c, struct netdeny **ret, struct err *e)
{
	auto_netdeny struct netdeny *d = netdeny_new();
	const json_t *cluster = json_object_get(c->file, "cluster");
	const json_t *exceptions = json_object_get(c->file, "exceptions");
	int r = 0;

	if (!d || netdeny_add_cluster(d, &c->pool) < 0 ||
	    netdeny_add_cluster(d, &c->uplink) < 0)
		return err_sys(e, ENOMEM, "networks");
	if (cluster)
		r = add_cluster(cluster, d, e);
	if (r == 0 && exceptions)
		r = add_exceptions(exceptions, d, e);
	if (r == 0)
		*ret = steal_ptr(d);
	return r;
}

/* --- the whole ----------------------------------------------------------- */

static int load_files(const json_t *j, struct netconf *c, struct err *e)
{
	json_int_t n = json_integer_value(j);

	if (!json_is_integer(j) || n < FILES_MIN || n > FILES_MAX)
		return bad(e, "open_files", "is not a number of 32 to 1048576");
	c->open_files = (unsigned)n;
	return 0;
}

static int load_keys(struct netconf *c, struct err *e)
{
	static const char *const keys[] = {"dns",     "pool",	   "uplink",
					   "cluster", "mirrors",   "exceptions",
					   "limits",  "open_files"};
	const json_t *j, *f = c->file;
	int r = check_keys(f, keys, array_len(keys), "", e);

	if (r == 0 && (j = json_object_get(f, "dns")))
		r = load_dns(j, &c->dns, e);
	if (r == 0 && (j = json_object_get(f, "pool")))
		r = load_pool(j, c, e);
	if (r == 0 && (j = json_object_get(f, "uplink")))
		r = load_uplink(j, c, e);
	if (r == 0 && (j = json_object_get(f, "mirrors")))
		r = check_mirrors(j, e);
	if (r == 0 && (j = json_object_get(f, "limits"))) {
		r = netpol_limits_parse(j, &c->limits, e);
		if (r < 0)
			r = err_wrap(e, r, FILE_NAME);
	}
	if (r == 0 && (j = json_object_get(f, "open_files")))
		r = load_files(j, c, e);
	if (r == 0 && (netcidr_within(&c->pool, &c->uplink) ||
		       netcidr_within(&c->uplink, &c->pool)))
		r = bad(e, "pool", "and uplink overlap");
	return r;
}

int netconf_of(json_t *file, struct netconf *c, struct err *e)
{
	auto_netdeny struct netdeny *d = NULL;
	auto_netconf struct netconf n = {.masquerade = true,
					 .open_files = FILES_MAX};
	int r;

	netpol_limits_default(&n.limits);
	netcidr_parse("100.96.0.0/16", &n.pool);
	netcidr_parse("100.127.255.0/30", &n.uplink);
	n.file = json_incref(file);
	r = load_keys(&n, e);
	if (r == 0)
		r = netconf_deny(&n, &d, e);
	if (r < 0) {
		/* Whatever it is, it is the operator's. */
		if (e && r != -ENOMEM)
			e->code = "configuration";
		return r;
	}
	if (!n.dns.nservers)
		node_dns(&n.dns);
	*c = n;
	n.file = NULL;
	return 0;
}

int netconf_load(const char *config, struct netconf *c, struct err *e)
{
	auto_json json_t *file = NULL;
	char path[PATH_MAX];
	int r;

	r = snprintf(path, sizeof(path), "%s/" FILE_NAME, config);
	if (r >= (int)sizeof(path))
		return err_sys(e, ENAMETOOLONG, "configuration");
	r = json_read_file(AT_FDCWD, path, &file, e);
	if (r == -ENOENT) {
		file = json_object();
		r = file ? 0 : err_sys(e, ENOMEM, "configuration");
	}
	if (r < 0 && e && r != -ENOMEM)
		e->code = "configuration";
	return r < 0 ? r : netconf_of(file, c, e);
}

void netconf_done(struct netconf *c)
{
	json_decref(c->file);
	c->file = NULL;
}
