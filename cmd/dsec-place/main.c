/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/version.h"
#include "box/spec.h"
#include "place_cmd.h"
#include "wire/exit.h"
#include "wire/input.h"
#include "wire/jsonl.h"
#include "wire/record.h"

static const char usage[] =
	"usage: dsec-place [FLAGS] < REPORTS-AND-REQUESTS, or dsec-place "
	"--simulate [FLAGS]";

#define READ_MAX (256 * 1024) /* bytes taken at once; answers go together */

/* clang-format off */
/* Fields of ours, after those of a create request. */
static const struct field more[] = {
	{{"node-label", NULL, 0, "K=V", "a label the node must have; repeats"}, "node_labels", FIELD_MAP, 0, 0, NULL},
	{{"node-capability", NULL, 0, "NAME", "what the node must be able to do; repeats"}, "node_capabilities", FIELD_STRS, 0, 0, NULL},
	{{"avoid", NULL, 0, "NODE", "not this node; repeats"}, "avoid", FIELD_STRS, 0, 0, NULL},
	{{"among", NULL, 0, "NODE", "this node, or another that is named so; repeats"}, "among", FIELD_STRS, 0, 0, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "op", FIELD_STR, 1, 16, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "at_ms", FIELD_INT, 0, 1LL << 60, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "k", FIELD_INT, 1, PLACE_K_MAX, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "explain", FIELD_BOOL, 0, 0, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "placement", FIELD_INT, 0, INT64_MAX, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "end", FIELD_STR, 1, 16, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "node", FIELD_STR, 1, PLACE_NAME_MAX, NULL},
};

enum own {
	OWN_EXPLAIN, OWN_K, OWN_SEED, OWN_FRESH, OWN_SETTLE, OWN_OVERLAY,
	OWN_NO_OVERLAY, OWN_SIMULATE, OWN_NODES, OWN_REQUESTS, OWN_BURST,
	OWN_RATE, OWN_PLACERS, OWN_LIFE, OWN_INTERVAL, OWN_LATENCY, OWN_LOSE,
	OWN_DOWN, OWN_HIDDEN, OWN_NODE_MEMORY, OWN_NODE_CPU, OWN_TRACE,
	OWN_SVG, OWN_POLICIES, OWN_HELP, OWN_VERSION, OWN_LEN
};
static const struct field own[OWN_LEN] = {
	[OWN_EXPLAIN] = {{"explain", NULL, 'x', NULL, "answers say why"}, NULL, FIELD_NONE, 0, 0, NULL},
	[OWN_K] = {{"choices", NULL, 'k', "K", "nodes drawn (2); 0: the best of all"}, "k", FIELD_INT, 0, PLACE_K_MAX, NULL},
	[OWN_SEED] = {{"seed", NULL, 0, "N", "draw the same each time"}, "seed", FIELD_INT, 0, INT64_MAX, NULL},
	[OWN_FRESH] = {{"fresh", NULL, 0, "SECONDS", "an older report is not believed (10)"}, "fresh", FIELD_MS, 1, 3600000, NULL},
	[OWN_SETTLE] = {{"settle", NULL, 0, "SECONDS", "a report shows placements so old (2)"}, "settle", FIELD_MS, 0, 3600000, NULL},
	[OWN_OVERLAY] = {{"overlay", NULL, 0, "SECONDS", "placements are remembered so long (10)"}, "overlay", FIELD_MS, 1, 3600000, NULL},
	[OWN_NO_OVERLAY] = {{"no-overlay", NULL, 0, NULL, "believe the reports alone"}, NULL, FIELD_NONE, 0, 0, NULL},
	[OWN_SIMULATE] = {{"simulate", NULL, 0, NULL, "simulate a cluster; print its balance"}, NULL, FIELD_NONE, 0, 0, NULL},
	[OWN_NODES] = {{"nodes", NULL, 0, "N", "simulated nodes (160)"}, "nodes", FIELD_INT, 1, 10000, NULL},
	[OWN_REQUESTS] = {{"requests", NULL, 0, "N", "creations, the burst's too (1000000)"}, "requests", FIELD_INT, 1, 100000000, NULL},
	[OWN_BURST] = {{"burst", NULL, 0, "N", "so many of them at once, first (0)"}, "burst", FIELD_INT, 0, 100000000, NULL},
	[OWN_RATE] = {{"rate", NULL, 0, "N", "creations a second afterwards (220)"}, "rate", FIELD_NUM, 1, 1000000000, NULL},
	[OWN_PLACERS] = {{"placers", NULL, 0, "N", "that know nothing of each other (1)"}, "placers", FIELD_INT, 1, 64, NULL},
	[OWN_LIFE] = {{"life", NULL, 0, "TIME", "half of the sandboxes live longer (1044s)"}, "life", FIELD_S, 1, 31536000, NULL},
	[OWN_INTERVAL] = {{"interval", NULL, 0, "SECONDS", "between reports of a node (1)"}, "interval", FIELD_MS, 1, 3600000, NULL},
	[OWN_LATENCY] = {{"latency", NULL, 0, "SECONDS", "each way to a node (10ms)"}, "latency", FIELD_MS, 0, 60000, NULL},
	[OWN_LOSE] = {{"lose", NULL, 0, "N", "nodes that die meanwhile (0)"}, "lose", FIELD_INT, 0, 10000, NULL},
	[OWN_DOWN] = {{"down", NULL, 0, "SECONDS", "they come back empty after (60)"}, "down", FIELD_MS, 1, 86400000, NULL},
	[OWN_HIDDEN] = {{"hidden", NULL, 0, "PERCENT", "nodes that refuse all, unreported (0)"}, "hidden", FIELD_INT, 0, 100, NULL},
	[OWN_NODE_MEMORY] = {{"node-memory", NULL, 0, "SIZE", "a node may promise (4096G)"}, "node_memory", FIELD_MB, 1, 1073741824, NULL},
	[OWN_NODE_CPU] = {{"node-cpu", NULL, 0, "CORES", "a node may promise (4096)"}, "node_cpu", FIELD_NUM, 10, 4096000000, NULL},
	[OWN_TRACE] = {{"trace", NULL, 0, "FILE", "replay these creations"}, "trace", FIELD_STR, 1, 4095, NULL},
	[OWN_SVG] = {{"svg", NULL, 0, "FILE", "draw the result"}, "svg", FIELD_STR, 1, 4095, NULL},
	[OWN_POLICIES] = {{"policies", NULL, 0, "LIST", "of overlay,blind,one,random,least (all)"}, "policies", FIELD_STR, 1, 256, NULL},
	[OWN_HELP] = {{"help", NULL, 'h', NULL, "print this"}, NULL, FIELD_NONE, 0, 0, NULL},
	[OWN_VERSION] = {{"version", NULL, 0, NULL, "print the version"}, NULL, FIELD_NONE, 0, 0, NULL},
};
/* clang-format on */

struct args {
	struct table table;
	json_t *defaults; /* of requests */
	json_t *own;	  /* flags of ours that have a value */
	bool explain, no_overlay, simulate, done;
};

static int make_table(struct args *a, struct err *e)
{
	size_t n = spec_fields_len + array_len(more);
	struct field *f;

	a->table.nfields = n;
	a->table.n = n + OWN_LEN;
	f = a->table.rows = calloc(a->table.n, sizeof(*f));
	a->defaults = json_object();
	a->own = json_object();
	if (!f || !a->defaults || !a->own)
		return err_sys(e, ENOMEM, "start");
	memcpy(f, spec_fields, spec_fields_len * sizeof(*f));
	memcpy(f + spec_fields_len, more, sizeof(more));
	memcpy(f + n, own, sizeof(own));
	return 0;
}

static int take_flag(void *arg, int row, const char *value, struct err *e)
{
	struct args *a = arg;
	size_t at = (size_t)row;

	if (at < a->table.nfields)
		return field_of_flag(&a->table.rows[at], value, a->defaults, e);
	switch ((enum own)(at - a->table.nfields)) {
	case OWN_EXPLAIN:
		a->explain = true;
		return 0;
	case OWN_NO_OVERLAY:
		a->no_overlay = true;
		return 0;
	case OWN_SIMULATE:
		a->simulate = true;
		return 0;
	case OWN_HELP:
		opt_help(STDOUT_FILENO, usage,
			 (struct opt_table){a->table.rows, a->table.n,
					    sizeof(*a->table.rows)});
		a->done = true;
		return 0;
	case OWN_VERSION:
		printf("%s\n", DSEC_VERSION);
		a->done = true;
		return 0;
	default:
		return field_of_flag(&a->table.rows[at], value, a->own, e);
	}
}

static int take_word(void *arg, const char *word, struct err *e)
{
	(void)arg;
	(void)word;
	return err_set(e, -EINVAL, "usage", "%s", usage);
}

static int parse(struct args *a, int argc, char **argv, struct err *e)
{
	struct opt_parser p = {.table = {a->table.rows, a->table.n,
					 sizeof(*a->table.rows)},
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	int r;

	r = opt_each(&p, take_flag, take_word, a, e);
	if (r == 0)
		r = field_check(own, OWN_LEN, a->own, e);
	if (r < 0 && e)
		e->code = "usage";
	return r;
}

static uint64_t own_int(const struct args *a, const char *key, int64_t dflt)
{
	return (uint64_t)json_int(a->own, key, dflt);
}

/* A number of units as thousandths. */
static uint64_t own_milli(const struct args *a, const char *key, double dflt)
{
	const json_t *v = json_object_get(a->own, key);

	return (uint64_t)((v ? json_number_value(v) : dflt) * 1000 + 0.5);
}

/* Several placers must not draw alike. */
static int seed_of(const struct args *a, uint64_t *ret, struct err *e)
{
	*ret = own_int(a, "seed", 0);
	if (json_object_get(a->own, "seed"))
		return 0;
	if (getrandom(ret, sizeof(*ret), 0) != sizeof(*ret))
		return err_sys(e, errno ? errno : EIO, "draw a seed");
	return 0;
}

/* --- the filter ------------------------------------------------------------
 */

static int flush(struct filter *f, struct err *e)
{
	int r = fd_write_all(STDOUT_FILENO, f->out.data, f->out.len, NULL);

	if (r < 0)
		r = record_lost(-r, e);
	f->out.len = 0;
	return r;
}

/* Every whole line that was read.  0, 1 when an answer was a failure. */
static int lines(struct filter *f, struct jsonl *in, struct err *e)
{
	int r, failed = 0;
	struct err why = {0};
	size_t len;
	char *text;

	for (;;) {
		r = jsonl_next(in, &text, &len, &why);
		if (r == -EAGAIN)
			return failed;
		if (r == -EMSGSIZE) {
			auto_json json_t *rec = record_error(NULL, &why);

			failed = 1;
			r = filter_answer(f, rec, e);
		} else if (r == 1) {
			r = filter_line(f, text, len, in->line, e);
			failed |= r > 0;
		}
		if (r == 0 && f->out.len > READ_MAX)
			r = flush(f, e);
		if (r < 0)
			return r;
	}
}

static int serve(struct filter *f, struct err *e)
{
	auto_free char *chunk = malloc(READ_MAX);
	struct jsonl in = {.fd = -1};
	int r, failed = 0;
	ssize_t n;

	if (!chunk)
		return err_sys(e, ENOMEM, "start");
	do {
		do
			n = read(STDIN_FILENO, chunk, READ_MAX);
		while (n < 0 && errno == EINTR);
		if (n < 0) {
			r = err_sys(e, errno, "read requests");
			break;
		}
		/* The last line may have no end of its own. */
		if (jsonl_feed(&in, n ? chunk : "\n", n ? (size_t)n : 1) < 0)
			r = err_sys(e, ENOMEM, "read requests");
		else
			r = lines(f, &in, e);
		if (r >= 0) {
			failed |= r;
			r = flush(f, e);
		}
	} while (r >= 0 && n > 0);
	jsonl_done(&in);
	return r < 0 ? r : failed;
}

static int filter(struct args *a, struct err *e)
{
	auto_place struct place *p = NULL;
	struct filter f = {.table = &a->table, .explain = a->explain};
	struct place_conf c;
	int r = input_wanted("--simulate", e);

	if (r < 0)
		return r;
	place_conf_default(&c);
	c.k = (unsigned)own_int(a, "k", c.k);
	c.fresh_ms = own_int(a, "fresh", (int64_t)c.fresh_ms);
	c.settle_ms = own_int(a, "settle", (int64_t)c.settle_ms);
	c.overlay_ms = own_int(a, "overlay", (int64_t)c.overlay_ms);
	if (a->no_overlay)
		c.overlay_max = 0;
	r = seed_of(a, &c.seed, e);
	if (r == 0)
		r = place_new(&c, &p, e);
	if (r < 0)
		return r;
	f.place = p;
	f.defaults = json_object_size(a->defaults) ? a->defaults : NULL;
	r = serve(&f, e);
	buf_done(&f.out);
	return r;
}

/* --- simulation ------------------------------------------------------------
 */

static int simulate(const struct args *a, struct err *e)
{
	auto_json json_t *rec = NULL;
	struct sim_conf c = {
		.nodes = (unsigned)own_int(a, "nodes", 160),
		.placers = (unsigned)own_int(a, "placers", 1),
		.k = (unsigned)own_int(a, "k", 2),
		.requests = own_int(a, "requests", 1000000),
		.burst = own_int(a, "burst", 0),
		.rate = (double)own_milli(a, "rate", 220) / 1000,
		.life_s = (double)own_int(a, "life", 1044),
		.report_ms = (unsigned)own_int(a, "interval", 1000),
		.latency_ms = (unsigned)own_int(a, "latency", 10),
		.launch_ms = 20,
		.lose = (unsigned)own_int(a, "lose", 0),
		.down_ms = (unsigned)own_int(a, "down", 60000),
		.retries = 4,
		.hidden = (unsigned)own_int(a, "hidden", 0),
		.node_memory_mb = own_int(a, "node_memory", 4096 * 1024),
		.node_cpu_milli = own_milli(a, "node_cpu", 4096),
		.seed = own_int(a, "seed", 1),
		.trace = json_string_value(json_object_get(a->own, "trace")),
		.svg = json_string_value(json_object_get(a->own, "svg")),
		.policies = json_string_value(
			json_object_get(a->own, "policies")),
	};
	int r;

	r = sim_run(&c, &rec, e);
	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

int main(int argc, char **argv)
{
	struct args a = {.done = false};
	struct err e = {0};
	int r;

	log_init("dsec-place");
	signal(SIGPIPE, SIG_IGN);
	r = make_table(&a, &e);
	if (r == 0)
		r = parse(&a, argc, argv, &e);
	if (r == 0 && !a.done)
		r = a.simulate ? simulate(&a, &e) : filter(&a, &e);
	json_decref(a.defaults);
	json_decref(a.own);
	free(a.table.rows);
	if (r >= 0)
		return r ? EXIT_NO : EXIT_OK;
	log_err(&e);
	return exit_of(&e);
}
