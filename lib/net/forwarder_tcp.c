/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>

#include "base/clock.h"
#include "net/forwarder_priv.h"

#define BATCH 16

void forwarder_conn_close(struct conn *c)
{
	forwarder_drop_pends(&c->port->pends, c);
	loop_del(c->port->loop, &c->src);
	fd_close(c->fd);
	link_del(&c->of_port);
	link_del(&c->of_forwarder);
	c->f->nconns--;
	free(c);
}

/* Only whole messages and bytes that were taken count as signs of life. */
static void alive(struct conn *c)
{
	c->idle_at = clock_ms() + FORWARDER_IDLE_MS;
	link_del(&c->of_port);
	link_add(&c->of_port, &c->port->conns);
	port_timer_set(c->port);
}

/* No more is taken than there is room for answers. */
static bool may_take(const struct conn *c)
{
	return c->out_len == 0 && c->pending < PIPELINE;
}

static void watch(struct conn *c)
{
	uint32_t events = 0;

	if (c->out_len)
		events |= EPOLLOUT;
	if (!c->eof && may_take(c))
		events |= EPOLLIN;
	if (c->dead || (c->eof && !c->out_len && !c->pending) ||
	    loop_mod(c->port->loop, &c->src, events, NULL) < 0)
		c->dead = true;
}

static void flush(struct conn *c)
{
	ssize_t n;

	while (c->out_at < c->out_len) {
		n = send(c->fd, c->out + c->out_at, c->out_len - c->out_at,
			 MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			c->dead |= errno != EAGAIN;
			return;
		}
		c->out_at += (size_t)n;
		alive(c);
	}
	c->out_at = c->out_len = 0;
}

void forwarder_conn_send(struct conn *c, const void *msg, size_t len)
{
	if (c->dead || sizeof(c->out) - c->out_len < len + 2) {
		c->dead = true;
		return;
	}
	c->out[c->out_len++] = (uint8_t)(len >> 8);
	c->out[c->out_len++] = (uint8_t)len;
	memcpy(c->out + c->out_len, msg, len);
	c->out_len += len;
	flush(c);
	watch(c);
}

/* The whole messages that were read, as long as they can be answered. */
static void take_messages(struct conn *c)
{
	const struct origin from = {.port = c->port, .conn = c};
	size_t len;

	while (!c->dead && c->in_len >= 2 && may_take(c)) {
		len = (size_t)c->in[0] << 8 | c->in[1];
		if (len > DNS_QUERY_MAX) {
			c->dead = true;
			return;
		}
		if (c->in_len < 2 + len)
			return;
		alive(c);
		forwarder_take(c->f, c->in + 2, len, &from);
		c->in_len -= 2 + len;
		memmove(c->in, c->in + 2 + len, c->in_len);
	}
}

static void read_some(struct conn *c)
{
	ssize_t n = recv(c->fd, c->in + c->in_len, sizeof(c->in) - c->in_len,
			 MSG_DONTWAIT);

	if (n < 0)
		c->dead |= errno != EAGAIN && errno != EINTR;
	else if (n == 0)
		c->eof = true;
	else
		c->in_len += (size_t)n;
}

void forwarder_conn_go_on(struct conn *c)
{
	if (!c->dead)
		take_messages(c);
	watch(c);
	if (c->dead)
		forwarder_conn_close(c);
}

static void on_conn(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct conn *c = s->arg;

	(void)l;
	if (events & (EPOLLERR | EPOLLHUP))
		c->dead = true;
	if (!c->dead && c->out_len)
		flush(c);
	if (!c->dead && events & EPOLLIN && may_take(c) &&
	    c->in_len < sizeof(c->in))
		read_some(c);
	forwarder_conn_go_on(c);
}

static int conn_new(struct forwarder_port *p, struct forwarder *f, int *fd)
{
	struct conn *c = malloc(sizeof(*c));

	if (!c)
		return -ENOMEM;
	memset(c, 0, offsetof(struct conn, in));
	c->port = p;
	c->f = f;
	c->fd = *fd;
	if (loop_add(p->loop, &c->src, c->fd, EPOLLIN, on_conn, c, NULL) < 0) {
		free(c);
		return -ENOMEM;
	}
	*fd = -1;
	link_init(&c->of_port);
	link_add(&c->of_forwarder, &f->conns);
	f->nconns++;
	alive(c);
	return 0;
}

void forwarder_conn_accept(struct forwarder_port *p)
{
	const struct linger reset = {.l_onoff = 1};
	struct sockaddr_storage peer;
	struct forwarder *f;
	socklen_t len;

	for (unsigned i = 0; i < BATCH; i++) {
		auto_close int fd = -1;

		len = sizeof(peer);
		fd = accept4(p->tcp, (struct sockaddr *)&peer, &len,
			     SOCK_NONBLOCK | SOCK_CLOEXEC);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE ||
			       errno == ENOMEM || errno == ENOBUFS)) {
			p->resting = true;
			(void)loop_mod(p->loop, &p->tcp_src, 0, NULL);
			port_timer_set(p);
		}
		if (fd < 0)
			return;
		f = p->find(p->arg, (struct sockaddr *)&peer);
		if (f && f->nconns < FORWARDER_CONNS &&
		    conn_new(p, f, &fd) == 0)
			continue;
		(void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset,
				 sizeof(reset));
	}
}
