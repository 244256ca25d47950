/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "exec.h"

#define BACKLOG	  (256 * 1024) /* in our pipe before the terminal waits */
#define ALL	  (768 * 1024) /* with room for what a terminal holds */
#define RETRY_MS  10
#define READ_SIZE 4096 /* a terminal gives no more at once */

/* A command's terminal: what it says goes through a pipe, and from there the
 * way of every stream. */

static void unwatch(struct exec *x)
{
	if (x->tty_watched)
		loop_del(x->box->loop, &x->tty_src);
	x->tty_watched = false;
}

static void ended(struct exec *x)
{
	unwatch(x);
	loop_timer_set(x->box->loop, &x->tty_retry, 0);
	if (x->tty_pipe >= 0)
		fd_close(steal_fd(&x->tty_pipe));
}

static bool has_room(const struct exec *x, int backlog)
{
	int n = 0;

	return ioctl(x->out[0].rec.src, FIONREAD, &n) == 0 && n < backlog;
}

/* 1: moved some, 0: nothing now, -1: at its end. */
static int move(struct exec *x, int backlog)
{
	char buf[READ_SIZE];
	ssize_t n;

	if (x->tty_pipe < 0)
		return -1;
	if (!has_room(x, backlog))
		return 0;
	n = read(x->tty_fd, buf, sizeof(buf));
	if (n > 0) {
		/* There is room: this does not wait and is not cut. */
		if (write(x->tty_pipe, buf, (size_t)n) != n)
			return -1;
		return 1;
	}
	return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int watch(struct exec *x, struct err *e);

static void on_retry(struct loop *l, struct loop_timer *t)
{
	struct exec *x = t->arg;

	(void)l;
	if (x->tty_pipe >= 0)
		watch(x, NULL);
}

static void on_tty(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct exec *x = s->arg;
	int r = 1;

	(void)events;
	for (int i = 0; r > 0 && i < 16; i++)
		r = move(x, BACKLOG);
	if (r < 0) {
		ended(x);
	} else if (!has_room(x, BACKLOG)) {
		unwatch(x);
		x->tty_retry.fn = on_retry;
		x->tty_retry.arg = x;
		loop_timer_set(l, &x->tty_retry, clock_ms() + RETRY_MS);
	}
}

static int watch(struct exec *x, struct err *e)
{
	int r;

	if (x->tty_watched)
		return 0;
	r = loop_add(x->box->loop, &x->tty_src, x->tty_fd, EPOLLIN, on_tty, x,
		     e);
	x->tty_watched = r == 0;
	return r;
}

int exec_tty(struct exec *x, struct err *e)
{
	if (fcntl(x->tty_fd, F_SETFL, O_NONBLOCK) < 0 ||
	    fcntl(x->tty_pipe, F_SETFL, O_NONBLOCK) < 0)
		return err_sys(e, errno, "terminal");
	return watch(x, e);
}

bool exec_tty_drain(struct exec *x)
{
	int r;

	do
		r = move(x, BACKLOG);
	while (r > 0);
	if (r < 0)
		ended(x);
	return r < 0;
}

void exec_tty_empty(struct exec *x)
{
	if (x->tty_fd < 0 || x->tty_pipe < 0)
		return;
	while (move(x, ALL) > 0)
		;
}

void exec_tty_sleep(struct exec *x)
{
	unwatch(x);
	loop_timer_set(x->box->loop, &x->tty_retry, 0);
}

void exec_tty_done(struct exec *x)
{
	ended(x);
	if (x->tty_fd >= 0)
		fd_close(steal_fd(&x->tty_fd));
}
