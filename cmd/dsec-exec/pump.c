/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "pump.h"

#define SPLICE_MAX (1 << 20)
#define COPY_MAX   65536
#define ROUNDS	   16

void pump_init(struct pump *p, int dst)
{
	memset(p, 0, sizeof(*p));
	p->dst = dst;
}

void pump_stop(struct pump *p)
{
	for (; p->now < p->n; p->now++)
		fd_close(p->parts[p->now].fd);
	p->buf_len = p->buf_at = 0;
}

void pump_done(struct pump *p)
{
	pump_stop(p);
	free(p->buf);
	p->buf = NULL;
	p->dst = -1;
}

void pump_add(struct pump *p, int fd, off_t at, uint64_t len)
{
	p->parts[p->n++] = (struct pump_part){fd, at, len};
}

bool pump_active(const struct pump *p)
{
	return p->dst >= 0 && !p->lost && (p->now < p->n || p->buf_len > 0);
}

unsigned pump_poll(const struct pump *p, struct pollfd *fds)
{
	if (!pump_active(p))
		return 0;
	if (p->blocked || p->buf_len > 0) {
		fds[0] = (struct pollfd){.fd = p->dst, .events = POLLOUT};
		return 1;
	}
	fds[0] = (struct pollfd){.fd = p->parts[p->now].fd, .events = POLLIN};
	if (!p->watch_dst)
		return 1;
	fds[1] = (struct pollfd){.fd = p->dst};
	return 2;
}

static void next_part(struct pump *p)
{
	fd_close(p->parts[p->now++].fd);
}

static void lose(struct pump *p, int errnum)
{
	p->lost = errnum;
	pump_stop(p);
}

/* A step's outcome: go on, or come back when poll says so. */
enum { AGAIN, LATER };

static int took(struct pump *p, ssize_t n)
{
	struct pump_part *part = &p->parts[p->now];

	if (part->len != PUMP_PIPE)
		part->len -= (uint64_t)n;
	if (part->len == 0)
		next_part(p);
	return AGAIN;
}

/* A larger pipe changes nothing but how often its reader must wake us. */
static bool grow(struct pump *p)
{
	bool again = !p->grown && fcntl(p->dst, F_SETPIPE_SZ, SPLICE_MAX) > 0;

	p->grown = true;
	return again;
}

static int splice_some(struct pump *p, bool first)
{
	struct pump_part *part = &p->parts[p->now];
	bool file = part->len != PUMP_PIPE;
	size_t want = SPLICE_MAX;
	ssize_t n;

	if (file && part->len < want)
		want = (size_t)part->len;
	n = splice(part->fd, file ? &part->at : NULL, p->dst, NULL, want,
		   SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
	if (n > 0) {
		p->moved += (uint64_t)n;
		took(p, n);
		/* Less than was asked for: one of the two has no more. */
		return (size_t)n < want ? LATER : AGAIN;
	}
	if (n == 0) {
		next_part(p);
		return AGAIN;
	}
	if (errno == EINTR)
		return AGAIN;
	if (errno == EAGAIN) {
		/* Poll said that the source has something. */
		p->blocked = first;
		return first && grow(p) ? AGAIN : LATER;
	}
	if (errno == EINVAL || errno == ENOSYS || errno == ESPIPE)
		p->copy = true;
	else
		lose(p, errno);
	return AGAIN;
}

static int read_some(struct pump *p)
{
	struct pump_part *part = &p->parts[p->now];
	size_t want = COPY_MAX;
	ssize_t n;

	if (!p->buf)
		p->buf = malloc(COPY_MAX);
	if (!p->buf) {
		lose(p, ENOMEM);
		return LATER;
	}
	if (part->len == PUMP_PIPE) {
		n = read(part->fd, p->buf, want);
	} else {
		if (part->len < want)
			want = (size_t)part->len;
		n = pread(part->fd, p->buf, want, part->at);
		part->at += n > 0 ? n : 0;
	}
	if (n < 0 && errno == EINTR)
		return AGAIN;
	if (n < 0 && errno == EAGAIN)
		return LATER;
	if (n <= 0) {
		next_part(p); /* EIO is how a terminal ends */
		return AGAIN;
	}
	p->buf_at = 0;
	p->buf_len = (size_t)n;
	return took(p, n);
}

static int write_some(struct pump *p)
{
	ssize_t n = write(p->dst, p->buf + p->buf_at, p->buf_len);

	if (n < 0 && errno == EINTR)
		return AGAIN;
	if (n < 0 && errno == EAGAIN)
		return LATER;
	if (n < 0) {
		lose(p, errno);
		return LATER;
	}
	p->last = p->buf[p->buf_at + (size_t)n - (n > 0)];
	p->buf_at += (size_t)n;
	p->buf_len -= (size_t)n;
	p->moved += (uint64_t)n;
	return AGAIN;
}

/* Of the two that are waited for only the reader's going away is there. */
static bool reader_left(const struct pump *p, const struct pollfd *fds)
{
	return p->watch_dst && !p->blocked && p->buf_len == 0 &&
	       (fds[1].revents & (POLLERR | POLLHUP));
}

void pump_step(struct pump *p, const struct pollfd *fds)
{
	unsigned reads = 0, most = p->once ? 1 : ROUNDS;
	int r = AGAIN;

	if (reader_left(p, fds)) {
		lose(p, EPIPE);
		return;
	}
	p->blocked = false;
	while (r == AGAIN && pump_active(p)) {
		if (p->buf_len > 0) {
			r = write_some(p);
		} else if (reads == most) {
			return;
		} else if (p->copy) {
			r = read_some(p);
			reads = most; /* the next one could wait */
		} else {
			r = splice_some(p, reads == 0);
			reads += !p->copy;
		}
	}
}
