/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "client.h"

#define CLIENT	   "/etc/dsec/serve/client.json"
#define CONNECT_MS 10000

/* --- configuration -------------------------------------------------------- */

static int read_config(const char *file, json_t **ret, struct err *e)
{
	static const char *const keys[] = {"addresses", "certificate", "key",
					   "ca"};
	const char *odd;
	int r = json_read_file(AT_FDCWD, file ? file : CLIENT, ret, e);

	if (r == -ENOENT && !file)
		return 0;
	if (r < 0)
		return r;
	odd = json_unknown(*ret, keys, array_len(keys));
	return odd ? err_set(e, -EINVAL, "configuration",
			     "'%s': unknown field '%.64s'",
			     file ? file : CLIENT, odd)
		   : 0;
}

/* A flag, else the environment, else the file's, which is relative to it. */
struct pick {
	const char *given, *name, *key, *flag;
	char *ret;
};

static int pick(const struct pick *p, const json_t *said, const char *dir,
		struct err *e)
{
	const char *v = p->given ? p->given : getenv(p->name);
	bool relative;

	if (v && *v) {
		snprintf(p->ret, PATH_MAX, "%s", v);
		return 0;
	}
	v = json_str(said, p->key);
	relative = *v && *v != '/';
	snprintf(p->ret, PATH_MAX, "%s%s%s", relative ? dir : "",
		 relative ? "/" : "", v);
	return *v ? 0
		  : err_set(e, -EINVAL, "configuration",
			    "no %s: --%s, %s, or \"%s\" in the file that "
			    "--config or DSEC_CLIENT names (" CLIENT ")",
			    p->key, p->flag, p->name, p->key);
}

static int add_server(struct place *p, const char *text, size_t len,
		      struct err *e)
{
	if (p->nservers == PLACES_MAX || len >= SERVECONF_ADDR_MAX)
		return err_set(e, -EINVAL, "configuration",
			       "%d addresses at most, each of %d bytes",
			       PLACES_MAX, SERVECONF_ADDR_MAX - 1);
	snprintf(p->servers[p->nservers++], SERVECONF_ADDR_MAX, "%.*s",
		 (int)len, text);
	return 0;
}

static int find_servers(const struct args *a, const json_t *said,
			struct place *p, struct err *e)
{
	const char *list = a->server ? a->server : getenv("DSEC_SERVER");
	json_t *all = json_object_get(said, "addresses"), *v;
	size_t i, n;
	int r = 0;

	for (; list && *list && r == 0; list += n + strspn(list + n, " ,")) {
		n = strcspn(list, ", ");
		if (n > 0)
			r = add_server(p, list, n, e);
	}
	if (r < 0 || p->nservers > 0)
		return r;
	json_array_foreach(all, i, v) {
		if (!json_is_string(v))
			return err_set(e, -EINVAL, "configuration",
				       "'addresses[%zu]' is no string", i);
		r = add_server(p, json_string_value(v), json_string_length(v),
			       e);
		if (r < 0)
			return r;
	}
	return p->nservers > 0
		       ? 0
		       : err_set(e, -EINVAL, "configuration",
				 "no address: --server, DSEC_SERVER, or "
				 "\"addresses\" in the file that --config or "
				 "DSEC_CLIENT names (" CLIENT ")");
}

int place_find(const struct args *a, struct place *p, struct err *e)
{
	const char *file = a->dir ? a->dir : getenv("DSEC_CLIENT");
	const struct pick all[] = {
		{a->cert, "DSEC_CERT", "certificate", "cert", p->cert},
		{a->key, "DSEC_KEY", "key", "key", p->key},
		{a->ca, "DSEC_CA", "ca", "ca", p->ca},
	};
	auto_json json_t *said = NULL;
	char copy[PATH_MAX], *dir;
	int r;

	if (file && !*file)
		file = NULL;
	r = read_config(file, &said, e);
	if (r == 0)
		r = find_servers(a, said, p, e);
	snprintf(copy, sizeof(copy), "%s", file ? file : CLIENT);
	dir = dirname(copy);
	for (size_t i = 0; r == 0 && i < array_len(all); i++)
		r = pick(&all[i], said, dir, e);
	return r;
}

/* --- connecting ----------------------------------------------------------- */

static int connect_in_time(const struct addrinfo *ai, int *ret_fd)
{
	auto_close int fd = socket(ai->ai_family,
				   SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
				   0);
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	int r = 0;
	socklen_t len = sizeof(r);

	if (fd < 0)
		return errno;
	if (connect(fd, ai->ai_addr, ai->ai_addrlen) < 0) {
		if (errno != EINPROGRESS)
			return errno;
		if (poll(&p, 1, CONNECT_MS) <= 0)
			return ETIMEDOUT;
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &r, &len) < 0)
			return errno;
	}
	if (r == 0)
		*ret_fd = steal_fd(&fd);
	return r;
}

int place_connect(const char *server, char *ret_host, size_t size,
		  struct err *e)
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
	const char *colon = strrchr(server, ':');
	struct addrinfo *list = NULL;
	int fd = -1, r = EHOSTUNREACH;

	if (!colon)
		return err_set(e, -EINVAL, "usage", "'%s' is not HOST:PORT",
			       server);
	snprintf(ret_host, size, "%.*s", (int)(colon - server), server);
	if (ret_host[0] == '[' && strlen(ret_host) > 2) {
		ret_host[strlen(ret_host) - 1] = '\0';
		memmove(ret_host, ret_host + 1, strlen(ret_host));
	}
	if (getaddrinfo(ret_host, colon + 1, &hints, &list) != 0)
		return err_set(e, -EHOSTUNREACH, "node_away",
			       "'%s' cannot be resolved", ret_host);
	for (struct addrinfo *ai = list; ai && fd < 0; ai = ai->ai_next)
		r = connect_in_time(ai, &fd);
	freeaddrinfo(list);
	return fd >= 0 ? fd
		       : err_set(e, -r, "node_away", "connect to %s: %s",
				 server, strerror(r));
}
