/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes from one socket to the other, through a pipe and not through our
 * memory.  Nothing is read while something stands in the pipe: who reads
 * slowly slows down who writes to him, and nobody else.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.h"

#define CHUNK  (64 * 1024)
#define ROUNDS 16 /* in one go, for the others' sake */

static ssize_t move(int from, int to, size_t len)
{
	ssize_t n = splice(from, NULL, to, NULL, len,
			   SPLICE_F_MOVE | SPLICE_F_NONBLOCK);

	return n < 0 ? -errno : n;
}

/* As much as goes now; -errno: an end is broken. */
static int pump(struct relay_way *w, int from, int to)
{
	ssize_t n;

	for (unsigned i = 0; i < ROUNDS; i++) {
		if (w->held == 0 && !w->eof) {
			n = move(from, w->pipe[1], CHUNK);
			if (n < 0)
				return n == -EAGAIN ? 0 : (int)n;
			w->held = (size_t)n;
			w->eof = n == 0;
		}
		if (w->held == 0)
			break;
		n = move(w->pipe[0], to, w->held);
		if (n < 0)
			return n == -EAGAIN ? 0 : (int)n;
		w->held -= (size_t)n;
	}
	if (w->eof && w->held == 0 && !w->done) {
		w->done = true;
		if (shutdown(to, SHUT_WR) < 0)
			return -errno;
	}
	return 0;
}

static uint32_t wanted(const struct relay *r, int side)
{
	const struct relay_way *from = &r->way[side], *to = &r->way[!side];
	uint32_t events = 0;

	if (from->held == 0 && !from->eof)
		events |= EPOLLIN;
	if (to->held > 0)
		events |= EPOLLOUT;
	return events;
}

static void on_open(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay *r = s->arg;
	int n = 0;

	(void)l;
	(void)events;
	for (int i = 0; n == 0 && i < 2; i++)
		n = pump(&r->way[i], r->fd[i], r->fd[!i]);
	if (n == 0 && r->way[0].done && r->way[1].done) {
		relay_free(r);
		return;
	}
	/* Broken while nothing is wanted of it: it would tell for ever. */
	if (n == 0 && (events & EPOLLERR))
		n = -ECONNRESET;
	for (int i = 0; n == 0 && i < 2; i++)
		n = relay_set(r, i, wanted(r, i), on_open, NULL);
	if (n < 0)
		relay_reset(r);
}

static int make_pipes(struct relay *r, struct err *e)
{
	for (int i = 0; i < 2; i++)
		if (pipe2(r->way[i].pipe, O_CLOEXEC | O_NONBLOCK) < 0) {
			r->way[i].pipe[0] = r->way[i].pipe[1] = -1;
			return err_sys(e, errno, "pipe");
		}
	return 0;
}

int relay_resume(struct relay *r, struct err *e)
{
	int n = 0;

	for (int i = 0; n == 0 && i < 2; i++)
		n = relay_set(r, i, wanted(r, i), on_open, e);
	return n;
}

int relay_open(struct relay *r, struct err *e)
{
	int on = 1, n;

	n = make_pipes(r, e);
	if (n < 0)
		return n;
	for (int i = 0; i < 2; i++)
		setsockopt(r->fd[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	r->state = RELAY_OPEN;
	return relay_resume(r, e);
}
