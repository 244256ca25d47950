/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "life/recover.h"
#include "pause.h"

#define JOBS	  512
#define JOBS_MAX  100000
#define HEAVY_MIN 2

enum {
	ROW_PAUSE,
	ROW_FREEZE,
	ROW_RECLAIM,
	ROW_DISK,
	ROW_RESUME,
	ROW_STOP,
	ROW_JOBS,
	ROW_LEVEL,
	ROW_HELP,
	ROW_VERSION
};

/* clang-format off */
static const struct field fields[] = {
	[ROW_PAUSE] = {{"pause", NULL, 0, NULL, "pause them (the default)"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_FREEZE] = {{"freeze", NULL, 0, NULL, "--level freeze: memory stays where it is"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_RECLAIM] = {{"reclaim", NULL, 0, NULL, "--level reclaim: push memory out to swap as well"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_DISK] = {{"disk", NULL, 0, NULL, "--level disk: checkpoint, end the processes"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_RESUME] = {{"resume", NULL, 0, NULL, "let them run on"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_STOP] = {{"stop", NULL, 0, NULL, "end them and remove what they hold"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_JOBS] = {{"jobs", NULL, 'j', "COUNT", "work on so many at once"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_LEVEL] = {{"level", NULL, 0, "LEVEL", "freeze, reclaim or disk: how far to pause"}, "level", FIELD_STR, 1, 16, NULL},
	[ROW_HELP] = {{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_VERSION] = {{"version", NULL, 0, NULL, "print the version"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"grace", NULL, 'g', "TIME", "stop: from the first signal to the last (2s)"}, "grace_ms", FIELD_MS, 0, 3600000, NULL},
	{{"task", NULL, 't', "NAME", "the sandboxes of a task"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"project", NULL, 0, "PATH", "those of a project and all below it"}, "project", FIELD_STR, 1, 256, NULL},
	{{"label", NULL, 'l', "K=V", "those with a label; repeats: with all of them"}, "labels", FIELD_MAP, 0, 0, NULL},
	{{"deadline", NULL, 0, "TIME", "give up on a sandbox after so long"}, "deadline_ms", FIELD_MS, 1, 0, NULL},
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "op", .type = FIELD_STR, .min = 1, .max = 16},
	{.key = "cancel", .type = FIELD_ID},
};
/* clang-format on */

static const char usage[] =
	"usage: dsec-pause [--level LEVEL | --resume | --stop] "
	"[flags] [SANDBOX...] [< requests]\n";

static const char *arg_op;
static unsigned arg_jobs; /* 0: not said */

/* --- records ------------------------------------------------------------- */

void app_answer(struct app *app, json_t *rec)
{
	struct err e = {0};
	int r;

	r = rec ? record_write(STDOUT_FILENO, rec, &e)
		: err_sys(&e, ENOMEM, "record");
	json_decref(rec);
	if (r == 0)
		return;
	app->status = exit_join(app->status, exit_of(&e));
	/* Nobody reads: what was asked for goes on, but no more is begun. */
	app->status = EXIT_STDOUT_LOST;
	app->ended = true;
	if (app->input)
		input_hold(app->input, true);
}

void app_fail(struct app *app, const json_t *req, const struct err *why)
{
	app->status = exit_join(app->status, exit_of(why));
	app_answer(app, record_error(req, why));
}

struct cgroup_root *app_cgroups(struct app *app, struct err *e)
{
	if (!app->cgroups &&
	    cgroup_open(app->tree.cgroup, &app->cgroups, e) < 0)
		return NULL;
	return app->cgroups;
}

/* --- requests ------------------------------------------------------------ */

static bool level_known(const char *level)
{
	return !strcmp(level, "freeze") || !strcmp(level, "reclaim") ||
	       !strcmp(level, "disk");
}

static int check_op(const json_t *req, struct err *e)
{
	const char *op = json_str(req, "op");
	const char *level = json_str(req, "level");

	if (*op && strcmp(op, "pause") && strcmp(op, "resume") &&
	    strcmp(op, "stop"))
		return err_set(e, -EBADMSG, "bad_value",
			       "'op' is not pause, resume or stop");
	if (*level && !level_known(level))
		return err_set(e, -EBADMSG, "bad_value",
			       "'level' is not freeze, reclaim or disk");
	return 0;
}

static int check_target(const json_t *req, struct err *e)
{
	struct select sel;

	select_from(&sel, req);
	if (!json_object_get(req, "sandbox") && !select_narrows(&sel))
		return err_set(e, -EBADMSG, "missing_field",
			       "'sandbox' is missing, or a selector: 'task', "
			       "'project', 'labels'");
	if (json_object_get(req, "sandbox") && select_narrows(&sel))
		return err_set(e, -EBADMSG, "bad_value",
			       "'sandbox' and a selector exclude each other");
	return 0;
}

/* Begin what ${req} asks for, which is taken over. */
static int begin(struct app *app, json_t *req, struct err *e)
{
	const char *name = json_str(req, "sandbox");
	char id[BOX_ID_LEN + 1];
	int r;

	r = check_op(req, e);
	if (r == 0)
		r = check_target(req, e);
	if (r < 0)
		return r;
	if (*name) {
		r = recover_find_any(&app->tree, name, id, e);
		return r < 0 ? r : job_new(app, req, id, e);
	}
	select_from(&app->walk.sel, req);
	r = select_open(&app->tree, &app->walk.sel, &app->walk.at, e);
	if (r < 0)
		return r;
	app->walk.req = req;
	app->walk.found = 0;
	return 0;
}

static void take(struct app *app, json_t *req)
{
	struct err e = {0};

	if (begin(app, req, &e) == 0)
		return;
	app_fail(app, req, &e);
	json_decref(req);
}

static void walk_end(struct app *app, const struct err *why)
{
	struct walk *w = &app->walk;
	json_t *rec;

	if (why) {
		app_fail(app, w->req, why);
	} else if (w->found == 0) {
		rec = record_ok(w->req);
		if (rec)
			json_object_set_new(rec, "count", json_integer(0));
		app_answer(app, rec);
	}
	select_close(w->at);
	json_decref(w->req);
	*w = (struct walk){0};
	app_pump(app); /* what waited for it */
}

/*
 * Stop waiting for what request ${id} asked of its sandboxes; those that were
 * told already do it all the same.
 */
static void cancel(struct app *app, json_t *req)
{
	const json_t *id = json_object_get(req, "cancel");
	struct err why = {0};
	struct job *j, *next;
	json_t *rec;
	bool any = false;

	err_set(&why, -ECANCELED, "cancelled", "the request was cancelled");
	if (app->walk.at &&
	    json_equal(json_object_get(app->walk.req, "id"), id)) {
		walk_end(app, &why);
		any = true;
	}
	for (j = app->jobs; j; j = next) {
		next = j->next;
		if (!json_equal(json_object_get(j->req, "id"), id))
			continue;
		job_fail(j, &why);
		any = true;
	}
	rec = record_ok(req);
	if (rec)
		json_object_set_new(rec, "cancelled", json_boolean(any));
	app_answer(app, rec);
	json_decref(req);
}

static bool full(const struct app *app)
{
	return app->walk.at || app->njobs >= app->jobs_max;
}

static void on_line(void *arg, struct input_line *line)
{
	struct app *app = arg;
	struct err e = {0};

	if (line->bad) {
		app_fail(app, line->req, line->bad);
		json_decref(line->req);
	} else if (line->kind == RECORD_PASS) {
		record_to_err(line->req, &e);
		app->status = exit_join(app->status, exit_of(&e));
		app_answer(app, line->req);
	} else if (json_object_get(line->req, "cancel")) {
		cancel(app, line->req);
	} else {
		take(app, line->req);
	}
	if (full(app))
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

static void walk_on(struct app *app)
{
	struct walk *w = &app->walk;
	char id[BOX_ID_LEN + 1];
	struct err e = {0};
	json_t *req;
	int r;

	while (w->at && app->njobs < app->jobs_max) {
		auto_json json_t *claim = NULL;

		r = select_next(w->at, id, &claim, &e);
		if (r <= 0) {
			walk_end(app, r < 0 ? &e : NULL);
			return;
		}
		w->found++;
		req = json_copy(w->req);
		r = req ? job_new(app, req, id, &e)
			: err_sys(&e, ENOMEM, "sandbox %s", id);
		if (r < 0) {
			app_fail(app, w->req, &e);
			json_decref(req);
		}
	}
}

static void words_on(struct app *app)
{
	while (!app->input && !app->ended && !full(app)) {
		if (app->next_word == json_array_size(app->words))
			app->ended = true;
		else
			take(app,
			     json_incref(json_array_get(app->words,
							app->next_word++)));
	}
}

/* An earlier one of the same sandbox comes first. */
static bool waits(const struct app *app, const struct job *j)
{
	for (const struct job *k = app->jobs; k != j; k = k->next)
		if (!strcmp(k->id, j->id))
			return true;
	return false;
}

static void on_pump(struct loop *l, struct loop_timer *t)
{
	struct app *app = t->arg;
	struct job *j, *next;

	words_on(app);
	walk_on(app);
	for (j = app->jobs; j; j = next) {
		next = j->next;
		if (!j->started && !waits(app, j) && job_may_start(j))
			job_start(j);
	}
	if (app->input && !app->ended && !full(app))
		input_hold(app->input, false);
	if (app->ended && app->njobs == 0 && !app->walk.at)
		loop_stop(l, 0);
}

void app_pump(struct app *app)
{
	if (!app->pump.at_ms)
		loop_timer_set(app->loop, &app->pump, clock_ms());
}

/* --- the command line ---------------------------------------------------- */

static int set_level(json_t *defaults, const char *level, struct err *e)
{
	const char *was = json_str(defaults, "level");

	if (!level_known(level))
		return err_set(e, -EINVAL, "usage",
			       "--level %s: not freeze, reclaim or disk",
			       level);
	if (*was && strcmp(was, level))
		return err_set(e, -EINVAL, "usage",
			       "level %s or %s: one of them", was, level);
	return json_object_set_new(defaults, "level", json_string(level)) < 0
		       ? err_sys(e, ENOMEM, "level")
		       : 0;
}

/* What the command line comes to. */
struct line {
	json_t *defaults, *words;
};

static int flag(void *to, int row, const char *arg, struct err *e)
{
	json_t *defaults = ((struct line *)to)->defaults;
	static const struct {
		const char *op, *level;
	} ops[] = {
		[ROW_PAUSE] = {"pause", NULL},
		[ROW_FREEZE] = {"pause", "freeze"},
		[ROW_RECLAIM] = {"pause", "reclaim"},
		[ROW_DISK] = {"pause", "disk"},
		[ROW_RESUME] = {"resume", NULL},
		[ROW_STOP] = {"stop", NULL},
	};
	char *end;
	unsigned long n;

	switch (row) {
	case ROW_PAUSE:
	case ROW_FREEZE:
	case ROW_RECLAIM:
	case ROW_DISK:
	case ROW_RESUME:
	case ROW_STOP:
		if (arg_op && strcmp(arg_op, ops[row].op))
			return err_set(e, -EINVAL, "usage",
				       "pause, resume or stop: one of them");
		arg_op = ops[row].op;
		return ops[row].level ? set_level(defaults, ops[row].level, e)
				      : 0;
	case ROW_JOBS:
		n = strtoul(arg, &end, 10);
		if (*end || *arg < '0' || *arg > '9' || n < 1 || n > JOBS_MAX)
			return err_set(e, -EINVAL, "usage",
				       "--jobs %s: not 1 to %d", arg, JOBS_MAX);
		arg_jobs = (unsigned)n;
		return 0;
	case ROW_LEVEL:
		return set_level(defaults, arg, e);
	case ROW_HELP:
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(fields));
		exit(EXIT_OK);
	case ROW_VERSION:
		puts("dsec-pause " DSEC_VERSION);
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
	int r = opt_each(&p, flag, add_word, &line, e);

	if (r >= 0 && arg_op)
		json_object_set_new(defaults, "op", json_string(arg_op));
	return r < 0 ? r : 0;
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

	if (input_wanted("ids or a selector", e) < 0)
		return -EINVAL;
	return input_new(app->loop, &from, &app->input, e);
}

/* A connection each: more than the soft limit most shells give. */
static void raise_files(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

static int serve(struct app *app, json_t *words, struct err *e)
{
	struct select sel;
	int r;

	raise_files();
	r = tree_init(&app->tree, e);
	if (r == 0)
		r = loop_new(&app->loop, e);
	if (r < 0)
		return r;
	select_from(&sel, app->defaults);
	if (json_array_size(words) == 0 && select_narrows(&sel))
		json_array_append_new(words, json_pack("{s:i}", "id", 1));
	if (json_array_size(words) > 0)
		r = check_words(app, words, e);
	else
		r = take_lines(app, e);
	if (r < 0)
		return r;
	app_pump(app);
	return loop_run(app->loop, e);
}

/* Checkpoints are copies of memory: more at once than the machine has CPUs make
 * all of them late. */
static unsigned heavy_jobs(void)
{
	long n = sysconf(_SC_NPROCESSORS_ONLN);

	return n > HEAVY_MIN ? (unsigned)n : HEAVY_MIN;
}

int main(int argc, char **argv)
{
	auto_json json_t *words = json_array();
	struct app app = {.defaults = json_object()};
	struct err e = {0};
	int r;

	log_init("dsec-pause");
	signal(SIGPIPE, SIG_IGN);
	app.pump = (struct loop_timer){.fn = on_pump, .arg = &app};
	r = parse(argc, argv, app.defaults, words, &e);
	app.jobs_max = arg_jobs ? arg_jobs : JOBS;
	app.heavy_max = arg_jobs ? arg_jobs : heavy_jobs();
	if (r == 0)
		r = serve(&app, words, &e);
	if (r < 0) {
		log_err(&e);
		app.status = exit_of(&e);
	}
	input_free(app.input);
	cgroup_close(app.cgroups);
	loop_free(app.loop);
	json_decref(app.defaults);
	return (int)app.status;
}
