/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/version.h"
#include "life/listing.h"
#include "life/recover.h"
#include "ps.h"

enum { ROW_WAIT, ROW_WATCH, ROW_JSON, ROW_TABLE, ROW_HELP, ROW_VERSION };

/* clang-format off */
static const struct field fields[] = {
	[ROW_WAIT] = {{"wait", NULL, 'w', NULL, "answer when each has ended"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_WATCH] = {{"watch", NULL, 0, NULL, "an event record for every change, until killed"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_JSON] = {{"json", NULL, 0, NULL, "records (the default unless on a terminal)"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_TABLE] = {{"table", NULL, 0, NULL, "a table for people"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_HELP] = {{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_VERSION] = {{"version", NULL, 0, NULL, "print the version"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"all", NULL, 'a', NULL, "those that ended too, while they are kept"}, "all", FIELD_BOOL, 0, 0, NULL},
	{{"stats", NULL, 's', NULL, "ask each supervisor for what it uses now"}, "stats", FIELD_BOOL, 0, 0, NULL},
	{{"task", NULL, 't', "NAME", "the sandboxes of a task"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"project", NULL, 0, "PATH", "those of a project and all below it"}, "project", FIELD_STR, 1, 256, NULL},
	{{"label", NULL, 'l', "K=V", "those with a label; repeats: with all of them"}, "labels", FIELD_MAP, 0, 0, NULL},
	{{"timeout", NULL, 0, "TIME", "--wait: give up after so long"}, "deadline_ms", FIELD_MS, 1, 0, NULL},
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "cancel", .type = FIELD_ID},
};
/* clang-format on */

static const char usage[] =
	"usage: dsec-ps [--all] [--stats] [selector flags] [SANDBOX...]\n"
	"       dsec-ps --wait [SANDBOX... | selector flags | < records]\n"
	"       dsec-ps --watch [selector flags]\n";

static bool arg_wait, arg_watch, arg_json, arg_table;

/* --- records ------------------------------------------------------------- */

void app_write(struct app *app, json_t *rec)
{
	struct err e = {0};
	int r;

	r = rec ? record_write(STDOUT_FILENO, rec, &e)
		: err_sys(&e, ENOMEM, "record");
	json_decref(rec);
	if (r == 0)
		return;
	app->status = exit_of(&e);
	if (app->loop)
		loop_stop(app->loop, 0);
}

void app_fail(struct app *app, const json_t *req, const struct err *why)
{
	app->status = exit_join(app->status, exit_of(why));
	app_write(app, record_error(req, why));
}

void ps_table(const json_t *rec)
{
	char line[LISTING_MAX];

	listing_line(rec, line);
	puts(line);
}

/* --- requests for one sandbox -------------------------------------------- */

static int wait_for(struct app *app, json_t *req, const char *id, struct err *e)
{
	if (json_object_set_new(req, "sandbox", json_string(id)) < 0)
		return err_sys(e, ENOMEM, "sandbox %s", id);
	return tracker_wait(app->tracker, req, id, e);
}

static int inspect(struct app *app, json_t *req, const char *id, struct err *e)
{
	json_t *rec = NULL, *answer;
	int r;

	r = ps_one(app, id, true, &rec, e);
	if (r < 0)
		return r;
	if (app->table) {
		ps_table(rec);
	} else {
		json_object_set_new(req, "sandbox", json_string(id));
		answer = record_ok(req);
		if (answer)
			json_object_update_missing(answer, rec);
		app_write(app, answer);
	}
	json_decref(rec);
	json_decref(req);
	return 0;
}

/* ${req} is taken over. */
static void take(struct app *app, json_t *req)
{
	char id[BOX_ID_LEN + 1];
	struct err e = {0};
	int r;

	r = field_need(req, "sandbox", &e);
	if (r == 0)
		r = recover_find_any(&app->tree, json_str(req, "sandbox"), id,
				     &e);
	if (r == 0)
		r = app->wait ? wait_for(app, req, id, &e)
			      : inspect(app, req, id, &e);
	if (r == 0)
		return;
	app_fail(app, req, &e);
	json_decref(req);
}

static void cancel(struct app *app, json_t *req)
{
	bool any = tracker_cancel(app->tracker, json_object_get(req, "cancel"));
	json_t *rec = record_ok(req);

	if (rec)
		json_object_set_new(rec, "cancelled", json_boolean(any));
	app_write(app, rec);
	json_decref(req);
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
		app_write(app, line->req);
	} else if (json_object_get(line->req, "cancel")) {
		cancel(app, line->req);
	} else {
		take(app, line->req);
	}
}

static void on_end(void *arg, const struct err *why)
{
	struct app *app = arg;

	app->ended = true;
	if (why) {
		log_err(why);
		app->status = exit_join(app->status, exit_of(why));
	}
	if (!app->tracker || tracker_idle(app->tracker))
		loop_stop(app->loop, 0);
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

	return input_new(app->loop, &from, &app->input, e);
}

/* --- what to do ---------------------------------------------------------- */

/* Those that are there now; each answers for itself. */
static int wait_selected(struct app *app, struct err *e)
{
	auto_select struct select_walk *w = NULL;
	char id[BOX_ID_LEN + 1];
	json_t *req;
	int r;

	r = select_open(&app->tree, &app->sel, &w, e);
	while (r >= 0) {
		auto_json json_t *claim = NULL;

		r = select_next(w, id, &claim, e);
		if (r <= 0)
			break;
		req = json_copy(app->defaults);
		if (!req)
			return err_sys(e, ENOMEM, "sandbox %s", id);
		json_object_set_new(req, "id", json_integer(1));
		r = wait_for(app, req, id, e);
		if (r < 0)
			json_decref(req);
	}
	app->ended = true;
	return r < 0 ? r : 0;
}

static int take_words(struct app *app, struct err *e)
{
	size_t i;
	json_t *word;

	if (app->table)
		ps_table(NULL);
	json_array_foreach(app->words, i, word) {
		json_t *req = json_copy(app->defaults);

		if (!req)
			return err_sys(e, ENOMEM, "request");
		json_object_set_new(req, "id", json_integer((json_int_t)i + 1));
		json_object_set(req, "sandbox", word);
		if (field_check(fields, array_len(fields), req, e) < 0) {
			app_fail(app, req, e);
			json_decref(req);
			continue;
		}
		take(app, req);
	}
	app->ended = true;
	return 0;
}

static int serve(struct app *app, struct err *e)
{
	int r;

	r = loop_new(&app->loop, e);
	if (r == 0)
		r = tracker_new(app, e);
	if (r < 0)
		return r;
	if (app->watch)
		r = tracker_all(app->tracker, e);
	else if (json_array_size(app->words) > 0)
		r = take_words(app, e);
	else if (select_narrows(&app->sel))
		r = wait_selected(app, e);
	else
		r = take_lines(app, e);
	if (r < 0 || (app->ended && tracker_idle(app->tracker)))
		return r;
	return loop_run(app->loop, e);
}

static int work(struct app *app, struct err *e)
{
	int r;

	r = tree_init(&app->tree, e);
	if (r < 0)
		return r;
	if (app->watch || app->wait)
		return serve(app, e);
	if (app->stats)
		ps_net_open(app);
	if (json_array_size(app->words) > 0)
		return take_words(app, e);
	return ps_list(app, e);
}

/* --- the command line ---------------------------------------------------- */

static int flag(void *to, int row, const char *arg, struct err *e)
{
	json_t *defaults = ((struct app *)to)->defaults;

	switch (row) {
	case ROW_WAIT:
		arg_wait = true;
		return 0;
	case ROW_WATCH:
		arg_watch = true;
		return 0;
	case ROW_JSON:
		arg_json = true;
		return 0;
	case ROW_TABLE:
		arg_table = true;
		return 0;
	case ROW_HELP:
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(fields));
		exit(EXIT_OK);
	case ROW_VERSION:
		puts("dsec-ps " DSEC_VERSION);
		exit(EXIT_OK);
	default:
		return field_of_flag(&fields[row], arg, defaults, e);
	}
}

static int add_word(void *to, const char *word, struct err *e)
{
	struct app *app = to;

	if (json_array_append_new(app->words, json_string(word)) == 0)
		return 0;
	return err_set(e, -EINVAL, "usage", "a sandbox's name is not UTF-8");
}

static int check_flags(struct app *app, struct err *e)
{
	bool words = json_array_size(app->words) > 0;

	app->all = json_flag(app->defaults, "all");
	app->stats = json_flag(app->defaults, "stats");
	/* They are for the list, not for every request. */
	json_object_del(app->defaults, "all");
	json_object_del(app->defaults, "stats");
	if (field_check(fields, array_len(fields), app->defaults, e) < 0)
		return -EINVAL;
	select_from(&app->sel, app->defaults);
	app->wait = arg_wait;
	app->watch = arg_watch;
	app->table = arg_table || (!arg_json && isatty(STDOUT_FILENO));
	if (arg_wait && arg_watch)
		return err_set(e, -EINVAL, "usage",
			       "--wait and --watch exclude each other");
	if (words && (arg_watch || select_narrows(&app->sel)))
		return err_set(
			e, -EINVAL, "usage",
			"sandboxes by name exclude --watch and selectors");
	return arg_wait && !words && !select_narrows(&app->sel)
		       ? input_wanted("ids or a selector", e)
		       : 0;
}

static int parse(int argc, char **argv, struct app *app, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(fields),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	int r = opt_each(&p, flag, add_word, app, e);

	return r < 0 ? r : check_flags(app, e);
}

/* --wait holds a descriptor for each. */
static void raise_files(void)
{
	struct rlimit lim;

	if (getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

static void close_stdout(struct app *app)
{
	struct err e = {0};

	int lost = fflush(stdout) ? errno : ferror(stdout) ? EIO : 0;

	if (!lost)
		return;
	(void)record_lost(lost, &e);
	log_err(&e);
	app->status = exit_of(&e);
}

int main(int argc, char **argv)
{
	struct app app = {.defaults = json_object(), .words = json_array()};
	struct err e = {0};
	int r;

	log_init("dsec-ps");
	signal(SIGPIPE, SIG_IGN);
	raise_files();
	r = parse(argc, argv, &app, &e);
	if (r == 0)
		r = work(&app, &e);
	if (r < 0) {
		log_err(&e);
		app.status = exit_of(&e);
	}
	close_stdout(&app);
	input_free(app.input);
	tracker_free(app.tracker);
	loop_free(app.loop);
	json_decref(app.defaults);
	json_decref(app.words);
	json_decref(app.net);
	return (int)app.status;
}
