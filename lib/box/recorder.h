/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_RECORDER_H
#define BOX_RECORDER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * The recording of one output stream of a command: the first RECORDER_HEAD
 * bytes in NAME, the last RECORDER_TAIL of what follows in NAME.tail, a ring;
 * every byte is counted.  A byte at stream position p >= RECORDER_HEAD lies at
 * (p - RECORDER_HEAD) % RECORDER_TAIL of the ring.  Files come into being with
 * their first byte.
 *
 * SIGPIPE must be ignored.  Bytes move by tee() and splice(), not by our
 * memory.  The pump makes no event loop: it says why it stopped, and the caller
 * watches.
 */
#define RECORDER_HEAD	     (32ULL << 20)
#define RECORDER_TAIL	     (32ULL << 20)
#define RECORDER_READERS_MAX 16

struct recorder_reader {
	int fd;		/* write end of its pipe, non-blocking; -1: none */
	bool lossy;	/* never waited for */
	uint64_t id;	/* the caller's */
	uint64_t ahead; /* it has these bytes of the source already */
	uint64_t lost;	/* bytes a lossy one missed */
};

struct recorder {
	int src;     /* read end, non-blocking; borrowed */
	int dirfd;   /* where the files go; borrowed; -1: count only */
	int null_fd; /* the null device; borrowed */
	char name[40];
	uint64_t bytes;	  /* of the stream, so far */
	uint64_t dropped; /* not recorded since a write failed */
	int head_fd, tail_fd;
	struct recorder_reader *readers;
	unsigned nreaders;
};

enum recorder_state {
	RECORDER_MORE,	  /* moved all it was allowed to */
	RECORDER_EMPTY,	  /* nothing to read now, or ever: see EPOLLHUP */
	RECORDER_BLOCKED, /* a reader that is not lossy is full */
};

void recorder_init(struct recorder *r);

/* recorder_done(r): close its files and readers; src stays the caller's. */
void recorder_done(struct recorder *r);

/*
 * recorder_pump(r, max, ret_moved):
 * Move at most ${max} bytes; how many into *${ret_moved}.  Readers that are
 * gone are closed and forgotten.  A failing recording (a full disk) drops and
 * counts; it never stops the writer.  On RECORDER_BLOCKED, recorder_blocker()
 * is the descriptor to watch for room.
 */
enum recorder_state recorder_pump(struct recorder *r, uint64_t max,
				  uint64_t *ret_moved);
int recorder_blocker(const struct recorder *r);

/* recorder_add(r, fd, lossy, id, e): a reader; ${fd} is the recorder's now. */
int recorder_add(struct recorder *r, int *fd, bool lossy, uint64_t id,
		 struct err *e);

/* recorder_cut(r, fd): close and forget the reader with write end ${fd}. */
void recorder_cut(struct recorder *r, int fd);

/* recorder_truncated(r): the files do not hold all that was written. */
bool recorder_truncated(const struct recorder *r);

/*
 * recorder_read(dirfd, name, bytes, offset, buf, size, ret_offset, e):
 * Read a recording of ${bytes} bytes back from position ${offset}: at most
 * ${size} bytes, how many is returned; 0 at the end.  Where that position is
 * not kept, the next one that is is used; *${ret_offset} is the position of the
 * first byte in ${buf}.
 */
ssize_t recorder_read(int dirfd, const char *name, uint64_t bytes,
		      uint64_t offset, void *buf, size_t size,
		      uint64_t *ret_offset, struct err *e);

#endif
