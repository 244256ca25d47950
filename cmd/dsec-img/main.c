/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/version.h"
#include "img.h"
#include "wire/jsonl.h"

static const char usage[] =
	"usage: dsec-img OPERATION [WORDS] [FLAGS], or dsec-img < REQUESTS";

struct app {
	struct img_ctx ctx;
	const struct img_op *op; /* of the command line, or NULL */
	struct field *fields;	 /* img_common and those of op */
	size_t nfields;
	json_t *defaults; /* what the flags say */
	json_t *words;	  /* plain words */
};

/* --- help ---------------------------------------------------------------- */

static void help(const struct app *app)
{
	struct opt_table t = {app->fields, app->nfields, sizeof(*app->fields)};
	char line[512];

	if (app->op) {
		snprintf(line, sizeof(line), "usage: dsec-img %s %s\n%s%s%s",
			 app->op->name, app->op->usage, app->op->help,
			 app->op->forms ? "\n" : "",
			 app->op->forms ? app->op->forms : "");
		opt_help(STDOUT_FILENO, line, t);
		return;
	}
	opt_help(STDOUT_FILENO, usage, t);
	dprintf(STDOUT_FILENO,
		"operations (dsec-img OPERATION -h has more):\n");
	for (size_t i = 0; i < img_ops_len; i++)
		dprintf(STDOUT_FILENO, "    %-10s %s\n", img_ops[i].name,
			img_ops[i].help);
}

/* --- requests of lines --------------------------------------------------- */

/* The operation of a line: its own "op", else that of the command line. */
static int line_op(const struct app *app, const struct record_line *line,
		   const struct img_op **ret_op, struct err *e)
{
	auto_json json_t *rec = NULL;
	const char *name = "";

	*ret_op = app->op;
	/* What is wrong with it as a record, record_take() says. */
	if (json_parse(line->text, line->len, &rec, NULL) < 0 ||
	    json_is_false(json_object_get(rec, "ok")))
		return 0;
	if (!json_object_get(rec, "ok"))
		name = json_str(rec, "op");
	if (!*name && app->op)
		return 0;
	if (!*name)
		return err_set(e, -EBADMSG, "missing_field",
			       "'op' is missing, or no operation");
	*ret_op = img_op_find(name);
	if (*ret_op)
		return 0;
	return err_set(e, -EBADMSG, "bad_value",
		       "'op' is no operation: '%.32s'", name);
}

/* The request of a line; 1: it was answered already. */
static int take(struct app *app, const struct record_line *line,
		json_t **ret_req, struct err *e)
{
	const struct img_op *op = NULL;
	auto_free struct field *fields = NULL;
	enum record_kind kind = RECORD_REQUEST;
	struct err why = {0}, theirs = {0};
	size_t n = 0;
	int r, bad;

	bad = line_op(app, line, &op, &why);
	r = img_table(op, &fields, &n, e);
	if (r < 0)
		return r;
	r = record_take(line, fields, n, app->defaults, &kind, ret_req,
			bad < 0 ? NULL : &why);
	if (kind == RECORD_PASS && r == 0) {
		record_to_err(*ret_req, &theirs);
		app->ctx.status = exit_join(app->ctx.status, exit_of(&theirs));
		r = img_write(&app->ctx, json_incref(*ret_req), e);
		return r < 0 ? r : 1;
	}
	if (r == 0 && bad == 0)
		return 0;
	r = img_refuse(&app->ctx, *ret_req, &why, e);
	return r < 0 ? r : 1;
}

/* -errno: no record could be written. */
static int serve_line(struct app *app, const struct record_line *line,
		      struct err *e)
{
	auto_json json_t *req = NULL;
	int r;

	r = take(app, line, &req, e);
	if (r == 0)
		r = img_run(&app->ctx, req, e);
	return r < 0 ? r : 0;
}

/* One after the other: an import uses a CPU and a disk as it is. */
static int serve(struct app *app, struct err *e)
{
	struct jsonl in = {.fd = STDIN_FILENO};
	struct record_line line;
	struct err why = {0};
	char *text = NULL;
	int r;

	do {
		r = jsonl_next(&in, &text, &line.len, &why);
		if (r == 0 || (r < 0 && r != -EMSGSIZE)) {
			if (r < 0 && e)
				*e = why;
			break;
		}
		line.text = text;
		line.line = in.line;
		r = r < 0 ? img_refuse(&app->ctx, NULL, &why, e)
			  : serve_line(app, &line, e);
	} while (r >= 0 && !img_interrupted());
	jsonl_done(&in);
	return r < 0 ? r : 0;
}

/* --- requests of the command line ---------------------------------------- */

static int usage_of(const struct app *app, struct err *e)
{
	return err_set(e, -EINVAL, "usage", "usage: dsec-img %s %s",
		       app->op->name, app->op->usage);
}

static int run_flags(struct app *app, json_t *req, struct err *e)
{
	struct err why = {0};
	int r;

	r = field_check(app->fields, app->nfields, req, &why);
	return r < 0 ? img_refuse(&app->ctx, req, &why, e)
		     : img_run(&app->ctx, req, e);
}

/* Each word a request of its own. */
static int run_each(struct app *app, struct err *e)
{
	json_t *word;
	size_t i;
	int r = 0;

	json_array_foreach(app->words, i, word) {
		auto_json json_t *req = json_copy(app->defaults);

		if (!req ||
		    json_object_set_new(req, "id",
					json_integer((json_int_t)i + 1)) < 0 ||
		    json_object_set(req, app->op->words[0], word) < 0)
			return err_sys(e, ENOMEM, "request");
		r = run_flags(app, req, e);
		if (r < 0 || img_interrupted())
			break;
	}
	return r;
}

static int run_one(struct app *app, struct err *e)
{
	auto_json json_t *req = json_copy(app->defaults);
	const struct img_op *op = app->op;
	json_t *word;
	size_t i;

	if (!req || json_object_set_new(req, "id", json_integer(1)) < 0)
		return err_sys(e, ENOMEM, "request");
	if (op->more == MORE_LIST && json_array_size(app->words) > 0) {
		if (json_object_set(req, op->words[0], app->words) < 0)
			return err_sys(e, ENOMEM, "request");
		return run_flags(app, req, e);
	}
	json_array_foreach(app->words, i, word) {
		if (i >= IMG_WORDS_MAX || !op->words[i])
			return usage_of(app, e);
		if (json_object_set(req, op->words[i], word) < 0)
			return err_sys(e, ENOMEM, "request");
	}
	return run_flags(app, req, e);
}

/* With words the command line is the request; without those it needs, it says
 * what lines leave out. */
static int run_words(struct app *app, struct err *e)
{
	size_t n = json_array_size(app->words);

	if (!app->op && isatty(STDIN_FILENO))
		return err_set(e, -EINVAL, "usage", "%s", usage);
	if (!app->op || (n == 0 && app->op->need && !isatty(STDIN_FILENO)))
		return serve(app, e);
	if (n < app->op->need && app->op->more != MORE_LIST)
		return usage_of(app, e);
	return app->op->more == MORE_EACH && n > 0 ? run_each(app, e)
						   : run_one(app, e);
}

/* --- the command line ---------------------------------------------------- */

static int add_word(struct app *app, const char *word, struct err *e)
{
	if (json_array_append_new(app->words, json_string(word)) == 0)
		return 0;
	return err_set(e, -EINVAL, "usage", "a word is not UTF-8");
}

static int flag(struct app *app, int row, const char *arg, struct err *e)
{
	switch (row) {
	case COMMON_EVENTS:
		app->ctx.events = true;
		return 0;
	case COMMON_JSON:
		app->ctx.table = false;
		return 0;
	case COMMON_TABLE:
		app->ctx.table = true;
		return 0;
	case COMMON_HELP:
		help(app);
		return 1;
	case COMMON_VERSION:
		puts("dsec-img " DSEC_VERSION);
		return 1;
	default:
		return field_of_flag(&app->fields[row], arg, app->defaults, e);
	}
}

/* Flags and words from ${p} on; 1: there is nothing more to do. */
static int parse_some(struct app *app, struct opt_parser *p, struct err *e)
{
	const char *arg = NULL;
	int kind, row = 0, r = 0;

	p->table = (struct opt_table){app->fields, app->nfields,
				      sizeof(*app->fields)};
	while (r == 0) {
		kind = opt_next(p, &row, &arg, e);
		if (kind == OPT_END)
			break;
		if (kind == OPT_WORD)
			r = add_word(app, arg, e);
		else
			r = kind < 0 ? kind : flag(app, row, arg, e);
	}
	return r;
}

static int find_op(struct app *app, const char *name, struct err *e)
{
	app->op = img_op_find(name);
	if (!app->op)
		return err_set(e, -EINVAL, "usage",
			       "no operation '%.32s': see dsec-img -h", name);
	free(app->fields);
	app->fields = NULL;
	if (json_object_set_new(app->defaults, "op", json_string(name)) < 0)
		return err_sys(e, ENOMEM, "start");
	return img_table(app->op, &app->fields, &app->nfields, e);
}

static int parse(struct app *app, int argc, char **argv, struct err *e)
{
	struct opt_parser p = {.argc = argc,
			       .argv = argv,
			       .i = 1,
			       .stop_at_word = true};
	int r;

	r = img_table(NULL, &app->fields, &app->nfields, e);
	if (r == 0)
		r = parse_some(app, &p, e);
	if (r != 0 || p.i >= argc)
		return r;
	r = find_op(app, argv[p.i++], e);
	p.stop_at_word = false;
	if (r == 0)
		r = parse_some(app, &p, e);
	for (; r == 0 && p.i < argc; p.i++)
		r = add_word(app, argv[p.i], e);
	return r;
}

static int read_config(struct app *app, struct err *e)
{
	int r;

	r = tree_init(&app->ctx.tree, e);
	return r < 0 ? r
		     : image_config_load(app->ctx.tree.config,
					 app->ctx.tree.lib, &app->ctx.config,
					 e);
}

int main(int argc, char **argv)
{
	struct app app = {.defaults = json_object(), .words = json_array()};
	struct err e = {0};
	int r;

	log_init("dsec-img");
	img_signals();
	app.ctx.table = isatty(STDOUT_FILENO);
	r = parse(&app, argc, argv, &e);
	if (r == 0)
		r = read_config(&app, &e);
	if (r == 0)
		r = run_words(&app, &e);
	if (r < 0) {
		log_err(&e);
		app.ctx.status = exit_of(&e);
	}
	json_decref(app.defaults);
	json_decref(app.words);
	free(app.fields);
	return (int)app.ctx.status;
}
