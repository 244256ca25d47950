/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/loop.h"

#define ROUND 16

struct loop {
	int epfd;
	int value;
	bool stop;
	struct loop_timer *timers; /* the root of a heap: the next */
	uint64_t turns;
	struct epoll_event ready[ROUND];
	int nready, next;
};

int loop_new(struct loop **ret_loop, struct err *e)
{
	struct loop *l = calloc(1, sizeof(*l));

	if (!l)
		return err_sys(e, ENOMEM, "event loop");
	l->epfd = epoll_create1(EPOLL_CLOEXEC);
	if (l->epfd < 0) {
		int r = err_sys(e, errno, "epoll");

		free(l);
		return r;
	}
	*ret_loop = l;
	return 0;
}

void loop_free(struct loop *l)
{
	if (!l)
		return;
	fd_close(l->epfd);
	free(l);
}

int loop_add(struct loop *l, struct loop_source *s, int fd, uint32_t events,
	     loop_fn *fn, void *arg, struct err *e)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	if (epoll_ctl(l->epfd, EPOLL_CTL_ADD, fd, &ev) < 0)
		return err_sys(e, errno, "watch descriptor %d", fd);
	*s = (struct loop_source){fd, events, fn, arg};
	return 0;
}

int loop_mod(struct loop *l, struct loop_source *s, uint32_t events,
	     struct err *e)
{
	struct epoll_event ev = {.events = events, .data.ptr = s};

	if (s->events == events)
		return 0;
	if (epoll_ctl(l->epfd, EPOLL_CTL_MOD, s->fd, &ev) < 0)
		return err_sys(e, errno, "watch descriptor %d", s->fd);
	s->events = events;
	return 0;
}

void loop_del(struct loop *l, struct loop_source *s)
{
	if (!s->fn)
		return;
	epoll_ctl(l->epfd, EPOLL_CTL_DEL, s->fd, NULL);
	for (int i = l->next; i < l->nready; i++)
		if (l->ready[i].data.ptr == s)
			l->ready[i].data.ptr = NULL;
	s->fn = NULL;
}

/* A pairing heap: each timer is due no later than its children, which are
 * linked by next; pprev is what points at it, NULL for the root. */
static bool is_before(const struct loop_timer *a, const struct loop_timer *b)
{
	return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->turn < b->turn;
}

static struct loop_timer *meld(struct loop_timer *a, struct loop_timer *b)
{
	struct loop_timer *low;

	if (!a || !b)
		return a ? a : b;
	low = is_before(a, b) ? a : b;
	b = low == a ? b : a;
	b->next = low->child;
	if (b->next)
		b->next->pprev = &b->next;
	low->child = b;
	b->pprev = &low->child;
	return low;
}

/* Two by two from the left, then all of them from the right. */
static struct loop_timer *meld_all(struct loop_timer *list)
{
	struct loop_timer *pairs = NULL, *root = NULL, *a, *b;

	while ((a = list)) {
		b = a->next;
		list = b ? b->next : NULL;
		a->next = NULL;
		if (b)
			b->next = NULL;
		a = meld(a, b);
		a->next = pairs;
		pairs = a;
	}
	while ((a = pairs)) {
		pairs = a->next;
		a->next = NULL;
		root = meld(root, a);
	}
	if (root)
		root->pprev = NULL;
	return root;
}

static void take_out(struct loop *l, struct loop_timer *t)
{
	struct loop_timer *rest = meld_all(t->child);

	if (l->timers == t) {
		l->timers = rest;
	} else {
		*t->pprev = t->next;
		if (t->next)
			t->next->pprev = t->pprev;
		l->timers = meld(l->timers, rest);
	}
	t->child = t->next = NULL;
	t->pprev = NULL;
	t->at_ms = 0;
}

void loop_timer_set(struct loop *l, struct loop_timer *t, uint64_t at_ms)
{
	if (t->at_ms)
		take_out(l, t);
	if (!at_ms)
		return;
	t->at_ms = at_ms;
	t->turn = l->turns++;
	t->child = t->next = NULL;
	t->pprev = NULL;
	l->timers = meld(l->timers, t);
}

static int until_next(const struct loop *l)
{
	uint64_t now, at;

	if (!l->timers)
		return -1;
	now = clock_ms();
	at = l->timers->at_ms;
	if (at <= now)
		return 0;
	return at - now > INT_MAX ? INT_MAX : (int)(at - now);
}

static void run_timers(struct loop *l)
{
	uint64_t now = clock_ms();

	while (!l->stop && l->timers && l->timers->at_ms <= now) {
		struct loop_timer *t = l->timers;

		take_out(l, t);
		t->fn(l, t);
	}
}

static void run_ready(struct loop *l)
{
	for (l->next = 0; !l->stop && l->next < l->nready;) {
		struct epoll_event *ev = &l->ready[l->next++];
		struct loop_source *s = ev->data.ptr;

		if (s)
			s->fn(l, s, ev->events);
	}
	l->nready = l->next = 0;
}

int loop_run(struct loop *l, struct err *e)
{
	l->stop = false;
	while (!l->stop) {
		l->nready = epoll_wait(l->epfd, l->ready, ROUND, until_next(l));
		if (l->nready < 0 && errno != EINTR)
			return err_sys(e, errno, "wait for events");
		if (l->nready < 0)
			l->nready = 0;
		run_ready(l);
		if (l->timers)
			run_timers(l);
	}
	return l->value;
}

void loop_stop(struct loop *l, int value)
{
	l->stop = true;
	l->value = value;
}
