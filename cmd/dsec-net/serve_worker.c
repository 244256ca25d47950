/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "wire/exit.h"
#include "wire/record.h"
#include "serve_worker.h"
#include "sys/confine.h"

/* --- requests ------------------------------------------------------------ */

static int add_stats(json_t *all, const struct sbox *b,
		     const struct route_stats *route, struct err *e)
{
	static const struct route_stats none;
	json_t *one;
	int r = sbox_stats(b, route ? route : &none, &one, e);

	if (r == 0 && json_object_set_new(all, b->id, one) < 0)
		r = err_sys(e, ENOMEM, "counters");
	return r;
}

static int stats_of_one(struct worker *w, const char *id, json_t *all,
			struct err *e)
{
	const struct sbox *b = sbox_find(w, id);
	struct route_stats route = {0};

	if (!b)
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "the network helper does not know '%s'", id);
	if (b->strength == NETPOL_ROUTED && w->route)
		(void)route_stats(w->route, b->route.slot, &route, NULL);
	return add_stats(all, b, &route, e);
}

static int compare_slot(const void *key, const void *elem)
{
	uint32_t slot = *(const uint32_t *)key;
	const struct route_stats *s = elem;

	return slot < s->slot ? -1 : slot > s->slot;
}

static size_t count_routed(const struct worker *w)
{
	size_t n = 0;

	for (size_t i = 0; i < SBOX_BUCKETS; i++)
		for (const struct sbox *b = w->by_slot[i]; b; b = b->next_slot)
			n++;
	return n;
}

/* Of the kernel's counters one listing, however many there are. */
static int stats_of_all(struct worker *w, json_t *all, struct err *e)
{
	size_t most = w->route ? count_routed(w) : 0;
	auto_free struct route_stats *route = calloc(most + 1, sizeof(*route));
	int n = 0, r = 0;

	if (!route)
		return err_sys(e, ENOMEM, "counters");
	if (most > 0)
		n = route_stats_all(w->route, route, most, NULL);
	if (n > (int)most)
		n = (int)most;
	for (size_t i = 0; r == 0 && i < SBOX_BUCKETS; i++)
		for (struct sbox *b = w->by_id[i]; r == 0 && b; b = b->next) {
			r = add_stats(all, b,
				      n > 0 && b->strength == NETPOL_ROUTED
					      ? bsearch(&b->route.slot, route,
							(size_t)n,
							sizeof(*route),
							compare_slot)
					      : NULL,
				      e);
			/* Thousands of them are to fit into a line. */
			json_object_del(json_object_get(all, b->id), "hash");
		}
	return r;
}

static int op_stats(struct worker *w, const json_t *req, json_t *ans,
		    struct err *e)
{
	const char *id = json_str(req, "sandbox");
	json_t *all = json_object();

	if (json_object_set_new(ans, "sandboxes", all) < 0)
		return err_sys(e, ENOMEM, "counters");
	return *id ? stats_of_one(w, id, all, e) : stats_of_all(w, all, e);
}

static int op_policy(struct worker *w, const json_t *req, json_t *ans,
		     struct err *e)
{
	unsigned cut = 0;
	int r = sbox_policy(w, req, &cut, e);

	if (r == 0 && json_object_set_new(ans, "cut", json_integer(cut)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

static int op_detach(struct worker *w, const json_t *req)
{
	const char *id = json_str(req, "sandbox");
	struct sbox *b = sbox_find(w, id);

	if (b && !held_detaches(req, b->netns))
		return 0;
	if (b)
		sbox_free(b);
	totals_drop(w->totals, id);
	return 0;
}

static int dispatch(struct worker *w, struct chan_msg *m, json_t *ans,
		    struct err *e)
{
	const char *op = json_str(m->obj, "op");

	if (!strcmp(op, "attach"))
		return sbox_attach(w, m, e);
	if (!strcmp(op, "policy"))
		return op_policy(w, m->obj, ans, e);
	if (!strcmp(op, "detach"))
		return op_detach(w, m->obj);
	if (!strcmp(op, "stats"))
		return op_stats(w, m->obj, ans, e);
	if (!strcmp(op, "transit"))
		return worker_transit(w, m, e);
	if (!strcmp(op, "sweep"))
		return sbox_sweep(w, e);
	return 0; /* ping, and what the keeper answers itself */
}

static int answer(struct worker *w, struct chan_msg *m, struct err *e)
{
	auto_json json_t *ans = record_ok(NULL);
	auto_json json_t *bad = NULL;
	struct err why = {0};

	if (!ans)
		return err_sys(e, ENOMEM, "answer");
	if (dispatch(w, m, ans, &why) == 0 &&
	    chan_put(&w->chan, ans, &why) == 0)
		return 0;
	bad = record_error(NULL, &why);
	return chan_put(&w->chan, bad, e);
}

static void on_keeper(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct worker *w = s->arg;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = -EAGAIN;

	if (events & ~(uint32_t)EPOLLOUT)
		r = chan_read(&w->chan, &e);
	while (chan_lines(&w->chan, &m, &r, &e))
		if (answer(w, &m, &e) < 0)
			r = -EIO;
	if (r == -EAGAIN)
		r = chan_flush(&w->chan, &e);
	else if (r == 0)
		r = -EPIPE; /* he is gone: so are we */
	if (r == 0)
		r = loop_mod(l, s,
			     w->chan.out.len ? EPOLLIN | EPOLLOUT : EPOLLIN,
			     &e);
	if (r < 0)
		loop_stop(l, r);
}

/* --- the whole ----------------------------------------------------------- */

static int start(struct worker *w, int sock, struct err *e)
{
	struct proxy_conf proxy = {.broker = w->to_broker};
	int r = loop_new(&w->loop, e);

	if (r == 0)
		r = netconf_deny(w->conf, &w->deny, e);
	if (r == 0)
		r = worker_node(w, e);
	if (r == 0)
		r = resolver_new(w->loop, &w->conf->dns, &w->resolver, e);
	if (r == 0)
		r = pump_pool_new(w->loop, &w->pool, e);
	if (r < 0)
		return r;
	proxy.loop = w->loop;
	proxy.resolver = w->resolver;
	proxy.deny = (const struct netdeny *const *)&w->deny;
	proxy.pool = w->pool;
	r = proxy_new(&proxy, &w->proxy, e);
	if (r == 0)
		r = loop_add(w->loop, &w->src, sock, EPOLLIN, on_keeper, w, e);
	return r;
}

/* What it has is let go of by its end: rules of the kernel stay as they are. */
int worker_run(int sock, int broker, const struct netconf *conf,
	       struct totals *totals)
{
	struct worker w = {.conf = conf,
			   .to_broker = broker,
			   .totals = totals,
			   .chan = {.fd = sock},
			   .rtnl = -1};
	struct err e = {0};
	int r;

	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < FD_TRANSIT; i++)
		w.transit[i] = -1;
	r = start(&w, sock, &e);
	if (r == 0)
		r = confine_internet(&e);
	if (r == 0)
		r = loop_run(w.loop, &e);
	if (r < 0 && r != -EPIPE)
		note("worker: %s", e.msg);
	return r < 0 && r != -EPIPE ? EXIT_SYSTEM : EXIT_OK;
}
