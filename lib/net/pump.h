/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_PUMP_H
#define NET_PUMP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/loop.h"

/*
 * Two connected stream sockets joined: what one sends the other gets, both
 * ways, by splice(), without a copy.  The end of one direction is passed on and
 * the other one goes on; a slow reader slows its writer.  A pipe is in use for
 * a direction only while it holds bytes, so idle connections cost their two
 * sockets alone.
 */
struct pump_pool;
struct pump;

/* pump_pool_new(l, ret, e): what the pumps of a loop share; free it after
 * them. */
must_check int pump_pool_new(struct loop *l, struct pump_pool **ret,
			     struct err *e);
void pump_pool_free(struct pump_pool *pool);

/* pump_pool_fd(pool): some descriptor that stays open as long as the pool. */
int pump_pool_fd(const struct pump_pool *pool);

/* A budget of bytes that several pumps share, one per direction; all zero is no
 * limit.  Storage of the caller's that outlives them. */
struct pump_bucket {
	uint64_t rate;	/* bytes a second; 0: no limit */
	int64_t tokens; /* the pool's, as all below */
	uint64_t at_ms;
	bool waiting;
	struct pump_bucket *next;
	struct pump_leg *waits, **waits_end;
};

enum pump_end {
	PUMP_CLOSED, /* both directions ended in order */
	PUMP_RESET,  /* one side broke off; the other got a reset */
	PUMP_IDLE,   /* no byte for idle_ms */
	PUMP_STOP,   /* count() said so */
};

/*
 * done() is called once, from the loop; the sockets are closed then and the
 * pump is gone after it returns.  count() is called for bytes that have been
 * passed on, ${up} from a to b; false resets both sides.  It may be NULL.
 */
struct pump_ops {
	void (*done)(void *arg, enum pump_end why);
	bool (*count)(void *arg, bool up, size_t bytes);
};

struct pump_conf {
	struct pump_pool *pool;
	int a, b;		    /* non-blocking; taken over on success */
	const struct pump_ops *ops; /* borrowed */
	void *arg;
	uint64_t idle_ms;	       /* 0: for ever */
	struct pump_bucket *up, *down; /* NULL: no limit */
};

must_check int pump_new(const struct pump_conf *conf, struct pump **ret,
			struct err *e);

/*
 * pump_cut(p): reset both sides now; bytes on the way are dropped.  No callback
 * comes any more.
 * pump_free(p): the same with an orderly close.
 */
void pump_cut(struct pump *p);
void pump_free(struct pump *p);

/* pump_bucket_rate(pool, b, rate): another limit, 0 for none: do that before
 * its storage goes, which must not be from a callback. */
void pump_bucket_rate(struct pump_pool *pool, struct pump_bucket *b,
		      uint64_t rate);

/* pump_reset(fd): close ${fd} so that its peer sees a reset. */
void pump_reset(int fd);

#endif
