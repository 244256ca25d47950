/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_CONN_PRIV_H
#define SERVE_CONN_PRIV_H

#include "serve/stream.h"

/* Connections have few streams, and controls' many. */
#define STREAM_TABLE 64

/* Above it nothing of a stream is added. */
#define OUT_FULL (256 * 1024)
/* Above it a server reads no more: there would be more to answer. */
#define OUT_HOLD (4 * 1024 * 1024)

enum conn_state {
	CONN_SHAKE,
	CONN_OPEN,
	CONN_CLOSE, /* what is to be sent still is */
	CONN_DEAD,  /* gone() is due */
};

struct conn {
	struct conn_env *env;
	struct tls_stream *tls;
	const struct conn_ops *ops;
	void *arg;
	enum conn_state state;
	bool server, eof, eof_told, pinged;
	bool lingers; /* CONN_CLOSE: all is said, what comes is dropped */
	unsigned busy;
	struct frame_reader reader;
	struct buf out; /* from out_at on */
	size_t out_at;
	size_t counted;		/* in env->held */
	struct loop_timer soon; /* something to do at the round's end */
	struct loop_timer tick; /* the next deadline */
	uint64_t in_ms;		/* when a byte came */
	uint64_t line_ms;	/* when a line began; 0: none has */
	uint64_t out_ms;	/* when a byte went, or the first was put;
				   0: none waits */
	uint64_t close_ms;	/* CONN_CLOSE: until when */
	struct err why;
	struct stream **streams; /* STREAM_TABLE lists, or NULL */
	unsigned nstreams;
	struct stream *hungry, **hungry_end;
};

static inline size_t conn_out_len(const struct conn *c)
{
	return c->out.len - c->out_at;
}

/* conn_soon(c): send, and so on, when this round's events are dealt with. */
void conn_soon(struct conn *c);

/* conn_added(c): something was put into out. */
int conn_added(struct conn *c, struct err *e);

/* conn_live(c): may something be sent? */
static inline bool conn_live(const struct conn *c)
{
	return c->state < CONN_CLOSE;
}

/*
 * streams_take(c, f, e): (stream.c) 1: the frame was a stream's, or of one that
 * ended already; 0: it is not; -errno: it broke the rules.
 * streams_feed(c): tell those that wait for room.
 * streams_drop(c): all are loose.
 */
int streams_take(struct conn *c, const struct frame *f, struct err *e);
void streams_feed(struct conn *c);
void streams_drop(struct conn *c);

#endif
