/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hash.h"
#include "box/claim.h"
#include "ckpt/engine.h"
#include "net/transit.h"
#include "report.h"
#include "sys/pool.h"

#define TOP_MAX 64  /* of tasks, projects and users are told */
#define LOOKS	128 /* at states that were known, for one report */
#define MB	(1024 * 1024)

static const char *const kinds[] = {"backend", "task", "project", "user"};
static const char *const told[] = {"sandboxes", "tasks", "projects", "users"};
#define KINDS array_len(kinds)

void report_done(struct report_cache *c)
{
	json_decref(c->seen);
	c->seen = NULL;
}

static int no_memory(struct err *e)
{
	return err_sys(e, ENOMEM, "report");
}

static int set(json_t *rec, const char *key, json_t *v, struct err *e)
{
	return json_object_set_new(rec, key, v) < 0 ? no_memory(e) : 0;
}

int report_amounts(json_t *rec, const char *key, const struct admit_amounts *a,
		   struct err *e)
{
	json_t *obj = NULL;
	int r;

	r = json_pack_or(&obj, e, "{s:I, s:f, s:I, s:I, s:I}", "memory_mb",
			 (json_int_t)a->memory_mb, "cpu_cores",
			 (double)a->cpu_milli / 1000, "disk_mb",
			 (json_int_t)a->disk_mb, "pids", (json_int_t)a->pids,
			 "sandboxes", (json_int_t)a->sandboxes);
	return r < 0 ? r : set(rec, key, obj, e);
}

/* --- who is here -----------------------------------------------------------
 */

struct walk {
	const struct tree *tree;
	json_t *was, *seen;
	json_t *counts[KINDS], *states;
	size_t shares; /* in so many reports each state is looked at anew */
	unsigned turn;
};

static int count(json_t *counts, const char *name, struct err *e)
{
	json_t *n = json_object_get(counts, name);

	if (n)
		return json_integer_set(n, json_integer_value(n) + 1);
	return set(counts, name, json_integer(1), e);
}

/* Of a claim what is counted, read once; NULL: it went. */
static json_t *read_claim(const struct walk *w, const char *id)
{
	auto_json json_t *claim = NULL;
	char path[PATH_MAX];
	json_t *v, *few;

	if (tree_path(path, NULL, "%s/sb/%s/claim.json", w->tree->run, id) <
		    0 ||
	    json_read_file(AT_FDCWD, path, &claim, NULL) < 0)
		return NULL;
	few = json_object();
	for (size_t i = 0; few && i < KINDS; i++) {
		v = json_object_get(claim, kinds[i]);
		if (v)
			json_object_set(few, kinds[i], v);
	}
	return few;
}

/*
 * What state.json says, read again when it is another file: it changes names
 * with a second one.  Into ${few}; one-shots have none and run.
 */
static int set_state(const struct walk *w, const char *id, json_t *few,
		     struct err *e)
{
	auto_json json_t *state = NULL;
	char path[PATH_MAX];
	struct stat st;
	uint64_t stamp = 0;
	int r;

	r = tree_path(path, e, "%s/sb/%s/state.json", w->tree->run, id);
	if (r < 0)
		return r;
	if (stat(path, &st) == 0)
		stamp = (st.st_ino * 31 + (uint64_t)st.st_mtim.tv_nsec +
			 (uint64_t)st.st_mtim.tv_sec) &
			INT64_MAX;
	if (json_int(few, "stamp", -1) == (int64_t)stamp)
		return 0;
	if (stamp)
		(void)json_read_file(AT_FDCWD, path, &state, NULL);
	r = set(few, "stamp", json_integer((json_int_t)stamp), e);
	if (r == 0)
		r = set(few, "state",
			json_string(state ? json_str(state, "state")
					  : "running"),
			e);
	return r;
}

/* A node is asked each second by each control, however many it has. */
static bool is_due(const struct walk *w, const char *id)
{
	return w->shares <= 1 ||
	       hash_fnv(id, strlen(id)) % w->shares == w->turn % w->shares;
}

static int one_claim(void *arg, const char *id, struct err *e)
{
	struct walk *w = arg;
	json_t *few = json_object_get(w->was, id);
	bool look = !few || is_due(w, id);
	const char *word;
	int r = 0;

	few = few ? json_incref(few) : read_claim(w, id);
	if (!few)
		return 0;
	r = set(w->seen, id, few, e);
	if (r == 0 && look)
		r = set_state(w, id, few, e);
	if (r == 0)
		r = count(w->states, json_str(few, "state"), e);
	for (size_t i = 0; r == 0 && i < KINDS; i++) {
		word = json_str(few, kinds[i]);
		if (i == 0 && !*word)
			word = "container";
		if (i == 1 && !*word)
			continue; /* of no task */
		r = count(w->counts[i], word, e);
	}
	return r;
}

/* The largest of them: others would make a report as long as anybody wants. */
static int set_top(json_t *rec, size_t kind, json_t *counts, struct err *e)
{
	char name[64];
	json_t *top = json_object(), *v;
	const char *key, *most;
	size_t n = json_object_size(counts);
	int r;

	r = top ? set(rec, told[kind], top, e) : no_memory(e);
	snprintf(name, sizeof(name), "%s_count", told[kind]);
	if (r == 0 && kind > 0)
		r = set(rec, name, json_integer((json_int_t)n), e);
	if (r == 0 && n <= TOP_MAX)
		return json_object_update(top, counts) < 0 ? no_memory(e) : 0;
	for (unsigned i = 0; r == 0 && i < TOP_MAX; i++) {
		json_int_t many = 0;

		most = NULL;
		json_object_foreach(counts, key, v)
			if (json_integer_value(v) > many) {
				many = json_integer_value(v);
				most = key;
			}
		r = set(top, most, json_integer(many), e);
		json_integer_set(json_object_get(counts, most), 0);
	}
	return r;
}

static int set_counts(const struct tree *t, struct report_cache *c, json_t *rec,
		      struct err *e)
{
	struct walk w = {.tree = t,
			 .was = c->seen,
			 .seen = json_object(),
			 .states = json_object(),
			 .shares = json_object_size(c->seen) / LOOKS + 1,
			 .turn = c->turn++};
	int r = w.seen ? 0 : no_memory(e);

	if (r == 0)
		r = set(rec, "states", json_incref(w.states), e);

	for (size_t i = 0; i < KINDS; i++) {
		w.counts[i] = json_object();
		if (!w.counts[i])
			r = no_memory(e);
	}
	if (r == 0)
		r = tree_each(t->run, one_claim, &w, e);
	for (size_t i = 0; i < KINDS; i++) {
		if (r == 0)
			r = set_top(rec, i, w.counts[i], e);
		json_decref(w.counts[i]);
	}
	json_decref(w.states);
	json_decref(c->seen);
	c->seen = w.seen;
	return r;
}

/* --- what it can do --------------------------------------------------------
 */

static bool has_engine(const struct tree *t)
{
	struct engine en;

	return engine_find(t, &en, NULL) == 0;
}

static int can(json_t *list, const char *what, bool yes, struct err *e)
{
	return yes && json_array_append_new(list, json_string(what)) < 0
		       ? no_memory(e)
		       : 0;
}

static int find_out(const struct tree *t, json_t *list, struct err *e)
{
	auto_pool struct pool p = POOL_INIT;
	bool pool, quota;
	int r;

	pool = pool_open(t->lib, &p, NULL) == 0 && p.kind == POOL_BTRFS;
	quota = pool && pool_quota(&p) != POOL_QUOTA_NONE;
	r = can(list, "checkpoint", has_engine(t), e);
	if (r == 0)
		r = can(list, "disk-limit", quota, e);
	if (r == 0)
		r = can(list, "kvm", access("/dev/kvm", R_OK | W_OK) == 0, e);
	if (r == 0)
		r = can(list, "pool", pool, e);
	if (r == 0)
		r = can(list, "routed",
			access("/sys/class/net/" TRANSIT_UPLINK, F_OK) == 0, e);
	return r;
}

/* node.json is held against its table whenever the ledger is made of it. */
static int set_abilities(const struct tree *t, json_t *rec, struct err *e)
{
	auto_json json_t *conf = NULL, *list = json_array();
	const char *isolation;
	char path[PATH_MAX];
	json_t *v;
	int r;

	if (!list)
		return no_memory(e);
	r = tree_path(path, e, "%s/node.json", t->config);
	if (r < 0)
		return r;
	(void)json_read_file(AT_FDCWD, path, &conf, NULL);
	r = find_out(t, list, e);
	v = json_object_get(conf, "capabilities");
	if (r == 0 && json_is_array(v) && json_array_extend(list, v) < 0)
		r = no_memory(e);
	if (r == 0)
		r = set(rec, "capabilities", json_incref(list), e);
	v = json_object_get(conf, "labels");
	if (r == 0)
		r = set(rec, "labels", v ? json_incref(v) : json_object(), e);
	v = json_object_get(conf, "reserved_for");
	if (r == 0)
		r = set(rec, "reserved_for", v ? json_incref(v) : json_array(),
			e);
	isolation = json_str(conf, "isolation");
	if (r == 0)
		r = set(rec, "isolation",
			json_string(*isolation ? isolation : "none"), e);
	return r;
}

/* --- what is used ----------------------------------------------------------
 */

/* "cpu  user nice system idle iowait irq softirq steal ..": used and all. */
static int cpu_ticks(uint64_t ticks[2])
{
	unsigned long long v[8];
	auto_free char *text = NULL;

	if (fd_read_file(AT_FDCWD, "/proc/stat", 1 << 20, &text, NULL, NULL) <
		    0 ||
	    sscanf(text, "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &v[0],
		   &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7]) != 8)
		return -EIO;
	ticks[0] = v[0] + v[1] + v[2] + v[5] + v[6] + v[7];
	ticks[1] = ticks[0] + v[3] + v[4];
	return 0;
}

/* CPUs in use since the last report, where there was one. */
static int set_cpu(struct report_cache *c, json_t *rec, struct err *e)
{
	uint64_t now[2], all;
	double used;
	int r = 0;

	if (cpu_ticks(now) < 0)
		return 0;
	all = now[1] - c->cpu[1];
	if (c->cpu[1] && all > 0 && now[0] >= c->cpu[0]) {
		used = (double)(now[0] - c->cpu[0]) / (double)all *
		       (double)sysconf(_SC_NPROCESSORS_ONLN);
		r = set(rec, "cpu_used", json_real(used), e);
	}
	memcpy(c->cpu, now, sizeof(now));
	return r;
}

static int set_now(const struct admit_node *n, json_t *rec, struct err *e)
{
	const struct admit_now *now = &n->now;
	auto_json json_t *obj = NULL;
	struct sysinfo si;
	int r;

	if (sysinfo(&si) < 0)
		return err_sys(e, errno, "measure the machine");
	r = json_pack_or(
		&obj, e,
		"{s:b, s:b, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I}",
		"draining", now->draining, "pressed",
		admit_pressed(n, NULL) < 0, "memory_total_mb",
		(json_int_t)((uint64_t)si.totalram * si.mem_unit / MB),
		"memory_available_mb", (json_int_t)now->memory_available_mb,
		"memory_reserve_mb", (json_int_t)n->rules.memory_reserve_mb,
		"memory_full", (double)now->memory_full_milli / 1000, "swap_mb",
		(json_int_t)now->swap_mb, "swap_free_mb",
		(json_int_t)now->swap_free_mb, "disk_free_mb",
		(json_int_t)now->disk_free_mb, "processes",
		(json_int_t)now->tasks, "processes_max",
		(json_int_t)now->tasks_max);
	if (r == 0 && json_object_update(rec, obj) < 0)
		r = no_memory(e);
	return r;
}

static int set_sums(const struct admit_node *n, json_t *rec, struct err *e)
{
	struct admit_amounts limit = admit_limit(n), left = limit;
	int r;

	admit_sub(&left, &n->held);
	r = report_amounts(rec, "capacity", &n->capacity, e);
	if (r == 0)
		r = report_amounts(rec, "limit", &limit, e);
	if (r == 0)
		r = report_amounts(rec, "held", &n->held, e);
	return r < 0 ? r : report_amounts(rec, "free", &left, e);
}

int report_make(const struct tree *t, struct report_cache *c, json_t *rec,
		struct err *e)
{
	char name[TREE_NODE_LEN + 1];
	auto_json json_t *head = NULL;
	struct admit_node n = {0};
	int r;

	r = tree_node(t, name, e);
	if (r == 0)
		r = claim_node(t, &n, e);
	if (r < 0)
		return r;
	r = json_pack_or(&head, e, "{s:i, s:s%, s:s, s:I, s:[s]}", "v", 1,
			 "node", name, (size_t)4, "name", name, "made_ms",
			 (json_int_t)clock_wall_ms(), "backends", "container");
	if (r == 0 && json_object_update(rec, head) < 0)
		r = no_memory(e);
	if (r == 0)
		r = set_now(&n, rec, e);
	if (r == 0)
		r = set_cpu(c, rec, e);
	if (r == 0)
		r = set_sums(&n, rec, e);
	if (r == 0)
		r = set_abilities(t, rec, e);
	return r < 0 ? r : set_counts(t, c, rec, e);
}
