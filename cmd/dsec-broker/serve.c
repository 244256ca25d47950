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
static void on_leave(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct server *s = src->arg;

	(void)events;
	loop_del(l, &s->stay_src);
	loop_del(l, &s->src);
	s->leaving = true;
	conns_leave(s);
	if (!s->nconns)
		loop_stop(l, 0);
}

int serve(struct server *s, struct err *e)
{
	int r = loop_add(s->loop, &s->src, s->sock, EPOLLIN, on_worker, s, e);

	if (r == 0)
		r = loop_add(s->loop, &s->stay_src, s->stay, EPOLLIN, on_leave,
			     s, e);
	return r < 0 ? r : loop_run(s->loop, e);
}
