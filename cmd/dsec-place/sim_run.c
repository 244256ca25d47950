/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One policy over one trace.  Events lie in a wheel of milliseconds, those of
 * later than it reaches by the second.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sim.h"

#define COARSE	   1024 /* milliseconds */
#define FINE	   (2 * COARSE)
#define NONE	   UINT32_MAX
#define AVOID_MAX  8
#define SAMPLE_MS  1000
#define TIMEOUT_MS 1000 /* until a node that is down is given up */

const char *const sim_words[SIM_POLICIES] = {
	[SIM_OVERLAY] = "overlay", [SIM_BLIND] = "blind", [SIM_ONE] = "one",
	[SIM_RANDOM] = "random",   [SIM_LEAST] = "least",
};

enum ev_type {
	EV_NODE,    /* a request arrives at a node */
	EV_ANSWER,  /* that it is taken arrives at the placer */
	EV_REFUSED, /* that it is not */
	EV_END,	    /* a sandbox ends */
	EV_ASKED,   /* a node is asked for its report */
	EV_REPORT,  /* which arrives */
	EV_LOSE,
	EV_BACK,
};

struct ev {
	uint32_t at, next;
	uint32_t node, req, epoch;
	uint16_t placer;
	uint8_t type, tries;
	union {
		struct {
			uint64_t placement;
			uint32_t avoid[AVOID_MAX];
		};
		struct {
			uint64_t memory, cpu;
			uint32_t n;
		};
	};
};

struct machine {
	uint64_t memory, cpu;		      /* held */
	uint64_t planned_memory, planned_cpu; /* and on their way */
	uint32_t n, epoch;
	bool up, hidden;
	char name[16];
};

struct sim {
	const struct sim_conf *c;
	const struct sim_trace *t;
	struct sim_result *r;
	struct place **placers; /* NULL: a policy without */
	struct machine *nodes;
	double *tree; /* for the least loaded: a heap of minima */
	unsigned leaves;
	struct ev *pool;
	uint32_t npool, cap, free;
	uint32_t fine[FINE], *coarse, ncoarse;
	uint32_t now;
	uint64_t random, live;
	double *loads; /* of the last sample */
	double sum_max, sum_spread;
	unsigned samples;
	bool failed; /* out of memory */
};

/* --- events ----------------------------------------------------------------
 */

static struct ev *ev_new(struct sim *s)
{
	struct ev *pool;
	uint32_t i = s->free;

	if (i != NONE) {
		s->free = s->pool[i].next;
		return &s->pool[i];
	}
	if (s->npool == s->cap) {
		s->cap = s->cap ? s->cap * 2 : 65536;
		pool = realloc(s->pool, s->cap * sizeof(*pool));
		if (!pool) {
			s->cap = s->npool;
			s->failed = true;
			return NULL;
		}
		s->pool = pool;
	}
	return &s->pool[s->npool++];
}

static void ev_at(struct sim *s, const struct ev *what, uint64_t at)
{
	uint32_t *head, i;
	struct ev *ev;

	if (at > s->t->end_ms)
		return; /* nobody sees it */
	ev = ev_new(s);
	if (!ev)
		return;
	*ev = *what;
	ev->at = (uint32_t)at;
	i = (uint32_t)(ev - s->pool);
	head = ev->at / COARSE <= s->now / COARSE + 1
		       ? &s->fine[ev->at % FINE]
		       : &s->coarse[ev->at / COARSE];
	ev->next = *head;
	*head = i;
}

/* What is due within the next second comes to the fine wheel. */
static void ev_refine(struct sim *s)
{
	uint32_t i = s->coarse[s->now / COARSE + 1], next;

	s->coarse[s->now / COARSE + 1] = NONE;
	for (; i != NONE; i = next) {
		next = s->pool[i].next;
		s->pool[i].next = s->fine[s->pool[i].at % FINE];
		s->fine[s->pool[i].at % FINE] = i;
	}
}

/* --- nodes -----------------------------------------------------------------
 */

static double load_of(const struct sim *s, uint64_t memory, uint64_t cpu)
{
	double m = (double)memory / (double)s->c->node_memory_mb;
	double p = (double)cpu / (double)s->c->node_cpu_milli;

	return m > p ? m : p;
}

/* After what is planned for a node, or what it is, has changed. */
static void replant(struct sim *s, uint32_t node)
{
	const struct machine *m = &s->nodes[node];
	unsigned i = s->leaves + node;

	if (!s->tree)
		return;
	s->tree[i] = m->up && !m->hidden
			     ? load_of(s, m->planned_memory, m->planned_cpu)
			     : INFINITY;
	for (i /= 2; i > 0; i /= 2)
		s->tree[i] = fmin(s->tree[2 * i], s->tree[2 * i + 1]);
}

static uint32_t least(const struct sim *s)
{
	unsigned i = 1;

	while (i < s->leaves)
		i = 2 * i + (s->tree[2 * i] > s->tree[2 * i + 1]);
	return i - s->leaves;
}

static void plan(struct sim *s, uint32_t node, uint32_t req, bool on)
{
	const struct sim_request *q = &s->t->list[req];
	struct machine *m = &s->nodes[node];

	if (on) {
		m->planned_memory += q->memory_mb;
		m->planned_cpu += q->cpu_milli;
	} else {
		m->planned_memory -= q->memory_mb;
		m->planned_cpu -= q->cpu_milli;
	}
	replant(s, node);
}

/* --- placing ---------------------------------------------------------------
 */

static uint32_t any(struct sim *s, const struct ev *ev)
{
	uint32_t node;
	bool again;

	for (unsigned i = 0; i < 64; i++) {
		node = (uint32_t)(sim_random(&s->random) % s->c->nodes);
		again = false;
		for (unsigned k = 0; k < ev->tries; k++)
			again |= ev->avoid[k] == node;
		if (!again)
			break;
	}
	return node;
}

static bool by_placer(struct sim *s, struct ev *ev)
{
	static const char *const needs[] = {"backend:container"};
	const struct sim_request *q = &s->t->list[ev->req];
	const char *avoid[AVOID_MAX];
	struct place_request req = {
		.ask = {q->memory_mb, q->cpu_milli, 0, 0, 1},
		.needs = needs,
		.nneeds = 1,
		.avoid = avoid,
		.navoid = ev->tries,
		.now_ms = s->now,
	};
	struct place_choice choice;

	for (unsigned i = 0; i < ev->tries; i++)
		avoid[i] = s->nodes[ev->avoid[i]].name;
	if (place_choose(s->placers[ev->placer], &req, &choice, NULL) < 0)
		return false;
	ev->node = (uint32_t)
		strtoul(place_name(s->placers[ev->placer], choice.node) + 1,
			NULL, 10);
	ev->placement = choice.placement;
	return true;
}

static void place_one(struct sim *s, struct ev *ev)
{
	bool good = true;

	s->r->decisions++;
	if (s->r->policy == SIM_RANDOM)
		ev->node = any(s, ev);
	else if (s->r->policy == SIM_LEAST)
		ev->node = least(s);
	else
		good = by_placer(s, ev);
	if (!good) {
		s->r->refused++;
		return;
	}
	plan(s, ev->node, ev->req, true);
	ev->type = EV_NODE;
	ev_at(s, ev, s->now + s->c->latency_ms);
}

static void refused(struct sim *s, struct ev *ev)
{
	plan(s, ev->node, ev->req, false);
	if (s->placers)
		place_done(s->placers[ev->placer], ev->placement,
			   PLACE_END_REFUSED, s->now);
	if (ev->tries == s->c->retries || ev->tries == AVOID_MAX) {
		s->r->refused++;
		return;
	}
	ev->avoid[ev->tries++] = ev->node;
	s->r->retried++;
	place_one(s, ev);
}

static void at_node(struct sim *s, struct ev *ev)
{
	const struct sim_request *q = &s->t->list[ev->req];
	struct machine *m = &s->nodes[ev->node];
	struct ev end = {.type = EV_END, .node = ev->node, .req = ev->req};

	if (!m->up) {
		s->r->unanswered++;
		ev->type = EV_REFUSED;
		ev_at(s, ev, (uint64_t)s->now + TIMEOUT_MS);
		return;
	}
	if (m->hidden || m->memory + q->memory_mb > s->c->node_memory_mb ||
	    m->cpu + q->cpu_milli > s->c->node_cpu_milli) {
		s->r->node_refused++;
		ev->type = EV_REFUSED;
		ev_at(s, ev, (uint64_t)s->now + s->c->latency_ms);
		return;
	}
	m->memory += q->memory_mb;
	m->cpu += q->cpu_milli;
	m->n++;
	s->r->placed++;
	if (++s->live > s->r->live_max)
		s->r->live_max = s->live;
	end.epoch = m->epoch;
	ev_at(s, &end, (uint64_t)s->now + q->life_ms);
	ev->type = EV_ANSWER;
	if (s->placers)
		ev_at(s, ev,
		      (uint64_t)s->now + s->c->launch_ms + s->c->latency_ms);
}

static void ended(struct sim *s, const struct ev *ev)
{
	const struct sim_request *q = &s->t->list[ev->req];
	struct machine *m = &s->nodes[ev->node];

	if (ev->epoch != m->epoch)
		return; /* it died with its node */
	m->memory -= q->memory_mb;
	m->cpu -= q->cpu_milli;
	m->n--;
	s->live--;
	plan(s, ev->node, ev->req, false);
}

/* --- reports and losses ----------------------------------------------------
 */

static void asked(struct sim *s, struct ev *ev)
{
	const struct machine *m = &s->nodes[ev->node];
	struct ev report = {.type = EV_REPORT,
			    .node = ev->node,
			    .placer = ev->placer,
			    .memory = m->memory,
			    .cpu = m->cpu,
			    .n = m->n};

	if (m->up)
		ev_at(s, &report, (uint64_t)s->now + s->c->latency_ms);
	ev_at(s, ev, (uint64_t)s->now + s->c->report_ms);
}

static void reported(struct sim *s, const struct ev *ev)
{
	struct place_report r = {
		.at_ms = s->now - 2 * s->c->latency_ms,
		.limit = {s->c->node_memory_mb, s->c->node_cpu_milli, 0, 0,
			  1000000},
		.held = {ev->memory, ev->cpu, 0, 0, ev->n},
		.memory_available_mb = UINT64_MAX,
	};

	/* Nodes have the placer's numbers: they were added in this order. */
	place_report(s->placers[ev->placer], ev->node, &r, s->now);
}

static void lose(struct sim *s, const struct ev *ev)
{
	struct machine *m = &s->nodes[ev->node];
	struct ev back = {.type = EV_BACK, .node = ev->node};

	if (!m->up)
		return;
	s->r->died += m->n;
	s->live -= m->n;
	m->planned_memory -= m->memory;
	m->planned_cpu -= m->cpu;
	m->memory = m->cpu = m->n = 0;
	m->epoch++;
	m->up = false;
	replant(s, ev->node);
	ev_at(s, &back, (uint64_t)s->now + s->c->down_ms);
}

static void handle(struct sim *s, struct ev *ev)
{
	switch ((enum ev_type)ev->type) {
	case EV_NODE:
		at_node(s, ev);
		break;
	case EV_ANSWER:
		place_done(s->placers[ev->placer], ev->placement,
			   PLACE_END_TAKEN, s->now);
		break;
	case EV_REFUSED:
		refused(s, ev);
		break;
	case EV_END:
		ended(s, ev);
		break;
	case EV_ASKED:
		asked(s, ev);
		break;
	case EV_REPORT:
		reported(s, ev);
		break;
	case EV_LOSE:
		lose(s, ev);
		break;
	case EV_BACK:
		s->nodes[ev->node].up = true;
		replant(s, ev->node);
		break;
	}
}

/* --- measuring -------------------------------------------------------------
 */

/* The fullest by the mean, of the nodes that are up; 0 while nothing runs. */
static double sample(struct sim *s, double *ret_spread, double *ret_mean)
{
	double sum = 0, squares = 0, most = 0, mean, load;
	unsigned n = 0;

	for (unsigned i = 0; i < s->c->nodes; i++) {
		const struct machine *m = &s->nodes[i];

		if (!m->up || m->hidden)
			continue;
		load = load_of(s, m->memory, m->cpu);
		s->loads[n++] = load;
		sum += load;
		squares += load * load;
		most = fmax(most, load);
	}
	s->r->nloads = n;
	*ret_spread = *ret_mean = 0;
	if (n == 0 || sum <= 0)
		return 0;
	*ret_mean = mean = sum / n;
	*ret_spread = sqrt(fmax(squares / n - mean * mean, 0)) / mean;
	return most / mean;
}

static uint32_t last_ms(const struct sim_trace *t)
{
	return t->list[t->n - 1].at_ms;
}

static void keep_loads(struct sim *s, double mean)
{
	s->r->load_end = mean;
	for (size_t i = 0; i < s->r->nloads; i++)
		s->r->loads[i] = mean > 0 ? s->loads[i] / mean : 0;
}

/* The plot has so many points, however long it takes. */
static void plot(struct sim *s, double max_mean)
{
	uint64_t at = (uint64_t)s->now * SIM_POINTS / (s->t->end_ms + 1);

	while (s->r->nseries <= at && s->r->nseries < SIM_POINTS)
		s->r->series[s->r->nseries++] = max_mean;
}

/* When the last creation has landed. */
static uint32_t settled_ms(const struct sim *s)
{
	return last_ms(s->t) + 2 * s->c->latency_ms + 1;
}

static void measure(struct sim *s)
{
	uint32_t last = last_ms(s->t), burst = s->t->burst_ms;
	double spread, mean, max_mean = sample(s, &spread, &mean);

	if (s->now % SAMPLE_MS == 0)
		plot(s, max_mean);
	if (burst && s->now >= burst + SAMPLE_MS && !s->r->burst_max_mean)
		s->r->burst_max_mean = max_mean;
	if (s->now == settled_ms(s)) {
		keep_loads(s, mean);
		s->r->max_mean_end = max_mean;
	}
	/* The second half of the time, or the moment of the end. */
	if (mean <= 0 || s->now < last / 2 || s->now > settled_ms(s))
		return;
	s->samples++;
	s->sum_max += max_mean;
	s->sum_spread += spread;
	s->r->max_mean_worst = fmax(s->r->max_mean_worst, max_mean);
}

/*
 * What is known of balls in bins that are many: with one choice the fullest has
 * sqrt(2 ln n / mean) more than the mean, whose squares weigh by the balls'
 * sizes; with k, ln ln n / ln k balls more; the least loaded of all, one.
 */
static double theory(const struct sim *s)
{
	double n = s->c->nodes, w = 0, w2 = 0, balls, v;
	bool one = s->r->policy == SIM_ONE || s->r->policy == SIM_RANDOM ||
		   s->c->k == 1;

	for (size_t i = 0; i < s->t->n; i++) {
		v = load_of(s, s->t->list[i].memory_mb,
			    s->t->list[i].cpu_milli);
		w += v;
		w2 += v * v;
	}
	if (n < 3 || w <= 0 || s->r->load_end <= 0)
		return 1;
	/* as many of the same weight */
	balls = s->r->load_end / (w / (double)s->t->n) * (w * w) /
		(w2 * (double)s->t->n);
	if (one)
		return 1 + sqrt(2 * log(n) / balls);
	if (s->r->policy == SIM_LEAST || s->c->k == 0)
		return 1 + 1 / balls;
	return 1 + log(log(n)) / log(s->c->k) / balls;
}

/* --- the run ---------------------------------------------------------------
 */

static int add_placer(struct sim *s, unsigned i, struct err *e)
{
	static const char *const features[] = {"backend:container"};
	const struct place_traits traits = {features, 1, false};
	struct place_conf conf;
	unsigned node;
	int r;

	place_conf_default(&conf);
	conf.nodes_max = s->c->nodes;
	conf.k = s->r->policy == SIM_ONE ? 1 : s->c->k;
	conf.seed = s->c->seed * 7919 + i;
	if (s->r->policy == SIM_BLIND)
		conf.overlay_max = 0;
	else if (s->c->burst > conf.overlay_max)
		conf.overlay_max = 1u << 20;
	if (conf.fresh_ms < 3 * (uint64_t)s->c->report_ms)
		conf.fresh_ms = 3 * (uint64_t)s->c->report_ms;
	if (conf.overlay_ms < 3 * (uint64_t)s->c->report_ms)
		conf.overlay_ms = 3 * (uint64_t)s->c->report_ms;
	r = place_new(&conf, &s->placers[i], e);
	for (unsigned k = 0; r == 0 && k < s->c->nodes; k++)
		r = place_node(s->placers[i], s->nodes[k].name, &traits, 0,
			       &node, e);
	return r;
}

/* Each placer asks each node at a time of its own in the interval. */
static int add_placers(struct sim *s, struct err *e)
{
	struct ev ask = {.type = EV_ASKED};
	int r = 0;

	if (s->r->policy == SIM_RANDOM || s->r->policy == SIM_LEAST)
		return 0;
	s->placers = calloc(s->c->placers, sizeof(struct place *));
	if (!s->placers)
		return err_sys(e, ENOMEM, "simulation");
	for (unsigned i = 0; r == 0 && i < s->c->placers; i++) {
		r = add_placer(s, i, e);
		for (unsigned k = 0; r == 0 && k < s->c->nodes; k++) {
			ask.node = k;
			ask.placer = (uint16_t)i;
			ev_at(s, &ask,
			      s->c->latency_ms +
				      sim_random(&s->random) % s->c->report_ms);
		}
	}
	return r;
}

static void add_losses(struct sim *s)
{
	struct ev ev = {.type = EV_LOSE};
	uint64_t last = last_ms(s->t);

	for (unsigned i = 0; i < s->c->lose; i++) {
		ev.node = (uint32_t)(sim_random(&s->random) % s->c->nodes);
		ev_at(s, &ev, last * (i + 1) / (s->c->lose + 1));
	}
}

static int prepare(struct sim *s, struct err *e)
{
	unsigned n = s->c->nodes;

	s->ncoarse = s->t->end_ms / COARSE + 3;
	s->coarse = malloc(s->ncoarse * sizeof(*s->coarse));
	s->nodes = calloc(n, sizeof(*s->nodes));
	s->loads = calloc(n, sizeof(*s->loads));
	s->r->loads = calloc(n, sizeof(*s->r->loads));
	for (s->leaves = 1; s->leaves < n; s->leaves *= 2)
		;
	if (s->r->policy == SIM_LEAST)
		s->tree = calloc(2 * s->leaves, sizeof(*s->tree));
	if (!s->coarse || !s->nodes || !s->loads || !s->r->loads ||
	    (s->r->policy == SIM_LEAST && !s->tree))
		return err_sys(e, ENOMEM, "simulation");
	s->free = NONE;
	for (uint32_t i = 0; i < s->ncoarse; i++)
		s->coarse[i] = NONE;
	for (unsigned i = 0; i < FINE; i++)
		s->fine[i] = NONE;
	for (unsigned i = 0; s->tree && i < 2 * s->leaves; i++)
		s->tree[i] = INFINITY;
	for (unsigned i = 0; i < n; i++) {
		snprintf(s->nodes[i].name, sizeof(s->nodes[i].name), "n%u", i);
		s->nodes[i].up = true;
		s->nodes[i].hidden = sim_random(&s->random) % 100 <
				     s->c->hidden;
		replant(s, i);
	}
	add_losses(s);
	return add_placers(s, e);
}

static void arrive(struct sim *s, size_t i)
{
	struct ev ev = {
		.req = (uint32_t)i,
		.placer = (uint16_t)(sim_random(&s->random) % s->c->placers),
	};

	place_one(s, &ev);
}

static void run(struct sim *s)
{
	uint32_t *slot, i;
	size_t next = 0;
	struct ev ev;

	for (s->now = 0; s->now <= s->t->end_ms && !s->failed; s->now++) {
		if (s->now % COARSE == 0)
			ev_refine(s);
		for (; next < s->t->n && s->t->list[next].at_ms <= s->now;
		     next++)
			arrive(s, next);
		/* What is handled may add to what is due now. */
		for (slot = &s->fine[s->now % FINE]; *slot != NONE;) {
			i = *slot;
			*slot = s->pool[i].next;
			ev = s->pool[i];
			s->pool[i].next = s->free;
			s->free = i;
			handle(s, &ev);
		}
		if (s->now % SAMPLE_MS == 0 || s->now == settled_ms(s))
			measure(s);
	}
}

static double cpu_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void done(struct sim *s)
{
	for (unsigned i = 0; s->placers && i < s->c->placers; i++)
		place_free(s->placers[i]);
	free(s->placers);
	free(s->nodes);
	free(s->tree);
	free(s->pool);
	free(s->coarse);
	free(s->loads);
}

static int by_load(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int sim_one(const struct sim_conf *c, const struct sim_trace *t,
	    enum sim_policy policy, struct sim_result *ret, struct err *e)
{
	struct sim *s = calloc(1, sizeof(*s));
	double from;
	int r;

	*ret = (struct sim_result){.policy = policy};
	if (!s)
		return err_sys(e, ENOMEM, "simulation");
	s->c = c;
	s->t = t;
	s->r = ret;
	s->random = c->seed + 1;
	r = prepare(s, e);
	from = cpu_now();
	if (r == 0)
		run(s);
	ret->cpu_s = cpu_now() - from;
	if (r == 0 && s->failed)
		r = err_sys(e, ENOMEM, "simulation");
	if (s->samples) {
		ret->max_mean = s->sum_max / s->samples;
		ret->spread = s->sum_spread / s->samples;
	}
	if (r == 0)
		ret->theory = theory(s);
	qsort(ret->loads, ret->nloads, sizeof(*ret->loads), by_load);
	done(s);
	free(s);
	return r;
}
