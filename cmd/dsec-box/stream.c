/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "stream.h"

#define PIPE_SIZE (1 << 20)
#define BUDGET	  (8ULL << 20) /* bytes in one go, for the others' sake */
#define STALL_MS  1000

static void on_in(struct loop *l, struct loop_source *s, uint32_t events);
static void on_room(struct loop *l, struct loop_source *s, uint32_t events);
static void on_stall(struct loop *l, struct loop_timer *t);

int stream_pipe(int ret[2], struct err *e)
{
	if (pipe2(ret, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	/* Refused where the limit is lower: then it is as long as it is. */
	fcntl(ret[0], F_SETPIPE_SZ, PIPE_SIZE);
	if (fcntl(ret[0], F_SETFL, O_NONBLOCK) < 0) {
		int r = err_sys(e, errno, "pipe");

		fd_close(ret[0]);
		fd_close(ret[1]);
		return r;
	}
	return 0;
}

void stream_init(struct stream *s, struct loop *l, stream_fn *fn,
		 stream_others_fn *others, void *arg)
{
	*s = (struct stream){.loop = l, .fn = fn, .others = others, .arg = arg};
	recorder_init(&s->rec);
	s->stall.fn = on_stall;
	s->stall.arg = s;
}

static int watch_in(struct stream *s, struct err *e)
{
	int r;

	if (s->watching)
		return 0;
	r = loop_add(s->loop, &s->in, s->rec.src, EPOLLIN, on_in, s, e);
	s->watching = r == 0;
	return r;
}

static void unwatch(struct stream *s)
{
	if (s->watching)
		loop_del(s->loop, &s->in);
	s->watching = false;
	loop_del(s->loop, &s->room);
}

int stream_start(struct stream *s, struct err *e)
{
	return watch_in(s, e);
}

static void end(struct stream *s)
{
	unwatch(s);
	loop_timer_set(s->loop, &s->stall, 0);
	if (s->ended)
		return;
	s->ended = true;
	s->fn(s);
}

/* A reader is full: wait for room in its pipe, and not for ever. */
static void wait_for_room(struct stream *s)
{
	int fd = recorder_blocker(&s->rec);

	if (s->watching)
		loop_del(s->loop, &s->in);
	s->watching = false;
	if (loop_add(s->loop, &s->room, fd, EPOLLOUT, on_room, s, NULL) < 0) {
		recorder_cut(&s->rec, fd);
		watch_in(s, NULL);
		return;
	}
	if (!s->stall.at_ms)
		loop_timer_set(s->loop, &s->stall, clock_ms() + STALL_MS);
}

static void step(struct stream *s, bool hup)
{
	uint64_t max = BUDGET, moved = 0;
	enum recorder_state st;

	loop_del(s->loop, &s->room);
	if (s->finishing && s->left < max)
		max = s->left;
	st = recorder_pump(&s->rec, max, &moved);
	if (moved > 0)
		loop_timer_set(s->loop, &s->stall, 0);
	if (s->finishing)
		s->left -= moved;
	if (st == RECORDER_BLOCKED)
		wait_for_room(s);
	else if ((s->finishing && (s->left == 0 || st == RECORDER_EMPTY)) ||
		 (st == RECORDER_EMPTY && hup))
		end(s);
	else if (watch_in(s, NULL) < 0)
		end(s);
}

static void on_in(struct loop *l, struct loop_source *src, uint32_t events)
{
	(void)l;
	step(src->arg, events & (EPOLLHUP | EPOLLERR));
}

static void on_room(struct loop *l, struct loop_source *src, uint32_t events)
{
	(void)l;
	(void)events;
	step(src->arg, false);
}

/* It has not read for long; if it holds up others it has had its chance. */
static void on_stall(struct loop *l, struct loop_timer *t)
{
	struct stream *s = t->arg;
	int fd = recorder_blocker(&s->rec);
	uint64_t id = 0;

	for (unsigned i = 0; i < s->rec.nreaders; i++)
		if (s->rec.readers[i].fd == fd)
			id = s->rec.readers[i].id;
	if (fd >= 0 && s->others(s, id)) {
		loop_del(s->loop, &s->room);
		recorder_cut(&s->rec, fd);
		step(s, false);
		return;
	}
	loop_timer_set(l, t, clock_ms() + STALL_MS);
}

void stream_finish(struct stream *s)
{
	int avail = 0;

	if (s->ended)
		return;
	if (!s->finishing) {
		if (ioctl(s->rec.src, FIONREAD, &avail) < 0 || avail < 0)
			avail = 0;
		s->left = (uint64_t)avail;
	}
	s->finishing = true;
	if (s->left == 0)
		end(s);
	else
		step(s, false);
}

void stream_drain(struct stream *s)
{
	/* One that is not watched waits for a reader. */
	if (!s->ended && s->watching)
		step(s, false);
}

int stream_attach(struct stream *s, bool lossy, uint64_t id, int *ret_fd,
		  struct err *e)
{
	auto_close int rd = -1, wr = -1;
	int p[2], r;

	if (pipe2(p, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	rd = p[0];
	wr = p[1];
	fcntl(wr, F_SETPIPE_SZ, PIPE_SIZE);
	if (fcntl(wr, F_SETFL, O_NONBLOCK) < 0)
		return err_sys(e, errno, "pipe");
	r = recorder_add(&s->rec, &wr, lossy, id, e);
	if (r < 0)
		return r;
	*ret_fd = steal_fd(&rd);
	return 0;
}

void stream_done(struct stream *s)
{
	unwatch(s);
	loop_timer_set(s->loop, &s->stall, 0);
	recorder_done(&s->rec);
}
