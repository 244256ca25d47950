/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_RELAY_H
#define DSEC_BOX_RELAY_H

#include "box/publish.h"
#include "conn.h"

/*
 * TCP into the sandbox: ports that the node listens on for it ("publish"), and
 * connections that a client of ours asks for (op "connect").  The inner end is
 * made in the sandbox's network namespace, so that all of its addresses do and
 * no rule of a policy is in the way.
 *
 * A connection resumes the sandbox, and is an activity as long as it lives.
 * While the sandbox is on its way back, it waits.  It outlives a re-exec; a
 * pause to disk cuts it.
 */
#define RELAY_MAX 256 /* at once; more are reset */

struct relay_port {
	struct box *box;
	struct publish at;
	int fd; /* -1: not to be had now, tried again */
	struct loop_source src;
	struct loop_timer retry;
};

enum relay_state {
	RELAY_WAITS,	/* for the sandbox to be awake */
	RELAY_CONNECTS, /* to one after the other of its addresses */
	RELAY_REFUSED,	/* by all: what does the client speak? */
	RELAY_ANSWERED, /* it was told, and may hang up */
	RELAY_OPEN,
};

/* One direction. */
struct relay_way {
	int pipe[2];
	size_t held; /* bytes in it */
	bool eof;    /* none will come */
	bool done;   /* and whom they were for was told */
};

struct relay {
	struct box *box;
	struct relay *next;
	enum relay_state state;
	uint16_t port;
	unsigned candidate;
	int fd[2]; /* the client's (-1: of an ask), the inner one */
	struct loop_source src[2];
	struct relay_way way[2]; /* from fd[0], from fd[1] */
	struct ask *asks;	 /* the one that asked for it, or none */
	struct loop_timer timer;
};

/* relay_begin(b, first, n, e): serve the ${n} sockets that stand on the
 * descriptors from ${first} on, for "published" of the spec. */
int relay_begin(struct box *b, int first, unsigned n, struct err *e);

/* The op: 1: the ask waits; -errno. */
int relay_op_connect(struct ask *a, json_t *req, struct err *e);

/* relay_active(b): there are connections. */
bool relay_active(const struct box *b);

/* relay_awake(b): nothing is under way any more: those that waited go on, and
 * wake the sandbox if need be.
 * relay_refuse(b, why): it does not come back. */
void relay_awake(struct box *b);
void relay_refuse(struct box *b, const struct err *why);

/* relay_cut(b): its processes end: no connection stays but those that wait.
 * relay_end(b): the sandbox is over: nor do the ports. */
void relay_cut(struct box *b);
void relay_end(struct box *b);

/* relay_save(b): what the next program needs.  relay_load(b, j, e): in it.
 * relay_again(b, e): where there was none before: ports as spec.json has them;
 * one that somebody else has now is tried again and again. */
json_t *relay_save(const struct box *b);
int relay_load(struct box *b, const json_t *j, struct err *e);
int relay_again(struct box *b, struct err *e);

/* Within: relay.c, relay_way.c, relay_port.c. */

/* relay_new(b, port, ret): NULL when there is no room. */
struct relay *relay_new(struct box *b, uint16_t port);

/* relay_start(r): the sandbox is awake: connect. */
void relay_start(struct relay *r);

/* relay_reset(r): hang up on both at once; relay_free(r): it is over. */
void relay_reset(struct relay *r);
void relay_free(struct relay *r);

/* relay_set(r, side, events, fn, e): watch that side for those, or not. */
int relay_set(struct relay *r, int side, uint32_t events, loop_fn *fn,
	      struct err *e);

/* relay_reload(r): after a re-exec one that was not open yet. */
void relay_reload(struct relay *r);

/* relay_open(r, e): both ends are there: pass on what comes.  Fails without
 * having done anything.  relay_resume(r, e): the same after a re-exec. */
int relay_open(struct relay *r, struct err *e);
int relay_resume(struct relay *r, struct err *e);

/* relay_no(r, why): to a client that speaks HTTP: 502 and ${why}; else a
 * reset. */
void relay_no(struct relay *r, const char *why);

#endif
