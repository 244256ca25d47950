/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "net/broker.h"
#include "net/proxy_priv.h"

#define TLS_HANDSHAKE 0x16

/*
 * The way to the sandbox is inside the node: it has no bottleneck but its ends.
 * What the node has chosen for the world may pace (bbr does), which there costs
 * a timer for every few segments, and a third of what could pass.
 */
static void inner_options(int fd)
{
	static const char local[] = "reno"; /* every kernel's, everybody's */
	const int on = 1;

	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, local,
			 sizeof(local) - 1);
}

struct conn *proxy_conn_new(struct proxy_client *c, int fd, uint16_t port,
			    const struct netaddr *addr)
{
	struct conn *n = calloc(1, sizeof(*n));

	if (!n) {
		pump_reset(fd);
		return NULL;
	}
	inner_options(fd);
	n->client = c;
	n->fd = fd;
	n->port = port;
	n->addr = *addr;
	n->next = c->conns;
	n->pprev = &c->conns;
	if (n->next)
		n->next->pprev = &n->next;
	c->conns = n;
	c->stats->connections++;
	return n;
}

void conn_end(struct conn *n)
{
	struct proxy *p = n->client->proxy;

	loop_timer_set(p->loop, &n->deadline, 0);
	resolver_cancel(p->resolver, &n->wait);
	dial_free(n->dial);
	pump_cut(n->pump);
	if (n->fd >= 0) {
		loop_del(p->loop, &n->src);
		pump_reset(n->fd);
	}
	*n->pprev = n->next;
	if (n->next)
		n->next->pprev = n->pprev;
	n->client->stats->connections--;
	netpol_free(n->brokered);
	free(n->hello);
	free(n->name);
	free(n);
}

void proxy_conn_refuse(struct conn *n, const char *why)
{
	const struct denied_event ev = {
		.name = n->name,
		.addr = &n->addr,
		.port = n->port,
		.proto = NETPOL_TCP,
		.why = why,
	};

	n->client->stats->refused++;
	denied_add(n->client->denied, &ev);
	conn_end(n);
}

static bool addr_may(const struct conn *n, const struct netaddr *a)
{
	const struct proxy_client *c = n->client;

	return !netdeny_denies(*c->proxy->deny, a, NETPOL_TCP, n->port) &&
	       !netpol_denies_addr(c->policy, a, NETPOL_TCP, n->port, NULL);
}

/* Does the policy still have all the endpoints it was handed over with? */
static bool broker_may(const struct conn *n)
{
	size_t k;
	const char *const *names = netpol_brokers(n->brokered, &k);

	for (size_t i = 0; i < k; i++)
		if (!netpol_broker(n->client->policy, names[i]))
			return false;
	return true;
}

bool conn_may(const struct conn *n)
{
	if (!n->name)
		return true;
	if (n->brokered)
		return broker_may(n);
	if (!netpol_allows_name(n->client->policy, n->name, NETPOL_TCP, n->port,
				NULL))
		return false;
	return n->state != CONN_PUMP || addr_may(n, &n->addr);
}

/* --- joined -------------------------------------------------------------- */

static void on_done(void *arg, enum pump_end why)
{
	struct conn *n = arg;

	n->pump = NULL;
	if (why == PUMP_STOP)
		proxy_conn_refuse(n, "limit");
	else
		conn_end(n);
}

static bool on_count(void *arg, bool up, size_t bytes)
{
	struct proxy_client *c = ((struct conn *)arg)->client;
	uint64_t most = netpol_limits(c->policy)->bytes_mb;

	if (up)
		c->stats->sent += bytes;
	else
		c->stats->received += bytes;
	return most == 0 || c->stats->sent + c->stats->received <= most << 20;
}

static const struct pump_ops pump_ops = {on_done, on_count};

static void join(struct conn *n, int upstream)
{
	struct proxy_client *c = n->client;
	const struct pump_conf conf = {
		.pool = c->proxy->pool,
		.a = n->fd,
		.b = upstream,
		.ops = &pump_ops,
		.arg = n,
		.idle_ms = PROXY_IDLE_MS,
		.up = &c->up,
		.down = &c->down,
	};

	loop_del(c->proxy->loop, &n->src);
	if (pump_new(&conf, &n->pump, NULL) < 0) {
		pump_reset(upstream);
		conn_end(n);
		return;
	}
	n->fd = -1;
	n->state = CONN_PUMP;
}

/* --- connecting ---------------------------------------------------------- */

static bool on_may(void *arg, const struct netaddr *addr)
{
	return addr_may(arg, addr);
}

static void on_dialed(void *arg, int fd, const struct netaddr *addr)
{
	struct conn *n = arg;

	n->dial = NULL;
	/* What is denied may have changed since it was begun. */
	if (fd >= 0 && !addr_may(n, addr)) {
		pump_reset(fd);
		n->addr = *addr;
		fd = -EACCES;
	}
	if (fd == -EACCES)
		proxy_conn_refuse(n, "private");
	else if (fd == -EMFILE || fd == -ENFILE)
		proxy_conn_refuse(n, "limit");
	else if (fd < 0)
		conn_end(n); /* upstream's doing, no verdict */
	if (fd < 0)
		return;
	n->addr = *addr;
	join(n, fd);
}

static const struct dial_ops dial_ops = {on_may, on_dialed};

static void connect_to(struct conn *n, const struct dns_addrs *addrs)
{
	struct netaddr list[DIAL_ADDRS] = {0};
	const struct dial_conf conf = {
		.loop = n->client->proxy->loop,
		.addrs = list,
		.naddrs = addrs->n < DIAL_ADDRS ? addrs->n : DIAL_ADDRS,
		.port = n->port,
		.deadline_ms = PROXY_CONNECT_MS,
		.next_ms = PROXY_NEXT_MS,
		.ops = &dial_ops,
		.arg = n,
	};

	for (size_t i = 0; i < conf.naddrs; i++) {
		if (addrs->family == AF_INET) {
			list[i] = netaddr_v4(addrs->v4[i].s_addr);
			continue;
		}
		list[i].v6 = true;
		memcpy(list[i].b, &addrs->v6[i], sizeof(list[i].b));
	}
	n->addr = list[0]; /* what a refusal tells */
	n->state = CONN_DIAL;
	if (dial_new(&conf, &n->dial, NULL) < 0)
		conn_end(n);
}

/* --- resolving ----------------------------------------------------------- */

static void resolve(struct conn *n, sa_family_t family);

static void resolved(struct conn *n, const struct resolver_result *result)
{
	if (result->status == RESOLVER_OK && result->addrs.n > 0)
		connect_to(n, &result->addrs);
	else if (n->family == AF_INET && result->status != RESOLVER_NO_NAME)
		resolve(n, AF_INET6);
	else
		conn_end(n);
}

static void on_resolved(struct resolver_wait *w,
			const struct resolver_result *result)
{
	resolved(w->arg, result);
}

static void resolve(struct conn *n, sa_family_t family)
{
	const struct resolver_result *result;
	int r;

	n->family = family;
	n->wait = (struct resolver_wait){.fn = on_resolved,
					 .arg = n,
					 .out = &n->client->nout};
	r = resolver_ask(n->client->proxy->resolver, n->name, family, &n->wait,
			 &result);
	if (r == -EBUSY)
		proxy_conn_refuse(n, "limit");
	else if (r < 0)
		conn_end(n);
	else if (r > 0)
		resolved(n, result);
}

/* Nothing is read before there is somebody to pass it on to; what can happen
 * is that the client breaks off. */
static void on_client(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)l;
	(void)events;
	conn_end(s->arg);
}

/* Over to the broker, with what the policy has for it. */
static void to_broker(struct conn *n)
{
	struct proxy *p = n->client->proxy;
	struct netpol *policy = n->client->policy;
	const char *const *names;
	size_t k;
	int fd;

	names = netpol_brokers(policy, &k);
	fd = p->broker < 0
		     ? -EPIPE
		     : broker_hand(p->broker, n->client->id, names, k, NULL);
	if (fd < 0) {
		proxy_conn_refuse(n, fd == -EAGAIN ? "limit" : "broker");
		return;
	}
	n->brokered = netpol_ref(policy);
	join(n, fd);
}

/* Its name is settled, and allowed: on with it. */
static void go(struct conn *n)
{
	struct proxy *p = n->client->proxy;

	free(n->hello);
	n->hello = NULL;
	loop_timer_set(p->loop, &n->deadline, 0);
	loop_del(p->loop, &n->src);
	if (loop_add(p->loop, &n->src, n->fd, 0, on_client, n, NULL) < 0) {
		conn_end(n);
		return;
	}
	n->state = CONN_RESOLVE;
	if (!strcmp(n->name, NETPOL_BROKER_NAME))
		to_broker(n);
	else
		resolve(n, AF_INET);
}

/* Takes the name on; false: it was the end. */
static bool name_it(struct conn *n, const char *name)
{
	struct netpol_why verdict;
	char *own = strdup(name);

	if (!own) {
		conn_end(n);
		return false;
	}
	free(n->name);
	n->name = own;
	if (netpol_allows_name(n->client->policy, own, NETPOL_TCP, n->port,
			       &verdict))
		return true;
	proxy_conn_refuse(n, verdict.word);
	return false;
}

void conn_named(struct conn *n, const char *name)
{
	if (!name) {
		proxy_conn_refuse(n, "address");
		return;
	}
	if (!name_it(n, name))
		return;
	if (n->port == PROXY_TLS_PORT)
		conn_hello(n);
	else
		go(n);
}

/* --- ClientHello --------------------------------------------------------- */

/* Readable again when there is more than what has been looked at. */
static void wait_beyond(int fd, size_t seen)
{
	const int low = (int)seen + 1;

	(void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low));
}

/* What is resolved because a client says it is a question to the world, and
 * costs what one of the resolver's does. */
static bool may_ask(const struct conn *n)
{
	const struct proxy_client *c = n->client;
	struct in_addr unused;

	return fakename_get(c->names, n->name,
			    !netpol_name_exact(c->policy, n->name),
			    &unused) == 0;
}

/*
 * The name that the client tells the server.  Where the address that it
 * connected to has told us one already it is free to use another, if that is
 * allowed as well, and is then connected to that.
 */
static void server_name(struct conn *n)
{
	char name[DNS_NAME_MAX + 1];

	memcpy(name, n->hello->name, sizeof(name));
	wait_beyond(n->fd, 0);
	if (n->name && strcmp(n->name, name) &&
	    !netpol_allows_name(n->client->policy, name, NETPOL_TCP, n->port,
				NULL))
		proxy_conn_refuse(n, "sni");
	else if (!name_it(n, name))
		return;
	else if (may_ask(n))
		go(n);
	else
		proxy_conn_refuse(n, "limit");
}

static void on_hello(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct conn *n = s->arg;
	char *buf = n->client->proxy->hello;
	ssize_t got = recv(n->fd, buf, HELLO_MAX, MSG_PEEK);
	int r = 0;

	(void)l;
	if (got < 0 && (errno == EAGAIN || errno == EINTR) &&
	    !(events & (EPOLLERR | EPOLLHUP)))
		return;
	if (got <= 0) {
		conn_end(n);
		return;
	}
	/* Another protocol than TLS, at an address with a name. */
	if (n->name && buf[0] != TLS_HANDSHAKE) {
		wait_beyond(n->fd, 0);
		go(n);
		return;
	}
	if ((size_t)got > n->seen)
		r = hello_feed(n->hello, buf + n->seen, (size_t)got - n->seen);
	else if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
		r = -EPROTO; /* there will be no more */
	n->seen = (size_t)got;
	if (r == 0 && n->seen >= HELLO_MAX)
		r = -EPROTO;
	if (r < 0)
		proxy_conn_refuse(n, "sni");
	else if (r > 0)
		server_name(n);
	else
		wait_beyond(n->fd, n->seen);
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	(void)l;
	proxy_conn_refuse(t->arg, "sni");
}

void conn_hello(struct conn *n)
{
	struct loop *l = n->client->proxy->loop;

	n->hello = calloc(1, sizeof(*n->hello));
	if (!n->hello || loop_add(l, &n->src, n->fd, EPOLLIN | EPOLLRDHUP,
				  on_hello, n, NULL) < 0) {
		conn_end(n);
		return;
	}
	n->deadline = (struct loop_timer){.fn = on_late, .arg = n};
	loop_timer_set(l, &n->deadline, clock_ms() + PROXY_HELLO_MS);
}
