/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include "base/clock.h"
#include "net/resolver_priv.h"

#define TRIES_MIN 4
#define HOPS_MAX  8  /* further questions along a chain */
#define BAD_MAX	  16 /* datagrams that are no answer, before it gives up */
#define TCP_MAX	  64 /* connections at a time */

static uint16_t next_id(struct resolver *r)
{
	if (r->nids == 0) {
		if (getrandom(r->ids, sizeof(r->ids), 0) !=
		    (ssize_t)sizeof(r->ids))
			abort();
		r->nids = array_len(r->ids);
	}
	return r->ids[--r->nids];
}

static void unqueue(struct resolver_flight *f)
{
	struct resolver *r = f->r;

	if (!f->try_at)
		return;
	*(f->prev ? &f->prev->next : &r->first) = f->next;
	*(f->next ? &f->next->prev : &r->last) = f->prev;
	f->try_at = 0;
}

/* All tries take as long, so the queue is in order; those that failed at once
 * go before all. */
static void queue(struct resolver_flight *f, bool now)
{
	struct resolver *r = f->r;

	unqueue(f);
	f->try_at = clock_ms() + (now ? 0 : r->conf.try_ms);
	f->prev = now ? NULL : r->last;
	f->next = now ? r->first : NULL;
	*(f->prev ? &f->prev->next : &r->first) = f;
	*(f->next ? &f->next->prev : &r->last) = f;
	if (!r->timer.at_ms || r->timer.at_ms > f->try_at)
		loop_timer_set(r->loop, &r->timer, f->try_at);
}

void flight_close(struct resolver_flight *f)
{
	if (f->fd < 0)
		return;
	loop_del(f->r->loop, &f->src);
	fd_close(steal_fd(&f->fd));
	if (f->tcp)
		f->r->ntcp--;
	free(steal_ptr(f->tcp));
}

void flight_pay(struct resolver_flight *f, struct resolver_wait *w)
{
	if (f->payer && f->payer->out)
		--*f->payer->out;
	f->payer = w;
	if (w && w->out)
		++*w->out;
}

void flight_over(struct resolver_flight *f,
		 const struct resolver_result *result)
{
	struct resolver_flight **p = &f->r->flights[f->hash % FLIGHT_BUCKETS];
	struct resolver_wait *w;

	while (*p != f)
		p = &(*p)->chain;
	*p = f->chain;
	f->over = true;
	flight_pay(f, NULL);
	unqueue(f);
	flight_close(f);
	f->r->stats.flight--;
	while ((w = f->waits)) {
		f->waits = w->next;
		w->flight = NULL;
		w->fn(w, result);
	}
	f->chain = f->r->spare;
	f->r->spare = f;
}

static void over(struct resolver_flight *f, struct resolver_result *res)
{
	const struct cache_key key = {f->name, f->family, f->hash};
	struct resolver *r = f->r;
	uint64_t now = clock_ms();

	res->addrs.family = f->family;
	if (res->status == RESOLVER_FAILED) {
		r->stats.failed++;
	} else {
		r->good = f->server;
		cache_put(&r->cache, &key, res, now);
		/* What is told is what the cache tells from now on. */
		cache_get(&r->cache, &key, now, res);
	}
	flight_over(f, res);
}

static void fail(struct resolver_flight *f)
{
	struct resolver_result res = {.status = RESOLVER_FAILED};

	over(f, &res);
}

/* This server is of no use for it. */
static void next_server(struct resolver_flight *f)
{
	const struct resolver_conf *c = &f->r->conf;
	size_t tries = 2 * c->nservers > TRIES_MIN ? 2 * c->nservers
						   : TRIES_MIN;

	flight_close(f);
	if (c->nservers == 0 || f->tries >= tries ||
	    clock_ms() + c->try_ms > f->end_at) {
		fail(f);
		return;
	}
	f->server = (uint8_t)((f->server + 1u) % c->nservers);
	flight_send(f);
}

void flight_timer(struct loop *l, struct loop_timer *t)
{
	struct resolver *r = t->arg;
	uint64_t now = clock_ms();

	/* One that fails at once again is for the next round. */
	for (unsigned i = 0; i < RESOLVER_FLIGHT; i++) {
		if (!r->first || r->first->try_at > now)
			break;
		next_server(r->first);
	}
	if (r->first && (!t->at_ms || t->at_ms > r->first->try_at))
		loop_timer_set(l, t, r->first->try_at);
}

static bool open_socket(struct resolver_flight *f, int type, uint32_t events,
			loop_fn *fn)
{
	const struct sockaddr_storage *to = &f->r->conf.servers[f->server];
	socklen_t len = to->ss_family == AF_INET ? sizeof(struct sockaddr_in)
						 : sizeof(struct sockaddr_in6);

	f->fd = socket(to->ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (f->fd < 0)
		return false;
	if ((connect(f->fd, (const struct sockaddr *)to, len) < 0 &&
	     errno != EINPROGRESS) ||
	    loop_add(f->r->loop, &f->src, f->fd, events, fn, f, NULL) < 0) {
		fd_close(steal_fd(&f->fd));
		return false;
	}
	return true;
}

static size_t build(struct resolver_flight *f, uint8_t *out)
{
	f->id = next_id(f->r);
	return dns_ask_build(f->id, f->asked,
			     f->family == AF_INET ? DNS_A : DNS_AAAA, out);
}

static void take(struct resolver_flight *f, const struct dns_answer *a);

static void parse(struct resolver_flight *f, const uint8_t *msg, size_t len)
{
	struct dns_answer a;
	int r;

	r = dns_answer_parse(msg, len, f->id, f->asked,
			     f->family == AF_INET ? DNS_A : DNS_AAAA, &a);
	if (r == 0) {
		take(f, &a);
		return;
	}
	f->r->stats.bad++;
	/* Of whom it is nobody knows: the right one may come yet. */
	if (f->tcp || ++f->bad > BAD_MAX)
		next_server(f);
}

static void on_udp(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct resolver_flight *f = s->arg;
	struct resolver *r = f->r;
	ssize_t n;

	(void)l, (void)events;
	n = recv(f->fd, r->msg, sizeof(r->msg), 0);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0)
		next_server(f); /* its machine says that nobody listens */
	else
		parse(f, r->msg, (size_t)n);
}

static void tcp_send(struct resolver_flight *f)
{
	ssize_t n = send(f->fd, f->tcp + f->at, f->len - f->at, MSG_NOSIGNAL);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n < 0) {
		next_server(f);
		return;
	}
	f->at += (size_t)n;
	if (f->at < f->len)
		return;
	f->receiving = true;
	f->at = 0;
	f->len = 2;
	if (loop_mod(f->r->loop, &f->src, EPOLLIN, NULL) < 0)
		next_server(f);
}

static void tcp_recv(struct resolver_flight *f)
{
	ssize_t n = recv(f->fd, f->tcp + f->at, f->len - f->at, 0);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n <= 0) {
		next_server(f);
		return;
	}
	f->at += (size_t)n;
	if (f->at < f->len)
		return;
	if (f->len == 2)
		f->len += (size_t)f->tcp[0] << 8 | f->tcp[1];
	if (f->at == f->len)
		parse(f, f->tcp + 2, f->len - 2);
}

static void on_tcp(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct resolver_flight *f = s->arg;

	(void)l, (void)events;
	if (f->receiving)
		tcp_recv(f);
	else
		tcp_send(f);
}

/* The whole answer of the same server. */
static void over_tcp(struct resolver_flight *f)
{
	struct resolver *r = f->r;
	size_t n;

	flight_close(f);
	if (r->ntcp < TCP_MAX)
		f->tcp = malloc(2 + DNS_TCP_MAX);
	if (!f->tcp || !open_socket(f, SOCK_STREAM, EPOLLOUT, on_tcp)) {
		free(steal_ptr(f->tcp));
		next_server(f);
		return;
	}
	r->ntcp++;
	r->stats.tcp++;
	n = build(f, f->tcp + 2);
	f->tcp[0] = (uint8_t)(n >> 8);
	f->tcp[1] = (uint8_t)n;
	f->at = 0;
	f->len = n + 2;
	f->receiving = false;
	queue(f, false);
}

void flight_send(struct resolver_flight *f)
{
	struct resolver *r = f->r;
	size_t n;

	f->tries++;
	f->bad = 0;
	if (r->conf.nservers && open_socket(f, SOCK_DGRAM, EPOLLIN, on_udp)) {
		n = build(f, r->msg);
		if (send(f->fd, r->msg, n, MSG_NOSIGNAL) == (ssize_t)n) {
			r->stats.sent++;
			queue(f, false);
			return;
		}
	}
	queue(f, true);
}

/* The chain goes on where this server did not follow it. */
static void go_on(struct resolver_flight *f, const char *name)
{
	if (++f->hops > HOPS_MAX) {
		fail(f);
		return;
	}
	flight_close(f);
	snprintf(f->asked, sizeof(f->asked), "%s", name);
	flight_send(f);
}

static void take(struct resolver_flight *f, const struct dns_answer *a)
{
	struct resolver_result res = {.status = RESOLVER_NONE};

	if (a->truncated) {
		if (f->tcp)
			next_server(f);
		else
			over_tcp(f);
		return;
	}
	if (a->rcode != DNS_NOERROR && a->rcode != DNS_NXDOMAIN) {
		next_server(f);
		return;
	}
	if (a->addrs.ttl < f->ttl)
		f->ttl = a->addrs.ttl;
	if (a->rcode == DNS_NXDOMAIN) {
		res.status = RESOLVER_NO_NAME;
	} else if (a->addrs.n) {
		res.status = RESOLVER_OK;
		res.addrs = a->addrs;
		res.addrs.ttl = f->ttl;
	} else if (*a->next) {
		go_on(f, a->next);
		return;
	}
	over(f, &res);
}
