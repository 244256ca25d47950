/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "net/forwarder_priv.h"

#define PER_S	  100
#define META_TYPE 128 /* transfers, ANY and others that are no data */

/* A question that waits for the resolver. */
struct pend {
	struct forwarder *f;
	struct link of_forwarder, of_port;
	struct pend *spare;
	struct resolver_wait wait;
	struct origin from;
	struct dns_query q;
	uint8_t msg[DNS_HEADER + DNS_NAME_MAX + 2 + 4];
};

static void set_rate(struct forwarder *f, unsigned per_s)
{
	f->conf.per_s = per_s ? per_s : PER_S;
}

int forwarder_new(const struct forwarder_conf *conf, struct forwarder **ret,
		  struct err *e)
{
	struct forwarder *f = calloc(1, sizeof(*f));

	if (!f)
		return err_sys(e, ENOMEM, "forwarder");
	f->conf = *conf;
	f->stats = &f->own;
	set_rate(f, conf->per_s);
	f->tokens = INT64_C(1000) * f->conf.per_s;
	f->tokens_ms = clock_ms();
	link_init(&f->pends);
	link_init(&f->conns);
	*ret = f;
	return 0;
}

void forwarder_rate(struct forwarder *f, unsigned per_s)
{
	set_rate(f, per_s);
}

void forwarder_count(struct forwarder *f, struct forwarder_stats *at)
{
	f->stats = at;
}

void forwarder_stats(const struct forwarder *f, struct forwarder_stats *ret)
{
	*ret = *f->stats;
}

static void pend_done(struct pend *p)
{
	struct forwarder *f = p->f;

	resolver_cancel(f->conf.resolver, &p->wait);
	link_del(&p->of_forwarder);
	link_del(&p->of_port);
	f->npends--;
	if (p->from.conn)
		p->from.conn->pending--;
	p->spare = f->spare;
	f->spare = p;
}

void forwarder_free(struct forwarder *f)
{
	struct pend *p;

	if (!f)
		return;
	while (f->conns.next != &f->conns)
		forwarder_conn_close(
			link_of(f->conns.next, struct conn, of_forwarder));
	while (f->pends.next != &f->pends)
		pend_done(link_of(f->pends.next, struct pend, of_forwarder));
	while ((p = f->spare)) {
		f->spare = p->spare;
		free(p);
	}
	free(f);
}

void forwarder_drop_pends(struct link *pends, const struct conn *conn)
{
	struct link *l, *next;
	struct pend *p;

	for (l = pends->next; l != pends; l = next) {
		next = l->next;
		p = link_of(l, struct pend, of_port);
		if (!conn || p->from.conn == conn)
			pend_done(p);
	}
}

/* A query that is being answered. */
struct ctx {
	struct forwarder *f;
	const struct origin *from;
	const void *msg;
	const struct dns_query *q;
};

static void reply(const struct ctx *c, const struct dns_reply *r)
{
	uint8_t out[DNS_UDP_MAX];
	size_t n;

	n = dns_reply_build(c->msg, c->q, r, c->from->conn != NULL, out,
			    sizeof(out));
	origin_send(c->from, out, n);
}

static void reply_code(const struct ctx *c, enum dns_rcode rcode,
		       enum dns_ede ede)
{
	reply(c, &(struct dns_reply){.rcode = rcode, .ede = ede});
}

static void deny(const struct ctx *c, enum dns_rcode rcode, const char *why)
{
	const struct forwarder_conf *conf = &c->f->conf;

	c->f->stats->denied++;
	if (conf->ops->denied)
		conf->ops->denied(conf->arg, c->q->name, why);
	reply_code(c, rcode, DNS_EDE_BLOCKED);
}

static void servfail(const struct ctx *c, enum dns_ede ede)
{
	c->f->stats->failed++;
	reply_code(c, DNS_SERVFAIL, ede);
}

static void limited(const struct ctx *c, const char *why)
{
	const struct forwarder_conf *conf = &c->f->conf;

	c->f->stats->limited++;
	if (conf->ops->denied)
		conf->ops->denied(conf->arg, c->q->name, why);
	reply_code(c, DNS_SERVFAIL, DNS_EDE_OTHER);
}

static void answer(const struct ctx *c, const struct dns_addrs *addrs,
		   uint32_t ttl)
{
	c->f->stats->answered++;
	reply(c, &(struct dns_reply){.ede = DNS_EDE_NONE,
				     .ttl = ttl,
				     .addrs = addrs});
}

static void answer_v4(const struct ctx *c, struct in_addr in)
{
	struct dns_addrs a;

	a.family = AF_INET;
	a.n = 1;
	a.v4[0] = in;
	answer(c, &a, FORWARDER_FAKE_TTL);
}

/* What the helper itself serves: by a fake address, or at the gateway. */
static void answer_ours(const struct ctx *c, struct in_addr fake)
{
	const struct in_addr gateway = {htonl(FORWARDER_GATEWAY)};

	answer_v4(c, c->f->conf.fake ? fake : gateway);
}

static void no_data(const struct ctx *c)
{
	c->f->stats->answered++;
	reply_code(c, DNS_NOERROR, DNS_EDE_NONE);
}

/* Those of ${all} that ${c}'s sandbox may be told. */
static void sift(const struct ctx *c, const struct dns_addrs *all,
		 struct dns_addrs *ret)
{
	const struct forwarder_conf *conf = &c->f->conf;
	bool v4 = all->family == AF_INET;

	ret->family = all->family;
	ret->ttl = all->ttl;
	ret->n = 0;
	for (size_t i = 0; i < all->n; i++) {
		if (!conf->ops->addr(conf->arg, c->q->name, all->family,
				     v4 ? (const void *)&all->v4[i]
					: &all->v6[i]))
			continue;
		if (v4)
			ret->v4[ret->n++] = all->v4[i];
		else
			ret->v6[ret->n++] = all->v6[i];
	}
}

static void answer_real(const struct ctx *c, const struct dns_addrs *a,
			uint32_t left_s)
{
	const struct forwarder_conf *conf = &c->f->conf;

	if (conf->ops->learn &&
	    conf->ops->learn(conf->arg, c->q->name, a) != 0) {
		servfail(c, DNS_EDE_OTHER);
		return;
	}
	answer(c, a, left_s ? left_s : 1);
}

static enum forwarder_verdict ask_policy(const struct ctx *c)
{
	return c->f->conf.ops->name(c->f->conf.arg, c->q->name);
}

/* There are addresses. */
static void take_addrs(const struct ctx *c, const struct resolver_result *res)
{
	struct dns_addrs a;
	struct in_addr fake;
	bool wild = ask_policy(c) == FORWARDER_WILD;

	sift(c, &res->addrs, &a);
	if (a.n == 0) {
		deny(c, DNS_NOERROR, "private");
		return;
	}
	if (!c->f->conf.fake) {
		answer_real(c, &a, res->left_s);
		return;
	}
	if (fakename_get(c->f->conf.names, c->q->name, wild, &fake) < 0)
		servfail(c, DNS_EDE_OTHER);
	else
		answer_v4(c, fake);
}

static void resolve(const struct ctx *c, sa_family_t family);

static void take_result(const struct ctx *c, const struct resolver_result *res)
{
	/* The policy may have changed since the question went out. */
	if (ask_policy(c) == FORWARDER_DENY) {
		deny(c, DNS_NXDOMAIN, "name");
		return;
	}
	switch (res->status) {
	case RESOLVER_OK:
		take_addrs(c, res);
		return;
	case RESOLVER_NONE:
		/* A fake address stands for those of both families. */
		if (c->f->conf.fake && res->addrs.family == AF_INET)
			resolve(c, AF_INET6);
		else
			no_data(c);
		return;
	case RESOLVER_NO_NAME:
		c->f->stats->nxdomain++;
		reply_code(c, DNS_NXDOMAIN, DNS_EDE_NONE);
		return;
	case RESOLVER_FAILED:
		break;
	}
	servfail(c, DNS_EDE_NO_REACHABLE);
}

static void on_result(struct resolver_wait *w,
		      const struct resolver_result *res)
{
	struct pend *p = w->arg;
	const struct ctx c = {p->f, &p->from, p->msg, &p->q};
	struct conn *conn = p->from.conn;

	take_result(&c, res);
	pend_done(p);
	if (conn)
		forwarder_conn_go_on(conn);
}

static struct pend *pend_new(const struct ctx *c)
{
	struct forwarder *f = c->f;
	struct pend *p = f->spare;

	if (f->npends == FORWARDER_PENDING)
		return NULL;
	if (p)
		f->spare = p->spare;
	else
		p = malloc(sizeof(*p));
	if (!p)
		return NULL;
	p->f = f;
	p->from = *c->from;
	p->q = *c->q;
	p->wait = (struct resolver_wait){.fn = on_result,
					 .arg = p,
					 .out = &f->nout};
	memcpy(p->msg, c->msg, DNS_HEADER + c->q->question_len);
	link_add(&p->of_forwarder, &f->pends);
	link_add(&p->of_port, &c->from->port->pends);
	f->npends++;
	if (c->from->conn)
		c->from->conn->pending++;
	return p;
}

static void resolve(const struct ctx *c, sa_family_t family)
{
	const struct resolver_result *res;
	struct pend *p = pend_new(c);
	int r;

	if (!p) {
		limited(c, "limit");
		return;
	}
	r = resolver_ask(c->f->conf.resolver, c->q->name, family, &p->wait,
			 &res);
	if (r == 0)
		return;
	pend_done(p);
	if (r == 1)
		take_result(c, res);
	else if (r == -EBUSY)
		limited(c, "limit");
	else
		servfail(c, DNS_EDE_OTHER);
}

static bool ends_with(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);

	return n >= m && !strcmp(name + n - m, end) &&
	       (n == m || name[n - m - 1] == '.');
}

/* Names that are the same for everybody. */
static bool take_special(const struct ctx *c)
{
	const struct in_addr lo = {htonl(INADDR_LOOPBACK)};

	if (ends_with(c->q->name, "localhost")) {
		if (c->q->type == DNS_A)
			answer_v4(c, lo);
		else
			no_data(c);
		return true;
	}
	if (ends_with(c->q->name, "in-addr.arpa") ||
	    ends_with(c->q->name, "ip6.arpa")) {
		c->f->stats->nxdomain++;
		reply_code(c, DNS_NXDOMAIN, DNS_EDE_NONE);
		return true;
	}
	return false;
}

/* The name is allowed: is the type one that is answered with addresses? */
static bool take_type(const struct ctx *c)
{
	const struct forwarder_conf *conf = &c->f->conf;

	if (c->q->type >= META_TYPE && c->q->type <= DNS_ANY) {
		c->f->stats->denied++;
		reply_code(c, DNS_REFUSED, DNS_EDE_NOT_SUPPORTED);
		return false;
	}
	if (c->q->type == DNS_A ||
	    (c->q->type == DNS_AAAA && conf->v6 && !conf->fake))
		return true;
	no_data(c);
	return false;
}

static void take_query(const struct ctx *c)
{
	enum forwarder_verdict v = FORWARDER_DENY;
	struct in_addr fake;
	int r;

	if (!c->q->odd && take_special(c))
		return;
	if (!c->q->odd && *c->q->name)
		v = ask_policy(c);
	if (v == FORWARDER_DENY) {
		deny(c, DNS_NXDOMAIN, "name");
		return;
	}
	if (!take_type(c))
		return;
	/* Before anything leaves: what leaves is what the budget is about. */
	r = fakename_get(c->f->conf.names, c->q->name, v == FORWARDER_WILD,
			 &fake);
	if (r == -ENOSPC)
		limited(c, "limit");
	else if (r < 0)
		servfail(c, DNS_EDE_OTHER);
	else if (v == FORWARDER_OURS)
		answer_ours(c, fake);
	else
		resolve(c, c->q->type == DNS_A ? AF_INET : AF_INET6);
}

/* 1: go on; 0: say that it is too much; -1: say nothing. */
static int take_token(struct forwarder *f)
{
	int64_t most = INT64_C(1000) * f->conf.per_s;
	uint64_t now = clock_ms();

	if (now - f->tokens_ms >= 1000)
		f->tokens += most;
	else
		f->tokens += (int64_t)((now - f->tokens_ms) * f->conf.per_s);
	f->tokens_ms = now;
	if (f->tokens > most)
		f->tokens = most;
	if (f->tokens <= -most)
		return -1;
	f->tokens -= 1000;
	return f->tokens >= 0;
}

void forwarder_take(struct forwarder *f, const void *msg, size_t len,
		    const struct origin *from)
{
	struct dns_query q;
	const struct ctx c = {f, from, msg, &q};
	int token = take_token(f), r;

	f->stats->queries++;
	r = token < 0 ? -EBADMSG : dns_query_parse(msg, len, &q);
	if (r < 0)
		f->stats->dropped++;
	else if (token == 0)
		limited(&c, "dns_rate");
	else if (r > 0)
		reply_code(&c, (enum dns_rcode)r, DNS_EDE_NONE);
	else
		take_query(&c);
}
