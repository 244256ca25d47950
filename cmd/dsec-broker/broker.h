/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BROKER_BROKER_H
#define DSEC_BROKER_BROKER_H

#include <openssl/ssl.h>
#include <string.h>

#include "base/loop.h"
#include "net/broker.h"
#include "net/broker_audit.h"
#include "net/broker_conf.h"
#include "net/dial.h"
#include "net/http.h"
#include "net/resolver.h"
#include "policy/netdeny.h"

/*
 * A connection of a sandbox is one *conn*, with one request at a time.  Each
 * request gets an *upstream* of its own, a new TLS connection that carries it
 * and nothing else: so no reading of where it ends can put a second one behind
 * it.
 */

#define CONNS_MAX     256
#define CONNS_SANDBOX 64 /* and no more than a part of those that are left */
#define SPACE	      (48 * 1024) /* of a buffer: a head and more */
#define FRAME	      32	  /* what a chunk needs around its bytes */

/* Bytes on their way; they do not move while they are added. */
struct space {
	size_t at, len; /* len: where the free room begins */
	char data[SPACE];
};

static inline size_t space_left(const struct space *s)
{
	return SPACE - s->len;
}

static inline size_t space_has(const struct space *s)
{
	return s->len - s->at;
}

/* The first ${n} bytes have been used: they may have been secrets. */
static inline void space_used(struct space *s, size_t n)
{
	explicit_bzero(s->data + s->at, n);
	s->at += n;
	if (s->at == s->len)
		s->at = s->len = 0;
}

/* space_pack(s): as much free room as there can be. */
static inline void space_pack(struct space *s)
{
	memmove(s->data, s->data + s->at, s->len - s->at);
	explicit_bzero(s->data + s->len - s->at, s->at);
	s->len -= s->at;
	s->at = 0;
}

/* space_add(s, data, len): false if there is no room for all of it. */
bool space_add(struct space *s, const void *data, size_t len);
bool space_text(struct space *s, const char *text);

/* space_chunk(s, n): the frame of a chunk of ${n} bytes, before them. */
bool space_chunk(struct space *s, size_t n);

struct server {
	struct loop *loop;
	const struct broker_conf *conf;
	struct resolver *resolver;
	struct netdeny *deny;
	uint64_t node_at_ms; /* when the node's addresses were read */
	SSL_CTX *tls;
	SSL_SESSION **sessions; /* of each endpoint */
	struct broker_audit *audit;
	int sock;
	int keeper; /* says what is to change, see enum order */
	bool leaving;
	struct loop_source src, keeper_src;
	struct conn *conns;
	unsigned nconns;
};

/* What a worker is told by the process that keeps it, a byte each. */
enum order {
	ORDER_AUDIT = 'a', /* go on in the file that comes along */
	ORDER_LEAVE = 'l', /* another worker takes over */
};

enum conn_state {
	CONN_HEAD,     /* waits for a request */
	CONN_EXCHANGE, /* it is on its way */
	CONN_TUNNEL,   /* a WebSocket */
	CONN_LINGER,   /* all is said; what comes is not listened to */
};

/* For the line of the audit. */
struct use {
	char method[17], path[257];
	char endpoint[BROKER_ENDPOINT_NAME];
	int status;
	uint64_t sent, received, start_ms;
};

struct conn {
	struct server *s;
	struct conn *next, **pprev;
	struct broker_conn who;
	struct loop_source src;
	struct loop_timer timer;
	uint64_t since_ms, moved_ms; /* in this state; since a byte moved */
	enum conn_state state;
	bool eof, dead, again;
	struct space in, out;
	/* the exchange */
	const struct broker_endpoint *ep;
	struct upstream *up;
	struct http_reader request, answer;
	bool head, upgrade; /* it is HEAD; asks for a WebSocket */
	bool answered;	    /* the head of the answer has been passed on */
	bool chunked;	    /* the answer goes on in chunks */
	bool close;	    /* after this one */
	struct scan_state scan;
	size_t nheld;
	char held[3 * SCAN_SECRET_MAX];
	struct use use;
};

enum up_state {
	UP_RESOLVE,
	UP_DIAL,
	UP_SHAKE,
	UP_OPEN,
};

struct upstream {
	struct conn *c;
	enum up_state state;
	struct resolver_wait wait;
	sa_family_t family;
	struct dial *dial;
	int fd;
	SSL *ssl;
	struct loop_source src;
	bool wants_write; /* to go on with reading, or the handshake */
	bool deaf;	  /* takes no more of the request */
	bool eof, torn;	  /* torn: without saying so */
	struct space in, out;
};

/* serve(s, e): until the helper's worker has gone, or ORDER_LEAVE has come and
 * all that was under way has ended. */
int serve(struct server *s, struct err *e);

/* conn_new(s, who): who->fd is taken over.  conn_run(c): go on with whatever
 * can go on; it may be gone then. */
void conn_new(struct server *s, const struct broker_conn *who);
void conn_run(struct conn *c);
void conns_leave(struct server *s);

/*
 * conns_leave(s): s->leaving was set: each connection ends with what it is at.
 *
 * conn_fail(c, status, outcome, why): the request ends here: with an answer of
 * ours if none has begun, else by breaking off.
 */
void conn_fail(struct conn *c, int status, const char *outcome,
	       const char *why);

/* conn_done(c): the exchange is over. */
void conn_done(struct conn *c);

/* request_take(c): the head of a request is looked for; true: something went
 * on.  request_body(c): likewise for its body. */
bool request_take(struct conn *c);
bool request_body(struct conn *c);

/* answer_take(c): pass on what can be of the answer. */
bool answer_take(struct conn *c);

/*
 * upstream_new(c): NULL: no memory.  upstream_begin(up): begin to connect.
 * upstream_io(up): write and read what can be; true: something moved.  Both may
 * call conn_fail().
 */
struct upstream *upstream_new(struct conn *c);
void upstream_begin(struct upstream *up);
bool upstream_io(struct upstream *up);
void upstream_watch(struct upstream *up);
void upstream_free(struct upstream *up);

/* tls_new(ca, ret, e): verifying, with the certificates of ${ca} or those of
 * the system. */
int tls_new(const char *ca, SSL_CTX **ret, struct err *e);

/* audit_write(c, outcome, why): a line for the use.  audit_state(): the log is
 * told that there are none, see broker_audit_new(). */
void audit_write(struct conn *c, const char *outcome, const char *why);
void audit_state(const struct err *why, uint64_t lost);

#endif
