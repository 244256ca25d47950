/* SPDX-License-Identifier: Apache-2.0 */
/*
 * freeze ROUNDS SANDBOX: what it takes to freeze and to thaw it, in turns
 *
 *   cgroup   by its control group alone: its file is written and read until it
 *            says that all are frozen, and thawed
 *   dsec     by requests to its supervisor over one connection, "pause" and
 *            "resume", each answered
 *   asked    two requests that have nothing to do: what of dsec is the way to
 *            the supervisor and back
 *
 * A JSON line each: name, p50_ms, p90_ms of a freeze and a thaw together.
 */
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "life/ctl.h"
#include "sys/cgroup.h"

#define ROUNDS_MAX 10000
#define WAIT_MS	   10000

static double now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print(const char *name, double *ms, size_t n)
{
	qsort(ms, n, sizeof(*ms), compare);
	printf("{\"name\":\"%s\",\"p50_ms\":%.3f,\"p90_ms\":%.3f}\n", name,
	       ms[n / 2], ms[n * 9 / 10]);
}

static void ask(struct ctl *c, const char *op, const char *level)
{
	auto_json json_t *req = json_pack("{s:i, s:s, s:s*}", "id", 1, "op", op,
					  "level", level);
	struct err e = {0};

	if (!req || ctl_send(c, req, NULL, 0, &e) < 0)
		errx(1, "%s: %s", op, e.msg);
	for (;;) {
		auto_ctl_record struct ctl_record rec = {0};

		if (ctl_wait(c, 0, &rec, &e) < 0)
			errx(1, "%s: %s", op, e.msg);
		if (!rec.final)
			continue;
		if (!json_flag(rec.rec, "ok"))
			errx(1, "%s was refused", op);
		return;
	}
}

/* --- the group itself ---------------------------------------------------- */

struct group {
	int freeze, state; /* what is written, what tells */
	bool v1;
};

static bool is_so(const struct group *g, bool on)
{
	char text[256];
	ssize_t n = pread(g->state, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	if (g->v1)
		return !strncmp(text, on ? "FROZEN" : "THAWED", 6);
	return strstr(text, on ? "frozen 1" : "frozen 0") != NULL;
}

static void set(const struct group *g, bool on)
{
	const char *word = g->v1 ? (on ? "FROZEN" : "THAWED")
				 : (on ? "1" : "0");

	if (pwrite(g->freeze, word, strlen(word), 0) < 0)
		err(1, "freeze");
	while (!is_so(g, on)) {
		struct pollfd p = {.fd = g->state, .events = POLLPRI};

		poll(&p, 1, g->v1 ? 1 : WAIT_MS);
	}
}

static struct group open_group(const struct tree *t, const char *id)
{
	char dir[PATH_MAX], path[PATH_MAX + 32];
	struct cgroup_root *root = NULL;
	struct group g = {.freeze = -1};
	struct err e = {0};

	if (cgroup_open(t->cgroup, &root, &e) < 0 ||
	    cgroup_freezer_dir(root, id, dir, &e) < 0)
		errx(1, "%s", e.msg);
	cgroup_close(root);
	snprintf(path, sizeof(path), "%s/cgroup.freeze", dir);
	g.freeze = open(path, O_RDWR | O_CLOEXEC);
	if (g.freeze >= 0) {
		snprintf(path, sizeof(path), "%s/cgroup.events", dir);
		g.state = open(path, O_RDONLY | O_CLOEXEC);
		return g;
	}
	snprintf(path, sizeof(path), "%s/freezer.state", dir);
	g.freeze = g.state = open(path, O_RDWR | O_CLOEXEC);
	g.v1 = true;
	if (g.freeze < 0)
		err(1, "%s", path);
	return g;
}

/* What was thawed has not run yet, and would be frozen again for nothing. */
static void settle(void)
{
	usleep(30000);
}

int main(int argc, char **argv)
{
	static double ours[ROUNDS_MAX], bare[ROUNDS_MAX], asked[ROUNDS_MAX];
	size_t n = argc == 3 ? strtoul(argv[1], NULL, 10) : 0;
	struct ctl *c = NULL;
	struct err e = {0};
	struct group g;
	struct tree t;
	double t0;

	if (n < 1 || n > ROUNDS_MAX)
		errx(64, "usage: freeze ROUNDS SANDBOX");
	if (tree_init(&t, &e) < 0 || ctl_open(&t, argv[2], 0, &c, &e) < 0)
		errx(1, "%s", e.msg);
	g = open_group(&t, ctl_id(c));
	for (size_t i = 0; i < n; i++) {
		settle();
		t0 = now_ms();
		set(&g, true);
		set(&g, false);
		bare[i] = now_ms() - t0;
		settle();
		t0 = now_ms();
		ask(c, "pause", "freeze");
		ask(c, "resume", NULL);
		ours[i] = now_ms() - t0;
		settle();
		t0 = now_ms();
		ask(c, "resume", NULL);
		ask(c, "resume", NULL);
		asked[i] = now_ms() - t0;
	}
	print("dsec", ours, n);
	print("cgroup", bare, n);
	print("asked", asked, n);
	ctl_free(c);
	return 0;
}
