/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "policy/place_priv.h"

/* Of what is promised so much is used where nothing is held yet to tell. */
#define RATIO_FIRST 0.25
#define RATIO_LEAST 0.05

#define GROW_FROM 64

void place_conf_default(struct place_conf *c)
{
	*c = (struct place_conf){
		.nodes_max = 16384,
		.overlay_max = 65536,
		.k = 2,
		.fresh_ms = 10000,
		.settle_ms = 2000,
		.overlay_ms = 10000,
		.forget_ms = 120000,
		.seed = 1,
	};
}

uint64_t place_hash(const char *text)
{
	return hash_fnv(text, strlen(text));
}

void place_amounts(const struct admit_amounts *a, uint64_t *row)
{
	row[A_COUNT] = a->sandboxes;
	row[A_MEMORY] = a->memory_mb;
	row[A_CPU] = a->cpu_milli;
	row[A_DISK] = a->disk_mb;
	row[A_PIDS] = a->pids;
}

static struct admit_amounts amounts_of(const uint64_t *row)
{
	return (struct admit_amounts){
		.memory_mb = row[A_MEMORY],
		.cpu_milli = row[A_CPU],
		.disk_mb = row[A_DISK],
		.pids = row[A_PIDS],
		.sandboxes = row[A_COUNT],
	};
}

static void add_to(uint64_t *sum, uint64_t a)
{
	if (__builtin_add_overflow(*sum, a, sum))
		*sum = UINT64_MAX;
}

int place_new(const struct place_conf *c, struct place **ret, struct err *e)
{
	struct place *p;

	if (c->nodes_max < 1 || c->nodes_max > PLACE_NODES_MAX ||
	    c->k > PLACE_K_MAX || c->overlay_max > (1u << 24))
		return err_set(e, -EINVAL, "internal",
			       "a placer with %u nodes, k %u, overlay %u",
			       c->nodes_max, c->k, c->overlay_max);
	p = calloc(1, sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "placer");
	p->conf = *c;
	p->random = c->seed;
	p->free_node = p->free_flight = p->oldest = p->newest = NONE;
	if (c->overlay_max)
		p->flights = calloc(c->overlay_max, sizeof(*p->flights));
	if (c->overlay_max && !p->flights) {
		place_free(p);
		return err_sys(e, ENOMEM, "placer");
	}
	for (uint32_t i = c->overlay_max; i-- > 0;) {
		p->flights[i].next = p->free_flight;
		p->free_flight = i;
	}
	p->next_id = c->overlay_max;
	*ret = p;
	return 0;
}

static void drop_traits(struct node *n)
{
	free(n->features);
	free(n->text);
	n->features = NULL;
	n->text = NULL;
	n->nfeatures = 0;
}

void place_free(struct place *p)
{
	if (!p)
		return;
	for (uint32_t i = 0; i < p->nnodes; i++)
		drop_traits(&p->nodes[i]);
	free(p->nodes);
	free(p->live);
	free(p->hash);
	free(p->flights);
	free(p);
}

/* --- the overlay -----------------------------------------------------------
 */

static struct flight *flight_of(struct place *p, uint64_t id)
{
	struct flight *f;

	if (!id || !p->conf.overlay_max)
		return NULL;
	f = &p->flights[id % p->conf.overlay_max];
	return f->id == id ? f : NULL;
}

static void unlink_flight(struct place *p, struct flight *f)
{
	struct node *n = &p->nodes[f->node];

	if (f->prev == NONE)
		n->first = f->next;
	else
		p->flights[f->prev].next = f->next;
	if (f->next != NONE)
		p->flights[f->next].prev = f->prev;
	if (f->older == NONE)
		p->oldest = f->newer;
	else
		p->flights[f->older].newer = f->newer;
	if (f->newer == NONE)
		p->newest = f->older;
	else
		p->flights[f->newer].older = f->older;
}

/* Sums of the node are what is held and what flies, so what landed elsewhere is
 * taken out; with a saturated sum they are wrong until the next report. */
static void land(struct place *p, struct flight *f)
{
	struct node *n = &p->nodes[f->node];

	unlink_flight(p, f);
	for (unsigned i = 0; i < A_LEN; i++)
		n->used[i] -= n->used[i] < f->ask[i] ? n->used[i] : f->ask[i];
	n->flights--;
	f->id = 0;
	f->next = p->free_flight;
	p->free_flight = (uint32_t)(f - p->flights);
}

uint64_t place_fly(struct place *p, uint32_t node, const uint64_t *ask,
		   uint64_t user)
{
	struct node *n = &p->nodes[node];
	struct flight *f;
	uint32_t i;

	if (!p->conf.overlay_max)
		return 0;
	if (p->free_flight == NONE)
		land(p, &p->flights[p->oldest]);
	i = p->free_flight;
	f = &p->flights[i];
	p->free_flight = f->next;
	/* Ids grow; each one's place is its rest. */
	p->next_id += p->conf.overlay_max;
	*f = (struct flight){
		.id = p->next_id - p->next_id % p->conf.overlay_max + i,
		.at_ms = p->now_ms,
		.node = node,
		.next = n->first,
		.prev = NONE,
		.newer = NONE,
		.older = p->newest,
	};
	memcpy(f->ask, ask, sizeof(f->ask));
	if (n->first != NONE)
		p->flights[n->first].prev = i;
	n->first = i;
	if (p->newest == NONE)
		p->oldest = i;
	else
		p->flights[p->newest].newer = i;
	p->newest = i;
	for (unsigned k = 0; k < A_LEN; k++)
		add_to(&n->used[k], ask[k]);
	n->flights++;
	n->flying_user = user;
	return f->id;
}

void place_time(struct place *p, uint64_t now_ms)
{
	if (now_ms > p->now_ms)
		p->now_ms = now_ms;
	while (p->oldest != NONE &&
	       p->now_ms - p->flights[p->oldest].at_ms >= p->conf.overlay_ms)
		land(p, &p->flights[p->oldest]);
}

bool place_done(struct place *p, uint64_t placement, enum place_end end,
		uint64_t now_ms)
{
	struct flight *f;
	struct node *n;

	place_time(p, now_ms);
	f = flight_of(p, placement);
	if (!f)
		return false;
	if (end == PLACE_END_TAKEN) {
		f->done_ms = p->now_ms ? p->now_ms : 1;
		return true;
	}
	n = &p->nodes[f->node];
	if (end == PLACE_END_DRAINING)
		n->draining = true;
	if (end == PLACE_END_REFUSED) {
		n->refused = true;
		n->refused_ms = p->now_ms;
		memcpy(n->refused_ask, f->ask, sizeof(f->ask));
	}
	land(p, f);
	return true;
}

/* --- nodes -----------------------------------------------------------------
 */

int place_find(const struct place *p, const char *name)
{
	uint64_t h = place_hash(name);
	uint32_t i;

	if (!p->nhash)
		return -ENOENT;
	for (i = p->hash[h & (p->nhash - 1)]; i != NONE; i = p->nodes[i].chain)
		if (p->nodes[i].hash == h && !strcmp(p->nodes[i].name, name))
			return (int)i;
	return -ENOENT;
}

static void chain_all(struct place *p)
{
	for (uint32_t i = 0; i < p->nhash; i++)
		p->hash[i] = NONE;
	for (uint32_t i = 0; i < p->nlive; i++) {
		struct node *n = &p->nodes[p->live[i]];
		uint32_t *head = &p->hash[n->hash & (p->nhash - 1)];

		n->chain = *head;
		*head = p->live[i];
	}
}

/* Room for twice as many nodes, in all three arrays or in none that counts. */
static int grow(struct place *p, struct err *e)
{
	uint32_t n = p->nhash ? p->nhash * 2 : GROW_FROM;
	struct node *nodes;
	uint32_t *live, *hash;

	nodes = realloc(p->nodes, n * sizeof(*nodes));
	if (nodes)
		p->nodes = nodes;
	live = realloc(p->live, n * sizeof(*live));
	if (live)
		p->live = live;
	hash = realloc(p->hash, n * sizeof(*hash));
	if (hash)
		p->hash = hash;
	if (!nodes || !live || !hash)
		return err_sys(e, ENOMEM, "placer");
	p->nhash = n;
	chain_all(p);
	return 0;
}

static void unchain(struct place *p, uint32_t i)
{
	uint32_t *at = &p->hash[p->nodes[i].hash & (p->nhash - 1)];

	while (*at != i)
		at = &p->nodes[*at].chain;
	*at = p->nodes[i].chain;
}

void place_forget(struct place *p, unsigned node)
{
	struct node *n = &p->nodes[node];
	uint32_t last;

	if (node >= p->nnodes || !n->live)
		return;
	while (n->first != NONE)
		land(p, &p->flights[n->first]);
	unchain(p, node);
	last = p->live[--p->nlive];
	p->live[n->at] = last;
	p->nodes[last].at = n->at;
	drop_traits(n);
	n->live = false;
	n->chain = p->free_node;
	p->free_node = node;
}

/* The place of one that was not seen for forget_ms. */
static bool make_room(struct place *p)
{
	for (uint32_t i = 0; i < p->nlive; i++) {
		const struct node *n = &p->nodes[p->live[i]];

		if (!n->reported || p->now_ms - n->at_ms > p->conf.forget_ms) {
			place_forget(p, p->live[i]);
			return true;
		}
	}
	return false;
}

static int add_node(struct place *p, const char *name, uint32_t *ret,
		    struct err *e)
{
	struct node *n;
	uint32_t i;
	int r;

	if (p->nlive == p->conf.nodes_max && !make_room(p))
		return err_set(e, -ENOSPC, "too_large",
			       "node '%s': %u nodes are known already", name,
			       p->nlive);
	if (p->free_node == NONE && p->nnodes == p->nhash) {
		r = grow(p, e);
		if (r < 0)
			return r;
	}
	i = p->free_node;
	if (i == NONE)
		i = p->nnodes++;
	else
		p->free_node = p->nodes[i].chain;
	n = &p->nodes[i];
	*n = (struct node){.live = true,
			   .first = NONE,
			   .hash = place_hash(name),
			   .at = p->nlive,
			   .memory_ratio = RATIO_FIRST};
	memcpy(n->name, name, strlen(name) + 1);
	n->chain = p->hash[n->hash & (p->nhash - 1)];
	p->hash[n->hash & (p->nhash - 1)] = i;
	p->live[p->nlive++] = i;
	*ret = i;
	return 0;
}

static bool same_traits(const struct node *n, const struct place_traits *t)
{
	if (n->nfeatures != t->n || n->isolated != t->isolated)
		return false;
	for (size_t i = 0; i < t->n; i++)
		if (strcmp(n->features[i].text, t->features[i]))
			return false;
	return true;
}

static int set_traits(struct node *n, const struct place_traits *t,
		      struct err *e)
{
	auto_free struct feature *f = NULL;
	auto_free char *text = NULL;
	size_t len = 0, size, at = 0;

	for (size_t i = 0; i < t->n; i++)
		len += strlen(t->features[i]) + 1;
	f = calloc(t->n ? t->n : 1, sizeof(*f));
	text = malloc(len ? len : 1);
	if (!f || !text)
		return err_sys(e, ENOMEM, "placer");
	drop_traits(n);
	n->reserved = false;
	for (size_t i = 0; i < t->n; i++, at += size) {
		size = strlen(t->features[i]) + 1;
		memcpy(text + at, t->features[i], size);
		f[i].text = text + at;
		f[i].hash = place_hash(text + at);
		n->reserved |= !strncmp(text + at, "user:", 5);
	}
	n->features = steal_ptr(f);
	n->text = steal_ptr(text);
	n->nfeatures = (uint8_t)t->n;
	n->isolated = t->isolated;
	return 0;
}

int place_node(struct place *p, const char *name, const struct place_traits *t,
	       uint64_t now_ms, unsigned *ret_node, struct err *e)
{
	uint32_t i = 0;
	int r;

	if (!*name || strlen(name) > PLACE_NAME_MAX ||
	    t->n > PLACE_FEATURES_MAX)
		return err_set(e, -EINVAL, "bad_value",
			       "node '%.64s': a name of %d bytes and %d "
			       "features are the most",
			       name, PLACE_NAME_MAX, PLACE_FEATURES_MAX);
	place_time(p, now_ms);
	r = place_find(p, name);
	if (r >= 0) {
		i = (uint32_t)r;
		if (same_traits(&p->nodes[i], t)) {
			*ret_node = i;
			return 0;
		}
	} else {
		r = add_node(p, name, &i, e);
		if (r < 0)
			return r;
	}
	r = set_traits(&p->nodes[i], t, e);
	if (r == 0)
		*ret_node = i;
	return r;
}

/* --- reports ---------------------------------------------------------------
 */

static void land_shown(struct place *p, const struct node *n, uint64_t at_ms)
{
	uint32_t i = n->first, next;

	for (; i != NONE; i = next) {
		struct flight *f = &p->flights[i];

		next = f->next;
		if (f->done_ms ? f->done_ms <= at_ms
			       : f->at_ms + p->conf.settle_ms <= at_ms)
			land(p, f);
	}
}

static void set_memory(struct node *n, const struct place_report *r)
{
	uint64_t total = r->memory_total_mb, held = r->held.memory_mb;
	double used;

	n->available_mb = r->memory_available_mb;
	n->start_mb = r->memory_reserve_mb;
	n->memory_inv = 0;
	if (!total || r->memory_available_mb > total)
		return;
	used = (double)(total - r->memory_available_mb);
	n->memory_used = used;
	n->memory_inv = 1 / (double)total;
	n->memory_ratio = held ? used / (double)held : RATIO_FIRST;
	if (n->memory_ratio < RATIO_LEAST)
		n->memory_ratio = RATIO_LEAST;
	if (n->memory_ratio > 1)
		n->memory_ratio = 1;
}

static void set_sums(struct place *p, struct node *n,
		     const struct place_report *r)
{
	place_amounts(&r->limit, n->limit);
	place_amounts(&r->held, n->held);
	memcpy(n->used, n->held, sizeof(n->used));
	for (uint32_t i = n->first; i != NONE; i = p->flights[i].next)
		for (unsigned k = 0; k < A_LEN; k++)
			add_to(&n->used[k], p->flights[i].ask[k]);
	for (unsigned k = 0; k < A_LEN; k++)
		n->inv[k] = n->limit[k] ? 1 / (double)n->limit[k] : 0;
}

bool place_report(struct place *p, unsigned node, const struct place_report *r,
		  uint64_t now_ms)
{
	struct node *n = &p->nodes[node];
	uint64_t at_ms;

	place_time(p, now_ms);
	if (node >= p->nnodes || !n->live)
		return false;
	at_ms = r->at_ms < p->now_ms ? r->at_ms : p->now_ms;
	if (n->reported && at_ms < n->at_ms)
		return false;
	land_shown(p, n, at_ms);
	set_sums(p, n, r);
	set_memory(n, r);
	n->reported = true;
	n->at_ms = at_ms;
	n->draining = r->draining;
	n->unhealthy = r->unhealthy;
	n->pressed = r->pressed;
	n->users = r->users;
	n->user = r->users == 1 ? place_hash(r->user ? r->user : "") : 0;
	if (n->refused && n->refused_ms <= at_ms)
		n->refused = false;
	return true;
}

/* --- looking ---------------------------------------------------------------
 */

unsigned place_count(const struct place *p)
{
	return p->nlive;
}

unsigned place_nth(const struct place *p, unsigned i)
{
	return p->live[i];
}

const char *place_name(const struct place *p, unsigned node)
{
	return p->nodes[node].name;
}

void place_look(struct place *p, unsigned node, uint64_t now_ms,
		struct place_view *ret)
{
	const struct node *n = &p->nodes[node];
	uint64_t fly[A_LEN];
	double load = 0;

	place_time(p, now_ms);
	for (unsigned k = 0; k < A_LEN; k++) {
		double part = (double)n->used[k] * n->inv[k];

		fly[k] = n->used[k] > n->held[k] ? n->used[k] - n->held[k] : 0;
		if (part > load)
			load = part;
	}
	*ret = (struct place_view){
		.name = n->name,
		.at_ms = n->at_ms,
		.fresh = n->reported &&
			 p->now_ms - n->at_ms <= p->conf.fresh_ms,
		.draining = n->draining,
		.unhealthy = n->unhealthy,
		.pressed = n->pressed,
		.limit = amounts_of(n->limit),
		.held = amounts_of(n->held),
		.in_flight = amounts_of(fly),
		.placements = n->flights,
		.load = load,
	};
}
