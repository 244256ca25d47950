/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/dial.h"

struct
try {
	struct dial *dial;
	struct loop_source src;
	int fd; /* -1: not in use */
	struct netaddr addr;
};

struct dial {
	struct loop *loop;
	struct netaddr addrs[DIAL_ADDRS];
	size_t naddrs, next;
	uint16_t port;
	unsigned next_ms, running;
	uint64_t deadline;
	int failure;
	const struct dial_ops *ops;
	void *arg;
	struct loop_timer timer;
	struct try tries[DIAL_TRIES];
};

static void try_end(struct dial *d, struct try *t, bool keep)
{
	if (t->fd < 0)
		return;
	loop_del(d->loop, &t->src);
	if (!keep)
		fd_close(t->fd);
	t->fd = -1;
	d->running--;
}

void dial_free(struct dial *d)
{
	if (!d)
		return;
	loop_timer_set(d->loop, &d->timer, 0);
	for (int i = 0; i < DIAL_TRIES; i++)
		try_end(d, &d->tries[i], false);
	free(d);
}

static void finish(struct dial *d, int fd, const struct netaddr *addr)
{
	const struct netaddr used = addr ? *addr : (struct netaddr){0};
	const struct dial_ops *ops = d->ops;
	void *arg = d->arg;

	dial_free(d);
	ops->done(arg, fd, &used);
}

/* A peer that has gone without a word is noticed within about two minutes. */
static void options(int fd)
{
	const int on = 1, idle = 60, every = 15, count = 4;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof(every));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

static void go_on(struct dial *d);

static void on_try(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct try *t = s->arg;
	struct dial *d = t->dial;
	int why = 0, fd = t->fd;
	socklen_t len = sizeof(why);

	(void)l;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &len) < 0)
		why = errno;
	if (why == 0 && (events & EPOLLOUT)) {
		struct netaddr addr = t->addr;

		try_end(d, t, true);
		finish(d, fd, &addr);
		return;
	}
	try_end(d, t, false);
	d->failure = why ? -why : -ECONNRESET;
	go_on(d);
}

static int try_start(struct dial *d, struct try *t, const struct netaddr *addr)
{
	struct sockaddr_storage to;
	socklen_t len = netaddr_sock(addr, d->port, &to);
	auto_close int fd = -1;
	int r;

	fd = socket(to.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
		    0);
	if (fd < 0)
		return -errno;
	options(fd);
	if (connect(fd, (struct sockaddr *)&to, len) < 0 &&
	    errno != EINPROGRESS)
		return -errno;
	r = loop_add(d->loop, &t->src, fd, EPOLLOUT, on_try, t, NULL);
	if (r < 0)
		return r;
	t->addr = *addr;
	t->fd = steal_fd(&fd);
	d->running++;
	return 0;
}

static struct try *try_free(struct dial *d)
{
	for (int i = 0; i < DIAL_TRIES; i++)
		if (d->tries[i].fd < 0)
			return &d->tries[i];
	return NULL;
}

/* Start one more, if there is one, and be back when it has had its time. */
static void go_on(struct dial *d)
{
	struct try *t = try_free(d);
	uint64_t at = d->deadline, now = clock_ms();
	bool started = false;

	while (t && !started && d->next < d->naddrs) {
		const struct netaddr *addr = &d->addrs[d->next++];
		int r;

		if (!d->ops->may(d->arg, addr))
			continue;
		r = try_start(d, t, addr);
		started = r == 0;
		if (r < 0)
			d->failure = r;
	}
	if (d->running == 0) {
		finish(d, d->failure, NULL);
		return;
	}
	if (d->next < d->naddrs && try_free(d) && now + d->next_ms < at)
		at = now + d->next_ms;
	loop_timer_set(d->loop, &d->timer, at);
}

static void on_time(struct loop *l, struct loop_timer *t)
{
	struct dial *d = t->arg;

	(void)l;
	if (clock_ms() >= d->deadline)
		finish(d, -ETIMEDOUT, NULL);
	else
		go_on(d);
}

int dial_new(const struct dial_conf *conf, struct dial **ret, struct err *e)
{
	size_t n = conf->naddrs < DIAL_ADDRS ? conf->naddrs : DIAL_ADDRS;
	struct dial *d = calloc(1, sizeof(*d));
	uint64_t now = clock_ms();

	if (!d)
		return err_sys(e, ENOMEM, "connect");
	d->loop = conf->loop;
	memcpy(d->addrs, conf->addrs, n * sizeof(*conf->addrs));
	d->naddrs = n;
	d->port = conf->port;
	d->next_ms = conf->next_ms;
	d->deadline = now + conf->deadline_ms;
	d->failure = -EACCES;
	d->ops = conf->ops;
	d->arg = conf->arg;
	for (int i = 0; i < DIAL_TRIES; i++)
		d->tries[i] = (struct try){.dial = d, .fd = -1};
	d->timer = (struct loop_timer){.fn = on_time, .arg = d};
	loop_timer_set(d->loop, &d->timer, now);
	*ret = d;
	return 0;
}
