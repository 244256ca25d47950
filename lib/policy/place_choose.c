/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "policy/place_priv.h"

/* When to ask again: sandboxes end in seconds, reports come every second. */
#define RETRY_FULL_MS	  1000
#define RETRY_PRESSURE_MS 2000
#define RETRY_DRAINING_MS 30000

/* A sandbox needs this much to start, whatever its limit: as admit.c has it. */
#define START_MB 64

/* So many nodes that do not fit are met by chance before all are looked at. */
#define MISSES_MAX 24

static const char *const words[PLACE_WHY_LEN] = {
	[PLACE_FIT] = "fit",	       [PLACE_ELSEWHERE] = "elsewhere",
	[PLACE_STALE] = "stale",       [PLACE_UNHEALTHY] = "unhealthy",
	[PLACE_AVOIDED] = "avoided",   [PLACE_DRAINING] = "draining",
	[PLACE_BACKEND] = "backend",   [PLACE_CAPABILITY] = "capability",
	[PLACE_LABEL] = "label",       [PLACE_USER] = "user",
	[PLACE_COUNT] = "count",       [PLACE_MEMORY] = "memory",
	[PLACE_CPU] = "cpu",	       [PLACE_DISK] = "disk",
	[PLACE_PRESSURE] = "pressure", [PLACE_REFUSED] = "refused",
};

const char *place_why_word(enum place_why why)
{
	return words[why];
}

/* A request as choosing wants it. */
struct ask {
	uint64_t row[A_LEN];
	uint64_t start_mb;
	uint64_t user;
	const char *user_name;
	struct feature needs[PLACE_FEATURES_MAX];
	uint32_t avoid[PLACE_AVOID_MAX], among[PLACE_AMONG_MAX];
	unsigned nneeds, navoid, namong;
	bool anywhere;
};

/* splitmix64 */
static uint64_t draw(struct place *p)
{
	uint64_t z = p->random += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Below ${n}, which is at most 2^32: the bias is below 2^-32. */
static uint32_t draw_below(struct place *p, uint32_t n)
{
	return (uint32_t)(((draw(p) >> 32) * n) >> 32);
}

/* Those that are known, by their numbers. */
static unsigned find_all(const struct place *p, const char *const *names,
			 size_t n, uint32_t *ret)
{
	unsigned found = 0;
	int node;

	for (size_t i = 0; i < n; i++) {
		node = place_find(p, names[i]);
		if (node >= 0)
			ret[found++] = (uint32_t)node;
	}
	return found;
}

static bool is_in(const uint32_t *list, unsigned n, uint32_t node)
{
	while (n > 0)
		if (list[--n] == node)
			return true;
	return false;
}

static int prepare(const struct place *p, const struct place_request *req,
		   struct ask *a, struct err *e)
{
	if (req->nneeds > PLACE_FEATURES_MAX || req->navoid > PLACE_AVOID_MAX ||
	    req->namong > PLACE_AMONG_MAX)
		return err_set(e, -EINVAL, "bad_value",
			       "%d features, %d nodes to avoid and %d to be "
			       "among are the most that a request can name",
			       PLACE_FEATURES_MAX, PLACE_AVOID_MAX,
			       PLACE_AMONG_MAX);
	place_amounts(&req->ask, a->row);
	a->start_mb = a->row[A_MEMORY] < START_MB ? a->row[A_MEMORY] : START_MB;
	a->user_name = req->user ? req->user : "";
	a->user = place_hash(a->user_name);
	a->nneeds = (unsigned)req->nneeds;
	for (unsigned i = 0; i < a->nneeds; i++) {
		a->needs[i].text = req->needs[i];
		a->needs[i].hash = place_hash(req->needs[i]);
	}
	a->navoid = find_all(p, req->avoid, req->navoid, a->avoid);
	a->namong = find_all(p, req->among, req->namong, a->among);
	a->anywhere = req->namong == 0;
	return 0;
}

static bool has(const struct node *n, const struct feature *f)
{
	for (unsigned i = 0; i < n->nfeatures; i++)
		if (n->features[i].hash == f->hash &&
		    !strcmp(n->features[i].text, f->text))
			return true;
	return false;
}

static enum place_why lacks(const struct node *n, const struct ask *a)
{
	for (unsigned i = 0; i < a->nneeds; i++) {
		const struct feature *f = &a->needs[i];

		if (has(n, f))
			continue;
		return !strncmp(f->text, "backend:", 8) ? PLACE_BACKEND
		       : !strncmp(f->text, "label:", 6) ? PLACE_LABEL
							: PLACE_CAPABILITY;
	}
	return PLACE_FIT;
}

/* Is there somebody, or a reservation, that ${a}'s user cannot be beside? */
static bool others(const struct node *n, const struct ask *a)
{
	char text[PLACE_NAME_MAX + 8];
	struct feature f = {.text = text};

	if (n->isolated && n->users > 0 && (n->users > 1 || n->user != a->user))
		return true;
	if (n->isolated && n->flights > 0 && n->flying_user != a->user)
		return true;
	if (!n->reserved)
		return false;
	snprintf(text, sizeof(text), "user:%.*s", PLACE_NAME_MAX, a->user_name);
	f.hash = place_hash(text);
	return !has(n, &f);
}

static enum place_why over(const struct node *n, const struct ask *a)
{
	static const enum place_why whys[A_LEN] = {
		[A_COUNT] = PLACE_COUNT, [A_MEMORY] = PLACE_MEMORY,
		[A_CPU] = PLACE_CPU,	 [A_DISK] = PLACE_DISK,
		[A_PIDS] = PLACE_COUNT,
	};

	for (unsigned i = 0; i < A_LEN; i++)
		if (a->row[i] && (n->used[i] > n->limit[i] ||
				  a->row[i] > n->limit[i] - n->used[i]))
			return whys[i];
	return PLACE_FIT;
}

/* Would the node stay above its reserve, as far as can be told? */
static bool short_of_memory(const struct node *n, const struct ask *a)
{
	double left;

	if (n->available_mb == UINT64_MAX)
		return false;
	left = (double)n->available_mb -
	       (double)(n->used[A_MEMORY] - n->held[A_MEMORY]) *
		       n->memory_ratio;
	return left < (double)n->start_mb + (double)a->start_mb;
}

static bool refused(const struct node *n, const struct ask *a)
{
	for (unsigned i = 0; i < A_LEN; i++)
		if (a->row[i] < n->refused_ask[i])
			return false;
	return true;
}

static enum place_why fits(const struct place *p, uint32_t i,
			   const struct ask *a)
{
	const struct node *n = &p->nodes[i];
	enum place_why why;

	if (!a->anywhere && !is_in(a->among, a->namong, i))
		return PLACE_ELSEWHERE;
	if (!n->reported || p->now_ms - n->at_ms > p->conf.fresh_ms)
		return PLACE_STALE;
	if (n->unhealthy)
		return PLACE_UNHEALTHY;
	if (is_in(a->avoid, a->navoid, i))
		return PLACE_AVOIDED;
	if (n->draining)
		return PLACE_DRAINING;
	why = lacks(n, a);
	if (why != PLACE_FIT)
		return why;
	if ((n->isolated || n->reserved) && others(n, a))
		return PLACE_USER;
	why = over(n, a);
	if (why != PLACE_FIT)
		return why;
	if (n->pressed || short_of_memory(n, a))
		return PLACE_PRESSURE;
	return n->refused && refused(n, a) ? PLACE_REFUSED : PLACE_FIT;
}

/* Of a node with the request: the greatest part of anything it asks for. */
static double load_of(const struct node *n, const struct ask *a)
{
	double load = 0, part, fly;

	for (unsigned i = 0; i < A_LEN; i++) {
		part = (double)(n->used[i] + a->row[i]) * n->inv[i];
		if (a->row[i] && part > load)
			load = part;
	}
	if (n->memory_inv == 0)
		return load;
	fly = (double)(n->used[A_MEMORY] - n->held[A_MEMORY] +
		       a->row[A_MEMORY]);
	part = (n->memory_used + fly * n->memory_ratio) * n->memory_inv;
	return part > load ? part : load;
}

static void candidate(const struct place *p, struct place_candidate *c,
		      uint32_t node, const struct ask *a)
{
	const struct node *n = &p->nodes[node];

	c->node = node;
	c->load = load_of(n, a);
	c->in_flight = n->flights;
}

static bool taken(const struct place_choice *c, uint32_t node)
{
	for (unsigned i = 0; i < c->ncandidates; i++)
		if (c->candidates[i].node == node)
			return true;
	return false;
}

/* k that fit by drawing; false: too few were met. */
static bool sample(struct place *p, const struct ask *a, unsigned k,
		   struct place_choice *c)
{
	unsigned misses = 0;
	uint32_t i;

	while (c->ncandidates < k && misses < MISSES_MAX) {
		i = p->live[draw_below(p, p->nlive)];
		if (taken(c, i) || fits(p, i, a) != PLACE_FIT)
			misses++;
		else
			candidate(p, &c->candidates[c->ncandidates++], i, a);
	}
	return c->ncandidates == k;
}

/* k of all that fit, each as likely as any other. */
static void scan(struct place *p, const struct ask *a, unsigned k,
		 struct place_choice *c)
{
	uint32_t seen = 0, at;

	c->ncandidates = 0;
	for (uint32_t i = 0; i < p->nlive; i++) {
		if (fits(p, p->live[i], a) != PLACE_FIT)
			continue;
		seen++;
		at = c->ncandidates < k ? c->ncandidates++
					: draw_below(p, seen);
		if (at < k)
			candidate(p, &c->candidates[at], p->live[i], a);
	}
}

/* The least loaded of all; of several, each as likely as any other. */
static void best(struct place *p, const struct ask *a, struct place_choice *c)
{
	struct place_candidate one;
	uint32_t same = 0;

	for (uint32_t i = 0; i < p->nlive; i++) {
		if (fits(p, p->live[i], a) != PLACE_FIT)
			continue;
		candidate(p, &one, p->live[i], a);
		if (c->ncandidates && one.load > c->candidates[0].load)
			continue;
		if (!c->ncandidates || one.load < c->candidates[0].load)
			same = 0;
		c->ncandidates = 1;
		if (draw_below(p, ++same) == 0)
			c->candidates[0] = one;
	}
}

/* --- when nothing fits -----------------------------------------------------
 */

static void count_whys(struct place *p, const struct ask *a, unsigned *counts)
{
	memset(counts, 0, PLACE_WHY_LEN * sizeof(*counts));
	for (uint32_t i = 0; i < p->nlive; i++)
		counts[fits(p, p->live[i], a)]++;
}

/* Could any node that is not full of others ever hold it? */
static bool never(const struct place *p, const struct ask *a)
{
	for (uint32_t i = 0; i < p->nlive; i++) {
		const struct node *n = &p->nodes[p->live[i]];
		unsigned k = 0;

		if (!a->anywhere && !is_in(a->among, a->namong, p->live[i]))
			continue;
		while (k < A_LEN && a->row[k] <= n->limit[k])
			k++;
		if (n->reported && k == A_LEN && lacks(n, a) == PLACE_FIT)
			return false;
	}
	return true;
}

/* Rows from the one that comes nearest to fitting. */
static const struct refusal {
	enum place_why why;
	const char *code;
	unsigned retry_after_ms;
} refusals[] = {
	{PLACE_REFUSED, "busy", RETRY_FULL_MS},
	{PLACE_PRESSURE, "pressure", RETRY_PRESSURE_MS},
	{PLACE_MEMORY, "memory", RETRY_FULL_MS},
	{PLACE_CPU, "cpu", RETRY_FULL_MS},
	{PLACE_DISK, "disk", RETRY_FULL_MS},
	{PLACE_COUNT, "count", RETRY_FULL_MS},
	{PLACE_USER, "busy", RETRY_FULL_MS},
	{PLACE_AVOIDED, "busy", RETRY_FULL_MS},
	{PLACE_DRAINING, "draining", RETRY_DRAINING_MS},
	{PLACE_STALE, "busy", RETRY_FULL_MS},
	{PLACE_UNHEALTHY, "busy", RETRY_FULL_MS},
	{PLACE_CAPABILITY, "unsupported", 0},
	{PLACE_LABEL, "unsupported", 0},
	{PLACE_BACKEND, "unsupported", 0},
	{PLACE_ELSEWHERE, "busy", RETRY_FULL_MS},
};

/* "3 stale, 2 memory" */
static void tell(const unsigned *counts, char *text, size_t size)
{
	size_t len = 0;

	text[0] = '\0';
	for (unsigned i = 1; i < PLACE_WHY_LEN && len < size; i++)
		if (counts[i])
			len += (size_t)snprintf(text + len, size - len,
						"%s%u %s", len ? ", " : "",
						counts[i], words[i]);
}

static int refuse(struct place *p, const struct ask *a, struct err *e)
{
	const struct refusal *f = &refusals[array_len(refusals) - 1];
	unsigned counts[PLACE_WHY_LEN], retry;
	char text[256];
	int r;

	if (!p->nlive) {
		r = err_set(e, -EAGAIN, "busy", "no node has reported yet");
		retry = RETRY_FULL_MS;
	} else {
		count_whys(p, a, counts);
		tell(counts, text, sizeof(text));
		for (size_t i = array_len(refusals); i-- > 0;)
			if (counts[refusals[i].why])
				f = &refusals[i];
		retry = f->retry_after_ms;
		if (f->why >= PLACE_COUNT && never(p, a))
			retry = 0;
		r = err_set(e, -EAGAIN, f->code, "none of %u nodes fits: %s",
			    p->nlive, text);
	}
	if (e) {
		e->infra = strcmp(e->code, "unsupported") != 0;
		e->retry_after_ms = retry;
	}
	return r;
}

/* --- choosing --------------------------------------------------------------
 */

int place_choose(struct place *p, const struct place_request *req,
		 struct place_choice *ret, struct err *e)
{
	unsigned k = req->k ? req->k : p->conf.k, least = 0;
	struct place_choice c = {.ncandidates = 0};
	struct ask a;
	int r;

	place_time(p, req->now_ms);
	r = prepare(p, req, &a, e);
	if (r < 0)
		return r;
	if (k > PLACE_K_MAX)
		k = PLACE_K_MAX;
	if (k == 0)
		best(p, &a, &c);
	else if (p->nlive <= 2 * k || !sample(p, &a, k, &c))
		scan(p, &a, k, &c);
	if (!c.ncandidates)
		return refuse(p, &a, e);
	/* Of equals the first drawn: as much by chance as any. */
	for (unsigned i = 1; i < c.ncandidates; i++)
		if (c.candidates[i].load < c.candidates[least].load)
			least = i;
	c.chosen = least;
	c.node = c.candidates[least].node;
	c.placement = place_fly(p, c.node, a.row, a.user);
	*ret = c;
	return 0;
}

void place_explain(struct place *p, const struct place_request *req,
		   unsigned counts[PLACE_WHY_LEN])
{
	struct ask a;

	memset(counts, 0, PLACE_WHY_LEN * sizeof(*counts));
	place_time(p, req->now_ms);
	if (prepare(p, req, &a, NULL) == 0)
		count_whys(p, &a, counts);
}
