/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_PLACE_SIM_H
#define DSEC_PLACE_SIM_H

#include "place_cmd.h"

/* A creation of the trace; times in milliseconds of the simulation. */
struct sim_request {
	uint32_t at_ms, life_ms;
	uint32_t memory_mb, cpu_milli;
};

struct sim_trace {
	struct sim_request *list; /* by at_ms */
	size_t n;
	uint32_t burst_ms; /* when the burst comes; 0: there is none */
	uint32_t end_ms;   /* of the simulation */
};

/* sim_trace_make(c, ret, e): generated, or read from c->trace. */
int sim_trace_make(const struct sim_conf *c, struct sim_trace *ret,
		   struct err *e);

enum sim_policy {
	SIM_OVERLAY, /* as the filter does */
	SIM_BLIND,   /* without the overlay */
	SIM_ONE,     /* one choice */
	SIM_RANDOM,  /* of all nodes, whatever they say */
	SIM_LEAST,   /* the least loaded, known as it is */
	SIM_POLICIES
};
extern const char *const sim_words[SIM_POLICIES];

#define SIM_POINTS 400 /* of a plot */

struct sim_result {
	enum sim_policy policy;
	uint64_t placed, refused; /* requests */
	uint64_t decisions, retried;
	uint64_t node_refused; /* by nodes */
	uint64_t unanswered;   /* by nodes that were down */
	uint64_t died;	       /* sandboxes, with their node */
	uint64_t live_max;
	double max_mean, max_mean_worst, max_mean_end, spread, burst_max_mean;
	double load_end; /* mean */
	double theory;
	double cpu_s;
	/* for the plot: each node's load by the mean, ascending; the fullest's
	 * over time */
	double *loads;
	size_t nloads;
	double series[SIM_POINTS];
	size_t nseries;
};

/* sim_one(c, t, policy, ret, e): ret->loads is the caller's. */
int sim_one(const struct sim_conf *c, const struct sim_trace *t,
	    enum sim_policy policy, struct sim_result *ret, struct err *e);

/* sim_draw(c, t, rs, n, e): into c->svg. */
int sim_draw(const struct sim_conf *c, const struct sim_trace *t,
	     const struct sim_result *rs, size_t n, struct err *e);

/* A generator of its own, so that a trace does not depend on who places. */
uint64_t sim_random(uint64_t *state);
/* Evenly in (0, 1]. */
double sim_uniform(uint64_t *state);

#endif
