/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_BROKER_CONF_H
#define NET_BROKER_CONF_H

#include "net/broker.h"
#include "net/broker_scan.h"
#include "net/http.h"
#include "policy/netname.h"

/*
 * $DSEC_CONFIG/broker.json: what is there for sandboxes, and with which
 * credentials.
 *
 *   {"ca":"/etc/dsec/ca.pem",			the system's store
 *    "endpoints":{"anthropic":{
 *	"upstream":"https://api.example.com",	with a port or a path if need be
 *	"paths":["/v1/"],			what may be asked for, below it
 *	"methods":["GET","POST"],		GET, HEAD and POST
 *	"headers":{
 *	  "x-api-key":{"file":"/etc/dsec/secrets/key"},
 *	  "authorization":{"file":"...","prefix":"Bearer "},
 *	  "x-version":{"value":"2023-06-01"}}}}}
 *
 * A path ending with '/' is a prefix; another one is that path alone.  The
 * file of a secret belongs to root and is readable by nobody else; one newline
 * at its end is not part of it.  Everything unknown is an error.
 */

#define BROKER_PATHS   32
#define BROKER_METHODS 8
#define BROKER_HEADERS 8

struct broker_header {
	char *name;
	const char *value; /* in the vault */
};

struct broker_endpoint {
	char *name;
	char host[NETNAME_MAX + 1];
	uint16_t port;
	char *base; /* before the path that is asked for, "" or "/x" */
	size_t npaths, nmethods, nheaders;
	char *paths[BROKER_PATHS], *methods[BROKER_METHODS];
	struct broker_header headers[BROKER_HEADERS];
	struct scan *scan;
};

struct broker_conf {
	struct broker_endpoint *endpoints;
	size_t n;
	char *ca; /* NULL: the system's */
	struct vault vault;
};

/* broker_conf_load(path, c, e): "configuration" and where. */
must_check int broker_conf_load(const char *path, struct broker_conf *c,
				struct err *e);
void broker_conf_done(struct broker_conf *c);

const struct broker_endpoint *broker_conf_find(const struct broker_conf *c,
					       struct http_str name);

/*
 * broker_allows(ep, method, path): ${path} begins with '/' and may have a
 * query.  false for every path that another reader might take for a different
 * one: with "." or ".." or empty segments, encoded dots, slashes, backslashes.
 */
bool broker_allows(const struct broker_endpoint *ep, struct http_str method,
		   struct http_str path);

/* broker_replaces(ep, name): does ${ep} set that header itself? */
bool broker_replaces(const struct broker_endpoint *ep, struct http_str name);

#endif
