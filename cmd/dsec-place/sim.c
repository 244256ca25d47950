/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "sim.h"

static double rounded(double v)
{
	return round(v * 10000) / 10000;
}

static int describe(const struct sim_result *r, json_t **ret, struct err *e)
{
	return json_pack_or(
		ret, e,
		"{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, "
		"s:I, s:I, s:I, s:I, s:f, s:I}",
		"policy", sim_words[r->policy], "max_mean",
		rounded(r->max_mean), "max_mean_worst",
		rounded(r->max_mean_worst), "max_mean_end",
		rounded(r->max_mean_end), "spread", rounded(r->spread),
		"burst_max_mean", rounded(r->burst_max_mean), "theory_max_mean",
		rounded(r->theory), "mean_load", rounded(r->load_end), "placed",
		(json_int_t)r->placed, "refused", (json_int_t)r->refused,
		"retried", (json_int_t)r->retried, "node_refused",
		(json_int_t)r->node_refused, "unanswered",
		(json_int_t)r->unanswered, "lost", (json_int_t)r->died,
		"live_max", (json_int_t)r->live_max, "decisions",
		(json_int_t)r->decisions, "cpu_s", rounded(r->cpu_s),
		"per_second",
		(json_int_t)((double)r->decisions / fmax(r->cpu_s, 1e-6)));
}

static bool wanted(const char *list, const char *word)
{
	size_t len = strlen(word), n;

	for (; list && *list; list += n + (list[n] == ',')) {
		n = strcspn(list, ",");
		if (n == len && !strncmp(list, word, n))
			return true;
	}
	return !list;
}

static int check_words(const char *list, struct err *e)
{
	size_t n, i;

	for (; list && *list; list += n + (list[n] == ',')) {
		n = strcspn(list, ",");
		for (i = 0; i < SIM_POLICIES; i++)
			if (strlen(sim_words[i]) == n &&
			    !strncmp(list, sim_words[i], n))
				break;
		if (i == SIM_POLICIES)
			return err_set(e, -EINVAL, "usage",
				       "--policies: '%.*s' is none of overlay, "
				       "blind, one, random, least",
				       (int)n, list);
	}
	return 0;
}

static int answer(const struct sim_conf *c, const struct sim_trace *t,
		  json_t *results, json_t **ret, struct err *e)
{
	json_t *rec = NULL;
	int r;

	r = json_pack_or(
		&rec, e,
		"{s:b, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, "
		"s:O}",
		"ok", 1, "simulated", "nodes", (json_int_t)c->nodes, "requests",
		(json_int_t)t->n, "burst", (json_int_t)c->burst, "placers",
		(json_int_t)c->placers, "k", (json_int_t)c->k, "report_ms",
		(json_int_t)c->report_ms, "latency_ms",
		(json_int_t)c->latency_ms, "lose", (json_int_t)c->lose, "seed",
		(json_int_t)c->seed, "ms", (json_int_t)t->end_ms, "results",
		results);
	if (r == 0)
		*ret = rec;
	return r;
}

int sim_run(const struct sim_conf *c, json_t **ret_rec, struct err *e)
{
	struct sim_result rs[SIM_POLICIES];
	auto_json json_t *results = json_array();
	json_t *one = NULL;
	struct sim_trace t;
	size_t n = 0;
	int r;

	r = check_words(c->policies, e);
	if (r == 0)
		r = sim_trace_make(c, &t, e);
	if (r < 0)
		return r;
	for (unsigned p = 0; r == 0 && p < SIM_POLICIES; p++) {
		if (!wanted(c->policies, sim_words[p]))
			continue;
		r = sim_one(c, &t, (enum sim_policy)p, &rs[n++], e);
		if (r == 0)
			r = describe(&rs[n - 1], &one, e);
		if (r == 0 && json_array_append_new(results, one) < 0)
			r = err_sys(e, ENOMEM, "results");
	}
	if (r == 0 && c->svg)
		r = sim_draw(c, &t, rs, n, e);
	if (r == 0)
		r = answer(c, &t, results, ret_rec, e);
	while (n-- > 0)
		free(rs[n].loads);
	free(t.list);
	return r;
}
