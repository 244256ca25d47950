/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "net/chan.h"

#define READ_CHUNK 16384

struct chan_going {
	struct chan_going *next;
	size_t at; /* of out: the first byte of their line */
	size_t n;
	int fds[HELPER_FDS_MAX];
};

static void going_free(struct chan_going *g)
{
	for (size_t i = 0; i < g->n; i++)
		fd_close(g->fds[i]);
	free(g);
}

void chan_msg_done(struct chan_msg *m)
{
	json_decref(m->obj);
	for (size_t i = 0; i < m->nfds; i++)
		if (m->fds[i] >= 0)
			fd_close(m->fds[i]);
	*m = (struct chan_msg){0};
}

int chan_take(struct chan_msg *m, const char *name)
{
	const json_t *names = json_object_get(m->obj, "fds");
	const char *one;

	for (size_t i = 0; i < m->nfds; i++) {
		one = json_string_value(json_array_get(names, i));
		if (one && !strcmp(one, name))
			return steal_fd(&m->fds[i]);
	}
	return -1;
}

void chan_done(struct chan *c)
{
	for (size_t i = 0; i < c->nfds; i++)
		if (c->fds[i] >= 0)
			fd_close(c->fds[i]);
	free(c->fds);
	while (c->going) {
		struct chan_going *g = c->going;

		c->going = g->next;
		going_free(g);
	}
	buf_done(&c->in);
	buf_done(&c->out);
	*c = (struct chan){.fd = c->fd, .lossy = c->lossy};
}

static int lost_fds(struct err *e)
{
	return err_set(e, -EMFILE, "no_fds", "descriptors of a line were lost");
}

/* What was lost is of the line that the last ones are of: a read ends there. */
static int keep_fds(struct chan *c, struct msghdr *msg, struct err *e)
{
	bool full = false;
	struct cmsghdr *m;

	for (m = CMSG_FIRSTHDR(msg); m; m = CMSG_NXTHDR(msg, m)) {
		size_t n = (m->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int fd;

		if (m->cmsg_level != SOL_SOCKET || m->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			memcpy(&fd, CMSG_DATA(m) + i * sizeof(int),
			       sizeof(int));
			if (c->nfds == c->room) {
				fd_close(fd);
				full = true;
			} else {
				c->fds[c->nfds++] = fd;
			}
		}
	}
	if ((msg->msg_flags & MSG_CTRUNC) && c->nfds < c->room)
		c->fds[c->nfds++] = -1;
	else if (msg->msg_flags & MSG_CTRUNC)
		full = true;
	return full ? lost_fds(e) : 0;
}

/* Lines are whole before their descriptors are used, and more than two lines'
 * worth cannot be on the way then. */
static int make_room(struct chan *c, struct err *e)
{
	if (buf_reserve(&c->in, READ_CHUNK) < 0)
		return err_sys(e, ENOMEM, "read a line");
	if (c->fds)
		return 0;
	c->fds = calloc(2 * HELPER_FDS_MAX, sizeof(int));
	if (!c->fds)
		return err_sys(e, ENOMEM, "read a line");
	c->room = 2 * HELPER_FDS_MAX;
	return 0;
}

int chan_read(struct chan *c, struct err *e)
{
	union {
		char buf[CMSG_SPACE(HELPER_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec iov = {.iov_len = READ_CHUNK};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = u.buf,
			     .msg_controllen = sizeof(u.buf)};
	ssize_t n;
	int r;

	if (c->in.len > JSON_LINE_MAX + READ_CHUNK)
		return err_set(e, -EMSGSIZE, "too_large",
			       "the line is over %d"
			       " bytes",
			       JSON_LINE_MAX);
	r = make_room(c, e);
	if (r < 0)
		return r;
	iov.iov_base = c->in.data + c->in.len;
	do
		n = recvmsg(c->fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "receive");
	r = keep_fds(c, &msg, e);
	if (r < 0)
		return r;
	c->in.len += (size_t)n;
	c->in.data[c->in.len] = '\0';
	return n > 0;
}

static int take_fds(struct chan *c, struct chan_msg *m, struct err *e)
{
	size_t n = json_array_size(json_object_get(m->obj, "fds")), k = 0;

	while (k < n && k < c->nfds && c->fds[k] >= 0)
		k++;
	m->lost = k < n && k < c->nfds;
	if (n > HELPER_FDS_MAX || (k < n && !m->lost))
		return err_set(e, -EBADMSG, "bad_record",
			       "a line names %zu descriptors, %zu came", n,
			       c->nfds);
	if (n == 0)
		return 0;
	memcpy(m->fds, c->fds, k * sizeof(int));
	m->nfds = k;
	k += m->lost;
	c->nfds -= k;
	memmove(c->fds, c->fds + k, c->nfds * sizeof(int));
	return m->lost && !c->lossy ? lost_fds(e) : 0;
}

int chan_next(struct chan *c, struct chan_msg *ret, struct err *e)
{
	auto_chan_msg struct chan_msg m = {0};
	char *nl;
	int r;

	if (c->in.len == c->scanned)
		return 0;
	nl = memchr(c->in.data + c->scanned, '\n', c->in.len - c->scanned);
	if (!nl) {
		c->scanned = c->in.len;
		return 0;
	}
	r = json_parse(c->in.data, (size_t)(nl - c->in.data), &m.obj, e);
	if (r == 0)
		r = take_fds(c, &m, e);
	if (r < 0)
		return r;
	buf_drop(&c->in, (size_t)(nl - c->in.data) + 1);
	c->scanned = 0;
	*ret = m;
	m = (struct chan_msg){0};
	return 1;
}

bool chan_lines(struct chan *c, struct chan_msg *m, int *r, struct err *e)
{
	chan_msg_done(m);
	if (*r <= 0)
		return false;
	*r = chan_next(c, m, e);
	if (*r == 0)
		*r = -EAGAIN;
	return *r > 0;
}

static ssize_t send_some(int fd, const char *data, size_t len, const int *fds,
			 size_t nfds, int flags)
{
	union {
		char buf[CMSG_SPACE(HELPER_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} u;
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *m;
	ssize_t n;

	assert(nfds <= HELPER_FDS_MAX);
	if (nfds > 0) {
		memset(&u, 0, sizeof(u));
		msg.msg_control = u.buf;
		msg.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		m = CMSG_FIRSTHDR(&msg);
		assert(m);
		m->cmsg_level = SOL_SOCKET;
		m->cmsg_type = SCM_RIGHTS;
		m->cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(m), fds, nfds * sizeof(int));
	}
	do
		n = sendmsg(fd, &msg, MSG_NOSIGNAL | flags);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

int chan_put(struct chan *c, const json_t *obj, struct err *e)
{
	auto_free char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
	size_t was = c->out.len;

	if (!text)
		return err_sys(e, ENOMEM, "write a line");
	if (strlen(text) > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "the line is over %d"
			       " bytes",
			       JSON_LINE_MAX);
	if (buf_add(&c->out, text, strlen(text)) < 0 ||
	    buf_add(&c->out, "\n", 1) < 0) {
		c->out.len = was;
		return err_sys(e, ENOMEM, "write a line");
	}
	return 0;
}

int chan_put_fds(struct chan *c, const json_t *obj, int *fds, size_t nfds,
		 struct err *e)
{
	struct chan_going **p = &c->going, *g;
	size_t was = c->out.len;
	int r;

	assert(nfds <= HELPER_FDS_MAX);
	if (nfds == 0)
		return chan_put(c, obj, e);
	g = calloc(1, sizeof(*g));
	r = g ? chan_put(c, obj, e) : err_sys(e, ENOMEM, "write a line");
	if (r < 0) {
		for (size_t i = 0; i < nfds; i++)
			fd_close(fds[i]);
		free(g);
		return r;
	}
	g->at = was;
	g->n = nfds;
	memcpy(g->fds, fds, nfds * sizeof(int));
	while (*p)
		p = &(*p)->next;
	*p = g;
	return 0;
}

/* Up to the next line that has descriptors, or that line with them. */
static ssize_t flush_some(struct chan *c, size_t done)
{
	struct chan_going *g = c->going;
	size_t end = c->out.len;
	ssize_t n;

	if (g && g->at > done)
		end = g->at;
	else if (g && g->next)
		end = g->next->at;
	if (!g || g->at > done)
		return send_some(c->fd, c->out.data + done, end - done, NULL, 0,
				 MSG_DONTWAIT);
	n = send_some(c->fd, c->out.data + done, end - done, g->fds, g->n,
		      MSG_DONTWAIT);
	if (n > 0) {
		c->going = g->next;
		going_free(g);
	}
	return n;
}

int chan_flush(struct chan *c, struct err *e)
{
	size_t done = 0;
	ssize_t n = 0;

	while (done < c->out.len) {
		n = flush_some(c, done);
		if (n < 0)
			break;
		done += (size_t)n;
	}
	for (struct chan_going *g = c->going; g; g = g->next)
		g->at -= done;
	if (done == c->out.len)
		buf_done(&c->out);
	else
		buf_drop(&c->out, done);
	return n < 0 && n != -EAGAIN ? err_sys(e, (int)-n, "send") : 0;
}

int chan_write(int fd, const char *data, size_t len, const int *fds,
	       size_t nfds)
{
	size_t done = 0;
	ssize_t n;

	while (done < len) {
		n = send_some(fd, data + done, len - done, fds,
			      done == 0 ? nfds : 0, 0);
		if (n < 0)
			return (int)n;
		done += (size_t)n;
	}
	return 0;
}

int chan_send(struct chan *c, const json_t *obj, const int *fds, size_t nfds,
	      struct err *e)
{
	int r;

	assert(c->out.len == 0);
	r = chan_put(c, obj, e);
	if (r < 0)
		return r;
	r = chan_write(c->fd, c->out.data, c->out.len, fds, nfds);
	buf_done(&c->out);
	return r < 0 ? err_sys(e, -r, "send") : 0;
}
