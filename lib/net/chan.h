/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_CHAN_H
#define NET_CHAN_H

#include "base/buf.h"
#include "net/helper.h"
#include "wire/json.h"

/*
 * JSON lines with descriptors over a stream socket: those of a line ride on its
 * first byte, and its "fds" is the list of their names.  A line is checked for
 * what it says to bring; its content is the receiver's affair.
 */
struct chan {
	int fd; /* borrowed */
	struct buf in, out;
	size_t scanned; /* of in: has no newline */
	int *fds; /* that came, in order, and belong to no line yet; -1: more
		     came with them that there was no room for */
	size_t nfds, room;
	bool lossy;		  /* a line that lost some is a line */
	struct chan_going *going; /* descriptors of lines in out, in order */
};

struct chan_msg {
	json_t *obj;
	size_t nfds;
	bool lost;		 /* some of its descriptors did not come */
	int fds[HELPER_FDS_MAX]; /* -1: taken */
};

#define auto_chan_msg __attribute__((cleanup(chan_msg_done)))
void chan_msg_done(struct chan_msg *m);

/* chan_take(m, name): the descriptor "fds" calls ${name}, now the caller's; -1
 * if there is none. */
int chan_take(struct chan_msg *m, const char *name);

/* chan_done(c): closes all but fd. */
void chan_done(struct chan *c);

/*
 * chan_read(c, e): one read.  1: something came; 0: end; -EAGAIN.
 * chan_next(c, ret, e): the next whole line of what came: 1, with *${ret} the
 * caller's to chan_msg_done(); 0: none.  An error is final.
 * chan_lines(c, m, r, e): for a loop over all lines that one read has brought,
 * with what it returned in *${r}: is there another, in *${m}?  The one before
 * is done with.  Where the kernel had no descriptors for those of a line, that
 * is -EMFILE, "no_fds"; of a lossy one the line is given, and says so.  At the
 * end *${r} is -EAGAIN: wait for more; 0: the peer's end; or an error, also one
 * that the loop's body has set.
 */
must_check int chan_read(struct chan *c, struct err *e);
must_check int chan_next(struct chan *c, struct chan_msg *ret, struct err *e);
bool chan_lines(struct chan *c, struct chan_msg *m, int *r, struct err *e);

/*
 * chan_send(c, obj, fds, nfds, e): send a line, waiting until it is gone (as
 * SO_SNDTIMEO allows).  For blocking sockets.
 * chan_write(fd, data, len, fds, nfds): the same with a line that is made
 * already.  Allocates nothing; 0 or -errno.
 *
 * chan_put(c, obj, e), chan_flush(c, e): for non-blocking ones, without
 * descriptors: keep a line to be sent, send what can be sent; while
 * ${c}->out.len is not 0 watch for EPOLLOUT.  flush: 0, or -errno that is
 * final.  chan_put_fds(): the same with descriptors that are taken over: closed
 * when they are sent, by chan_done(), or where it fails.
 */
must_check int chan_send(struct chan *c, const json_t *obj, const int *fds,
			 size_t nfds, struct err *e);
must_check int chan_write(int fd, const char *data, size_t len, const int *fds,
			  size_t nfds);
must_check int chan_put(struct chan *c, const json_t *obj, struct err *e);
must_check int chan_put_fds(struct chan *c, const json_t *obj, int *fds,
			    size_t nfds, struct err *e);
must_check int chan_flush(struct chan *c, struct err *e);

#endif
