/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_CLIENT_H
#define DSEC_SERVE_CLIENT_H

#include "serve.h"
#include "wire/exit.h"
#include "wire/jsonl.h"

/* --- client_words.c: what is asked for ----------------------------------- */

/* What the words behind "dsec --server HOST:PORT" ask for. */
struct wanted {
	const char *program; /* as it is sent */
	bool lines;	     /* requests are lines of stdin */
	json_t *fields;	     /* that every request has, unless it says them */
	json_t *words;	     /* a request for each; if none, just one */
	const char *key;     /* under which a request has its word */
	bool raw;	     /* a command with our descriptors and its status */
	bool input;	     /* ... our stdin as well */
	bool table;	     /* sandboxes as lines for people */
};

/* wanted_parse(argv, ret, e): argv[0] is the program.  1: help was printed. */
int wanted_parse(char **argv, struct wanted *ret, struct err *e);

/* --- client_place.c: whom, and as whom ----------------------------------- */

#define PLACES_MAX 16

struct place {
	char servers[PLACES_MAX][SERVECONF_ADDR_MAX]; /* in their order */
	size_t nservers;
	char cert[PATH_MAX], key[PATH_MAX], ca[PATH_MAX];
};

/* place_find(a, p, e): of flags, the environment, a file. */
int place_find(const struct args *a, struct place *p, struct err *e);

/* place_connect(server, ret_host, size, e): a socket; waits 10 s at most.
 * ${ret_host} is the name that its certificate must have. */
int place_connect(const char *server, char *ret_host, size_t size,
		  struct err *e);

/* --- client.c ------------------------------------------------------------- */

struct app {
	struct loop *loop;
	struct tls *tls;
	struct conn_env env;
	struct conn *c;
	struct place place;
	size_t server;		      /* of those of place */
	const struct tls_ident *peer; /* who must answer, or NULL */
	bool up;
	struct wanted want;
	struct loop_source src; /* stdin */
	bool polled;		/* it can be waited for */
	struct jsonl lines;
	json_t *ids;   /* of lines under way: as sent, as it was said */
	size_t word;   /* the next of want.words */
	unsigned open; /* requests that are not answered */
	bool ended;    /* no more requests */
	enum exit_status status;
	struct err why;
	/* raw */
	struct stream in, out, err; /* stdin; stdout; stderr */
	int sigfd;
	struct loop_source signals;
	unsigned stops;	 /* requests to stop */
	unsigned passed; /* signals that were sent to the command */
	int pending;	 /* one that came before it began */
	char exec[65];	 /* its name, once it began */
};

/* app_fail(app, why): nothing more can be done. */
void app_fail(struct app *app, const struct err *why);

/* app_watch(app, fn, on): stdin.  A pipe that hung up is always ready: it is
 * watched while it is read only. */
void app_watch(struct app *app, loop_fn *fn, bool on);

/* --- client_raw.c: a command with our descriptors ------------------------- */

/* raw_open(app, e): its streams, on a new connection.  raw_signals(app, e):
 * signals are the command's from now on. */
int raw_open(struct app *app, struct err *e);
int raw_signals(struct app *app, struct err *e);

/* raw_began(app, rec): the event "started". */
void raw_began(struct app *app, const json_t *rec);

/* raw_status(rec): our exit status, of its last record.  raw_left(app): say
 * what goes on without us, and how to take it up. */
int raw_status(const json_t *rec);
void raw_left(const struct app *app);

#endif
