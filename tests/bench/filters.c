/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filters [OPTION...] REQUEST < CONTENDERS: programs that take requests as
 * lines, timed beside each other.
 *
 * A line of input is a contender: NAME FLAGS COMMAND...  It is started once,
 * and every round asks each of them --lines times, --jobs of them under way, in
 * turns that begin with another each time.  FLAGS is "-" or
 *   c  the command itself is what is timed: run for each request, one by one
 * --undo COMMAND is a filter that stops the sandboxes that were made, outside
 * of the time.  Whatever takes longer than --limit seconds ends all.
 *
 * Output: a JSON line per contender: medians of a request's share of a round,
 * and the longest that any waited for its answer.
 */
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "serve/spawn.h"
#include "wire/jsonl.h"

#define CONTENDERS_MAX 8
#define WORDS_MAX      32
#define ROUNDS_MAX     1000
#define JOBS_MAX       512

struct filter {
	const char *words[WORDS_MAX + 1];
	struct spawned p;
	struct jsonl in;
};

struct contender {
	char *name, *flags;
	struct filter f;
	double took[ROUNDS_MAX], longest;
};

static unsigned arg_rounds = 30, arg_lines = 16, arg_jobs = 8, arg_limit = 60;
static struct filter undo;
static json_t *request;

static struct contender contenders[CONTENDERS_MAX];
static unsigned ncontenders;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void start(struct filter *f)
{
	struct err e = {0};

	if (spawn_filter(f->words, &f->p, &e) < 0)
		errx(1, "%s", e.msg);
	f->in = (struct jsonl){.fd = f->p.from};
}

static void wait_for(const struct filter *f, int fd, short events)
{
	struct pollfd p = {fd, events, 0};

	if (poll(&p, 1, (int)arg_limit * 1000) == 0)
		errx(1, "%s: nothing for %u s", f->words[0], arg_limit);
}

static void put(const struct filter *f, const json_t *req)
{
	auto_free char *text = json_dumps(req, JSON_COMPACT);
	size_t len = strlen(text), done = 0;
	ssize_t n;

	text[len++] = '\n';
	while (done < len) {
		n = write(f->p.to, text + done, len - done);
		if (n < 0 && errno != EAGAIN)
			err(1, "%s", f->words[0]);
		if (n < 0)
			wait_for(f, f->p.to, POLLOUT);
		else
			done += (size_t)n;
	}
}

/* The next record that ends a request. */
static json_t *get(struct filter *f)
{
	struct err e = {0};
	json_t *rec;
	size_t len;
	char *text;
	int r;

	for (;;) {
		r = jsonl_next(&f->in, &text, &len, &e);
		if (r == -EAGAIN) {
			wait_for(f, f->p.from, POLLIN);
			continue;
		}
		if (r != 1)
			errx(1, "%s ended", f->words[0]);
		if (json_parse(text, len, &rec, &e) < 0)
			errx(1, "%s: %s", f->words[0], e.msg);
		if (!json_is_false(json_object_get(rec, "ok")) &&
		    !json_is_true(json_object_get(rec, "ok"))) {
			json_decref(rec);
			continue;
		}
		if (json_is_false(json_object_get(rec, "ok")))
			errx(1, "%s: %s", f->words[0], text);
		return rec;
	}
}

/* --- a round ------------------------------------------------------------- */

/* By their ids, from 0; what was made is kept in ${made}. */
static void ask(struct contender *c, json_t *made)
{
	static double sent[ROUNDS_MAX * JOBS_MAX];
	unsigned asked = 0, answered = 0;

	while (answered < arg_lines) {
		auto_json json_t *rec = NULL;
		double took;
		json_t *id;

		while (asked < arg_lines && asked - answered < arg_jobs) {
			json_object_set_new(request, "id", json_integer(asked));
			sent[asked++] = now();
			put(&c->f, request);
		}
		rec = get(&c->f);
		answered++;
		took = now() - sent[json_int(rec, "id", 0) % arg_lines];
		c->longest = took > c->longest ? took : c->longest;
		id = json_object_get(rec, "sandbox");
		if (undo.words[0] && id)
			json_array_append(made, id);
	}
}

static void run_each(struct contender *c)
{
	struct spawned p;
	struct err e = {0};
	char drop[4096];

	for (unsigned i = 0; i < arg_lines; i++) {
		double begun = now(), took;

		if (spawn_filter(c->f.words, &p, &e) < 0)
			errx(1, "%s", e.msg);
		fd_close(steal_fd(&p.to));
		for (;;) {
			ssize_t n = read(p.from, drop, sizeof(drop));

			if (n == 0)
				break;
			if (n < 0)
				wait_for(&c->f, p.from, POLLIN);
		}
		if (spawn_wait(&p) != 0)
			errx(1, "%s failed", c->f.words[0]);
		spawn_done(&p);
		took = now() - begun;
		c->longest = took > c->longest ? took : c->longest;
	}
}

static void stop_all(const json_t *made)
{
	json_t *id;
	size_t i;

	json_array_foreach(made, i, id) {
		auto_json json_t *req = json_pack("{si ss sO si}", "id", (int)i,
						  "op", "stop", "sandbox", id,
						  "grace_ms", 0);

		put(&undo, req);
	}
	for (i = 0; i < json_array_size(made); i++)
		json_decref(get(&undo));
}

static void one(struct contender *c, unsigned round)
{
	auto_json json_t *made = json_array();
	double begun = now();

	if (strchr(c->flags, 'c'))
		run_each(c);
	else
		ask(c, made);
	c->took[round] = (now() - begun) / arg_lines;
	stop_all(made);
}

/* --- the whole ----------------------------------------------------------- */

static void take_words(struct filter *f, char *rest)
{
	size_t n = 0;

	for (char *w; n < WORDS_MAX && (w = strsep(&rest, " \n"));)
		if (*w)
			f->words[n++] = w;
	if (n == 0)
		errx(2, "a command is missing");
}

static void take_contenders(void)
{
	char *line = NULL;
	size_t cap = 0;

	while (getline(&line, &cap, stdin) > 0 &&
	       ncontenders < CONTENDERS_MAX) {
		struct contender *c = &contenders[ncontenders++];
		char *rest = line;

		c->name = strsep(&rest, " ");
		c->flags = strsep(&rest, " ");
		if (!rest)
			errx(2, "NAME FLAGS COMMAND...");
		take_words(&c->f, rest);
		line = NULL;
	}
	free(line);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void tell(struct contender *c)
{
	qsort(c->took, arg_rounds, sizeof(double), by_value);
	printf("{\"name\":\"%s\",\"p50_ms\":%.3f,\"p90_ms\":%.3f,"
	       "\"longest_ms\":%.1f,\"rounds\":%u,\"lines\":%u}\n",
	       c->name, c->took[arg_rounds / 2] * 1e3,
	       c->took[arg_rounds * 9 / 10] * 1e3, c->longest * 1e3, arg_rounds,
	       arg_lines);
}

static unsigned number(const char *text, unsigned max)
{
	int n = atoi(text);

	if (n < 1 || (unsigned)n > max)
		errx(2, "%s: 1 to %u", text, max);
	return (unsigned)n;
}

static void take_flags(int argc, char **argv)
{
	static const struct option table[] = {
		{"rounds", required_argument, NULL, 'r'},
		{"lines", required_argument, NULL, 'l'},
		{"jobs", required_argument, NULL, 'j'},
		{"undo", required_argument, NULL, 'u'},
		{"limit", required_argument, NULL, 't'},
		{NULL, 0, NULL, 0},
	};
	int o;

	while ((o = getopt_long(argc, argv, "", table, NULL)) != -1)
		if (o == 'r')
			arg_rounds = number(optarg, ROUNDS_MAX);
		else if (o == 'l')
			arg_lines = number(optarg, 10000);
		else if (o == 'j')
			arg_jobs = number(optarg, JOBS_MAX);
		else if (o == 'u')
			take_words(&undo, optarg);
		else if (o == 't')
			arg_limit = number(optarg, 3600);
		else
			exit(2);
	if (optind + 1 != argc)
		errx(2, "one REQUEST");
	request = json_loads(argv[optind], 0, NULL);
	if (!json_is_object(request))
		errx(2, "'%s' is no request", argv[optind]);
}

int main(int argc, char **argv)
{
	signal(SIGPIPE, SIG_IGN);
	take_flags(argc, argv);
	take_contenders();
	if (undo.words[0])
		start(&undo);
	for (unsigned i = 0; i < ncontenders; i++)
		if (!strchr(contenders[i].flags, 'c'))
			start(&contenders[i].f);
	for (unsigned i = 0; i < ncontenders; i++)
		one(&contenders[i], 0); /* all is there and warm */
	for (unsigned i = 0; i < ncontenders; i++)
		contenders[i].longest = 0;
	for (unsigned r = 0; r < arg_rounds; r++)
		for (unsigned i = 0; i < ncontenders; i++)
			one(&contenders[(r + i) % ncontenders], r);
	for (unsigned i = 0; i < ncontenders; i++) {
		struct filter *f = &contenders[i].f;

		tell(&contenders[i]);
		if (!f->p.pid)
			continue;
		fd_close(steal_fd(&f->p.to));
		(void)spawn_wait(&f->p);
	}
	if (undo.p.pid) {
		fd_close(steal_fd(&undo.p.to));
		(void)spawn_wait(&undo.p);
	}
	return 0;
}
