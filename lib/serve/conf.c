/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "serve/auth.h"
#include "serve/conf.h"
#include "serve/ops.h"

#define FILE_NAME "serve.json"
#define MS_MAX	  3600000
#define LOST_MS	  120000

static int bad(struct err *e, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int bad(struct err *e, const char *fmt, ...)
{
	char text[ERR_MSG_MAX / 2];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return err_set(e, -EINVAL, "configuration", FILE_NAME ": %s", text);
}

/* --- values --------------------------------------------------------------- */

static int known(const json_t *obj, const char *where, const char *const *keys,
		 size_t n, struct err *e)
{
	const char *odd;

	if (!json_is_object(obj))
		return bad(e, "'%s' is not an object", where);
	odd = json_unknown(obj, keys, n);
	return odd ? bad(e, "unknown key '%.64s' in '%s'", odd, where) : 0;
}

/* A string of a sensible length; ${dflt} where it is not there, an error if
 * that is NULL. */
static int text(const json_t *obj, const char *key, const char *dflt,
		const char **ret, struct err *e)
{
	const json_t *v = json_object_get(obj, key);
	size_t len = json_string_length(v);

	if (!v && dflt) {
		*ret = dflt;
		return 0;
	}
	if (!v)
		return bad(e, "'%s' is missing", key);
	if (!json_is_string(v) || len < 1 || len > 255)
		return bad(e, "'%s' is not a string of 1 to 255 bytes", key);
	*ret = json_string_value(v);
	return 0;
}

static bool is_port(const char *s)
{
	size_t n = strlen(s);
	unsigned long v;

	if (n < 1 || n > 5 || strspn(s, "0123456789") != n)
		return false;
	v = strtoul(s, NULL, 10);
	return v <= 65535;
}

/* HOST:PORT, of which the host is looked up later. */
static bool is_address(const char *s)
{
	const char *colon = strrchr(s, ':');
	size_t n = colon ? (size_t)(colon - s) : 0;

	if (n < 1 || strlen(s) >= SERVECONF_ADDR_MAX || !is_port(colon + 1))
		return false;
	if (s[0] == '[')
		return n > 3 && s[n - 1] == ']' &&
		       strspn(s + 1, "0123456789abcdefABCDEF:.") == n - 2;
	return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
			 "0123456789.-") == n;
}

/* --- roles ---------------------------------------------------------------- */

static int take_listen(const json_t *obj, const char *where,
		       struct serveconf_role *r, struct err *e)
{
	const json_t *v = json_object_get(obj, "listen");
	const json_t *one;
	size_t i;

	if (!json_is_array(v) || json_array_size(v) < 1 ||
	    json_array_size(v) > SERVECONF_LISTEN_MAX)
		return bad(e, "'%s.listen' is not a list of 1 to %d addresses",
			   where, SERVECONF_LISTEN_MAX);
	json_array_foreach(v, i, one) {
		const char *s = json_string_value(one);

		if (!s || !is_address(s))
			return bad(e, "'%s.listen[%zu]' is not ADDRESS:PORT",
				   where, i);
		r->listen[i] = s;
	}
	r->nlisten = i;
	return 0;
}

static int take_role(const json_t *obj, const char *where,
		     struct serveconf_role *r, struct err *e)
{
	static const char *const cert[] = {"node.pem", "control.pem"};
	static const char *const key[] = {"node.key", "control.key"};
	bool control = !strcmp(where, "control");
	int n = take_listen(obj, where, r, e);

	if (n == 0)
		n = text(obj, "cert", cert[control], &r->cert, e);
	if (n == 0)
		n = text(obj, "key", key[control], &r->key, e);
	if (n == 0)
		n = text(obj, "metrics", "", &r->metrics, e);
	if (n < 0)
		return n;
	if (!*r->metrics)
		r->metrics = NULL;
	else if (!is_address(r->metrics) || !ops_is_loopback(r->metrics))
		return bad(e, "'%s.metrics' is not an address of the loopback",
			   where);
	return 0;
}

static int take_peer(const json_t *v, const char *where, size_t i,
		     struct serveconf_peer *ret, struct err *e)
{
	static const char *const keys[] = {"name", "address"};
	const char *name, *address;
	char place[64];

	snprintf(place, sizeof(place), "control.%s[%zu]", where, i);
	if (known(v, place, keys, array_len(keys), e) < 0)
		return -EINVAL;
	name = json_str(v, "name");
	address = json_str(v, "address");
	if (!tls_name_ok(name))
		return bad(e, "'%s.name' is not a name", place);
	if (!is_address(address))
		return bad(e, "'%s.address' is not HOST:PORT", place);
	snprintf(ret->name, sizeof(ret->name), "%s", name);
	snprintf(ret->address, sizeof(ret->address), "%s", address);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct serveconf_peer *)a)->name,
		      ((const struct serveconf_peer *)b)->name);
}

static int take_peers(const json_t *obj, const char *key,
		      struct serveconf_peers *ret, struct err *e)
{
	const json_t *list = json_object_get(obj, key), *v;
	size_t i, n = json_array_size(list);
	int r = 0;

	if (!list)
		return 0;
	if (!json_is_array(list) || n > SERVECONF_PEERS_MAX)
		return bad(e, "'control.%s' is not a list of at most %d", key,
			   SERVECONF_PEERS_MAX);
	ret->list = calloc(n + 1, sizeof(*ret->list));
	if (!ret->list)
		return err_sys(e, ENOMEM, FILE_NAME);
	json_array_foreach(list, i, v) {
		r = take_peer(v, key, i, &ret->list[i], e);
		if (r < 0)
			return r;
	}
	ret->n = n;
	qsort(ret->list, n, sizeof(*ret->list), by_name);
	for (i = 1; i < n; i++)
		if (!by_name(&ret->list[i - 1], &ret->list[i]))
			return bad(e, "'control.%s' has '%s' twice", key,
				   ret->list[i].name);
	return 0;
}

static int take_node(struct serveconf *c, struct err *e)
{
	static const char *const keys[] = {"listen", "cert", "key", "metrics",
					   "user"};
	const json_t *obj = json_object_get(c->obj, "node");
	int r;

	if (!obj)
		return 0;
	r = known(obj, "node", keys, array_len(keys), e);
	if (r == 0)
		r = take_role(obj, "node", &c->node, e);
	if (r == 0)
		r = text(obj, "user", "", &c->user, e);
	if (r == 0 && !*c->user)
		c->user = NULL;
	return r;
}

static int take_control(struct serveconf *c, struct err *e)
{
	static const char *const keys[] = {"listen", "cert",  "key",  "metrics",
					   "audit",  "peers", "nodes"};
	const json_t *obj = json_object_get(c->obj, "control");
	int r;

	if (!obj)
		return 0;
	r = known(obj, "control", keys, array_len(keys), e);
	if (r == 0)
		r = take_role(obj, "control", &c->control, e);
	if (r == 0)
		r = text(obj, "audit", "", &c->audit, e);
	if (r == 0 && !*c->audit)
		c->audit = NULL;
	if (r == 0)
		r = take_peers(obj, "peers", &c->peers, e);
	return r < 0 ? r : take_peers(obj, "nodes", &c->nodes, e);
}

/* --- the rest ------------------------------------------------------------- */

struct limit {
	const char *key;
	unsigned *to;
	int64_t min, max;
};

static int take_limit(const json_t *obj, const struct limit *l, struct err *e)
{
	const json_t *v = json_object_get(obj, l->key);

	if (!v)
		return 0;
	if (!json_is_integer(v) || json_integer_value(v) < l->min ||
	    json_integer_value(v) > l->max)
		return bad(e, "'limits.%s' is not %lld to %lld", l->key,
			   (long long)l->min, (long long)l->max);
	*l->to = (unsigned)json_integer_value(v);
	return 0;
}

static int take_limits(struct serveconf *c, struct err *e)
{
	const json_t *obj = json_object_get(c->obj, "limits");
	const struct limit limits[] = {
		{"connections", &c->server_limits.clients, 1, 1000000},
		{"handshakes", &c->server_limits.shaking, 1, 65536},
		{"requests", &c->server_limits.requests, 1, 65536},
		{"requests_all", &c->server_limits.calls, 1, 1000000},
		{"handshake_ms", &c->conn_limits.handshake_ms, 10, MS_MAX},
		{"line_ms", &c->conn_limits.line_ms, 10, MS_MAX},
		{"ping_ms", &c->conn_limits.ping_ms, 10, MS_MAX},
		{"idle_ms", &c->conn_limits.idle_ms, 10, MS_MAX},
		{"stall_ms", &c->conn_limits.stall_ms, 10, MS_MAX},
		{"lost_ms", &c->lost_ms, 1000, MS_MAX},
	};
	const char *keys[array_len(limits)];
	int r;

	if (!obj)
		return 0;
	for (size_t i = 0; i < array_len(limits); i++)
		keys[i] = limits[i].key;
	r = known(obj, "limits", keys, array_len(keys), e);
	for (size_t i = 0; r == 0 && i < array_len(limits); i++)
		r = take_limit(obj, &limits[i], e);
	return r;
}

/* That they are right is found out now, not when somebody comes. */
static int take_clients(struct serveconf *c, struct err *e)
{
	struct auth *auth = NULL;
	int r;

	c->clients = json_object_get(c->obj, "clients");
	r = auth_new(c->clients, &auth, e);
	auth_free(auth);
	return r < 0 ? err_wrap(e, r, FILE_NAME) : 0;
}

static int take(struct serveconf *c, struct err *e)
{
	static const char *const keys[] = {"v",	      "name",  "ca",
					   "crl",     "node",  "control",
					   "clients", "limits"};
	const json_t *v = json_object_get(c->obj, "v");
	int r = known(c->obj, "serve.json", keys, array_len(keys), e);

	if (r == 0 && v && json_integer_value(v) != 1)
		r = bad(e, "'v' is not 1");
	if (r == 0)
		r = text(c->obj, "name", NULL, &c->name, e);
	if (r == 0 && !tls_name_ok(c->name))
		r = bad(e, "'name' is not a name");
	if (r == 0)
		r = text(c->obj, "ca", "ca.pem", &c->ca, e);
	if (r == 0)
		r = text(c->obj, "crl", "crl.pem", &c->crl, e);
	if (r == 0)
		r = take_node(c, e);
	if (r == 0)
		r = take_control(c, e);
	if (r == 0)
		r = take_clients(c, e);
	return r < 0 ? r : take_limits(c, e);
}

int serveconf_parse(const char *data, size_t len, struct serveconf *ret,
		    struct err *e)
{
	struct serveconf c = {.lost_ms = LOST_MS};
	struct err why = {0};
	int r;

	if (json_parse(data, len, &c.obj, &why) < 0)
		return bad(e, "%s", why.msg);
	r = take(&c, e);
	if (r < 0)
		serveconf_done(&c);
	else
		*ret = c;
	return r;
}

int serveconf_load(int dirfd, struct serveconf *ret, struct err *e)
{
	auto_free char *data = NULL;
	size_t len;
	int r = fd_read_file(dirfd, FILE_NAME, JSON_LINE_MAX, &data, &len, e);

	if (r == -ENOENT)
		return err_set(e, r, "configuration",
			       "no " FILE_NAME
			       " here: dsec-serve init makes one");
	return r < 0 ? r : serveconf_parse(data, len, ret, e);
}

void serveconf_done(struct serveconf *c)
{
	free(c->peers.list);
	free(c->nodes.list);
	json_decref(c->obj);
	*c = (struct serveconf){0};
}

struct tls_files serveconf_files(const struct serveconf *c,
				 const struct serveconf_role *role)
{
	return (struct tls_files){c->ca, role->cert, role->key, c->crl};
}

uint64_t serveconf_stamp(int dirfd, const struct serveconf *c,
			 const struct serveconf_role *role)
{
	const char *const files[] = {FILE_NAME, c->ca, c->crl, role->cert,
				     role->key};
	uint64_t h = hash_fnv("", 0);
	struct stat st;

	for (size_t i = 0; i < array_len(files); i++) {
		if (fstatat(dirfd, files[i], &st, 0) < 0)
			st = (struct stat){0};
		h = hash_fnv_more(h, &st.st_mtim, sizeof(st.st_mtim));
		h = hash_fnv_more(h, &st.st_ino, sizeof(st.st_ino));
		h = hash_fnv_more(h, &st.st_size, sizeof(st.st_size));
	}
	return h;
}
