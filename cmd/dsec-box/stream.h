/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_STREAM_H
#define DSEC_BOX_STREAM_H

#include "base/loop.h"
#include "box/recorder.h"

/*
 * One output stream of a command on the loop: its recorder, what it reads from
 * and what it waits for.  ${fn} is told when it has nothing more to do: at end
 * of file or, after stream_finish(), when all that was in the pipe then is
 * recorded and delivered.
 */
struct stream;
typedef void stream_fn(struct stream *s);
typedef bool stream_others_fn(struct stream *s, uint64_t reader);

struct stream {
	struct loop *loop;
	struct recorder rec;
	struct loop_source in, room;
	struct loop_timer stall;
	bool watching; /* in is on the loop */
	bool ended;    /* nothing more will come of it */
	bool finishing;
	uint64_t left; /* finishing: bytes still to move */
	stream_fn *fn;
	stream_others_fn *others; /* does somebody wait for more than it? */
	void *arg;
};

void stream_init(struct stream *s, struct loop *l, stream_fn *fn,
		 stream_others_fn *others, void *arg);

/* stream_start(s, e): rec.src and the rest of rec are set. */
int stream_start(struct stream *s, struct err *e);

/* stream_finish(s): the writer is gone; take what is in the pipe and end.
 * Again: try once more now, as when a reader is not to be waited for. */
void stream_finish(struct stream *s);

/* stream_drain(s): move what there is now, as far as readers let it. */
void stream_drain(struct stream *s);

/* stream_attach(s, lossy, id, ret_fd, e): a reader; the read end of its pipe,
 * the caller's. */
int stream_attach(struct stream *s, bool lossy, uint64_t id, int *ret_fd,
		  struct err *e);

void stream_done(struct stream *s);

/*
 * stream_pipe(ret, e): a pipe of the largest size to be had, both ends
 * non-blocking on our side only: ret[0] for reading is, ret[1] is not.
 */
int stream_pipe(int ret[2], struct err *e);

#endif
