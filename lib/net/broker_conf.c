/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "net/broker_conf.h"
#include "wire/json.h"

#define VAULT_BYTES (1024 * 1024)

static int bad(struct err *e, const char *where, const char *what)
{
	return err_set(e, -EINVAL, "configuration", "broker.json: %s: %s",
		       where, what);
}

static int no_memory(struct err *e)
{
	return err_sys(e, ENOMEM, "broker.json");
}

static int check_keys(const json_t *obj, const char *const *keys, size_t n,
		      const char *where, struct err *e)
{
	const char *key = json_unknown(obj, keys, n);

	if (!json_is_object(obj))
		return bad(e, where, "not an object");
	if (key)
		return err_set(e, -EINVAL, "configuration",
			       "broker.json: %s: unknown key '%.64s'", where,
			       key);
	return 0;
}

/* --- secrets ------------------------------------------------------------- */

static bool is_value(const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)s[i] < ' ' || (unsigned char)s[i] >= 127)
			return false;
	return len > 0;
}

static int open_secret(const char *path, struct err *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0)
		return err_sys(e, errno, "broker.json: open '%s'", path);
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != 0 ||
	    st.st_mode & 077) {
		fd_close(fd);
		return bad(e, path,
			   "not a file that root alone can read (mode 0600)");
	}
	return fd;
}

/* ${prefix} and the secret of ${path}, in the vault; it is looked for. */
static int load_secret(struct broker_conf *c, struct broker_endpoint *ep,
		       const char *path, const char *prefix,
		       const char **ret_value, struct err *e)
{
	auto_close int fd = open_secret(path, e);
	size_t n = strlen(prefix), len = 0;
	char *value;
	ssize_t got;
	int r;

	if (fd < 0)
		return fd;
	value = vault_get(&c->vault, n + SCAN_SECRET_MAX + 2);
	if (!value)
		return bad(e, path, "too many secrets");
	memcpy(value, prefix, n);
	while ((got = read(fd, value + n + len, SCAN_SECRET_MAX + 1 - len)) > 0)
		len += (size_t)got;
	if (got < 0)
		return err_sys(e, errno, "broker.json: read '%s'", path);
	if (len && value[n + len - 1] == '\n')
		value[n + --len] = '\0';
	if (!is_value(value + n, len))
		return bad(e, path, "a secret is one line of plain characters");
	*ret_value = value;
	r = scan_add(ep->scan, value + n, len, &c->vault, e);
	return r < 0 ? err_wrap(e, r, "broker.json: %s", path) : 0;
}

static int load_header(struct broker_conf *c, struct broker_endpoint *ep,
		       const char *name, const json_t *v, struct err *e)
{
	static const char *const keys[] = {"file", "prefix", "value"};
	const char *file = json_str(v, "file"), *value = json_str(v, "value");
	const char *prefix = json_str(v, "prefix");
	const struct http_head none = {0};
	struct http_field f = {.name = {name, strlen(name)}};
	struct broker_header *h = &ep->headers[ep->nheaders];
	char *copy;
	size_t len;
	int r = check_keys(v, keys, array_len(keys), name, e);

	if (r < 0)
		return r;
	if (ep->nheaders == BROKER_HEADERS)
		return bad(e, ep->name, "too many headers");
	if (!http_token(name) || http_drops(&none, &f))
		return bad(e, name, "not a header that can be added");
	if (!*file == !*value || (*prefix && !is_value(prefix, strlen(prefix))))
		return bad(e, name, "needs a file or a value");
	h->name = strdup(name);
	if (!h->name)
		return no_memory(e);
	ep->nheaders++;
	if (*file)
		return load_secret(c, ep, file, prefix, &h->value, e);
	len = strlen(value);
	copy = vault_get(&c->vault, len + 1);
	if (!copy || !is_value(value, len))
		return bad(e, name, "not a value");
	h->value = memcpy(copy, value, len + 1);
	return 0;
}

/* --- endpoints ----------------------------------------------------------- */

/* Bytes that may stand in a path as they are. */
static bool is_path(const char *s)
{
	const char *p;

	for (p = s; *p; p++)
		if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 127 ||
		    strchr("?#%\\", *p))
			return false;
	return *s == '/' && !strstr(s, "//") && !strstr(s, "/.");
}

static int load_upstream(struct broker_endpoint *ep, const char *url,
			 struct err *e)
{
	static const char scheme[] = "https://";
	const char *host = url + strlen(scheme), *path, *colon;
	unsigned long port = 443;
	size_t len;
	char *end;

	if (strncmp(url, scheme, strlen(scheme)) != 0)
		return bad(e, ep->name, "upstream is not https://");
	path = strchrnul(host, '/');
	colon = memchr(host, ':', (size_t)(path - host));
	len = (size_t)((colon ? colon : path) - host);
	if (netname_canon(host, len, ep->host) < 0)
		return bad(e, ep->name, "upstream has no name of a host");
	if (colon) {
		port = colon[1] >= '1' && colon[1] <= '9'
			       ? strtoul(colon + 1, &end, 10)
			       : 0;
		if (port == 0 || port > UINT16_MAX || end != path)
			return bad(e, ep->name, "upstream has a bad port");
	}
	ep->port = (uint16_t)port;
	ep->base = strdup(strcmp(path, "/") ? path : "");
	if (!ep->base)
		return no_memory(e);
	len = strlen(ep->base);
	if (len && (!is_path(ep->base) || ep->base[len - 1] == '/'))
		return bad(e, ep->name, "upstream has a bad path");
	return 0;
}

static int load_list(const struct broker_endpoint *ep, const json_t *list,
		     char **ret, size_t *ret_n, size_t max, struct err *e)
{
	json_t *v;
	size_t i;

	if (!json_is_array(list) || json_array_size(list) == 0 ||
	    json_array_size(list) > max)
		return bad(e, ep->name, "paths and methods are lists");
	json_array_foreach(list, i, v) {
		ret[i] = strdup(json_is_string(v) ? json_string_value(v) : "");
		if (!ret[i])
			return no_memory(e);
		*ret_n = i + 1;
	}
	return 0;
}

static int load_methods(struct broker_endpoint *ep, const json_t *list,
			struct err *e)
{
	auto_json json_t *some = NULL;
	int r;

	if (!list) {
		r = json_pack_or(&some, e, "[sss]", "GET", "HEAD", "POST");
		if (r < 0)
			return r;
		list = some;
	}
	r = load_list(ep, list, ep->methods, &ep->nmethods, BROKER_METHODS, e);
	for (size_t i = 0; r == 0 && i < ep->nmethods; i++)
		if (!http_token(ep->methods[i]) ||
		    !strcmp(ep->methods[i], "CONNECT"))
			r = bad(e, ep->name, "not a method");
	return r;
}

static int load_paths(struct broker_endpoint *ep, const json_t *list,
		      struct err *e)
{
	int r = load_list(ep, list, ep->paths, &ep->npaths, BROKER_PATHS, e);

	for (size_t i = 0; r == 0 && i < ep->npaths; i++)
		if (!is_path(ep->paths[i]))
			r = bad(e, ep->name, "not a path");
	return r;
}

static bool is_name(const char *s)
{
	return *s && strlen(s) < BROKER_ENDPOINT_NAME &&
	       !s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-")];
}

static int load_endpoint(struct broker_conf *c, const char *name,
			 const json_t *v, struct err *e)
{
	static const char *const keys[] = {"upstream", "paths", "methods",
					   "headers"};
	struct broker_endpoint *ep = &c->endpoints[c->n];
	const char *key;
	json_t *h;
	int r;

	if (!is_name(name))
		return bad(e, "endpoints", "a name is of a-z, 0-9, '_', '-'");
	r = check_keys(v, keys, array_len(keys), name, e);
	if (r < 0)
		return r;
	c->n++;
	ep->name = strdup(name);
	ep->scan = calloc(1, sizeof(*ep->scan));
	if (!ep->name || !ep->scan)
		return no_memory(e);
	r = load_upstream(ep, json_str(v, "upstream"), e);
	if (r == 0)
		r = load_paths(ep, json_object_get(v, "paths"), e);
	if (r == 0)
		r = load_methods(ep, json_object_get(v, "methods"), e);
	h = json_object_get(v, "headers");
	if (r == 0 && h && !json_is_object(h))
		r = bad(e, name, "headers are an object");
	json_object_foreach(h, key, v)
		if (r == 0)
			r = load_header(c, ep, key, v, e);
	return r;
}

static int load(struct broker_conf *c, const json_t *file, struct err *e)
{
	static const char *const keys[] = {"ca", "endpoints"};
	json_t *v, *eps = json_object_get(file, "endpoints");
	const char *name;
	int r = check_keys(file, keys, array_len(keys), "file", e);

	if (r < 0)
		return r;
	if (!json_is_object(eps) || json_object_size(eps) > 256)
		return bad(e, "endpoints", "not an object");
	c->endpoints = calloc(json_object_size(eps) + 1, sizeof(*c->endpoints));
	if (!c->endpoints)
		return no_memory(e);
	v = json_object_get(file, "ca");
	if (v && !json_is_string(v))
		return bad(e, "ca", "not a path");
	if (v) {
		c->ca = strdup(json_string_value(v));
		if (!c->ca)
			return no_memory(e);
	}
	json_object_foreach(eps, name, v) {
		r = load_endpoint(c, name, v, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int broker_conf_load(const char *path, struct broker_conf *c, struct err *e)
{
	auto_json json_t *file = NULL;
	int r;

	*c = (struct broker_conf){0};
	r = json_read_file(AT_FDCWD, path, &file, e);
	if (r < 0)
		return err_set(e, r, "configuration", "broker.json: %s",
			       (e ? strdupa(e->msg) : ""));
	r = vault_init(&c->vault, VAULT_BYTES, e);
	if (r == 0)
		r = load(c, file, e);
	if (r < 0)
		broker_conf_done(c);
	return r;
}

static void endpoint_done(struct broker_endpoint *ep)
{
	for (size_t i = 0; i < ep->npaths; i++)
		free(ep->paths[i]);
	for (size_t i = 0; i < ep->nmethods; i++)
		free(ep->methods[i]);
	for (size_t i = 0; i < ep->nheaders; i++)
		free(ep->headers[i].name);
	free(ep->name);
	free(ep->base);
	free(ep->scan);
}

void broker_conf_done(struct broker_conf *c)
{
	for (size_t i = 0; i < c->n; i++)
		endpoint_done(&c->endpoints[i]);
	free(c->endpoints);
	free(c->ca);
	vault_done(&c->vault);
	*c = (struct broker_conf){0};
}

/* --- decisions ----------------------------------------------------------- */

const struct broker_endpoint *broker_conf_find(const struct broker_conf *c,
					       struct http_str name)
{
	for (size_t i = 0; i < c->n; i++)
		if (strlen(c->endpoints[i].name) == name.len &&
		    !memcmp(c->endpoints[i].name, name.at, name.len))
			return &c->endpoints[i];
	return NULL;
}

/* Would every reader find the same segments in it? */
static bool is_plain_path(struct http_str p)
{
	static const char *const encoded[] = {"%2e", "%2f", "%5c", "%00",
					      "%25", "%3b", "%23", "%3f"};
	size_t i, k;

	for (i = 0; i < p.len; i++) {
		if (p.at[i] == ';' || p.at[i] == '\\')
			return false;
		if (p.at[i] == '%')
			for (k = 0; k < array_len(encoded); k++)
				if (p.len - i < 3 ||
				    !strncasecmp(p.at + i, encoded[k], 3))
					return false;
		if (p.at[i] == '/' && i + 1 < p.len &&
		    (p.at[i + 1] == '/' || p.at[i + 1] == '.'))
			return false;
	}
	return p.len && p.at[0] == '/';
}

bool broker_allows(const struct broker_endpoint *ep, struct http_str method,
		   struct http_str path)
{
	const char *query = memchr(path.at, '?', path.len);
	bool known = false;
	size_t n;

	for (size_t i = 0; i < ep->nmethods; i++)
		known |= strlen(ep->methods[i]) == method.len &&
			 !memcmp(ep->methods[i], method.at, method.len);
	if (query)
		path.len = (size_t)(query - path.at);
	if (!known || !is_plain_path(path))
		return false;
	for (size_t i = 0; i < ep->npaths; i++) {
		n = strlen(ep->paths[i]);
		if (path.len < n || memcmp(path.at, ep->paths[i], n) != 0)
			continue;
		if (path.len == n || ep->paths[i][n - 1] == '/')
			return true;
	}
	return false;
}

bool broker_replaces(const struct broker_endpoint *ep, struct http_str name)
{
	for (size_t i = 0; i < ep->nheaders; i++)
		if (http_is(name, ep->headers[i].name))
			return true;
	return false;
}
