/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "box/publish.h"

#define BACKLOG 128

union address {
	struct sockaddr sa;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

static int bad(const char *word, const char *what, struct err *e)
{
	return err_set(e, -EBADMSG, "bad_value",
		       "'publish': '%.64s': %s; it is INNER, PORT:INNER or "
		       "ADDRESS:PORT:INNER",
		       word, what);
}

/* Decimal digits alone, up to 65535; -1. */
static long port_of(const char *s, size_t len)
{
	long n = 0;

	if (len == 0 || len > 5)
		return -1;
	for (size_t i = 0; i < len; i++) {
		if (s[i] < '0' || s[i] > '9')
			return -1;
		n = n * 10 + (s[i] - '0');
	}
	return n > 65535 ? -1 : n;
}

static socklen_t address_of(const struct publish *p, union address *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (inet_pton(AF_INET, p->address, &ret->v4.sin_addr) == 1) {
		ret->v4.sin_family = AF_INET;
		ret->v4.sin_port = htons(p->port);
		return sizeof(ret->v4);
	}
	if (inet_pton(AF_INET6, p->address, &ret->v6.sin6_addr) == 1) {
		ret->v6.sin6_family = AF_INET6;
		ret->v6.sin6_port = htons(p->port);
		return sizeof(ret->v6);
	}
	return 0;
}

/* What stands before PORT:INNER, without its brackets. */
static int parse_address(const char *word, size_t len, struct publish *p,
			 struct err *e)
{
	const char *from = word;
	union address a;

	if (len >= 2 && from[0] == '[' && from[len - 1] == ']') {
		from++;
		len -= 2;
	}
	if (len == 0 || len >= sizeof(p->address))
		return bad(word, "no address", e);
	memcpy(p->address, from, len);
	p->address[len] = '\0';
	if (!address_of(p, &a) ||
	    (a.sa.sa_family == AF_INET6) != (*word == '['))
		return bad(word, "the address is no number of an IP address",
			   e);
	return 0;
}

int publish_parse(const char *word, struct publish *ret, struct err *e)
{
	struct publish p = {.address = "127.0.0.1"};
	const char *last = strrchr(word, ':'), *before = NULL;
	long n = port_of(last ? last + 1 : word,
			 strlen(last ? last + 1 : word));
	int r = 0;

	if (n < 1)
		return bad(word, "the inner port is not 1 to 65535", e);
	p.inner = (uint16_t)n;
	if (last) {
		before = memrchr(word, ':', (size_t)(last - word));
		before = before ? before + 1 : word;
		n = port_of(before, (size_t)(last - before));
		if (n < 0)
			return bad(word, "the port is not 0 to 65535", e);
		p.port = (uint16_t)n;
	}
	if (before && before > word)
		r = parse_address(word, (size_t)(before - 1 - word), &p, e);
	if (r == 0)
		*ret = p;
	return r;
}

int publish_check(const json_t *list, struct err *e)
{
	struct publish p;
	size_t i;
	json_t *v;
	int r;

	if (json_array_size(list) > PUBLISH_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "'publish': %d at most", PUBLISH_MAX);
	json_array_foreach((json_t *)(uintptr_t)list, i, v) {
		r = publish_parse(json_string_value(v), &p, e);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_port(int fd, struct publish *p, struct err *e)
{
	union address a;
	socklen_t len = sizeof(a);

	if (getsockname(fd, &a.sa, &len) < 0)
		return err_sys(e, errno, "the port of a socket");
	p->port = ntohs(a.sa.sa_family == AF_INET ? a.v4.sin_port
						  : a.v6.sin6_port);
	return 0;
}

static int refused(const struct publish *p, int err, struct err *e)
{
	if (err == EADDRINUSE)
		return err_set(e, -err, "busy",
			       "'publish': port %u of %s is in use on the node",
			       p->port, p->address);
	if (err == EADDRNOTAVAIL)
		return err_set(e, -err, "bad_value",
			       "'publish': %s is no address of the node",
			       p->address);
	return err_sys(e, err, "publish port %u of %s", p->port, p->address);
}

int publish_listen(struct publish *p, struct err *e)
{
	auto_close int fd = -1;
	union address a;
	socklen_t len = address_of(p, &a);
	int on = 1, r;

	fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
		    0);
	if (fd < 0)
		return err_sys(e, errno, "publish a port");
	/* So that it can be had again while old connections are fading. */
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (a.sa.sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(fd, &a.sa, len) < 0 || listen(fd, BACKLOG) < 0)
		return refused(p, errno, e);
	r = read_port(fd, p, e);
	return r < 0 ? r : steal_fd(&fd);
}

json_t *publish_json(const struct publish *p)
{
	return json_pack("{s:s, s:i, s:i}", "address", p->address, "port",
			 (int)p->port, "inner", (int)p->inner);
}

int publish_of(const json_t *j, struct publish *ret)
{
	const char *address = json_str(j, "address");
	int64_t port = json_int(j, "port", -1), inner = json_int(j, "inner", 0);
	union address a;

	if (port < 0 || port > 65535 || inner < 1 || inner > 65535 ||
	    strlen(address) >= sizeof(ret->address))
		return -EBADMSG;
	*ret = (struct publish){.port = (uint16_t)port,
				.inner = (uint16_t)inner};
	snprintf(ret->address, sizeof(ret->address), "%s", address);
	return address_of(ret, &a) ? 0 : -EBADMSG;
}
