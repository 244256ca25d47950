/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: what holds for every choice, and what a report ends. */
#include <errno.h>
#include <stdlib.h>

#include "../tap.h"
#include "policy/place.h"

static const char *const plain[] = {"backend:container"};
static const struct admit_amounts one = {512, 1000, 0, 1024, 1};

static struct place *placer(unsigned k, unsigned overlay, uint64_t seed)
{
	struct place_conf c;
	struct place *p = NULL;

	place_conf_default(&c);
	c.k = k;
	c.overlay_max = overlay;
	c.seed = seed;
	if (place_new(&c, &p, NULL) < 0)
		abort();
	return p;
}

/* A node with room for ${n} of struct one, and ${held} of it held. */
static unsigned add(struct place *p, const char *name, unsigned n,
		    unsigned held, uint64_t now)
{
	const struct place_traits t = {.features = plain, .n = 1};
	struct place_report r = {
		.at_ms = now,
		.limit = {512ull * n, 1000ull * n, 100000, 1024ull * n, n},
		.held = {512ull * held, 1000ull * held, 0, 1024ull * held,
			 held},
		.memory_available_mb = UINT64_MAX,
		.users = held ? 2 : 0,
	};
	unsigned node = 0;

	if (place_node(p, name, &t, now, &node, NULL) < 0 ||
	    !place_report(p, node, &r, now))
		abort();
	return node;
}

static void add_late(struct place *p, unsigned node, uint64_t held, uint64_t at,
		     uint64_t now)
{
	struct place_report r = {
		.at_ms = at,
		.limit = {1ull << 40, 1ull << 40, 0, 1ull << 40, 100000},
		.held = {512 * held, 1000 * held, 0, 1024 * held, held},
		.memory_available_mb = UINT64_MAX,
	};

	place_report(p, node, &r, now);
}

static struct place_request ask_at(uint64_t now)
{
	return (struct place_request){.ask = one, .now_ms = now};
}

static void test_balance(void)
{
	auto_place struct place *p = placer(2, 65536, 7);
	struct place_request req = ask_at(1000);
	struct place_choice c;
	struct place_view v;
	unsigned most = 0;
	char name[16];

	for (unsigned i = 0; i < 100; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		add(p, name, 1000, 0, 1000);
	}
	for (unsigned i = 0; i < 10000; i++)
		if (place_choose(p, &req, &c, NULL) < 0)
			abort();
	for (unsigned i = 0; i < 100; i++) {
		place_look(p, place_nth(p, i), 1000, &v);
		if (v.placements > most)
			most = v.placements;
	}
	printf("# the fullest of 100 has %u of 10000\n", most);
	ok(most <= 105, "two choices and the overlay alone spread a burst");
}

static void test_full(void)
{
	auto_place struct place *p = placer(2, 1024, 1);
	struct place_request req = ask_at(1000);
	struct place_choice c;
	struct err e = {0};
	unsigned n = 0;

	add(p, "a", 10, 4, 1000);
	add(p, "b", 10, 8, 1000);
	while (n < 100 && place_choose(p, &req, &c, &e) == 0)
		n++;
	is_int(n, 8, "just as many as are free");
	is_str(e.code, "count", "then it says what is short");
	ok(e.retry_after_ms > 0 && e.infra, "... and that waiting helps");
	printf("# %s\n", e.msg);
	req.ask.memory_mb = 1 << 20;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "more than any has");
	is_int(e.retry_after_ms, 0, "... which no time helps");
}

static void test_overlay(void)
{
	auto_place struct place *p = placer(2, 1024, 1);
	struct place_request req = ask_at(1000);
	struct place_choice c = {0}, d = {0}, x = {0};
	struct place_view v;
	unsigned a = add(p, "a", 10, 0, 1000);

	ok(place_choose(p, &req, &c, NULL) == 0 &&
		   place_choose(p, &req, &d, NULL) == 0 &&
		   c.placement != d.placement,
	   "two placements");
	add(p, "a", 10, 0, 1500);
	place_look(p, a, 1500, &v);
	is_int(v.placements, 2, "a report too early does not end them");
	ok(place_done(p, c.placement, PLACE_END_TAKEN, 1600), "one is taken");
	add(p, "a", 10, 0, 1550);
	place_look(p, a, 1600, &v);
	is_int(v.placements, 2, "a report asked for before is no proof");
	add(p, "a", 10, 1, 1600);
	place_look(p, a, 1600, &v);
	is_int(v.placements, 1, "one asked for afterwards is");
	is_int((long long)(v.held.sandboxes + v.in_flight.sandboxes), 2,
	       "... and nothing counts twice");
	ok(!place_done(p, c.placement, PLACE_END_TAKEN, 1600),
	   "what ended is not known any more");
	add(p, "a", 10, 2, 3000);
	place_look(p, a, 3000, &v);
	is_int(v.placements, 0, "what is older than settle_ms is in a report");
	req.now_ms = 3000;
	ok(place_choose(p, &req, &x, NULL) == 0 &&
		   place_done(p, x.placement, PLACE_END_GIVEN_UP, 3001),
	   "given up");
	place_look(p, a, 3001, &v);
	is_int(v.placements, 0, "... ends at once");
	req.now_ms = 3001;
	ok(place_choose(p, &req, &x, NULL) == 0, "and without any report");
	place_look(p, a, 13000, &v);
	is_int(v.placements, 1, "it lasts");
	place_look(p, a, 13001, &v);
	is_int(v.placements, 0, "... for overlay_ms");
	is_int((long long)v.in_flight.memory_mb, 0, "and leaves nothing");
	ok(!place_report(p, a,
			 &(struct place_report){.at_ms = 100,
						.limit = one,
						.held = one},
			 13001),
	   "an older report than the last is not believed");
}

static void test_overlay_full(void)
{
	auto_place struct place *p = placer(2, 4, 1);
	struct place_request req = ask_at(1000);
	struct place_choice c;
	struct place_view v;
	uint64_t first = 0;
	unsigned a = add(p, "a", 10, 0, 1000);

	for (unsigned i = 0; i < 6; i++) {
		ok(place_choose(p, &req, &c, NULL) == 0, "placed");
		if (!first)
			first = c.placement;
	}
	place_look(p, a, 1000, &v);
	is_int(v.placements, 4, "a full overlay forgets the oldest");
	ok(!place_done(p, first, PLACE_END_REFUSED, 1000), "... first");
}

static void test_refused(void)
{
	auto_place struct place *p = placer(1, 1024, 1);
	struct place_request req = ask_at(1000);
	struct place_choice c;
	struct err e = {0};

	add(p, "a", 10, 0, 1000);
	req.ask.memory_mb = 1024;
	ok(place_choose(p, &req, &c, &e) == 0 &&
		   place_done(p, c.placement, PLACE_END_REFUSED, 1100),
	   "a refusal");
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "as much: not again");
	is_str(e.code, "busy", "... for now");
	req.ask.memory_mb = 512;
	is_int(place_choose(p, &req, &c, &e), 0, "less may do");
	add(p, "a", 10, 0, 1050);
	req.ask.memory_mb = 1024;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "an older report");
	req.now_ms = 1100;
	add(p, "a", 10, 0, 1100);
	is_int(place_choose(p, &req, &c, &e), 0, "the next report ends it");
	ok(place_done(p, c.placement, PLACE_END_DRAINING, 1101), "draining");
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "takes nothing");
	is_str(e.code, "draining", "... and is called so");
}

static void test_features(void)
{
	static const char *const vm[] = {"backend:vm", "label:zone=a"};
	static const char *const mine[] = {"backend:container", "user:ann"};
	static const char *const zone[] = {"label:zone=a"};
	static const char *const gpu[] = {"capability:gpu"};
	auto_place struct place *p = placer(2, 0, 1);
	struct place_request req = ask_at(1000);
	struct place_choice c;
	struct err e = {0};
	unsigned a, b, m = 0;

	a = add(p, "a", 10, 0, 1000);
	b = add(p, "b", 10, 0, 1000);
	m = add(p, "mine", 10, 0, 1000);
	if (place_node(p, "b", &(struct place_traits){vm, 2, false}, 1000, &b,
		       NULL) < 0 ||
	    place_node(p, "mine", &(struct place_traits){mine, 2, false}, 1000,
		       &m, NULL) < 0)
		abort();
	req.needs = plain;
	req.nneeds = 1;
	for (unsigned i = 0; i < 20; i++)
		if (place_choose(p, &req, &c, NULL) < 0 || c.node != a)
			break;
	ok(c.node == a, "a backend, and what is another's is left alone");
	req.needs = zone;
	ok(place_choose(p, &req, &c, NULL) == 0 && c.node == b, "a label");
	req.needs = gpu;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "nobody has a GPU");
	ok(!strcmp(e.code, "unsupported") && !e.retry_after_ms && !e.infra,
	   "... which waiting does not change");
	req.needs = mine; /* a user is a feature as any other, to us */
	req.nneeds = 2;
	req.user = "ann";
	ok(place_choose(p, &req, &c, NULL) == 0 && c.node == m, "hers");
	req.needs = plain;
	req.nneeds = 1;
	req.user = "ann";
	req.avoid = (const char *const[]){"a", "mine", "unheard-of"};
	req.navoid = 3;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "nodes to avoid");
	is_str(e.code, "busy", "... is busy");
	req.navoid = 0;
	req.among = (const char *const[]){"unheard-of", "b", "mine"};
	req.namong = 3;
	req.nneeds = 0;
	for (unsigned i = 0; i < 20; i++)
		if (place_choose(p, &req, &c, NULL) < 0 || c.node == a)
			break;
	ok(c.node != a, "one of those that it may be");
	req.namong = 1;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "none of them is here");
	ok(!strcmp(e.code, "busy") && e.retry_after_ms, "... which may change");
}

static void test_isolated(void)
{
	auto_place struct place *p = placer(2, 64, 1);
	const struct place_traits t = {plain, 1, true};
	struct place_request req = ask_at(1000);
	struct place_choice c;
	unsigned node = 0;
	struct place_report r = {
		.at_ms = 1000,
		.limit = {51200, 100000, 0, 1 << 20, 100},
		.memory_available_mb = UINT64_MAX,
	};

	if (place_node(p, "a", &t, 1000, &node, NULL) < 0)
		abort();
	place_report(p, node, &r, 1000);
	req.user = "ann";
	is_int(place_choose(p, &req, &c, NULL), 0,
	       "an empty node is anybody's");
	req.user = "bob";
	is_int(place_choose(p, &req, &c, NULL), -EAGAIN,
	       "but one user's at a time");
	place_done(p, c.placement, PLACE_END_GIVEN_UP, 1000);
	is_int(place_choose(p, &req, &c, NULL), 0, "given up: free again");
	r.at_ms = r.held.sandboxes = 4000;
	r.held.sandboxes = 1;
	r.users = 1;
	r.user = "bob";
	place_report(p, node, &r, 4000);
	req.now_ms = 4000;
	is_int(place_choose(p, &req, &c, NULL), 0, "his by the report");
	req.user = NULL;
	is_int(place_choose(p, &req, &c, NULL), -EAGAIN, "nobody is a user");
}

static void test_memory(void)
{
	auto_place struct place *p = placer(2, 64, 1);
	struct place_request req = ask_at(1000);
	struct place_choice c;
	struct err e = {0};
	unsigned node = add(p, "a", 10, 0, 1000), b;
	struct place_report r = {
		.at_ms = 1000,
		.limit = {51200, 100000, 0, 1 << 20, 100},
		.memory_total_mb = 10000,
		.memory_available_mb = 191,
		.memory_reserve_mb = 128,
	};

	place_report(p, node, &r, 1000);
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "no room to start in");
	is_str(e.code, "pressure", "... is pressure");
	r.memory_available_mb = 2000;
	place_report(p, node, &r, 1000);
	b = add(p, "b", 100, 50, 1000);
	ok(place_choose(p, &req, &c, &e) == 0 && c.node == b,
	   "memory in use is load as well as what is promised");
	r.pressed = true;
	place_report(p, node, &r, 1000);
	req.avoid = (const char *const[]){"b"};
	req.navoid = 1;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "a node that stalls");
}

static void test_stale(void)
{
	auto_place struct place *p = placer(2, 64, 1);
	struct place_request req = ask_at(11000);
	struct place_choice c;
	struct err e = {0};

	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "no node at all");
	is_str(e.code, "busy", "... is busy");
	add(p, "a", 10, 0, 1000);
	req.now_ms = 11000;
	is_int(place_choose(p, &req, &c, &e), 0, "ten seconds old");
	req.now_ms = 11001;
	is_int(place_choose(p, &req, &c, &e), -EAGAIN, "older than that");
	ok(strstr(e.msg, "1 stale") != NULL, "... and it says so");
	place_forget(p, (unsigned)place_find(p, "a"));
	is_int(place_find(p, "a"), -ENOENT, "forgotten");
	is_int(place_count(p), 0, "... altogether");
}

/* A table that is full takes a new node for one not seen for long. */
static void test_room(void)
{
	struct place_conf conf;
	struct place *p = NULL;
	const struct place_traits t = {plain, 1, false};
	unsigned node;

	place_conf_default(&conf);
	conf.nodes_max = 3;
	if (place_new(&conf, &p, NULL) < 0)
		abort();
	add(p, "a", 1, 0, 1000);
	add(p, "b", 1, 0, 200000);
	add(p, "c", 1, 0, 200000);
	is_int(place_node(p, "d", &t, 200000, &node, NULL), 0, "room is made");
	is_int(place_find(p, "a"), -ENOENT, "... by the one not seen");
	add(p, "d", 1, 0, 200000);
	is_int(place_node(p, "e", &t, 200000, &node, NULL), -ENOSPC,
	       "not by those that are");
	place_free(p);
}

/* --- whatever happens -------------------------------------------------------
 */

#define NODES 40

static uint64_t rnd(uint64_t *s)
{
	*s = *s * 6364136223846793005u + 1442695040888963407u;
	return *s >> 33;
}

struct world {
	struct admit_amounts limit[NODES], held[NODES];
	uint64_t at_ms[NODES];
	bool draining[NODES], known[NODES];
};

static void random_report(struct place *p, struct world *w, uint64_t *s,
			  uint64_t now)
{
	const struct place_traits t = {plain, 1, false};
	unsigned i = (unsigned)(rnd(s) % NODES), node;
	struct place_report r = {.at_ms = now - rnd(s) % 3000,
				 .memory_available_mb = UINT64_MAX};
	char name[16];

	snprintf(name, sizeof(name), "n%u", i);
	r.limit = (struct admit_amounts){rnd(s) % 8192, rnd(s) % 16000,
					 rnd(s) % 9999, 1 << 20, rnd(s) % 20};
	r.held = (struct admit_amounts){rnd(s) % 4096, rnd(s) % 8000,
					rnd(s) % 999, 1000, rnd(s) % 10};
	r.draining = rnd(s) % 10 == 0;
	if (place_node(p, name, &t, now, &node, NULL) < 0)
		abort();
	if (!place_report(p, node, &r, now))
		return;
	w->limit[i] = r.limit;
	w->held[i] = r.held;
	w->at_ms[i] = r.at_ms;
	w->draining[i] = r.draining;
	w->known[i] = true;
}

static bool within(uint64_t held, uint64_t ask, uint64_t limit)
{
	return ask == 0 || held + ask <= limit;
}

static bool fit(const struct world *w, unsigned i,
		const struct place_request *q)
{
	const struct admit_amounts *h = &w->held[i], *l = &w->limit[i];

	return w->known[i] && !w->draining[i] &&
	       q->now_ms - w->at_ms[i] <= 10000 &&
	       within(h->memory_mb, q->ask.memory_mb, l->memory_mb) &&
	       within(h->cpu_milli, q->ask.cpu_milli, l->cpu_milli) &&
	       within(h->disk_mb, q->ask.disk_mb, l->disk_mb) &&
	       within(h->pids, q->ask.pids, l->pids) &&
	       within(h->sandboxes, q->ask.sandboxes, l->sandboxes);
}

/* Never a node that its last report rules out; none only if none fits (which
 * without an overlay the reports alone decide). */
static uint64_t wander(unsigned k, unsigned overlay, uint64_t seed,
		       bool *ret_good)
{
	auto_place struct place *p = placer(k, overlay, seed);
	uint64_t s = seed, now = 100000, sum = 0;
	struct world w = {0};
	struct place_choice c;
	bool any;

	*ret_good = true;
	for (unsigned step = 0; step < 20000; step++) {
		struct place_request q = {
			.ask = {rnd(&s) % 1024, rnd(&s) % 2000,
				rnd(&s) % 2 ? rnd(&s) % 99 : 0, 100, 1}};

		now += rnd(&s) % 20;
		if (rnd(&s) % 3 == 0)
			random_report(p, &w, &s, now);
		q.now_ms = now;
		any = false;
		for (unsigned i = 0; i < NODES; i++)
			any |= fit(&w, i, &q);
		if (place_choose(p, &q, &c, NULL) < 0) {
			*ret_good &= !any || overlay;
			continue;
		}
		*ret_good &= fit(&w, (unsigned)atoi(place_name(p, c.node) + 1),
				 &q);
		sum = sum * 31 + c.node;
		if (rnd(&s) % 2)
			place_done(p, c.placement,
				   (enum place_end)(rnd(&s) % 4), now);
	}
	return sum;
}

static void test_properties(void)
{
	static const unsigned ks[] = {0, 1, 2, 3, 16};
	bool good, again;

	for (unsigned i = 0; i < 5; i++)
		for (uint64_t seed = 1; seed < 4; seed++) {
			uint64_t a = wander(ks[i], seed == 2 ? 0 : 256, seed,
					    &good);
			uint64_t b = wander(ks[i], seed == 2 ? 0 : 256, seed,
					    &again);

			ok(good && again, "k %u, seed %u: never an unfit node",
			   ks[i], (unsigned)seed);
			ok(a == b, "... and the same again");
		}
}

/*
 * Field report 98: creations and ends in a storm, while reports are late by up
 * to 30 s and overtake each other.  The books are never absurd, and right
 * again after the next report in peace.
 */
static void test_storm(void)
{
	auto_place struct place *p = placer(2, 65536, 3);
	struct {
		uint64_t at, held, comes;
	} late[64] = {{0, 0, 0}};
	uint64_t s = 99, now = 100000, there = 0;
	struct place_request req = {.ask = one};
	struct place_choice c;
	struct place_view v;
	bool sane = true;
	unsigned a = add(p, "a", 100000, 0, now);

	for (unsigned step = 0; step < 50000; step++) {
		unsigned slot = (unsigned)(rnd(&s) % 64);

		now += rnd(&s) % 5;
		req.now_ms = now;
		if (place_choose(p, &req, &c, NULL) == 0 && rnd(&s) % 4) {
			there++;
			place_done(p, c.placement, PLACE_END_TAKEN, now);
		} else {
			place_done(p, c.placement, PLACE_END_GIVEN_UP, now);
		}
		if (there && rnd(&s) % 2)
			there--;
		if (late[slot].comes && late[slot].comes <= now) {
			add_late(p, a, late[slot].held, late[slot].at, now);
			late[slot].comes = 0;
		} else if (!late[slot].comes) {
			late[slot].at = now;
			late[slot].held = there;
			late[slot].comes = now + rnd(&s) % 30000;
		}
		place_look(p, a, now, &v);
		sane &= v.in_flight.sandboxes <= step + 1 &&
			v.held.sandboxes <= 50000;
	}
	ok(sane, "never negative, never huge");
	add_late(p, a, there, now, now);
	place_look(p, a, now, &v);
	is_int((long long)v.held.sandboxes, (long long)there,
	       "right again with the next report");
	is_int(v.placements, 0, "and nothing is left in flight");
}

int main(void)
{
	test_balance();
	test_full();
	test_overlay();
	test_overlay_full();
	test_refused();
	test_features();
	test_isolated();
	test_memory();
	test_stale();
	test_room();
	test_storm();
	test_properties();
	return tap_done();
}
