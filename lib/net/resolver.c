/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "net/resolver_priv.h"

int resolver_new(struct loop *l, const struct resolver_conf *conf,
		 struct resolver **ret, struct err *e)
{
	struct resolver *r = calloc(1, sizeof(*r));

	if (!r)
		return err_sys(e, ENOMEM, "resolver");
	r->loop = l;
	r->conf = *conf;
	if (!r->conf.try_ms)
		r->conf.try_ms = 1000;
	if (!r->conf.deadline_ms)
		r->conf.deadline_ms = RESOLVER_DEADLINE_MS;
	r->timer.fn = flight_timer;
	r->timer.arg = r;
	/* Names are chosen by strangers, their place in the tables is not. */
	if (getrandom(&r->seed, sizeof(r->seed), 0) != sizeof(r->seed)) {
		free(r);
		return err_sys(e, EIO, "random numbers");
	}
	*ret = r;
	return 0;
}

void resolver_free(struct resolver *r)
{
	static const struct resolver_result failed = {
		.status = RESOLVER_FAILED};
	struct resolver_flight *f;

	if (!r)
		return;
	while (r->first)
		flight_over(r->first, &failed);
	while ((f = r->spare)) {
		r->spare = f->chain;
		free(f);
	}
	loop_timer_set(r->loop, &r->timer, 0);
	cache_done(&r->cache);
	free(r);
}

static uint32_t hash_of(const struct resolver *r, const char *name,
			sa_family_t family)
{
	uint32_t h = r->seed ^ family;

	for (; *name; name++)
		h = (h ^ (uint8_t)*name) * 16777619u;
	return h ^ h >> 15;
}

static struct resolver_flight *find_flight(struct resolver *r,
					   const struct cache_key *key)
{
	struct resolver_flight *f = r->flights[key->hash % FLIGHT_BUCKETS];

	while (f && (f->family != key->family || strcmp(f->name, key->name)))
		f = f->chain;
	return f;
}

static struct resolver_flight *new_flight(struct resolver *r,
					  const struct cache_key *key)
{
	struct resolver_flight *f = r->spare;

	if (f)
		r->spare = f->chain;
	else
		f = malloc(sizeof(*f));
	if (!f)
		return NULL;
	memset(f, 0, sizeof(*f));
	f->r = r;
	f->fd = -1;
	f->family = key->family;
	f->hash = key->hash;
	f->ttl = INT32_MAX;
	f->server = (uint8_t)r->good;
	f->end_at = clock_ms() + r->conf.deadline_ms;
	snprintf(f->name, sizeof(f->name), "%s", key->name);
	snprintf(f->asked, sizeof(f->asked), "%s", key->name);
	f->chain = r->flights[f->hash % FLIGHT_BUCKETS];
	r->flights[f->hash % FLIGHT_BUCKETS] = f;
	r->stats.flight++;
	flight_send(f);
	return f;
}

static bool may_ask(const struct resolver *r, const struct resolver_wait *w)
{
	size_t left = RESOLVER_FLIGHT - r->stats.flight;

	return left > 0 && (!w->out || *w->out <= left / 16);
}

int resolver_ask(struct resolver *r, const char *name, sa_family_t family,
		 struct resolver_wait *w, const struct resolver_result **ret)
{
	const struct cache_key key = {name, family, hash_of(r, name, family)};
	struct resolver_flight *f;

	if (!*name || strlen(name) > DNS_NAME_MAX)
		return -EINVAL;
	r->stats.asked++;
	if (cache_get(&r->cache, &key, clock_ms(), &r->known)) {
		r->stats.cached++;
		*ret = &r->known;
		return 1;
	}
	f = find_flight(r, &key);
	if (!f && may_ask(r, w)) {
		f = new_flight(r, &key);
		if (f)
			flight_pay(f, w);
	}
	if (!f)
		return -EBUSY;
	w->flight = f;
	w->next = f->waits;
	f->waits = w;
	return 0;
}

void resolver_cancel(struct resolver *r, struct resolver_wait *w)
{
	static const struct resolver_result nobody;
	struct resolver_flight *f = w->flight;
	struct resolver_wait **p;

	(void)r;
	if (!f)
		return;
	for (p = &f->waits; *p != w; p = &(*p)->next)
		;
	*p = w->next;
	w->flight = NULL;
	if (f->over)
		return;
	if (f->payer == w)
		flight_pay(f, f->waits);
	if (!f->waits)
		flight_over(f, &nobody);
}

void resolver_stats(const struct resolver *r, struct resolver_stats *ret)
{
	*ret = r->stats;
	ret->entries = r->cache.n;
}
