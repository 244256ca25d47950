/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Destinations that names led to: elements with a timeout.  An element that is
 * there already does not get a new time by being added again, and removing one
 * that has just expired would fail the whole batch; so both are done by adding,
 * removing and, where it stays, adding it in one batch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "net/route_priv.h"

#define SETS 4

/* Not worth a change of the kernel's. */
#define SLACK_MS 5000

#define SNI_PORT 443

static const char *const set_name[SETS] = {"dns4", "dns6", "wide4", "wide6"};

static unsigned set_of(const struct route_dest *d)
{
	return (unsigned)d->v6 + 2 * (unsigned)d->wide;
}

static size_t key_len(const struct route_dest *d)
{
	return d->v6 ? 28 : 16;
}

static uint32_t hash_of(const struct route_dest *d)
{
	uint32_t h = 0x811c9dc5u ^ set_of(d);

	for (size_t i = 0; i < key_len(d); i++)
		h = (h ^ d->key[i]) * 0x01000193u;
	return h ^ h >> 15;
}

static bool same_key(const struct route_dest *a, const struct route_dest *b)
{
	return set_of(a) == set_of(b) &&
	       memcmp(a->key, b->key, sizeof(a->key)) == 0 &&
	       memcmp(a->end, b->end, sizeof(a->end)) == 0;
}

static void index_one(struct route_learn *l, size_t i)
{
	size_t at = hash_of(&l->dests[i]) & (l->buckets - 1);

	while (l->index[at])
		at = (at + 1) & (l->buckets - 1);
	l->index[at] = (uint32_t)i + 1;
}

static void index_all(struct route_learn *l)
{
	if (l->buckets)
		memset(l->index, 0, l->buckets * sizeof(*l->index));
	for (size_t i = 0; i < l->n; i++)
		index_one(l, i);
}

static struct route_dest *find(const struct route_learn *l,
			       const struct route_dest *d)
{
	size_t at;

	if (!l->buckets)
		return NULL;
	at = hash_of(d) & (l->buckets - 1);
	for (; l->index[at]; at = (at + 1) & (l->buckets - 1))
		if (same_key(&l->dests[l->index[at] - 1], d))
			return &l->dests[l->index[at] - 1];
	return NULL;
}

static void free_names(struct route_dest *d)
{
	for (size_t i = 0; i < array_len(d->names); i++) {
		free(d->names[i]);
		d->names[i] = NULL;
	}
}

void route_learn_done(struct route_learn *l)
{
	for (size_t i = 0; i < l->n; i++)
		free_names(&l->dests[i]);
	free(l->dests);
	free(l->index);
	memset(l, 0, sizeof(*l));
}

static int grow(struct route_learn *l)
{
	const size_t cap = l->cap ? l->cap * 2 : 16;
	struct route_dest *dests;
	uint32_t *index;

	dests = reallocarray(l->dests, cap, sizeof(*dests));
	if (!dests)
		return -ENOMEM;
	l->dests = dests;
	index = reallocarray(l->index, cap * 2, sizeof(*index));
	if (!index)
		return -ENOMEM;
	l->index = index;
	l->cap = cap;
	l->buckets = cap * 2;
	index_all(l);
	return 0;
}

int route_learn_add(struct route_learn *l, const struct route_dest *d)
{
	int r = l->n < l->cap ? 0 : grow(l);

	if (r < 0)
		return r;
	l->dests[l->n] = *d;
	index_one(l, l->n++);
	return 0;
}

unsigned route_learn_live(const struct route_learn *l)
{
	const int64_t now = (int64_t)clock_ms();
	unsigned n = 0;

	for (size_t i = 0; i < l->n; i++)
		n += l->dests[i].until_ms > now;
	return n;
}

/* Take out those marked gone. */
static void compact(struct route_learn *l)
{
	size_t k = 0;

	for (size_t i = 0; i < l->n; i++) {
		if (l->dests[i].gone) {
			free_names(&l->dests[i]);
			continue;
		}
		l->dests[k++] = l->dests[i];
	}
	if (k == l->n)
		return;
	l->n = k;
	index_all(l);
}

void route_learn_settle(struct route_learn *l, bool done)
{
	if (done) {
		compact(l);
		return;
	}
	for (size_t i = 0; i < l->n; i++)
		l->dests[i].gone = false;
}

/* The names, for people and the next worker: as many as fit. */
static void comment(struct nft_batch *t, const struct route_dest *d)
{
	char text[128] = "";
	size_t at = 0, len;

	for (size_t i = 0; i < array_len(d->names) && d->names[i]; i++) {
		len = strlen(d->names[i]);
		if (at + 1 + len >= sizeof(text))
			continue;
		if (at)
			text[at++] = ' ';
		memcpy(text + at, d->names[i], len + 1);
		at += len;
	}
	if (at)
		nft_elem_comment(t, text);
}

static void put(struct nft_batch *t, const struct route_dest *d, unsigned ms)
{
	nft_elem(t, d->key, key_len(d));
	if (d->wide)
		nft_elem_end_key(t, d->end, key_len(d));
	if (!ms)
		return;
	nft_elem_timeout(t, ms);
	comment(t, d);
}

/* Those of a set that are gone, once: as added (any time will do), or not. */
static void put_gone(struct nft_batch *t, const struct route_learn *l,
		     unsigned set, bool add)
{
	bool open = false;

	for (size_t i = 0; i < l->n; i++) {
		if (!l->dests[i].gone || set_of(&l->dests[i]) != set)
			continue;
		if (!open)
			nft_elems(t, set_name[set], 0, add);
		open = true;
		put(t, &l->dests[i], add ? 60000 : 0);
	}
	if (open)
		nft_elems_end(t);
}

static void put_removals(struct nft_batch *t, const struct route_learn *l)
{
	for (unsigned set = 0; set < SETS; set++) {
		put_gone(t, l, set, true);
		put_gone(t, l, set, false);
	}
}

static struct route_learned as_learned(const struct route_dest *d)
{
	struct route_learned l = {.addr.v6 = d->v6};
	const size_t w = d->v6 ? 16 : 4;
	uint16_t lo, hi;

	memcpy(l.addr.b, d->key + 4, w);
	l.proto = d->key[4 + w] == IPPROTO_UDP ? NETPOL_UDP : NETPOL_TCP;
	memcpy(&lo, d->key + 8 + w, sizeof(lo));
	memcpy(&hi, d->end + 8 + w, sizeof(hi));
	l.lo = ntohs(lo);
	l.hi = ntohs(hi);
	return l;
}

static bool kept(const struct route_dest *d, route_keep_fn *keep, void *arg)
{
	const struct route_learned l = as_learned(d);

	if (!keep || d->until_ms <= (int64_t)clock_ms())
		return false;
	if (!d->names[0])
		return keep(arg, &l, NULL);
	for (size_t i = 0; i < array_len(d->names) && d->names[i]; i++)
		if (keep(arg, &l, d->names[i]))
			return true;
	return false;
}

void route_learn_drop(struct nft_batch *t, struct route_learn *l,
		      route_keep_fn *keep, void *arg)
{
	for (size_t i = 0; i < l->n; i++)
		l->dests[i].gone = !kept(&l->dests[i], keep, arg);
	put_removals(t, l);
}

/* --- learning ------------------------------------------------------------ */

struct lesson {
	struct route_box *box;
	const char *name;
	unsigned ms;
	int64_t until;
	struct route_learn fresh; /* what the kernel gets */
	unsigned count;		  /* of them, new ones */
	bool full;
};

static void make_dest(struct route_dest *d, uint32_t slot,
		      const struct netaddr *a, uint8_t proto, uint16_t lo,
		      uint16_t hi)
{
	const size_t w = a->v6 ? 16 : 4;
	const uint16_t first = htons(lo), last = htons(hi);
	size_t at;

	memset(d, 0, sizeof(*d));
	d->v6 = a->v6;
	d->wide = lo != hi;
	at = nft_field(d->key, 0, &slot, sizeof(slot));
	at = nft_field(d->key, at, a->b, w);
	at = nft_field(d->key, at, &proto, sizeof(proto));
	memcpy(d->end, d->key, at);
	nft_field(d->key, at, &first, sizeof(first));
	nft_field(d->end, at, &last, sizeof(last));
}

void route_dest_name(struct route_dest *d, const char *name)
{
	for (size_t i = 0; i < array_len(d->names); i++) {
		if (!d->names[i]) {
			d->names[i] = name ? strdup(name) : NULL;
			return;
		}
		if (name && strcmp(d->names[i], name) == 0)
			return;
	}
}

static void copy_names(struct route_dest *to, const struct route_dest *from)
{
	for (size_t i = 0; i < array_len(from->names) && from->names[i]; i++)
		route_dest_name(to, from->names[i]);
}

/* Ranges of one address may not overlap: both become one. */
static void unite(struct lesson *s, struct route_dest *d)
{
	struct route_learn *l = &s->box->learn;
	const size_t w = key_len(d) - 4; /* all but the port */
	struct route_dest *x;

	for (size_t i = 0; i < l->n; i++) {
		x = &l->dests[i];
		if (!x->wide || x->gone || set_of(x) != set_of(d) ||
		    memcmp(x->key, d->key, w) != 0 || same_key(x, d) ||
		    memcmp(x->end + w, d->key + w, 2) < 0 ||
		    memcmp(x->key + w, d->end + w, 2) > 0)
			continue;
		if (memcmp(x->key + w, d->key + w, 2) < 0)
			memcpy(d->key, x->key, sizeof(d->key));
		if (memcmp(x->end + w, d->end + w, 2) > 0)
			memcpy(d->end, x->end, sizeof(d->end));
		copy_names(d, x);
		if (x->until_ms > d->until_ms)
			d->until_ms = x->until_ms;
		x->gone = true;
	}
}

static int learn_one(struct lesson *s, const struct netaddr *a, uint8_t proto,
		     uint16_t lo, uint16_t hi)
{
	struct route_learn *l = &s->box->learn;
	struct route_dest d, *old;
	int r;

	make_dest(&d, s->box->sb.slot, a, proto, lo, hi);
	d.until_ms = s->until;
	if (d.wide)
		unite(s, &d);
	old = find(l, &d);
	if (old)
		copy_names(&d, old);
	route_dest_name(&d, s->name);
	if (find(&s->fresh, &d)) {
		free_names(&d);
		return 0;
	}
	if (old) {
		route_dest_name(old, s->name);
		if (old->until_ms + SLACK_MS >= d.until_ms) {
			free_names(&d);
			return 0;
		}
		old->gone = true;
	} else if (l->n + s->count >= ROUTE_LEARN_MAX) {
		s->full = true;
		free_names(&d);
		return 0;
	} else {
		s->count++;
	}
	r = route_learn_add(&s->fresh, &d);
	if (r < 0)
		free_names(&d);
	return r;
}

/*
 * TCP 443 is an element of its own, which leads to the proxy of names; UDP 443
 * none, because QUIC would go around it.
 */
static int learn_ports(struct lesson *s, const struct netaddr *a, uint8_t proto,
		       unsigned lo, unsigned hi)
{
	int r = 0;

	if (lo <= SNI_PORT && hi >= SNI_PORT) {
		if (lo < SNI_PORT)
			r = learn_ports(s, a, proto, lo, SNI_PORT - 1);
		if (!r && proto == IPPROTO_TCP)
			r = learn_one(s, a, proto, SNI_PORT, SNI_PORT);
		if (!r && hi > SNI_PORT)
			r = learn_ports(s, a, proto, SNI_PORT + 1, hi);
		return r;
	}
	if (hi - lo >= ROUTE_EXACT_PORTS)
		return learn_one(s, a, proto, (uint16_t)lo, (uint16_t)hi);
	for (; !r && lo <= hi; lo++)
		r = learn_one(s, a, proto, (uint16_t)lo, (uint16_t)lo);
	return r;
}

static void put_fresh(struct nft_batch *t, const struct lesson *s)
{
	const struct route_learn *f = &s->fresh;
	const int64_t now = s->until - s->ms;
	bool open;

	for (unsigned set = 0; set < SETS; set++) {
		open = false;
		for (size_t i = 0; i < f->n; i++) {
			if (set_of(&f->dests[i]) != set)
				continue;
			if (!open)
				nft_elems(t, set_name[set], 0, true);
			open = true;
			put(t, &f->dests[i],
			    (unsigned)(f->dests[i].until_ms - now));
		}
		if (open)
			nft_elems_end(t);
	}
}

/* Those that have expired make room. */
static void expire(struct route_learn *l, int64_t now)
{
	for (size_t i = 0; i < l->n; i++)
		l->dests[i].gone = l->dests[i].until_ms <= now;
	compact(l);
}

static int commit(struct route *r, struct lesson *s, struct err *e)
{
	struct route_learn *l = &s->box->learn;
	int n;

	/* Room first: what the kernel has, we know. */
	while (l->cap < l->n + s->fresh.n) {
		n = grow(l);
		if (n < 0)
			return err_sys(e, -n, "destinations of a name");
	}
	put_removals(&r->t, l);
	put_fresh(&r->t, s);
	n = nft_commit(&r->t, r->c.nft, e);
	route_learn_settle(l, !n);
	if (n < 0)
		return n;
	for (size_t i = 0; i < s->fresh.n; i++)
		(void)route_learn_add(l, &s->fresh.dests[i]);
	s->fresh.n = 0; /* their names have a new owner */
	return 0;
}

int route_learn(struct route *r, uint32_t slot, const char *name,
		const struct route_learned *l, size_t n, unsigned timeout_s,
		struct err *e)
{
	struct lesson s = {.name = name};
	const int64_t now = (int64_t)clock_ms();
	int k = 0;

	s.box = slot < TRANSIT_SLOTS ? r->boxes[slot] : NULL;
	if (!s.box)
		return err_sys(e, ENOENT, "no sandbox has slot %u", slot);
	if (timeout_s < 1)
		timeout_s = 1;
	if (timeout_s > ROUTE_TIMEOUT_MAX)
		timeout_s = ROUTE_TIMEOUT_MAX;
	s.ms = timeout_s * 1000;
	s.until = now + s.ms;
	if (s.box->learn.n + n * ROUTE_EXACT_PORTS > ROUTE_LEARN_MAX)
		expire(&s.box->learn, now);
	for (size_t i = 0; !k && i < n; i++)
		if (l[i].lo && l[i].lo <= l[i].hi && l[i].proto != NETPOL_ICMP)
			k = learn_ports(&s, &l[i].addr,
					l[i].proto == NETPOL_UDP ? IPPROTO_UDP
								 : IPPROTO_TCP,
					l[i].lo, l[i].hi);
	if (k < 0) {
		route_learn_settle(&s.box->learn, false);
		k = err_sys(e, -k, "destinations of a name");
	} else {
		k = commit(r, &s, e);
	}
	route_learn_done(&s.fresh);
	if (k < 0)
		return k;
	if (s.full)
		return err_set(e, -EDQUOT, "quota",
			       "the sandbox has %u learned destinations",
			       ROUTE_LEARN_MAX);
	return (int)s.count;
}
