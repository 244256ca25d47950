/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "../tap.h"
#include "policy/admit.h"

/* A node of 10 GiB and 4 CPUs, half of it held. */
static struct admit_node node(void)
{
	struct admit_node n = {
		.capacity = {10240, 4000, 50000, 1000, 100},
		.held = {5120, 16000, 25000, 32000, 50},
		.now = {.memory_available_mb = UINT64_MAX,
			.disk_free_mb = UINT64_MAX,
			.tasks = 10,
			.tasks_max = 1000},
	};

	admit_rules_default(&n.rules, 10240);
	return n;
}

static void refused(const struct admit_node *n, const struct admit_amounts *a,
		    const char *code, bool again, const char *what)
{
	struct err e = {0};

	is_int(admit_decide(n, a, &e), -EAGAIN, what);
	is_str(e.code, code, "... with its code");
	ok(again == (e.retry_after_ms > 0), "... and a time only if it helps");
	printf("# %s\n", e.msg);
}

static void test_sums(void)
{
	static const struct {
		const char *code, *what;
		struct admit_amounts a;
		bool again;
	} bad[] = {
		{"memory", "a MiB more", {5121, 1, 0, 1, 1}, true},
		{"memory", "more than there is", {10241, 1, 0, 1, 1}, false},
		{"memory", "a huge one", {UINT64_MAX, 1, 0, 1, 1}, false},
		{"cpu", "a thousandth more", {1, 16001, 0, 1, 1}, true},
		{"cpu", "more than 8 times", {1, 32001, 0, 1, 1}, false},
		{"disk", "a MiB more of disk", {1, 1, 25001, 1, 1}, true},
		{"count", "a process more", {1, 1, 0, 32001, 1}, true},
		{"count", "too many at once", {1, 1, 0, 1, 51}, true},
	};
	struct admit_node n = node();
	struct err e = {0};

	is_int(admit_decide(&n,
			    &(struct admit_amounts){5120, 16000, 25000, 32000,
						    1},
			    &e),
	       0, "exactly what is left");
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		refused(&n, &bad[i].a, bad[i].code, bad[i].again, bad[i].what);
	n.held.disk_mb = UINT64_MAX;
	is_int(admit_decide(&n, &(struct admit_amounts){1, 1, 0, 1, 1}, &e), 0,
	       "no disk limit, nothing claimed of it");
}

static void test_now(void)
{
	const struct admit_amounts a = {512, 1000, 0, 100, 1};
	struct admit_node n = node();
	struct err e = {0};

	n.now.memory_available_mb = n.rules.memory_reserve_mb + 64;
	is_int(admit_decide(&n, &a, &e), 0, "room to start in");
	n.now.memory_available_mb--;
	refused(&n, &a, "pressure", true, "not enough memory available");
	n = node();
	n.now.memory_full_milli = n.rules.pressure_max_milli + 1;
	refused(&n, &a, "pressure", true, "stalls");
	n = node();
	n.now.disk_free_mb = n.rules.disk_reserve_mb - 1;
	n.now.disk = "/lib";
	refused(&n, &a, "disk", true, "the disk is full");
	(void)admit_decide(&n, &a, &e);
	is_str(e.msg,
	       "/lib has 127 MiB free, 128 are kept (node.json: "
	       "disk_reserve_mb)",
	       "... and which, and what it is held to");
	n = node();
	n.now.tasks = 876;
	refused(&n, &a, "count", true, "too many processes");
	n = node();
	n.now.draining = true;
	refused(&n, &a, "draining", true, "draining");
}

static void test_pressed(void)
{
	const struct admit_amounts a = {512, 1000, 0, 100, 1};
	struct admit_node n = node();
	struct err e = {0};

	n.held = n.capacity;
	n.now.draining = true;
	is_int(admit_pressed(&n, &e), 0, "full and draining is no pressure");
	n.now.memory_available_mb = n.rules.memory_reserve_mb - 1;
	is_int(admit_pressed(&n, &e), -EAGAIN, "below the reserve is");
	n = node();
	n.now.swap_mb = 1000;
	n.now.swap_free_mb = 99;
	is_int(admit_decide(&n, &a, &e), 0,
	       "full swap, and no memory promised twice");
	n.rules.memory_overcommit = 1500;
	refused(&n, &a, "pressure", true, "full swap, and it is");
	n.now.swap_free_mb = 100;
	is_int(admit_decide(&n, &a, &e), 0, "not quite full");
}

static void test_tenants(void)
{
	struct admit_tenants t = {0};
	/* Both have the same FNV-1a of 64 bits. */
	const char *ann = "8yn0iYCKYHlIj4-BwPqk", *bob = "GReLUrM4wMqfg9yzV3KQ";
	struct err e = {0};

	t.users = 2;
	is_int(admit_tenant(&t, ann, &e), 0, "anybody beside anybody");
	t.isolated = 1;
	is_int(admit_tenant(&t, ann, &e), -EAGAIN, "not where isolated");
	t.users = 1;
	snprintf(t.user, sizeof(t.user), "%s", ann);
	is_int(admit_tenant(&t, ann, &e), 0, "beside herself");
	is_int(admit_tenant(&t, bob, &e), -EAGAIN, "not another");
	is_str(e.code, "isolation", "... with its code");
	ok(e.retry_after_ms && e.infra, "... which passes");
	t.users = 0;
	is_int(admit_tenant(&t, bob, &e), 0, "an empty node is anybody's");
	t.nreserved = 1;
	snprintf(t.reserved[0], sizeof(t.reserved[0]), "%s", ann);
	is_int(admit_tenant(&t, bob, &e), -EAGAIN, "but one that is kept");
	is_int(e.retry_after_ms, 0, "... which does not pass");
	is_int(admit_tenant(&t, ann, &e), 0, "kept for her");
}

static void test_arithmetic(void)
{
	struct admit_amounts sum = {1, 2, 3, 4, 5};
	struct admit_node n = node();

	admit_add(&sum, &(struct admit_amounts){UINT64_MAX, 1, 1, 1, 1});
	ok(sum.memory_mb == UINT64_MAX && sum.sandboxes == 6, "sums saturate");
	admit_sub(&sum, &(struct admit_amounts){1, 100, 1, 1, 1});
	ok(sum.cpu_milli == 0 && sum.disk_mb == 3, "nothing is below zero");
	n.rules.memory_overcommit = 1500;
	is_int((long long)admit_limit(&n).memory_mb, 15360, "overcommit");
	n.capacity.memory_mb = UINT64_MAX / 2;
	ok(admit_limit(&n).memory_mb == UINT64_MAX / 1000 ||
		   admit_limit(&n).memory_mb == UINT64_MAX,
	   "overcommit saturates");
}

int main(void)
{
	test_sums();
	test_now();
	test_pressed();
	test_tenants();
	test_arithmetic();
	return tap_done();
}
