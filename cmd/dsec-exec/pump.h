/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_PUMP_H
#define DSEC_EXEC_PUMP_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Bytes from a row of sources to one destination, without ever waiting for
 * either: spliced where the kernel can, copied where not.  The flags of the
 * files are left alone, since others may share them.
 */
#define PUMP_PARTS 5
#define PUMP_PIPE  UINT64_MAX

struct pump_part {
	int fd;	      /* the pump's own */
	off_t at;     /* where in a file */
	uint64_t len; /* bytes of a file, or PUMP_PIPE: from the file's own
			 position to its end */
};

struct pump {
	struct pump_part parts[PUMP_PARTS];
	unsigned n, now;
	int dst;	/* -1: not in use; borrowed */
	int lost;	/* errno of the destination, which is given up */
	bool blocked;	/* the destination is full */
	bool copy;	/* splice is refused here */
	bool grown;	/* a pipe was made larger when it was first full */
	bool watch_dst; /* notice when its reader goes away */
	bool once;	/* a source that may wait in a second read */
	char *buf;
	size_t buf_at, buf_len;
	char last; /* byte copied last */
	uint64_t moved;
};

void pump_init(struct pump *p, int dst);
void pump_done(struct pump *p);

/* pump_add(p, fd, at, len): one more source; ${fd} becomes the pump's. */
void pump_add(struct pump *p, int fd, off_t at, uint64_t len);

/* pump_active(p): there is more to come, and somebody to take it. */
bool pump_active(const struct pump *p);

/* pump_poll(p, fds): what to wait for, into at most two pollfds; how many. */
unsigned pump_poll(const struct pump *p, struct pollfd *fds);

/* pump_step(p, fds): move what can be moved now, within reason; ${fds} as
 * pump_poll() filled them and poll() returned them. */
void pump_step(struct pump *p, const struct pollfd *fds);

/* pump_stop(p): close the sources; what they still hold is let go. */
void pump_stop(struct pump *p);

#endif
