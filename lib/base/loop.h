/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/*
 * One epoll loop, one thread.  A source is storage of the caller's that must
 * stay put while it is registered; the loop owns neither it nor its fd.
 * A callback may add, change and remove any source, itself and those that are
 * ready in the same round included.
 */
struct loop;
struct loop_source;
typedef void loop_fn(struct loop *l, struct loop_source *s, uint32_t events);

struct loop_source {
	int fd;
	uint32_t events; /* EPOLLIN, EPOLLOUT: as registered */
	loop_fn *fn;
	void *arg;
};

struct loop_timer;
typedef void loop_timer_fn(struct loop *l, struct loop_timer *t);

/* A timer of the caller's; all zero is an idle one. */
struct loop_timer {
	uint64_t at_ms; /* clock_ms(); 0: idle */
	loop_timer_fn *fn;
	void *arg;
	/* the loop's: of a pairing heap */
	struct loop_timer *child, *next, **pprev;
	uint64_t turn;
};

int loop_new(struct loop **ret_loop, struct err *e);
void loop_free(struct loop *l);

/* loop_add(l, s, fd, events, fn, arg, e): watch ${fd} through ${s}. */
int loop_add(struct loop *l, struct loop_source *s, int fd, uint32_t events,
	     loop_fn *fn, void *arg, struct err *e);
int loop_mod(struct loop *l, struct loop_source *s, uint32_t events,
	     struct err *e);

/* loop_del(l, s): stop watching; call it before the fd is closed. */
void loop_del(struct loop *l, struct loop_source *s);

/* loop_timer_set(l, t, at_ms): (re)arm ${t}; at_ms 0 takes it out.  Those of
 * the same time run in the order in which they were set.  Tens of thousands
 * are fine. */
void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t at_ms);

/* loop_run(l, e): serve until loop_stop(); its value, or -errno. */
int loop_run(struct loop *l, struct err *e);
void loop_stop(struct loop *l, int value);

#endif
