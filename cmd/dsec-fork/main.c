/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "base/version.h"
#include "fork.h"

#define JOBS_MAX     256
#define REQUESTS_MAX 64 /* taken before the first of them is done */

enum {
	ROW_LIST,
	ROW_INSPECT,
	ROW_REMOVE,
	ROW_JOBS,
	ROW_HELP,
	ROW_VERSION,
};

/* clang-format off */
static const struct field fields[] = {
	[ROW_LIST] = {{"list", NULL, 0, NULL, "the snapshots of this node, or of --project"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_INSPECT] = {{"inspect", NULL, 0, "NAME", "one snapshot, and whether this node can use it"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_REMOVE] = {{"remove", NULL, 0, "NAME", "remove a snapshot"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_JOBS] = {{"jobs", NULL, 'j', "N", "copies made at once (one per CPU)"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_HELP] = {{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_VERSION] = {{"version", NULL, 0, NULL, "the version"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"count", NULL, 'c', "N", "how many copies (1; with --snapshot 0)"}, "count", FIELD_INT, 0, COUNT_MAX, NULL},
	{{"from", NULL, 0, "NAME", "copies of a snapshot instead of a sandbox"}, "from", FIELD_STR, 1, 330, NULL},
	{{"snapshot", NULL, 0, "NAME", "keep what the copies are made from, as NAME"}, "snapshot", FIELD_STR, 1, 330, NULL},
	{{"replace", NULL, 0, NULL, "in place of the snapshot that has the name"}, "replace", FIELD_BOOL, 0, 0, NULL},
	{{"fs-only", NULL, 0, NULL, "files alone: each copy starts anew"}, "fs_only", FIELD_BOOL, 0, 0, NULL},
	{{"name", NULL, 'n', "NAME", "the copies are NAME-0, NAME-1.."}, "name", FIELD_NAME, 1, 60, NULL},
	{{"hostname", NULL, 0, "NAME", "host name inside"}, "hostname", FIELD_NAME, 1, 63, NULL},
	{{"task", NULL, 't', "NAME", "task the copies belong to"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"label", NULL, 'l', "K=V", "a label, beside the source's; repeats"}, "labels", FIELD_MAP, 0, 0, NULL},
	{{"ttl-idle", NULL, 0, "TIME", "stop after so long without activity"}, "ttl_running_stop", FIELD_S, 1, 31536000, NULL},
	{{"ttl", NULL, 0, "TIME", "stop so long after creation"}, "ttl_absolute", FIELD_S, 1, 31536000, NULL},
	{{"ttl-paused", NULL, 0, "TIME", "stop after so long paused"}, "ttl_paused", FIELD_S, 1, 31536000, NULL},
	{{"project", NULL, 0, "PATH", "where snapshots are looked up (root)"}, "project", FIELD_STR, 1, 256, NULL},
	{{"key", NULL, 0, "KEY", "idempotency key"}, "key", FIELD_STR, 1, 128, NULL},
	{{"deadline", NULL, 0, "TIME", "give up after so long"}, "deadline_ms", FIELD_MS, 1, 0, NULL},
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "op", .type = FIELD_STR, .min = 1, .max = 16},
	{.key = "cancel", .type = FIELD_ID},
};
/* clang-format on */

static const char usage[] =
	"usage: dsec-fork [FLAGS] SANDBOX...\n"
	"       dsec-fork [FLAGS] --from NAME\n"
	"       dsec-fork --list | --inspect NAME | --remove NAME\n"
	"       dsec-fork [FLAGS] < REQUESTS > RECORDS\n"
	"Copies of running sandboxes, and snapshots to make them from.\n";

static const char *arg_op, *arg_snapshot;
static unsigned arg_jobs;

/* --- records ------------------------------------------------------------- */

void app_answer(struct app *app, json_t *rec)
{
	struct err e = {0};
	int r;

	if (app->lost) {
		json_decref(rec);
		return;
	}
	r = rec ? record_write(STDOUT_FILENO, rec, &e)
		: err_sys(&e, ENOMEM, "record");
	json_decref(rec);
	if (r == 0)
		return;
	/* Nobody reads: what was begun is finished, but no more is begun. */
	log_err(&e);
	app->status = EXIT_STDOUT_LOST;
	app->lost = app->ended = true;
	if (app->input)
		input_hold(app->input, true);
}

void app_fail(struct app *app, json_t *rec, const struct err *why)
{
	if (!app->lost)
		app->status = exit_join(app->status, exit_of(why));
	app_answer(app, rec);
}

/* --- requests ------------------------------------------------------------ */

static void take(struct app *app, json_t *req)
{
	struct err e = {0};

	if (request_new(app, req, &e) == 0)
		return;
	app_fail(app, record_error(req, &e), &e);
	json_decref(req);
}

static void cancel(struct app *app, json_t *req)
{
	const json_t *id = json_object_get(req, "cancel");
	json_t *rec = record_ok(req);
	bool any = false;

	for (struct request *r = app->requests; r; r = r->next_one) {
		if (!json_equal(json_object_get(r->req, "id"), id))
			continue;
		request_stop(r, "cancelled");
		any = any || r->stopped;
	}
	if (rec)
		json_object_set_new(rec, "cancelled", json_boolean(any));
	app_answer(app, rec);
	json_decref(req);
}

static void on_line(void *arg, struct input_line *line)
{
	struct app *app = arg;
	struct err e = {0};

	if (line->bad) {
		app_fail(app, record_error(line->req, line->bad), line->bad);
		json_decref(line->req);
	} else if (line->kind == RECORD_PASS) {
		record_to_err(line->req, &e);
		app_fail(app, line->req, &e);
	} else if (json_object_get(line->req, "cancel")) {
		cancel(app, line->req);
	} else {
		take(app, line->req);
	}
	if (app->nrequests >= REQUESTS_MAX)
		input_hold(app->input, true);
	app_pump(app);
}

static void on_end(void *arg, const struct err *why)
{
	struct app *app = arg;

	app->ended = true;
	if (why) {
		log_err(why);
		app->status = exit_join(app->status, exit_of(why));
	}
	app_pump(app);
}

/* --- what runs ----------------------------------------------------------- */

static void words_on(struct app *app)
{
	while (!app->input && !app->ended && app->nrequests < REQUESTS_MAX) {
		if (app->next_word == json_array_size(app->words))
			app->ended = true;
		else
			take(app,
			     json_incref(json_array_get(app->words,
							app->next_word++)));
	}
}

/* In their order: a later one gets what room the earlier ones leave. */
static void on_pump(struct loop *l, struct loop_timer *t)
{
	struct app *app = t->arg;
	struct request *r, *next;

	words_on(app);
	for (r = app->requests; r; r = next) {
		next = r->next_one;
		if (app->nworkers < app->jobs_max || r->stopped)
			request_go(r);
		if (r->phase == PHASE_ENDED)
			request_free(r);
	}
	if (app->input && !app->ended && app->nrequests < REQUESTS_MAX)
		input_hold(app->input, false);
	if (app->ended && app->nrequests == 0)
		loop_stop(l, 0);
	else if (!app->input && !app->ended)
		app_pump(app);
}

void app_pump(struct app *app)
{
	if (!app->pump.at_ms)
		loop_timer_set(app->loop, &app->pump, clock_ms());
}

/* --- the command line ---------------------------------------------------- */

static int set_op(const char *op, const char *snapshot, struct err *e)
{
	if (arg_op)
		return err_set(e, -EINVAL, "usage",
			       "--list, --inspect and --remove: one of them");
	arg_op = op;
	arg_snapshot = snapshot;
	return 0;
}

/* What the command line comes to. */
struct line {
	json_t *defaults, *words;
};

static int flag(void *to, int row, const char *arg, struct err *e)
{
	json_t *defaults = ((struct line *)to)->defaults;
	char *end;
	unsigned long n;

	switch (row) {
	case ROW_LIST:
		return set_op("list", NULL, e);
	case ROW_INSPECT:
		return set_op("inspect", arg, e);
	case ROW_REMOVE:
		return set_op("remove", arg, e);
	case ROW_JOBS:
		n = strtoul(arg, &end, 10);
		if (*end || *arg < '0' || *arg > '9' || n < 1 || n > JOBS_MAX)
			return err_set(e, -EINVAL, "usage",
				       "--jobs %s: not 1 to %d", arg, JOBS_MAX);
		arg_jobs = (unsigned)n;
		return 0;
	case ROW_HELP:
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(fields));
		exit(EXIT_OK);
	case ROW_VERSION:
		puts("dsec-fork " DSEC_VERSION);
		exit(EXIT_OK);
	default:
		return field_of_flag(&fields[row], arg, defaults, e);
	}
}

/* Words become requests of their own, numbered like lines. */
static int add_word(void *to, const char *word, struct err *e)
{
	json_t *words = ((struct line *)to)->words;
	json_t *req = json_pack("{s:i, s:s}", "id",
				(int)json_array_size(words) + 1, "sandbox",
				word);

	if (!req)
		return err_set(e, -EINVAL, "usage",
			       "a sandbox's name is not UTF-8");
	return json_array_append_new(words, req);
}

static int parse(int argc, char **argv, json_t *defaults, json_t *words,
		 struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(fields),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	struct line line = {defaults, words};

	return opt_each(&p, flag, add_word, &line, e);
}

/* What needs no sandbox is one request by itself. */
static int add_own(const json_t *defaults, json_t *words, struct err *e)
{
	bool own = arg_op || json_object_get(defaults, "from");
	json_t *req;

	if (!own)
		return 0;
	if (json_array_size(words) > 0)
		return err_set(e, -EINVAL, "usage",
			       "a sandbox is no argument of --%s",
			       arg_op ? arg_op : "from");
	req = json_pack("{s:i, s:s*, s:s*}", "id", 1, "op", arg_op, "snapshot",
			arg_snapshot);
	return !req || json_array_append_new(words, req) < 0
		       ? err_set(e, -EINVAL, "usage", "a name is not UTF-8")
		       : 0;
}

static int check_words(struct app *app, json_t *words, struct err *e)
{
	json_t *req;
	size_t i;
	int r;

	json_array_foreach(words, i, req) {
		json_object_update_missing(req, app->defaults);
		r = field_check(fields, array_len(fields), req, e);
		if (r < 0)
			return r;
	}
	app->words = words;
	return 0;
}

static int take_lines(struct app *app, struct err *e)
{
	static const struct input_ops ops = {on_line, on_end};
	struct input_from from = {
		.fd = STDIN_FILENO,
		.fields = fields,
		.nfields = array_len(fields),
		.defaults = app->defaults,
		.ops = &ops,
		.arg = app,
	};

	if (input_wanted("ids or --from", e) < 0)
		return -EINVAL;
	return input_new(app->loop, &from, &app->input, e);
}

/* Who ends us wants what was begun undone, not left behind. */
static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct app *app = s->arg;
	struct signalfd_siginfo info;

	(void)l;
	(void)events;
	if (read(s->fd, &info, sizeof(info)) < 0)
		return;
	app->ended = true;
	if (app->input)
		input_hold(app->input, true);
	for (struct request *r = app->requests; r; r = r->next_one)
		request_stop(r, "cancelled");
	app_pump(app);
}

static int serve(struct app *app, json_t *words, struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	struct loop_source source = {0};
	int r, sig;

	if (geteuid() != 0)
		return tree_not_root(e);
	r = tree_init(&app->tree, e);
	if (r == 0)
		r = loop_new(&app->loop, e);
	if (r == 0)
		r = add_own(app->defaults, words, e);
	if (r == 0 && json_array_size(words) > 0)
		r = check_words(app, words, e);
	else if (r == 0)
		r = take_lines(app, e);
	if (r < 0)
		return r;
	sig = sig_block(signals, array_len(signals), e);
	if (sig < 0)
		return sig;
	r = loop_add(app->loop, &source, sig, EPOLLIN, on_signal, app, e);
	app_pump(app);
	if (r == 0)
		r = loop_run(app->loop, e);
	fd_close(sig);
	return r;
}

static unsigned cpus(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n < 1 ? 1 : n > JOBS_MAX ? JOBS_MAX : (unsigned)n;
}

int main(int argc, char **argv)
{
	auto_json json_t *words = json_array();
	struct app app = {.defaults = json_object()};
	struct err e = {0};
	int r;

	log_init("dsec-fork");
	/* Ignored by our caller, workers would leave nothing to wait for. */
	signal(SIGCHLD, SIG_DFL);
	app.pump = (struct loop_timer){.fn = on_pump, .arg = &app};
	r = parse(argc, argv, app.defaults, words, &e);
	app.jobs_max = arg_jobs ? arg_jobs : cpus();
	if (r == 0)
		r = serve(&app, words, &e);
	if (r < 0) {
		log_err(&e);
		app.status = exit_of(&e);
	}
	while (app.requests)
		request_free(app.requests);
	if (app.opened)
		creator_close(&app.creator);
	input_free(app.input);
	loop_free(app.loop);
	json_decref(app.defaults);
	return (int)app.status;
}
