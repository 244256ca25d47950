/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "policy/admit.h"

/* When to ask again: sandboxes end in seconds; pressure passes sooner than a
 * node that is being drained comes back. */
#define RETRY_FULL_MS	  1000
#define RETRY_PRESSURE_MS 2000
#define RETRY_DRAINING_MS 30000

/* A new sandbox needs this much at once, whatever its limit allows later. */
#define START_MB 64

static uint64_t plus(uint64_t a, uint64_t b)
{
	uint64_t r;

	return __builtin_add_overflow(a, b, &r) ? UINT64_MAX : r;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t times_milli(uint64_t a, uint64_t milli)
{
	uint64_t r;

	return __builtin_mul_overflow(a, milli, &r) ? UINT64_MAX : r / 1000;
}

void admit_add(struct admit_amounts *sum, const struct admit_amounts *a)
{
	sum->memory_mb = plus(sum->memory_mb, a->memory_mb);
	sum->cpu_milli = plus(sum->cpu_milli, a->cpu_milli);
	sum->disk_mb = plus(sum->disk_mb, a->disk_mb);
	sum->pids = plus(sum->pids, a->pids);
	sum->sandboxes = plus(sum->sandboxes, a->sandboxes);
}

void admit_sub(struct admit_amounts *sum, const struct admit_amounts *a)
{
	sum->memory_mb = minus(sum->memory_mb, a->memory_mb);
	sum->cpu_milli = minus(sum->cpu_milli, a->cpu_milli);
	sum->disk_mb = minus(sum->disk_mb, a->disk_mb);
	sum->pids = minus(sum->pids, a->pids);
	sum->sandboxes = minus(sum->sandboxes, a->sandboxes);
}

void admit_rules_default(struct admit_rules *rules, uint64_t memory_mb)
{
	uint64_t reserve = memory_mb / 32;

	*rules = (struct admit_rules){
		.memory_overcommit = 1000,
		.cpu_overcommit = 8000,
		.pids_overcommit = 64000,
		.memory_reserve_mb = reserve < 128    ? 128
				     : reserve > 2048 ? 2048
						      : reserve,
		.disk_reserve_mb = 128,
		.pressure_max_milli = 200,
		.swap_max_milli = 900,
	};
}

struct admit_amounts admit_limit(const struct admit_node *node)
{
	const struct admit_amounts *c = &node->capacity;
	const struct admit_rules *r = &node->rules;

	return (struct admit_amounts){
		.memory_mb = times_milli(c->memory_mb, r->memory_overcommit),
		.cpu_milli = times_milli(c->cpu_milli, r->cpu_overcommit),
		.disk_mb = c->disk_mb,
		.pids = times_milli(c->pids, r->pids_overcommit),
		.sandboxes = c->sandboxes,
	};
}

struct sum {
	const char *code, *unit, *key; /* key: of node.json */
	uint64_t limit, held, ask, per_unit;
};

static int no(struct err *e, const struct sum *s)
{
	double unit = (double)s->per_unit;
	int r;

	r = err_set(e, -EAGAIN, s->code,
		    "not enough left: %.10g %s asked for, %.10g of %.10g held "
		    "(node.json: %s)",
		    (double)s->ask / unit, s->unit, (double)s->held / unit,
		    (double)s->limit / unit, s->key);
	if (e) {
		e->infra = true; /* the node's state, not the request's fault */
		e->retry_after_ms = s->ask <= s->limit ? RETRY_FULL_MS : 0;
	}
	return r;
}

static int decide_sums(const struct admit_node *node,
		       const struct admit_amounts *claim, struct err *e)
{
	const struct admit_amounts limit = admit_limit(node);
	const struct admit_amounts *held = &node->held;
	const struct sum sums[] = {
		{"count", "sandboxes", "max_sandboxes", limit.sandboxes,
		 held->sandboxes, claim->sandboxes, 1},
		{"count", "processes", "pids_overcommit", limit.pids,
		 held->pids, claim->pids, 1},
		{"memory", "MiB of memory", "memory_overcommit",
		 limit.memory_mb, held->memory_mb, claim->memory_mb, 1},
		{"cpu", "CPUs", "cpu_overcommit", limit.cpu_milli,
		 held->cpu_milli, claim->cpu_milli, 1000},
		{"disk", "MiB of disk", "disk_mb", limit.disk_mb, held->disk_mb,
		 claim->disk_mb, 1},
	};

	for (unsigned i = 0; i < sizeof(sums) / sizeof(sums[0]); i++)
		if (sums[i].ask > 0 &&
		    plus(sums[i].held, sums[i].ask) > sums[i].limit)
			return no(e, &sums[i]);
	return 0;
}

/* What is so against what may be: "WHOSE has IS UNIT, BOUND are HOW (KNOB)". */
struct bound {
	const char *code, *whose, *unit, *how, *knob;
	uint64_t is, bound;
};

static int pressed(struct err *e, const struct bound *b)
{
	int r;

	r = err_set(e, -EAGAIN, b->code,
		    "%s has %" PRIu64 " %s, %" PRIu64 " are %s (%s)", b->whose,
		    b->is, b->unit, b->bound, b->how, b->knob);
	if (e) {
		e->infra = true;
		e->retry_after_ms = RETRY_PRESSURE_MS;
	}
	return r;
}

static int decide_memory(const struct admit_node *node,
			 const struct admit_amounts *claim, struct err *e)
{
	const struct admit_now *now = &node->now;
	const struct admit_rules *rules = &node->rules;
	uint64_t start = claim->memory_mb < START_MB ? claim->memory_mb
						     : START_MB;
	uint64_t least = plus(rules->memory_reserve_mb, start);
	uint64_t swap = times_milli(now->swap_mb, rules->swap_max_milli);
	uint64_t swapped = now->swap_mb - now->swap_free_mb;

	if (now->memory_available_mb < least)
		return pressed(e,
			       &(struct bound){"pressure", "the node",
					       "MiB of memory available",
					       "needed",
					       "node.json: memory_reserve_mb",
					       now->memory_available_mb,
					       least});
	if (now->memory_full_milli > rules->pressure_max_milli)
		return pressed(
			e, &(struct bound){"pressure", "the node",
					   "thousandths of its time stalled on "
					   "memory",
					   "allowed", "node.json: pressure_max",
					   now->memory_full_milli,
					   rules->pressure_max_milli});
	if (rules->memory_overcommit > 1000 && swapped > swap)
		return pressed(
			e, &(struct bound){"pressure", "the node",
					   "MiB of swap in use", "allowed",
					   "node.json: memory_overcommit is "
					   "above 1",
					   swapped, swap});
	return 0;
}

static int decide_now(const struct admit_node *node,
		      const struct admit_amounts *claim, struct err *e)
{
	const struct admit_now *now = &node->now;
	uint64_t most = now->tasks_max - now->tasks_max / 8;
	int r = decide_memory(node, claim, e);

	if (r < 0)
		return r;
	if (now->disk_free_mb < node->rules.disk_reserve_mb)
		return pressed(e, &(struct bound){"disk",
						  now->disk ? now->disk
							    : "the disk",
						  "MiB free", "kept",
						  "node.json: disk_reserve_mb",
						  now->disk_free_mb,
						  node->rules.disk_reserve_mb});
	/* Leave room to list, stop and log in. */
	if (now->tasks_max && now->tasks > most)
		return pressed(
			e, &(struct bound){"count", "the node", "processes",
					   "allowed",
					   "of kernel.pid_max and threads-max",
					   now->tasks, most});
	return 0;
}

int admit_pressed(const struct admit_node *node, struct err *e)
{
	const struct admit_amounts least = {.sandboxes = 1};

	return decide_now(node, &least, e);
}

static int not_his(struct err *e, const char *why, unsigned retry_after_ms)
{
	int r = err_set(e, -EAGAIN, "isolation", "%s", why);

	if (e) {
		e->infra = true;
		e->retry_after_ms = retry_after_ms;
	}
	return r;
}

int admit_tenant(const struct admit_tenants *t, const char *user, struct err *e)
{
	uint64_t i = 0;

	if (t->isolated && t->users && (t->users > 1 || strcmp(t->user, user)))
		return not_his(
			e,
			"the node holds sandboxes of one user at a time, "
			"and now of another",
			RETRY_FULL_MS);
	while (i < t->nreserved && strcmp(t->reserved[i], user))
		i++;
	return t->nreserved && i == t->nreserved
		       ? not_his(e, "the node is kept for other users", 0)
		       : 0;
}

int admit_decide(const struct admit_node *node,
		 const struct admit_amounts *claim, struct err *e)
{
	int r;

	if (node->now.draining) {
		r = err_set(e, -EAGAIN, "draining",
			    "the node takes no new sandboxes");
		if (e) {
			e->infra = true;
			e->retry_after_ms = RETRY_DRAINING_MS;
		}
		return r;
	}
	r = decide_sums(node, claim, e);
	return r < 0 ? r : decide_now(node, claim, e);
}
