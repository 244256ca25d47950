/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/pump.h"

#define ROUND	    (512 * 1024) /* bytes moved before others get their turn */
#define SHORT	    (32 * 1024)	 /* a read of less has probably got all */
#define PIPES_FIRST 4
#define PIPES_KEPT  64
#define PIPES_BIG   16 /* that are made larger, out of the user's allowance */
#define PIPE_BIG    (256 * 1024)
#define PIPE_SMALL  (64 * 1024)
#define TICK_MS	    10 /* of the budgets */
#define BURST_MIN   (64 * 1024)

struct pipe {
	int in, out;
	size_t size;
};

struct pump_pool {
	struct loop *loop;
	struct pipe kept[PIPES_KEPT];
	size_t nkept;
	unsigned nbig;
	struct pump_leg *starved, **starved_end; /* for want of a pipe */
	struct pump_bucket *buckets;		 /* that have waiters */
	struct loop_timer tick;
	int fd; /* to be copied */
};

/* One direction. */
struct pump_leg {
	struct pump *pump;
	struct pipe pipe; /* valid while held > 0 */
	size_t held;
	bool eof, done;
	struct pump_bucket *bucket;
	/* waiting for a pipe or for the budget */
	struct pump_leg *next, **pprev, ***list_end;
};

struct pump {
	struct pump_pool *pool;
	struct loop_source side[2];
	int fd[2];
	struct pump_leg leg[2]; /* the first from side 0 to side 1 */
	const struct pump_ops *ops;
	void *arg;
	uint64_t idle_ms, last_ms;
	struct loop_timer idle;
};

void pump_reset(int fd)
{
	const struct linger now = {.l_onoff = 1};

	(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	fd_close(fd);
}

static void leg_move(struct pump_leg *g);

/* --- waiting ------------------------------------------------------------- */

static void leg_wait(struct pump_leg *g, struct pump_leg ***end)
{
	g->next = NULL;
	g->pprev = *end;
	g->list_end = end;
	**end = g;
	*end = &g->next;
}

static void leg_unwait(struct pump_leg *g)
{
	if (!g->pprev)
		return;
	*g->pprev = g->next;
	if (g->next)
		g->next->pprev = g->pprev;
	else
		*g->list_end = g->pprev;
	g->next = NULL;
	g->pprev = NULL;
}

/* --- pipes --------------------------------------------------------------- */

static int pipe_new(struct pump_pool *pool, struct pipe *ret)
{
	int p[2], n;

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	*ret = (struct pipe){p[1], p[0], PIPE_SMALL};
	if (pool->nbig >= PIPES_BIG)
		return 0;
	n = fcntl(p[1], F_SETPIPE_SZ, PIPE_BIG);
	if (n > 0) {
		pool->nbig++;
		ret->size = (size_t)n;
	}
	return 0;
}

static int pipe_get(struct pump_pool *pool, struct pipe *ret)
{
	if (pool->nkept == 0)
		return pipe_new(pool, ret);
	*ret = pool->kept[--pool->nkept];
	return 0;
}

static void pipe_close(struct pump_pool *pool, struct pipe *p)
{
	if (p->size > PIPE_SMALL)
		pool->nbig--;
	fd_close(p->in);
	fd_close(p->out);
}

/* An empty one is used again; who waits for one gets his turn from the loop. */
static void pipe_put(struct pump_pool *pool, struct pipe *p)
{
	if (pool->nkept < PIPES_KEPT)
		pool->kept[pool->nkept++] = *p;
	else
		pipe_close(pool, p);
	if (pool->starved)
		loop_timer_set(pool->loop, &pool->tick, clock_ms());
}

/* --- budgets ------------------------------------------------------------- */

static void bucket_fill(struct pump_bucket *b)
{
	uint64_t now = clock_ms();
	uint64_t most = b->rate / 10 > BURST_MIN ? b->rate / 10 : BURST_MIN;
	uint64_t more, ms = now - b->at_ms;

	if (ms > 1000 || b->at_ms == 0)
		ms = 1000;
	more = b->rate * ms / 1000;
	if (more == 0)
		return;
	b->at_ms = now;
	b->tokens += (int64_t)more;
	if (b->tokens > (int64_t)most)
		b->tokens = (int64_t)most;
}

/* How many of ${len} bytes may go now. */
static size_t bucket_take(struct pump_bucket *b, size_t len)
{
	if (!b || b->rate == 0)
		return len;
	bucket_fill(b);
	if (b->tokens <= 0)
		return 0;
	return len < (size_t)b->tokens ? len : (size_t)b->tokens;
}

static void bucket_wait(struct pump_pool *pool, struct pump_leg *g)
{
	struct pump_bucket *b = g->bucket;

	if (!b->waiting) {
		b->waits_end = &b->waits;
		b->waiting = true;
		b->next = pool->buckets;
		pool->buckets = b;
	}
	leg_wait(g, &b->waits_end);
	if (!pool->tick.at_ms)
		loop_timer_set(pool->loop, &pool->tick, clock_ms() + TICK_MS);
}

/* Everybody who waits now gets a turn. */
static void bucket_serve(struct pump_bucket *b)
{
	size_t n = 0;

	for (struct pump_leg *g = b->waits; g; g = g->next)
		n++;
	while (n-- > 0 && b->waits && bucket_take(b, 1) > 0) {
		struct pump_leg *g = b->waits;

		leg_unwait(g);
		leg_move(g);
	}
}

static void starved_serve(struct pump_pool *pool)
{
	size_t n = 0;

	for (struct pump_leg *g = pool->starved; g; g = g->next)
		n++;
	while (n-- > 0 && pool->starved && pool->nkept > 0) {
		struct pump_leg *g = pool->starved;

		leg_unwait(g);
		leg_move(g);
	}
}

static void on_tick(struct loop *l, struct loop_timer *t)
{
	struct pump_pool *pool = t->arg;
	struct pump_bucket *b;

	starved_serve(pool);
	for (b = pool->buckets; b; b = b->next)
		bucket_serve(b);
	for (struct pump_bucket **p = &pool->buckets; (b = *p);) {
		if (b->waits) {
			p = &b->next;
			continue;
		}
		*p = b->next;
		b->waiting = false;
	}
	if (pool->buckets && !t->at_ms)
		loop_timer_set(l, t, clock_ms() + TICK_MS);
}

void pump_bucket_rate(struct pump_pool *pool, struct pump_bucket *b,
		      uint64_t rate)
{
	if (b->rate == 0 || rate < b->rate)
		b->tokens = 0;
	b->rate = rate;
	if (rate > 0 || !b->waiting)
		return;
	/* bucket_serve() lets them all go, if there are any. */
	if (b->waits) {
		loop_timer_set(pool->loop, &pool->tick, clock_ms());
		return;
	}
	for (struct pump_bucket **p = &pool->buckets; *p; p = &(*p)->next)
		if (*p == b) {
			*p = b->next;
			break;
		}
	b->waiting = false;
}

/* --- pumps --------------------------------------------------------------- */

int pump_pool_new(struct loop *l, struct pump_pool **ret, struct err *e)
{
	struct pump_pool *pool = calloc(1, sizeof(*pool));

	if (!pool)
		return err_sys(e, ENOMEM, "pumps");
	pool->loop = l;
	pool->starved_end = &pool->starved;
	pool->tick = (struct loop_timer){.fn = on_tick, .arg = pool};
	pool->fd = -1;
	/* So that there always is one to wait for. */
	for (struct pipe *p = pool->kept; p < pool->kept + PIPES_FIRST; p++) {
		int r = pipe_new(pool, p);

		if (r < 0) {
			pump_pool_free(pool);
			return err_sys(e, -r, "pipe");
		}
		pool->nkept++;
	}
	pool->fd = eventfd(0, EFD_CLOEXEC);
	if (pool->fd < 0) {
		pump_pool_free(pool);
		return err_sys(e, errno, "event descriptor");
	}
	*ret = pool;
	return 0;
}

void pump_pool_free(struct pump_pool *pool)
{
	if (!pool)
		return;
	loop_timer_set(pool->loop, &pool->tick, 0);
	while (pool->nkept > 0)
		pipe_close(pool, &pool->kept[--pool->nkept]);
	if (pool->fd >= 0)
		fd_close(pool->fd);
	free(pool);
}

int pump_pool_fd(const struct pump_pool *pool)
{
	return pool->fd;
}

static void close_all(struct pump *p, bool reset)
{
	struct pump_pool *pool = p->pool;

	loop_timer_set(pool->loop, &p->idle, 0);
	for (int i = 0; i < 2; i++) {
		leg_unwait(&p->leg[i]);
		/* What is in it is nobody else's. */
		if (p->leg[i].held > 0)
			pipe_close(pool, &p->leg[i].pipe);
		p->leg[i].held = 0;
		loop_del(pool->loop, &p->side[i]);
		if (reset)
			pump_reset(p->fd[i]);
		else
			fd_close(p->fd[i]);
	}
	if (pool->starved)
		loop_timer_set(pool->loop, &pool->tick, clock_ms());
}

void pump_cut(struct pump *p)
{
	if (!p)
		return;
	close_all(p, true);
	free(p);
}

void pump_free(struct pump *p)
{
	if (!p)
		return;
	close_all(p, false);
	free(p);
}

static void end(struct pump *p, enum pump_end why)
{
	const struct pump_ops *ops = p->ops;
	void *arg = p->arg;

	if (why == PUMP_CLOSED)
		pump_free(p);
	else
		pump_cut(p);
	ops->done(arg, why);
}

static int side_of(const struct loop_source *s)
{
	return s == &((struct pump *)s->arg)->side[1];
}

static void on_side(struct loop *l, struct loop_source *s, uint32_t events);

/* What a side is watched for: to read where nothing waits to be passed on, to
 * write where something does.  One that ended both ways is not watched at
 * all: it would be ready for ever. */
static int watch(struct pump *p, int i)
{
	struct pump_leg *out = &p->leg[i], *in = &p->leg[!i];
	struct loop *l = p->pool->loop;
	uint32_t events = 0;

	if (out->eof && in->done) {
		loop_del(l, &p->side[i]);
		return 0;
	}
	if (!out->eof && out->held == 0 && !out->pprev)
		events |= EPOLLIN;
	if (in->held > 0)
		events |= EPOLLOUT;
	if (p->side[i].fn)
		return loop_mod(l, &p->side[i], events, NULL);
	return events ? loop_add(l, &p->side[i], p->fd[i], events, on_side, p,
				 NULL)
		      : 0;
}

enum { GO_ON, BLOCKED, BROKEN, STOPPED };

static int leg_write(struct pump_leg *g)
{
	struct pump *p = g->pump;
	bool up = g == &p->leg[0];
	ssize_t n;

	do
		n = splice(g->pipe.out, NULL, p->fd[up], NULL, g->held,
			   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == EAGAIN ? BLOCKED : BROKEN;
	g->held -= (size_t)n;
	if (g->held == 0)
		pipe_put(p->pool, &g->pipe);
	if (p->ops->count && !p->ops->count(p->arg, up, (size_t)n))
		return STOPPED;
	return GO_ON;
}

/* Bytes into the pipe; *${ret_n} 0: the end. */
static int leg_read(struct pump_leg *g, size_t *ret_n)
{
	struct pump *p = g->pump;
	int from = p->fd[g != &p->leg[0]];
	size_t want;
	ssize_t n;

	want = bucket_take(g->bucket, PIPE_BIG);
	if (want == 0) {
		bucket_wait(p->pool, g);
		return BLOCKED;
	}
	if (pipe_get(p->pool, &g->pipe) < 0) {
		leg_wait(g, &p->pool->starved_end);
		return BLOCKED;
	}
	do
		n = splice(from, NULL, g->pipe.in, NULL,
			   want < g->pipe.size ? want : g->pipe.size,
			   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);
	while (n < 0 && errno == EINTR);
	if (n <= 0) {
		int r = n == 0 ? GO_ON : errno == EAGAIN ? BLOCKED : BROKEN;

		pipe_put(p->pool, &g->pipe);
		*ret_n = 0;
		return r;
	}
	if (g->bucket && g->bucket->rate > 0)
		g->bucket->tokens -= n;
	g->held = *ret_n = (size_t)n;
	return GO_ON;
}

static int leg_round(struct pump_leg *g)
{
	struct pump *p = g->pump;
	size_t moved = 0, n = SIZE_MAX;
	int r = GO_ON;

	if (g->pprev || g->done)
		return BLOCKED;
	while (r == GO_ON) {
		if (g->held > 0) {
			r = leg_write(g);
		} else if (g->eof) {
			shutdown(p->fd[g == &p->leg[0]], SHUT_WR);
			g->done = true;
			r = BLOCKED;
		} else if (n < SHORT || moved >= ROUND) {
			r = BLOCKED;
		} else {
			r = leg_read(g, &n);
			g->eof = r == GO_ON && n == 0;
			moved += r == GO_ON ? n : 0;
		}
	}
	if (moved > 0)
		p->last_ms = clock_ms();
	return r;
}

static void leg_move(struct pump_leg *g)
{
	struct pump *p = g->pump;
	int r = leg_round(g);

	if (r == STOPPED)
		end(p, PUMP_STOP);
	else if (r == BROKEN)
		end(p, PUMP_RESET);
	else if (p->leg[0].done && p->leg[1].done)
		end(p, PUMP_CLOSED);
	else if (watch(p, 0) < 0 || watch(p, 1) < 0)
		end(p, PUMP_RESET);
}

static void on_side(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct pump *p = s->arg;
	int i = side_of(s);

	(void)l;
	if (events & EPOLLERR) {
		end(p, PUMP_RESET);
		return;
	}
	/* Both its ends are shut, but what it sent cannot be taken yet. */
	if ((events & EPOLLHUP) && s->events == 0) {
		loop_del(p->pool->loop, s);
		return;
	}
	/* The first may end the pump, and then the second is not called. */
	if ((events & EPOLLOUT) && (events & (EPOLLIN | EPOLLHUP))) {
		int r = leg_round(&p->leg[!i]);

		if (r == STOPPED || r == BROKEN) {
			end(p, r == STOPPED ? PUMP_STOP : PUMP_RESET);
			return;
		}
	} else if (events & EPOLLOUT) {
		leg_move(&p->leg[!i]);
		return;
	}
	leg_move(&p->leg[i]);
}

static void on_idle(struct loop *l, struct loop_timer *t)
{
	struct pump *p = t->arg;

	if (clock_ms() - p->last_ms >= p->idle_ms)
		end(p, PUMP_IDLE);
	else
		loop_timer_set(l, t, p->last_ms + p->idle_ms);
}

static void leg_init(struct pump *p, int i, struct pump_bucket *b)
{
	p->leg[i].pump = p;
	p->leg[i].bucket = b;
}

int pump_new(const struct pump_conf *conf, struct pump **ret, struct err *e)
{
	struct loop *l = conf->pool->loop;
	struct pump *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return err_sys(e, ENOMEM, "pump");
	p->pool = conf->pool;
	p->ops = conf->ops;
	p->arg = conf->arg;
	p->idle_ms = conf->idle_ms;
	p->last_ms = clock_ms();
	p->idle = (struct loop_timer){.fn = on_idle, .arg = p};
	leg_init(p, 0, conf->up);
	leg_init(p, 1, conf->down);
	r = loop_add(l, &p->side[0], conf->a, EPOLLIN, on_side, p, e);
	if (r < 0) {
		free(p);
		return r;
	}
	r = loop_add(l, &p->side[1], conf->b, EPOLLIN, on_side, p, e);
	if (r < 0) {
		loop_del(l, &p->side[0]);
		free(p);
		return r;
	}
	p->fd[0] = conf->a;
	p->fd[1] = conf->b;
	if (p->idle_ms)
		loop_timer_set(l, &p->idle, p->last_ms + p->idle_ms);
	*ret = p;
	return 0;
}
