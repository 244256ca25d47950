/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_SERVER_PRIV_H
#define SERVE_SERVER_PRIV_H

#include "serve/server.h"

#define LISTENERS_MAX 16

struct listener {
	struct server *s;
	struct loop_source src;
	int fd;
};

struct server {
	struct conn_env *env;
	struct server_conf conf;
	struct server_stats stats;
	struct client *clients;
	struct listener listeners[LISTENERS_MAX];
	size_t nlisteners;
	struct loop_timer rest; /* before more are accepted */
	bool resting;
	unsigned leaving; /* were put out of their handshake, and are there yet
			   */
};

/* server_resume(s): there may be room for more connections. */
void server_resume(struct server *s);

#endif
