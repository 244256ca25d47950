/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "net/resolver.h"

#define DNS_PORT    53
#define CONF_MAX    (64 * 1024)
#define ADDRESS_MAX 63

static bool take_v4(const char *addr, unsigned port,
		    struct sockaddr_storage *ret)
{
	struct sockaddr_in *in = (struct sockaddr_in *)ret;

	*in = (struct sockaddr_in){.sin_family = AF_INET,
				   .sin_port = htons((uint16_t)port)};
	return inet_pton(AF_INET, addr, &in->sin_addr) == 1;
}

static bool take_v6(const char *addr, unsigned port,
		    struct sockaddr_storage *ret)
{
	struct sockaddr_in6 *in = (struct sockaddr_in6 *)ret;

	*in = (struct sockaddr_in6){.sin6_family = AF_INET6,
				    .sin6_port = htons((uint16_t)port)};
	return inet_pton(AF_INET6, addr, &in->sin6_addr) == 1;
}

static bool take_port(const char *text, unsigned *ret)
{
	size_t n = strspn(text, "0123456789");
	unsigned long v = n && n <= 5 ? strtoul(text, NULL, 10) : 0;

	if (text[n] || v == 0 || v > UINT16_MAX)
		return false;
	*ret = (unsigned)v;
	return true;
}

bool resolver_server(const char *text, struct sockaddr_storage *ret)
{
	char copy[ADDRESS_MAX + 1], *addr = copy, *end;
	unsigned port = DNS_PORT;

	memset(ret, 0, sizeof(*ret));
	if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
		return false;
	if (*addr == '[') {
		end = strchr(++addr, ']');
		if (!end || (end[1] && end[1] != ':') ||
		    (end[1] && !take_port(end + 2, &port)))
			return false;
		*end = '\0';
		return take_v6(addr, port, ret);
	}
	end = strchr(addr, ':');
	if (end && strchr(end + 1, ':'))
		return take_v6(addr, port, ret);
	if (end && !take_port(end + 1, &port))
		return false;
	if (end)
		*end = '\0';
	return take_v4(addr, port, ret);
}

int resolver_conf_file(const char *path, struct resolver_conf *conf,
		       struct err *e)
{
	static const char word[] = "nameserver";
	auto_free char *text = NULL;
	char *line, *next, *addr;
	int r;

	r = fd_read_file(AT_FDCWD, path, CONF_MAX, &text, NULL, e);
	if (r < 0)
		return err_wrap(e, r, "read '%s'", path);
	for (line = text; line && conf->nservers < RESOLVER_SERVERS_MAX;
	     line = next) {
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		addr = line + strlen(word);
		if (strncmp(line, word, strlen(word)) != 0 ||
		    (*addr != ' ' && *addr != '\t'))
			continue;
		addr += strspn(addr, " \t");
		addr[strcspn(addr, " \t\r#;")] = '\0';
		if (resolver_server(addr, &conf->servers[conf->nservers]))
			conf->nservers++;
	}
	return 0;
}
