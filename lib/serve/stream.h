/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_STREAM_H
#define SERVE_STREAM_H

#include "serve/conn.h"

/*
 * One way of bytes that belongs to a request: stdout of a command, say, from
 * its node to the client.  Who sends has STREAM_WINDOW bytes for which no
 * credit has come back; more is not sent, and from a peer not taken.  So a slow
 * reader stops its own stream and nothing else, and what is kept for one is
 * bounded.  A TCP connection is two of them, of one name.
 */
#define STREAM_WINDOW (256 * 1024)

struct stream;

struct stream_ops {
	/* Of one that receives.  Give credit with stream_taken() for what has
	 * been passed on, now or later. */
	void (*data)(void *arg, struct stream *s, const char *data, size_t len);
	void (*eof)(void *arg, struct stream *s);
	/* Of one that sends: stream_room() is over 0 again, after it was too
	 * little or 0. */
	void (*room)(void *arg, struct stream *s);
};

enum stream_way {
	STREAM_IN = 1, /* we receive */
	STREAM_OUT,    /* we send */
};

/* Storage of the caller's, which stays put. */
struct stream {
	struct conn *c; /* NULL: loose, its connection is gone */
	enum stream_way way;
	const struct stream_ops *ops;
	void *arg;
	/* the library's */
	json_t *id;
	char name[FRAME_STREAM_MAX];
	uint64_t moved; /* bytes */
	size_t open;	/* bytes for which there was no credit yet */
	size_t taken;	/* in: of them, credit that has not been sent */
	bool ended;	/* eof was sent, or came */
	bool hungry;	/* out: room() is wanted */
	struct stream *next, **pprev;	/* in the connection's table */
	struct stream *qnext, **qpprev; /* among those that are hungry */
};

/*
 * stream_new(s, c, id, name, e): ${s} has way, ops and arg; the rest is set
 * here.  ${name} is a literal.  -EEXIST: there is one of that id, name and way.
 * stream_done(s): forgets it, in any state; fine for one that is all zero.
 */
must_check int stream_new(struct stream *s, struct conn *c, const json_t *id,
			  const char *name, struct err *e);
void stream_done(struct stream *s);

/*
 * stream_room(s): how many bytes may be sent now, STREAM_CHUNK at the most; 0
 * means that room() will be called.
 * stream_send(s, data, len, e): ${len} is no more than that.
 * stream_fill(s, fd, e): read() up to that from ${fd} and send it; the bytes, 0
 * at its end (say so with stream_eof()), -ENOBUFS where there is no room, or
 * -errno of the read, -EAGAIN included.
 * stream_eof(s, e): no more comes.
 */
#define STREAM_CHUNK (64 * 1024)
size_t stream_room(struct stream *s);
int stream_send(struct stream *s, const void *data, size_t len, struct err *e);
ssize_t stream_fill(struct stream *s, int fd, struct err *e);
int stream_eof(struct stream *s, struct err *e);

/* stream_taken(s, n): ${n} more bytes of what came have been passed on. */
void stream_taken(struct stream *s, size_t n);

#endif
