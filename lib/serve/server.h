/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_SERVER_H
#define SERVE_SERVER_H

#include "base/hash.h"
#include "serve/stream.h"

/*
 * The side of a daemon that accepts: listeners, clients, and the requests of
 * each that are under way, their calls.  Hello, cancel, ids, deadlines and
 * bounds are dealt with here; who may do what, and doing it, is the user's.
 */
struct server;
struct call;

struct client {
	struct conn *c;
	struct tls_ident who;
	char uri[TLS_URI_MAX];
	char token_sha256[HASH_SHA256_HEX + 1]; /* of its hello; or "" */
	void *arg; /* the user's, NULL at first; see server_ops.left */
	/* the library's */
	struct server *server;
	struct client *next, **pprev;
	struct call *calls;
	unsigned ncalls;
	size_t weight; /* of the calls' requests */
	bool put_out;
	uint64_t lines, since_ms;
};

/* A request under way, from begin() to call_end(). */
struct call {
	struct client *client; /* NULL: it has left, nobody is answered */
	json_t *req;	       /* has program and id */
	const json_t *id;      /* of it */
	const char *program;   /* of it; "" where it has none */
	uint64_t began_ms;
	void *arg; /* the user's */
	/* the library's */
	struct server *server;
	struct call *next, **pprev;
	struct loop_timer timer;
	size_t weight;
	bool told;
};

enum call_stop {
	CALL_CANCELLED, /* the client has said so */
	CALL_LATE,	/* its deadline_ms has passed */
	CALL_LEFT,	/* the client has gone */
};

struct server_ops {
	/* A client came, or said hello with another token: 0, or -errno and
	 * why it is refused.  NULL: all may. */
	int (*may)(void *arg, struct client *cl, struct err *e);
	/* A request, to be ended by call_end() or call_fail(), now or later. */
	void (*begin)(void *arg, struct call *k);
	/* It is not waited for any more.  It must be ended still, now or later;
	 * what it did need not be undone.  Told once at the most. */
	void (*stop)(void *arg, struct call *k, enum call_stop how);
	/* The last record of a call (NULL: memory is out), whether or not
	 * somebody gets it.  NULL: not of interest. */
	void (*ended)(void *arg, const struct call *k, const json_t *rec);
	/* The client has gone: after CALL_LEFT of its calls.  NULL: not of
	 * interest. */
	void (*left)(void *arg, struct client *cl);
	/* Nobody who may connect: the handshake failed.  NULL: not of
	 * interest. */
	void (*refused)(void *arg, const struct err *why);
};

struct server_limits {	   /* 0: what is in brackets */
	unsigned clients;  /* connections [8192] */
	unsigned shaking;  /* of them in the handshake [512] */
	unsigned requests; /* under way of one client [1024] */
	unsigned calls;	   /* under way of all [16384] */
};

/* What requests under way may take of memory, of one client and of all. */
#define SERVER_WEIGHT_ONE (64 * 1024 * 1024)
#define SERVER_WEIGHT_ALL (256 * 1024 * 1024)

struct server_conf {
	const char *role, *name;    /* told in the hello; borrowed */
	const json_t *capabilities; /* an array of strings, borrowed; or NULL */
	struct server_limits limits;
	const struct server_ops *ops;
	void *arg;
};

/* What has happened so far. */
struct server_stats {
	uint64_t requests, busy;
	unsigned clients, calls; /* now */
	size_t weight;		 /* of the calls' requests, about, in bytes */
};

/*
 * server_new(env, conf, ret, e): ${env} is borrowed, ${conf} copied.
 * server_listen(s, fd, e): a listening socket, taken over.
 * server_take(s, fd, e): a connection that somebody else accepted.
 * server_retire(s): accept no more; who is there goes on.
 * server_free(s): once server_stats() says that no client and no call is left.
 */
must_check int server_new(struct conn_env *env, const struct server_conf *conf,
			  struct server **ret, struct err *e);
must_check int server_listen(struct server *s, int *fd, struct err *e);
must_check int server_take(struct server *s, int *fd, struct err *e);
void server_retire(struct server *s);
void server_free(struct server *s);
struct server_stats server_stats(const struct server *s);

/* server_each(s, fn, arg): for every client; it may be cut. */
void server_each(struct server *s, void (*fn)(void *arg, struct client *cl),
		 void *arg);

/*
 * server_bind(address, flags, ret_fd, e): a listening socket for "HOST:PORT",
 * an address ([V6]:PORT), with port 0 for a free one.  server_bound(fd, ret):
 * the same of a socket, into ret[SERVER_ADDR_MAX].
 */
enum server_bind_flags {
	SERVER_SHARED = 1 << 0, /* others may listen there too: who takes over
				   from another does so while both do */
};
#define SERVER_ADDR_MAX 64
must_check int server_bind(const char *address, unsigned flags, int *ret_fd,
			   struct err *e);
int server_bound(int fd, char *ret);

/*
 * call_event(k, rec): a record that is not the last; it is taken over and its
 * "id" set.  call_end(k, rec): the last, likewise (NULL: that memory is out is
 * said); ${k} is gone.  call_fail(k, why): the same with an error.
 */
void call_event(struct call *k, json_t *rec);
void call_end(struct call *k, json_t *rec);
void call_fail(struct call *k, const struct err *why);

#endif
