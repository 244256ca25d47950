/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <unistd.h>

#include "sim.h"
#include "wire/jsonl.h"

#define REQUESTS_MAX 20000000 /* 320 MB of them */
#define END_MAX	     (40u * 24 * 3600 * 1000)
/* Of lives: the 99th of 100 is ten times the median, ln 10 / 2.326. */
#define SIGMA 0.99
/* The simulation goes on so long after the last creation. */
#define TAIL_MS 10000

uint64_t sim_random(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

double sim_uniform(uint64_t *state)
{
	return ((double)(sim_random(state) >> 11) + 1) / 9007199254740992.0;
}

static uint32_t life(uint64_t *s, double median_s)
{
	double normal = sqrt(-2 * log(sim_uniform(s))) *
			cos(2 * M_PI * sim_uniform(s));
	double ms = median_s * 1000 * exp(SIGMA * normal);

	return ms < 1000 ? 1000 : ms > 4e9 ? 4000000000u : (uint32_t)ms;
}

/* Few are large: 1.4 GiB and 1.2 CPUs on average. */
static void size_of(uint64_t *s, struct sim_request *q)
{
	static const struct {
		double part;
		uint32_t value;
	} memory[] = {{0.4, 512},
		      {0.7, 1024},
		      {0.9, 2048},
		      {0.98, 4096},
		      {1, 8192}},
	  cpu[] = {{0.4, 500}, {0.8, 1000}, {0.95, 2000}, {1, 4000}};
	double u = sim_uniform(s), v = sim_uniform(s);
	size_t i = 0, k = 0;

	while (u > memory[i].part)
		i++;
	while (v > cpu[k].part)
		k++;
	q->memory_mb = memory[i].value;
	q->cpu_milli = cpu[k].value;
}

static int generate(const struct sim_conf *c, struct sim_trace *t,
		    struct err *e)
{
	/* When everybody has reported. */
	double at = c->report_ms + 2.0 * c->latency_ms + 1;
	uint64_t s = c->seed ^ 0x5bf03635;

	t->burst_ms = c->burst ? (uint32_t)at : 0;
	for (size_t i = 0; i < t->n; i++) {
		struct sim_request *q = &t->list[i];

		if (i >= c->burst)
			at -= log(sim_uniform(&s)) * 1000 / c->rate;
		if (at > END_MAX)
			return err_set(e, -EINVAL, "usage",
				       "--rate %g: %zu requests take longer "
				       "than 40 days",
				       c->rate, t->n);
		q->at_ms = (uint32_t)at;
		q->life_ms = life(&s, c->life_s);
		size_of(&s, q);
	}
	return 0;
}

static int bad(struct err *e, const char *file, uint64_t line, const char *what)
{
	return err_set(e, -EBADMSG, "bad_value", "'%s', line %llu: %s", file,
		       (unsigned long long)line, what);
}

static int read_one(const char *text, size_t len, uint32_t from,
		    struct sim_request *q, struct err *e)
{
	auto_json json_t *obj = NULL;
	int64_t at, lives, memory;
	double cpu;
	int r;

	r = json_parse(text, len, &obj, e);
	if (r < 0)
		return r;
	at = json_int(obj, "at_ms", -1);
	lives = json_int(obj, "life_ms", -1);
	memory = json_int(obj, "memory_limit_mb", 512);
	cpu = 1;
	if (json_object_get(obj, "cpu_cores_limit"))
		cpu = json_number_value(
			json_object_get(obj, "cpu_cores_limit"));
	if (at < 0 || at > (int64_t)(END_MAX - from) || lives < 1 ||
	    memory < 0 || memory > UINT32_MAX || !(cpu >= 0 && cpu < 4e6))
		return -ERANGE;
	*q = (struct sim_request){
		.at_ms = from + (uint32_t)at,
		.life_ms = lives > UINT32_MAX ? UINT32_MAX : (uint32_t)lives,
		.memory_mb = (uint32_t)memory,
		.cpu_milli = (uint32_t)(cpu * 1000 + 0.5),
	};
	return 0;
}

static int add(struct sim_trace *t, size_t *cap, const struct sim_request *q)
{
	struct sim_request *list;

	if (t->n == *cap) {
		*cap = *cap ? *cap * 2 : 4096;
		list = realloc(t->list, *cap * sizeof(*list));
		if (!list)
			return -ENOMEM;
		t->list = list;
	}
	t->list[t->n++] = *q;
	return 0;
}

static int replay(const struct sim_conf *c, struct sim_trace *t, struct err *e)
{
	uint32_t from = c->report_ms + 2 * c->latency_ms + 1;
	auto_close int fd = open(c->trace, O_RDONLY | O_CLOEXEC);
	struct jsonl in = {.fd = fd};
	struct sim_request q;
	size_t cap = 0, len;
	char *text;
	int r;

	if (fd < 0)
		return err_sys(e, errno, "open '%s'", c->trace);
	while ((r = jsonl_next(&in, &text, &len, e)) == 1) {
		r = read_one(text, len, from, &q, e);
		if (r == -ERANGE)
			r = bad(e, c->trace, in.line,
				"at_ms, life_ms, memory_limit_mb and "
				"cpu_cores_limit are numbers within reason");
		else if (r < 0)
			err_wrap(e, r, "'%s', line %llu", c->trace,
				 (unsigned long long)in.line);
		else if (t->n && q.at_ms < t->list[t->n - 1].at_ms)
			r = bad(e, c->trace, in.line, "at_ms goes back");
		else if (t->n == REQUESTS_MAX || add(t, &cap, &q) < 0)
			r = bad(e, c->trace, in.line, "too many");
		if (r < 0)
			break;
	}
	jsonl_done(&in);
	return r;
}

int sim_trace_make(const struct sim_conf *c, struct sim_trace *ret,
		   struct err *e)
{
	int r;

	*ret = (struct sim_trace){.n = 0};
	if (c->trace) {
		r = replay(c, ret, e);
	} else {
		if (c->requests > REQUESTS_MAX || c->burst > c->requests)
			return err_set(e, -EINVAL, "usage",
				       "--requests: %d at most, and no fewer "
				       "than --burst",
				       REQUESTS_MAX);
		ret->n = c->requests;
		ret->list = calloc(ret->n, sizeof(*ret->list));
		r = ret->list ? generate(c, ret, e)
			      : err_sys(e, ENOMEM, "trace");
	}
	if (r == 0 && ret->n == 0)
		r = err_set(e, -EBADMSG, "bad_value", "'%s' is empty",
			    c->trace);
	if (r < 0) {
		free(ret->list);
		return r;
	}
	ret->end_ms = ret->list[ret->n - 1].at_ms + TAIL_MS;
	return 0;
}
