/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/epoll.h>

#include "serve_worker.h"

static const char *const names[] = TRANSIT_FDS;

static struct forwarder *find_routed(void *arg, const struct sockaddr *peer)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)peer;
	struct sbox *b;

	if (peer->sa_family != AF_INET)
		return NULL;
	b = sbox_of_address(arg, in->sin_addr);
	return b ? b->forwarder : NULL;
}

static struct proxy_client *find_client(void *arg, struct in_addr peer)
{
	struct sbox *b = sbox_of_address(arg, peer);

	return b ? b->client : NULL;
}

/* The words of the kernel's rules that people do not need to tell apart. */
static const char *word_of(const char *why)
{
	static const char *const known[] = {"private",	   "port53",
					    "spoof",	   "proto",
					    "option",	   "fragment",
					    "stray",	   "neighbour",
					    "input",	   "unasked",
					    "connections", "rate",
					    "quota",	   "cut"};

	for (size_t i = 0; i < array_len(known); i++)
		if (!strcmp(why, known[i]))
			return i >= 10 && i <= 12 ? "limit" : known[i];
	return "address";
}

static void on_logged(void *arg, const struct route_denied *d)
{
	struct sbox *b = sbox_of_slot(arg, d->slot);
	const struct denied_event ev = {
		.addr = &d->dst,
		.port = d->dport,
		.proto = d->ipproto == IPPROTO_TCP   ? NETPOL_TCP
			 : d->ipproto == IPPROTO_UDP ? NETPOL_UDP
						     : NETPOL_ICMP,
		.why = word_of(d->why),
		.counted = true,
	};

	if (b)
		denied_add(b->denied, &ev);
}

static void on_nflog(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *w = s->arg;
	struct err e = {0};

	(void)events;
	if (route_log(w->route, on_logged, w, &e) >= 0)
		return;
	note("denied attempts of the transit: %s", e.msg);
	loop_del(l, s);
}

void worker_transit_done(struct worker *w)
{
	forwarder_port_free(w->dns);
	w->dns = NULL;
	proxy_port_free(w->sni);
	w->sni = NULL;
	proxy_port_free(w->broker);
	w->broker = NULL;
	loop_del(w->loop, &w->nflog);
	route_free(w->route);
	w->route = NULL;
	for (int i = 0; i < FD_TRANSIT; i++)
		if (w->transit[i] >= 0)
			fd_close(steal_fd(&w->transit[i]));
}

static int open_route(struct worker *w, struct err *e)
{
	const struct netcidr *pool = &w->conf->pool;
	struct route_conf conf;
	int r;

	route_conf_init(&conf);
	conf.nft = w->transit[FD_NFT];
	conf.log = w->transit[FD_NFLOG];
	conf.pool = (uint32_t)pool->addr.b[0] << 24 |
		    (uint32_t)pool->addr.b[1] << 16 |
		    (uint32_t)pool->addr.b[2] << 8 | pool->addr.b[3];
	conf.pool_prefix = pool->bits;
	r = route_open(&conf, &w->route, e);
	if (r == 0)
		r = route_deny(w->route, w->deny, e);
	if (r == 0 && conf.log >= 0)
		r = loop_add(w->loop, &w->nflog, conf.log, EPOLLIN, on_nflog, w,
			     e);
	return r;
}

int worker_transit(struct worker *w, struct chan_msg *m, struct err *e)
{
	int r = 0;

	worker_transit_done(w);
	for (int i = 0; i < FD_TRANSIT; i++)
		w->transit[i] = chan_take(m, names[i]);
	if (w->transit[FD_NFT] < 0)
		return err_set(e, -EINVAL, "bad_value", "no 'nft'");
	r = open_route(w, e);
	if (r == 0 && w->transit[FD_DNS_UDP] >= 0)
		r = forwarder_port_new(w->loop, w->transit[FD_DNS_UDP],
				       w->transit[FD_DNS_TCP], find_routed, w,
				       &w->dns, e);
	if (r == 0 && w->transit[FD_SNI] >= 0)
		r = proxy_sni(w->proxy, w->transit[FD_SNI], find_client, w,
			      &w->sni, e);
	if (r == 0 && w->transit[FD_BROKER] >= 0)
		r = proxy_broker(w->proxy, w->transit[FD_BROKER], find_client,
				 w, &w->broker, e);
	if (r < 0)
		worker_transit_done(w);
	return r;
}
