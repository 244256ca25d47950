/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "serve/server_priv.h"

#define BACKLOG	   1024
#define BATCH	   64
#define REST_MS	   100	/* out of descriptors, or of room */
#define SPARE	   64	/* descriptors that connections leave to others */
#define SHAKE_MS   2000 /* who has had so long may be put out for another */
#define CLIENTS	   8192
#define SHAKING	   512
#define REQUESTS   1024
#define CALLS	   16384
#define PORT_CHARS 5

/* --- accepting ------------------------------------------------------------ */

static void watch(struct server *s, bool on)
{
	for (size_t i = 0; i < s->nlisteners; i++)
		(void)loop_mod(s->env->loop, &s->listeners[i].src,
			       on ? EPOLLIN : 0, NULL);
	s->resting = !on;
}

static void rest(struct server *s)
{
	watch(s, false);
	loop_timer_set(s->env->loop, &s->rest, clock_ms() + REST_MS);
}

static void on_rested(struct loop *l, struct loop_timer *t)
{
	(void)l;
	watch(t->arg, true);
}

/* The one that is in its handshake for longest, if that is long. */
static bool put_out(struct server *s)
{
	struct client *old = NULL;
	struct err e = {0};

	for (struct client *cl = s->clients; cl; cl = cl->next)
		if (!conn_peer(cl->c) && !cl->put_out &&
		    (!old || cl->since_ms < old->since_ms))
			old = cl;
	if (!old || clock_ms() - old->since_ms < SHAKE_MS)
		return false;
	err_set(&e, -ETIMEDOUT, "timeout", "others wait for a handshake");
	conn_cut(old->c, &e);
	old->put_out = true;
	s->leaving++;
	return true;
}

/* Each that is put out makes room for one, though it is there for a moment
 * yet. */
static bool may_shake(struct server *s)
{
	return s->env->shaking < s->conf.limits.shaking + s->leaving;
}

/* Those that are here have streams, the daemon has files and programs: where
 * descriptors are few, these have theirs, and who connects waits.  The limit is
 * not asked for: it may be lowered at any time. */
static bool has_fds(int fd)
{
	auto_close int low = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	auto_close int high = low < 0 ? -1
				      : fcntl(fd, F_DUPFD_CLOEXEC, low + SPARE);

	return high >= 0;
}

static bool has_room(struct server *s, int fd)
{
	return s->stats.clients < s->conf.limits.clients && has_fds(fd) &&
	       (may_shake(s) || put_out(s));
}

void server_resume(struct server *s)
{
	if (s->resting && s->stats.clients < s->conf.limits.clients &&
	    may_shake(s))
		loop_timer_set(s->env->loop, &s->rest, clock_ms());
}

static void on_listener(struct loop *l, struct loop_source *src,
			uint32_t events)
{
	struct listener *ls = src->arg;
	struct err e = {0};
	int fd;

	(void)l, (void)events;
	for (unsigned i = 0; i < BATCH; i++) {
		if (!has_room(ls->s, ls->fd)) {
			rest(ls->s);
			return;
		}
		fd = accept4(ls->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		/* Only of these is there no more to be told at once. */
		if (fd < 0 && errno != EAGAIN && errno != EINTR &&
		    errno != ECONNABORTED)
			rest(ls->s);
		if (fd < 0)
			return;
		if (server_take(ls->s, &fd, &e) < 0)
			log_debug("serve", "%s", e.msg);
	}
}

int server_listen(struct server *s, int *fd, struct err *e)
{
	struct listener *ls = &s->listeners[s->nlisteners];
	int r;

	if (s->nlisteners == LISTENERS_MAX) {
		fd_close(steal_fd(fd));
		return err_set(e, -ENOSPC, "configuration",
			       "%d listeners at most", LISTENERS_MAX);
	}
	*ls = (struct listener){.s = s, .fd = *fd};
	r = loop_add(s->env->loop, &ls->src, *fd, EPOLLIN, on_listener, ls, e);
	if (r < 0) {
		fd_close(steal_fd(fd));
		return r;
	}
	*fd = -1;
	s->nlisteners++;
	return 0;
}

/* --- addresses ------------------------------------------------------------ */

union sock_addr {
	struct sockaddr sa;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
};

static int read_port(const char *text, uint16_t *ret)
{
	unsigned long n;
	char *end;

	if (!*text || strlen(text) > PORT_CHARS ||
	    strspn(text, "0123456789") != strlen(text))
		return -EINVAL;
	n = strtoul(text, &end, 10);
	*ret = (uint16_t)n;
	return n > 65535 ? -EINVAL : 0;
}

static int read_addr(const char *address, union sock_addr *ret,
		     socklen_t *ret_len)
{
	const char *colon = strrchr(address, ':');
	bool v6 = address[0] == '[';
	char host[INET6_ADDRSTRLEN + 2];
	uint16_t port;
	size_t n;

	if (!colon || read_port(colon + 1, &port) < 0)
		return -EINVAL;
	n = (size_t)(colon - address);
	if (v6 && (n < 2 || address[n - 1] != ']'))
		return -EINVAL;
	n -= v6 ? 2 : 0;
	if (n >= sizeof(host))
		return -EINVAL;
	memcpy(host, address + v6, n);
	host[n] = '\0';
	*ret = (union sock_addr){0};
	ret->sa.sa_family = v6 ? AF_INET6 : AF_INET;
	*ret_len = v6 ? sizeof(ret->in6) : sizeof(ret->in);
	if (v6)
		ret->in6.sin6_port = htons(port);
	else
		ret->in.sin_port = htons(port);
	return inet_pton(ret->sa.sa_family, host,
			 v6 ? (void *)&ret->in6.sin6_addr
			    : (void *)&ret->in.sin_addr) == 1
		       ? 0
		       : -EINVAL;
}

int server_bind(const char *address, unsigned flags, int *ret_fd, struct err *e)
{
	auto_close int fd = -1;
	union sock_addr u;
	const int on = 1;
	socklen_t len;

	if (read_addr(address, &u, &len) < 0)
		return err_set(e, -EINVAL, "configuration",
			       "'%.64s' is not ADDRESS:PORT", address);
	fd = socket(u.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
		    0);
	if (fd < 0)
		return err_sys(e, errno, "socket");
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (flags & SERVER_SHARED)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on));
	if (bind(fd, &u.sa, len) < 0 || listen(fd, BACKLOG) < 0)
		return err_sys(e, errno, "listen on %.64s", address);
	*ret_fd = steal_fd(&fd);
	return 0;
}

int server_bound(int fd, char *ret)
{
	union sock_addr u = {0};
	socklen_t len = sizeof(u);
	char host[INET6_ADDRSTRLEN];
	bool v6;

	if (getsockname(fd, &u.sa, &len) < 0)
		return -errno;
	v6 = u.sa.sa_family == AF_INET6;
	if (!inet_ntop(u.sa.sa_family,
		       v6 ? (void *)&u.in6.sin6_addr : (void *)&u.in.sin_addr,
		       host, sizeof(host)))
		return -EINVAL;
	snprintf(ret, SERVER_ADDR_MAX, v6 ? "[%s]:%u" : "%s:%u", host,
		 ntohs(v6 ? u.in6.sin6_port : u.in.sin_port));
	return 0;
}

/* --- a server ------------------------------------------------------------- */

static void or_default(unsigned *n, unsigned dflt)
{
	if (!*n)
		*n = dflt;
}

int server_new(struct conn_env *env, const struct server_conf *conf,
	       struct server **ret, struct err *e)
{
	struct server *s = calloc(1, sizeof(*s));

	if (!s)
		return err_sys(e, ENOMEM, "server");
	s->env = env;
	s->conf = *conf;
	or_default(&s->conf.limits.clients, CLIENTS);
	or_default(&s->conf.limits.shaking, SHAKING);
	or_default(&s->conf.limits.requests, REQUESTS);
	or_default(&s->conf.limits.calls, CALLS);
	s->rest = (struct loop_timer){.fn = on_rested, .arg = s};
	*ret = s;
	return 0;
}

static void close_listeners(struct server *s)
{
	for (size_t i = 0; i < s->nlisteners; i++) {
		loop_del(s->env->loop, &s->listeners[i].src);
		fd_close(s->listeners[i].fd);
	}
	s->nlisteners = 0;
	loop_timer_set(s->env->loop, &s->rest, 0);
}

void server_retire(struct server *s)
{
	close_listeners(s);
}

void server_free(struct server *s)
{
	if (!s)
		return;
	close_listeners(s);
	free(s);
}
