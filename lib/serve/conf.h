/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_CONF_H
#define SERVE_CONF_H

#include "serve/server.h"

/*
 * serve.json: all that a daemon is told (dsec-serve(1) has its keys).  What it
 * does not know is an error, with its place.
 */
#define SERVECONF_LISTEN_MAX 16
#define SERVECONF_PEERS_MAX  4096
#define SERVECONF_ADDR_MAX   271 /* HOST:PORT, with its NUL */

struct serveconf_peer {
	char name[TLS_NAME_MAX + 1];
	char address[SERVECONF_ADDR_MAX]; /* HOST:PORT or [V6]:PORT */
};

struct serveconf_peers {
	struct serveconf_peer *list;
	size_t n;
};

/* A role; without listen it is not to run here. */
struct serveconf_role {
	const char *listen[SERVECONF_LISTEN_MAX]; /* ADDRESS:PORT */
	size_t nlisten;
	const char *cert, *key; /* files, relative to the directory */
	const char *metrics;	/* ADDRESS:PORT, or NULL: none */
};

/* Strings are borrowed from obj. */
struct serveconf {
	json_t *obj;
	const char *name;
	const char *ca, *crl; /* files, relative to the directory */
	struct serveconf_role node, control;
	const char *audit; /* of a control: a file, or NULL */
	const char *user;  /* of a node: who speaks to the network; or NULL */
	struct serveconf_peers peers, nodes; /* of a control */
	const json_t *clients;		     /* see auth_new(); or NULL */
	unsigned lost_ms; /* of a control: a node unseen for so long is lost */
	struct conn_limits conn_limits;
	struct server_limits server_limits;
};

/* serveconf_parse(text, len, ret, e), serveconf_load(dirfd, ret, e): of
 * serve.json in the directory.  "configuration" where something is wrong. */
must_check int serveconf_parse(const char *text, size_t len,
			       struct serveconf *ret, struct err *e);
must_check int serveconf_load(int dirfd, struct serveconf *ret, struct err *e);
void serveconf_done(struct serveconf *c);

/* serveconf_files(c, role): what tls_pem_read() wants. */
struct tls_files serveconf_files(const struct serveconf *c,
				 const struct serveconf_role *role);

/*
 * serveconf_stamp(dirfd, c, role, ret): a number that changes when one of the
 * files that the role needs does (serve.json, certificates, key, revocation
 * list): to be asked about every second.
 */
uint64_t serveconf_stamp(int dirfd, const struct serveconf *c,
			 const struct serveconf_role *role);

#endif
