/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_CONN_H
#define SERVE_CONN_H

#include "serve/frame.h"
#include "tls/tls.h"

/*
 * A connection of dsec-serve, of either side: TLS, lines, streams
 * (serve/stream.h), deadlines, keepalive and bounds.  Nothing here waits, and
 * no function here calls back: callbacks come from the loop.
 */

/* What the connections of a process share. */
struct conn_limits {	       /* 0: what is in brackets */
	unsigned handshake_ms; /* [10 s] */
	unsigned line_ms;      /* from a line's first byte to its last [30 s] */
	unsigned ping_ms;      /* without a byte: a ping is sent [30 s] */
	unsigned idle_ms;      /* ... it is cut, if no request is under way [90
				  s]; with one the kernel says whether the peer
				  is there */
	unsigned stall_ms;     /* the peer takes nothing [60 s] */
	size_t out_max;	 /* of one: unsent bytes, then it is cut [16 MiB] */
	size_t held_max; /* of all: kept bytes, then those that keep over
			    1 MiB, or begin a longer line, are cut [256 MiB]
			  */
};

struct conn_stats {
	uint64_t opened, refused, cut, in_bytes, out_bytes;
};

struct conn_env {
	struct loop *loop; /* borrowed, both */
	struct tls *tls;
	struct conn_limits limits;
	struct conn_stats stats;
	/* the library's */
	unsigned n, shaking; /* connections, and those not up yet */
	size_t held;	     /* bytes that they keep */
	char *scratch;
};

/* conn_env_init(env, loop, tls, e): limits are set before it or 0.  All
 * connections are gone before conn_env_done(). */
int conn_env_init(struct conn_env *env, struct loop *loop, struct tls *tls,
		  struct err *e);
void conn_env_done(struct conn_env *env);

struct conn;

struct conn_ops {
	/* The peer is who it should be; see conn_peer(). */
	void (*up)(void *arg, struct conn *c);
	/* A line that is none of a stream's; ${obj} is borrowed. */
	void (*line)(void *arg, struct conn *c, json_t *obj);
	/* The peer will send no more: what is under way may be answered still.
	 * NULL: not of interest. */
	void (*end)(void *arg, struct conn *c);
	/* The last call, after which it is freed, its streams are loose (see
	 * stream_done()).  why->r is 0 when it ended in order. */
	void (*gone)(void *arg, struct conn *c, const struct err *why);
};

struct conn_conf {
	bool server;
	const struct tls_ident *peer; /* as tls_stream_conf has them */
	const char *host;
	const struct conn_ops *ops;
	void *arg;
};

/*
 * conn_open(env, conf, fd, ret, e): a connected socket, taken over.  When this
 * succeeds gone() is called one day, whatever happens.
 */
must_check int conn_open(struct conn_env *env, const struct conn_conf *conf,
			 int *fd, struct conn **ret, struct err *e);

/*
 * conn_put(c, obj, e): a line, in its turn; ${obj} is borrowed.  An error
 * ("too_large" apart: nothing was sent) means that the connection is on its
 * way out: gone() will be called.
 */
int conn_put(struct conn *c, const json_t *obj, struct err *e);

/*
 * conn_finish(c, why), conn_cut(c, why):
 * No more is read, and gone() comes with ${why} (NULL: in order): after what
 * is to be sent, if the peer takes it within 5 s; at once.
 */
void conn_finish(struct conn *c, const struct err *why);
void conn_cut(struct conn *c, const struct err *why);

/* conn_reject(c, id, why): answer with an error and close: for lines after
 * which nothing makes sense. */
void conn_reject(struct conn *c, const json_t *id, const struct err *why);

/*
 * conn_set_busy(c, n): how many requests are under way on it: with some, an end
 * of what the peer sends does not close it, and silence does not cut it.
 */
void conn_set_busy(struct conn *c, unsigned n);

/* conn_peer(c): NULL before it is up. */
const struct tls_ident *conn_peer(const struct conn *c);

/* conn_weight(c): in line(): about how many bytes of memory its object takes.
 */
size_t conn_weight(const struct conn *c);

/* conn_unsent(c): bytes that wait for the peer.  conn_heard_ms(c): when it was
 * last heard, by clock_ms(). */
size_t conn_unsent(const struct conn *c);
uint64_t conn_heard_ms(const struct conn *c);

#endif
