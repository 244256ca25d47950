/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/proxy_priv.h"

#include <linux/netfilter_ipv4.h> /* after netinet/in.h */

#define ACCEPTS	 64  /* before others get their turn */
#define PAUSE_MS 100 /* of a listener while there are no descriptors */

/* A number of its own for what is open anyway. */
static int another(const struct proxy *p)
{
	return fcntl(pump_pool_fd(p->pool), F_DUPFD_CLOEXEC, 3);
}

int proxy_new(const struct proxy_conf *conf, struct proxy **ret, struct err *e)
{
	struct proxy *p = calloc(1, sizeof(*p));

	if (!p)
		return err_sys(e, ENOMEM, "proxy");
	p->loop = conf->loop;
	p->resolver = conf->resolver;
	p->deny = conf->deny;
	p->pool = conf->pool;
	p->broker = conf->broker;
	p->reserve = another(p);
	*ret = p;
	return 0;
}

void proxy_free(struct proxy *p)
{
	if (!p)
		return;
	if (p->reserve >= 0)
		fd_close(p->reserve);
	free(p);
}

/* --- clients ------------------------------------------------------------- */

static void set_limits(struct proxy_client *c)
{
	uint64_t rate = netpol_limits(c->policy)->bandwidth_mbit;

	pump_bucket_rate(c->proxy->pool, &c->up, rate * 125000);
	pump_bucket_rate(c->proxy->pool, &c->down, rate * 125000);
}

int proxy_client_new(struct proxy *p, const char *id, struct netpol *policy,
		     struct fakename *names, struct denied *denied,
		     struct proxy_client **ret, struct err *e)
{
	struct proxy_client *c = calloc(1, sizeof(*c));
	char *own = strdup(id);

	if (!c || !own) {
		free(c);
		free(own);
		return err_sys(e, ENOMEM, "sandbox '%s'", id);
	}
	c->proxy = p;
	c->id = own;
	c->policy = netpol_ref(policy);
	c->names = names;
	c->denied = denied;
	c->stats = &c->own;
	set_limits(c);
	*ret = c;
	return 0;
}

void proxy_client_free(struct proxy_client *c)
{
	if (!c)
		return;
	while (c->conns)
		conn_end(c->conns);
	pump_bucket_rate(c->proxy->pool, &c->up, 0);
	pump_bucket_rate(c->proxy->pool, &c->down, 0);
	netpol_free(c->policy);
	free(c->id);
	free(c);
}

static unsigned recheck(struct proxy_client *c)
{
	struct conn *n, *next;
	unsigned cut = 0;

	for (n = c->conns; n; n = next) {
		next = n->next;
		if (conn_may(n))
			continue;
		cut++;
		c->stats->cut++;
		proxy_conn_refuse(n, "policy");
	}
	return cut;
}

unsigned proxy_client_policy(struct proxy_client *c, struct netpol *policy)
{
	struct netpol *was = c->policy;
	unsigned cut;

	c->policy = netpol_ref(policy);
	set_limits(c);
	cut = recheck(c);
	netpol_free(was);
	return cut;
}

unsigned proxy_client_recheck(struct proxy_client *c)
{
	return recheck(c);
}

void proxy_client_count(struct proxy_client *c, struct proxy_stats *at)
{
	c->stats = at;
	at->connections = 0;
}

void proxy_client_stats(const struct proxy_client *c, struct proxy_stats *ret)
{
	*ret = *c->stats;
}

/* --- accepting ----------------------------------------------------------- */

static bool rate_allows(struct proxy_client *c)
{
	uint64_t per_s = netpol_limits(c->policy)->connections_per_s;
	uint64_t now = clock_ms(), most = per_s * 2 * 1000;
	uint64_t ms = now - c->rate_at_ms;

	if (c->rate_at_ms == 0 || ms > 2000)
		c->rate_left = most;
	else
		c->rate_left += ms * per_s;
	if (c->rate_left > most)
		c->rate_left = most;
	c->rate_at_ms = now;
	if (c->rate_left < 1000)
		return false;
	c->rate_left -= 1000;
	return true;
}

static bool limits_allow(struct proxy_client *c)
{
	const struct netpol_limits *m = netpol_limits(c->policy);

	return c->stats->connections < m->connections &&
	       (m->bytes_mb == 0 ||
		c->stats->sent + c->stats->received < m->bytes_mb << 20) &&
	       rate_allows(c);
}

static void refuse_fd(struct proxy_client *c, int fd, const char *why,
		      uint16_t port, const struct netaddr *addr)
{
	const struct denied_event ev = {.addr = addr,
					.port = port,
					.proto = NETPOL_TCP,
					.why = why};

	c->stats->refused++;
	denied_add(c->denied, &ev);
	pump_reset(fd);
}

/* Where it meant to go: inside, the address that it has; in the transit, the
 * one it had before it was redirected. */
static int destination(const struct proxy_port *port, int fd,
		       struct sockaddr_in *ret)
{
	socklen_t len = sizeof(*ret);

	if (!port->find || port->broker)
		return getsockname(fd, (struct sockaddr *)ret, &len);
	return getsockopt(fd, SOL_IP, SO_ORIGINAL_DST, ret, &len);
}

static void take(struct proxy_port *port, int fd,
		 const struct sockaddr_in *peer)
{
	struct proxy_client *c = port->client;
	struct sockaddr_in to = {0};
	const char *name;
	struct netaddr addr;
	struct conn *n;

	if (port->find)
		c = port->find(port->arg, peer->sin_addr);
	if (!c || destination(port, fd, &to) < 0) {
		pump_reset(fd);
		return;
	}
	addr = netaddr_v4(to.sin_addr.s_addr);
	c->stats->accepted++;
	if (!limits_allow(c)) {
		refuse_fd(c, fd, "limit", ntohs(to.sin_port), &addr);
		return;
	}
	n = proxy_conn_new(c, fd, port->find ? ntohs(to.sin_port) : port->port,
			   &addr);
	if (!n)
		return;
	if (port->broker) {
		conn_named(n, NETPOL_BROKER_NAME);
		return;
	}
	if (port->find) {
		conn_hello(n);
		return;
	}
	name = fakename_name(c->names, to.sin_addr);
	conn_named(n, name);
}

static void on_accept(struct loop *l, struct loop_source *s, uint32_t events);

static void on_pause(struct loop *l, struct loop_timer *t)
{
	struct proxy_port *port = t->arg;

	if (port->proxy->reserve < 0)
		port->proxy->reserve = another(port->proxy);
	if (port->proxy->reserve < 0 ||
	    loop_mod(l, &port->src, EPOLLIN, NULL) < 0)
		loop_timer_set(l, t, clock_ms() + PAUSE_MS);
}

/*
 * No descriptors: whoever waits is told at once, by means of the one that is
 * kept for this.  false: nothing can be done, the listener takes a rest.
 */
static bool shed(struct proxy_port *port)
{
	struct proxy *p = port->proxy;
	int fd = -1;

	if (p->reserve >= 0) {
		const struct denied_event ev = {.port = port->port,
						.proto = NETPOL_TCP,
						.why = "limit"};

		fd_close(p->reserve);
		fd = accept4(port->src.fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd >= 0) {
			pump_reset(fd);
			if (port->client) {
				port->client->stats->refused++;
				denied_add(port->client->denied, &ev);
			}
		}
		p->reserve = another(p);
	}
	if (fd >= 0 && p->reserve >= 0)
		return true;
	(void)loop_mod(p->loop, &port->src, 0, NULL);
	loop_timer_set(p->loop, &port->pause, clock_ms() + PAUSE_MS);
	return false;
}

static void on_accept(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct proxy_port *port = s->arg;

	(void)l;
	(void)events;
	for (int i = 0; i < ACCEPTS; i++) {
		struct sockaddr_in peer;
		socklen_t len = sizeof(peer);
		int fd = accept4(s->fd, (struct sockaddr *)&peer, &len,
				 SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd >= 0)
			take(port, fd, &peer);
		else if (errno == EMFILE || errno == ENFILE ||
			 errno == ENOBUFS || errno == ENOMEM) {
			if (!shed(port))
				return;
		} else if (errno != ECONNABORTED && errno != EINTR)
			return;
	}
}

static int port_new(const struct proxy_port *like, int fd,
		    struct proxy_port **ret, struct err *e)
{
	struct loop *l = like->proxy->loop;
	struct proxy_port *port;
	int flags = fcntl(fd, F_GETFL), r;

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return err_sys(e, errno, "listener of port %u", like->port);
	port = malloc(sizeof(*port));
	if (!port)
		return err_sys(e, ENOMEM, "listener");
	*port = *like;
	port->pause = (struct loop_timer){.fn = on_pause, .arg = port};
	r = loop_add(l, &port->src, fd, EPOLLIN, on_accept, port, e);
	if (r < 0)
		free(port);
	else
		*ret = port;
	return r;
}

int proxy_listen(struct proxy_client *c, int fd, uint16_t port,
		 struct proxy_port **ret, struct err *e)
{
	const struct proxy_port like = {.proxy = c->proxy,
					.client = c,
					.port = port};

	return port_new(&like, fd, ret, e);
}

int proxy_sni(struct proxy *p, int fd, proxy_find *find, void *arg,
	      struct proxy_port **ret, struct err *e)
{
	const struct proxy_port like = {.proxy = p,
					.find = find,
					.arg = arg,
					.port = 443};

	return port_new(&like, fd, ret, e);
}

int proxy_broker(struct proxy *p, int fd, proxy_find *find, void *arg,
		 struct proxy_port **ret, struct err *e)
{
	const struct proxy_port like = {.proxy = p,
					.find = find,
					.arg = arg,
					.broker = true,
					.port = NETPOL_BROKER_PORT};

	return port_new(&like, fd, ret, e);
}

void proxy_port_free(struct proxy_port *port)
{
	if (!port)
		return;
	loop_timer_set(port->proxy->loop, &port->pause, 0);
	loop_del(port->proxy->loop, &port->src);
	free(port);
}
