/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "node_worker.h"

/* Moved before others get their turn. */
#define TURN (512 * 1024)

static void close_fd(struct flow *f)
{
	if (f->watched)
		loop_del(f->job->worker->loop, &f->src);
	f->watched = false;
	if (f->fd >= 0)
		fd_close(steal_fd(&f->fd));
}

static void close_parts(struct flow *f)
{
	for (; f->part < f->nparts; f->part++)
		fd_close(f->parts[f->part].fd);
}

/* The last of it. */
static void over(struct flow *f)
{
	if (f->over)
		return;
	f->over = true;
	close_parts(f);
	close_fd(f);
	buf_done(&f->kept);
	if (f->stream.way == STREAM_OUT)
		f->job->nout--;
	job_flowed(f->job);
}

static void on_fd(struct loop *l, struct loop_source *s, uint32_t events);

static void watch(struct flow *f, uint32_t events)
{
	struct loop *l = f->job->worker->loop;

	if (f->fd < 0)
		return;
	if (f->watched && events == 0) {
		/* A pipe that hung up is always ready. */
		loop_del(l, &f->src);
		f->watched = false;
	} else if (f->watched) {
		(void)loop_mod(l, &f->src, events, NULL);
	} else if (events) {
		f->watched = loop_add(l, &f->src, f->fd, events, on_fd, f,
				      NULL) == 0;
	}
}

/* --- out ----------------------------------------------------------------- */

/* Of a part of a file: 1 moved some, 0 no room, -errno. */
static int send_part(struct flow *f)
{
	struct flow_part *p = &f->parts[f->part];
	size_t room = stream_room(&f->stream);
	char *buf = f->job->worker->scratch;
	ssize_t n;

	if (room == 0)
		return 0;
	if (room > p->len)
		room = p->len;
	n = room ? pread(p->fd, buf, room, (off_t)p->at) : 0;
	if (n < 0)
		return -errno;
	if (n > 0 && stream_send(&f->stream, buf, (size_t)n, NULL) < 0)
		return -EPIPE;
	p->at += (uint64_t)n;
	p->len -= (uint64_t)n;
	if (n == 0 || p->len == 0) {
		fd_close(p->fd);
		f->part++;
	}
	return 1;
}

static void end_out(struct flow *f)
{
	(void)stream_eof(&f->stream, NULL);
	over(f);
}

/* How much there may be of it at once is bounded by the stream. */
static void pump_out(struct flow *f)
{
	size_t moved = 0;
	ssize_t n = 1;

	while (n > 0 && f->part < f->nparts)
		n = send_part(f);
	if (n < 0)
		end_out(f);
	if (n <= 0)
		return; /* room() goes on */
	if (f->fd < 0) {
		end_out(f); /* of a command that has ended */
		return;
	}
	/* Behind a short read, too: what came meanwhile is often there, and
	 * saves more wakes than the reads that find nothing cost. */
	while (n > 0 && moved < TURN) {
		n = stream_fill(&f->stream, f->fd, NULL);
		moved += n > 0 ? (size_t)n : 0;
	}
	if (n == -ENOBUFS)
		watch(f, 0); /* room() goes on */
	else if (n > 0 || n == -EAGAIN)
		watch(f, EPOLLIN);
	else
		end_out(f); /* EIO is how a terminal ends */
}

static void on_room(void *arg, struct stream *s)
{
	struct flow *f = arg;

	(void)s;
	if (!f->over)
		pump_out(f);
}

/* --- in ------------------------------------------------------------------ */

static void end_in(struct flow *f)
{
	if (f->sock && f->fd >= 0)
		(void)shutdown(f->fd, SHUT_WR);
	over(f);
}

/* The terminal of a sandbox that was paused to disk takes bytes still, for
 * nobody. */
static bool hung_up(int fd)
{
	struct pollfd p = {.fd = fd};

	return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

static ssize_t put(struct flow *f, const char *data, size_t len)
{
	ssize_t n;

	if (f->tty && hung_up(f->fd))
		return -EIO;
	do
		n = f->sock ? send(f->fd, data, len, MSG_NOSIGNAL)
			    : write(f->fd, data, len);
	while (n < 0 && errno == EINTR);
	if (n > 0)
		f->moved += (uint64_t)n;
	return n < 0 ? -errno : n;
}

/* The sandbox has another by now, or will have: what comes waits for it. */
static bool renew(struct flow *f)
{
	if (!f->tty || !job_asks_tty(f->job))
		return false;
	f->stale = true;
	close_fd(f);
	return true;
}

/* Nobody takes it any more: what comes is let go, so that it stops nobody. */
static void refuse_in(struct flow *f)
{
	f->drop = true;
	stream_taken(&f->stream, f->kept.len);
	buf_done(&f->kept);
	close_fd(f);
	if (f->eof)
		end_in(f);
}

static void pump_in(struct flow *f)
{
	size_t done = 0;
	ssize_t n = 0;

	while (done < f->kept.len) {
		n = put(f, f->kept.data + done, f->kept.len - done);
		if (n < 0)
			break;
		done += (size_t)n;
	}
	if (done > 0)
		stream_taken(&f->stream, done);
	if (done == f->kept.len)
		buf_done(&f->kept);
	else
		buf_drop(&f->kept, done);
	if (n < 0 && n != -EAGAIN && renew(f))
		return;
	if (n < 0 && n != -EAGAIN)
		refuse_in(f);
	else if (f->kept.len > 0)
		watch(f, EPOLLOUT);
	else if (f->eof)
		end_in(f);
	else
		watch(f, 0);
}

static void on_data(void *arg, struct stream *s, const char *data, size_t len)
{
	struct flow *f = arg;
	ssize_t n = 0;

	if (f->over || f->drop) {
		stream_taken(s, len);
		return;
	}
	if (f->kept.len == 0 && !f->stale) {
		n = put(f, data, len);
		if (n < 0 && n != -EAGAIN && !renew(f)) {
			stream_taken(s, len);
			refuse_in(f);
			return;
		}
		n = n < 0 ? 0 : n;
		if (n > 0)
			stream_taken(s, (size_t)n);
		if ((size_t)n == len)
			return;
	}
	/* At most a window of it. */
	if (buf_add(&f->kept, data + n, len - (size_t)n) < 0) {
		stream_taken(s, len - (size_t)n);
		refuse_in(f);
		return;
	}
	watch(f, EPOLLOUT);
}

static void on_eof(void *arg, struct stream *s)
{
	struct flow *f = arg;

	(void)s;
	f->eof = true;
	if (!f->over && f->kept.len == 0)
		end_in(f);
}

static void on_fd(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct flow *f = s->arg;

	(void)l;
	(void)events;
	if (f->stream.way == STREAM_OUT)
		pump_out(f);
	else
		pump_in(f);
}

/* --- all of a request's -------------------------------------------------- */

static const struct stream_ops ops = {on_data, on_eof, on_room};

static struct flow *flow_new(struct job *j, const char *name,
			     enum stream_way way, int *fd, struct err *e)
{
	struct flow *f = calloc(1, sizeof(*f));

	if (!f) {
		err_sys(e, ENOMEM, "stream");
		return NULL;
	}
	f->job = j;
	f->fd = -1;
	f->stream.way = way;
	f->stream.ops = &ops;
	f->stream.arg = f;
	if (stream_new(&f->stream, j->call->client->c, j->call->id, name, e) <
	    0) {
		free(f);
		return NULL;
	}
	f->fd = steal_fd(fd);
	if (f->fd >= 0)
		(void)fcntl(f->fd, F_SETFL, O_NONBLOCK);
	f->next = j->flows;
	j->flows = f;
	if (way == STREAM_OUT)
		j->nout++;
	return f;
}

static int add_parts(struct flow *f, const char *name, const json_t *rec,
		     struct chan_msg *m, struct err *e)
{
	json_t *list = json_object_get(json_object_get(rec, "parts"), name);
	char part[16];
	json_t *one;
	size_t i;
	int fd;

	json_array_foreach(list, i, one) {
		if (i == array_len(f->parts))
			break;
		snprintf(part, sizeof(part), "%s.%zu", name, i);
		fd = chan_take(m, part);
		if (fd < 0)
			return err_set(e, -EBADMSG, "internal",
				       "a part of %s did not come", name);
		f->parts[f->nparts++] = (struct flow_part){
			fd,
			(uint64_t)json_integer_value(json_array_get(one, 0)),
			(uint64_t)json_integer_value(json_array_get(one, 1)),
		};
	}
	return 0;
}

static bool has_stream(const json_t *rec, const char *name)
{
	json_t *one;
	size_t i;

	json_array_foreach(json_object_get(rec, "streams"), i, one)
		if (!strcmp(json_string_value(one), name))
			return true;
	return false;
}

static int add_out(struct job *j, const char *name, const char *called,
		   const json_t *rec, struct chan_msg *m, struct err *e)
{
	auto_close int fd = chan_take(m, name);
	struct flow *f;

	if (fd < 0 && !has_stream(rec, called))
		return 0;
	f = flow_new(j, called, STREAM_OUT, &fd, e);
	return f ? add_parts(f, name, rec, m, e) : e->r;
}

static int add_in(struct job *j, const char *name, int *fd, struct err *e)
{
	struct flow *f = flow_new(j, name, STREAM_IN, fd, e);

	if (!f)
		return e->r;
	f->sock = !strcmp(name, "socket");
	f->tty = !strcmp(name, "tty");
	return 0;
}

/* Both ways of one descriptor are watched apart. */
static int add_socket(struct job *j, int *fd, struct err *e)
{
	auto_close int other = fcntl(*fd, F_DUPFD_CLOEXEC, 3);
	struct flow *f;

	if (other < 0)
		return err_sys(e, errno, "socket");
	f = flow_new(j, "socket", STREAM_OUT, &other, e);
	return f ? add_in(j, "socket", fd, e) : e->r;
}

int flows_start(struct job *j, const json_t *rec, struct chan_msg *m,
		struct err *e)
{
	auto_close int in = chan_take(m, "stdin");
	auto_close int tty = chan_take(m, "tty");
	auto_close int sock = chan_take(m, "socket");
	int r = 0;

	if (m->lost)
		r = err_sys(e, EMFILE, "streams");
	/* What a terminal shows comes beside it, and is its stream. */
	if (r == 0)
		r = add_out(j, "stdout", tty >= 0 ? "tty" : "stdout", rec, m,
			    e);
	if (r == 0)
		r = add_out(j, "stderr", "stderr", rec, m, e);
	if (r == 0 && in >= 0)
		r = add_in(j, "stdin", &in, e);
	if (r == 0 && tty >= 0)
		r = add_in(j, "tty", &tty, e);
	if (r == 0 && sock >= 0) {
		j->connect = true;
		r = add_socket(j, &sock, e);
	}
	return r;
}

void flows_go(struct job *j)
{
	for (struct flow *f = j->flows; f; f = f->next)
		if (f->stream.way == STREAM_OUT)
			pump_out(f);
}

void flows_stop(struct job *j)
{
	struct flow *f;

	while ((f = j->flows)) {
		j->flows = f->next;
		if (!f->over) {
			close_parts(f);
			close_fd(f);
			buf_done(&f->kept);
		}
		stream_done(&f->stream);
		free(f);
	}
	j->nout = 0;
}

static void tell_tty(struct flow *f, const char *event, json_t *error)
{
	json_t *ev = json_pack("{s:s, s:s, s:I}", "event", event, "stream",
			       "tty", "offset", (json_int_t)f->moved);

	if (ev && error)
		json_object_set(ev, "error", error);
	call_event(f->job->call, ev);
}

void flows_tty(struct job *j, int *fd, json_t *error)
{
	struct flow *f = j->flows;

	while (f && !f->stale)
		f = f->next;
	if (!f || f->over)
		return;
	f->stale = false;
	if (*fd >= 0) {
		f->fd = steal_fd(fd);
		(void)fcntl(f->fd, F_SETFL, O_NONBLOCK);
		tell_tty(f, "reattached", NULL);
		pump_in(f);
		return;
	}
	/* What was typed is lost; what is typed next asks again. */
	stream_taken(&f->stream, f->kept.len);
	buf_done(&f->kept);
	tell_tty(f, "lost", error);
	if (f->eof)
		end_in(f);
}

void flows_end_input(struct job *j)
{
	for (struct flow *f = j->flows; f; f = f->next)
		if (f->stream.way == STREAM_IN && !f->over)
			refuse_in(f);
}
