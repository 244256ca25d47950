/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/epoll.h>

#include "broker.h"

#define BATCH 16

static unsigned conns_of(const struct server *s, const char *sandbox)
{
	unsigned n = 0;

	for (const struct conn *c = s->conns; c; c = c->next)
		n += !strcmp(c->who.sandbox, sandbox);
	return n;
}

/* However many sandboxes take what they can, the next one gets some. */
static bool may_have(const struct server *s, const char *sandbox)
{
	unsigned left = CONNS_MAX - s->nconns, n = conns_of(s, sandbox);

	return left > 0 && n < CONNS_SANDBOX && n <= left / 3;
}

static void on_worker(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct server *s = src->arg;
	struct broker_conn who;
	struct err e = {0};
	int r;

	(void)events;
	for (unsigned i = 0; i < BATCH; i++) {
		r = broker_take(s->sock, &who, &e);
		if (r == -EAGAIN)
			return;
		if (r == 0)
			loop_stop(l, 0);
		if (r <= 0)
			return;
		if (may_have(s, who.sandbox))
			conn_new(s, &who);
		else
			fd_close(who.fd);
	}
}

/* What is under way goes on with the configuration that it began with. */
static void leave(struct server *s)
{
	if (s->leaving)
		return;
	loop_del(s->loop, &s->src);
	s->leaving = true;
	conns_leave(s);
	if (!s->nconns)
		loop_stop(s->loop, 0);
}

static void on_keeper(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct server *s = src->arg;
	size_t nfds = 1;
	char order;
	int fd;
	ssize_t n = fd_recv(s->keeper, &order, 1, &fd, &nfds, NULL);

	(void)events;
	if (n == -EAGAIN)
		return;
	if (n <= 0)
		loop_del(l, src);
	if (n <= 0 || order == ORDER_LEAVE)
		leave(s);
	else if (order == ORDER_AUDIT && nfds == 1)
		broker_audit_file(s->audit, fd);
}

int serve(struct server *s, struct err *e)
{
	int r = loop_add(s->loop, &s->src, s->sock, EPOLLIN, on_worker, s, e);

	if (r == 0)
		r = loop_add(s->loop, &s->keeper_src, s->keeper, EPOLLIN,
			     on_keeper, s, e);
	return r < 0 ? r : loop_run(s->loop, e);
}
