/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/version.h"
#include "wire/exit.h"
#include "wire/jsonl.h"
#include "wire/record.h"

static const char usage[] = "usage: @PROG@ [--text TEXT] < REQUESTS";

/* One table: the fields of a request, the flags, and -h. */
enum { ROW_TEXT, ROW_HELP, ROW_VERSION };
static const struct field fields[] = {
	[ROW_TEXT] = {{"text", NULL, 't', "TEXT", "what to say"},
		      "text",
		      FIELD_STR,
		      1,
		      4096,
		      NULL},
	[ROW_HELP] = {{"help", NULL, 'h', NULL, "print this"},
		      NULL,
		      FIELD_NONE,
		      0,
		      0,
		      NULL},
	[ROW_VERSION] = {{"version", NULL, 0, NULL, "print the version"},
			 NULL,
			 FIELD_NONE,
			 0,
			 0,
			 NULL},
};

/* The one operation: answer ${req} with a record of its own. */
static int answer(const json_t *req, json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r;

	r = field_need(req, "text", e);
	if (r < 0)
		return r;
	rec = record_ok(req);
	if (!rec ||
	    json_object_set(rec, "text", json_object_get(req, "text")) < 0)
		return err_sys(e, ENOMEM, "answer");
	*ret_rec = steal_ptr(rec);
	return 0;
}

/*
 * One line in, one record out.  0; 1 when the record is a failure; -errno when
 * no record could be written.
 */
static int serve_line(const struct record_line *line, json_t *defaults,
		      struct err *e)
{
	auto_json json_t *req = NULL, *rec = NULL;
	enum record_kind kind;
	struct err why = {0};
	int r, failed = 0;

	r = record_take(line, fields, array_len(fields), defaults, &kind, &req,
			&why);
	if (r == 0 && kind == RECORD_PASS) {
		rec = json_incref(req);
		failed = 1;
	} else if (r == 0) {
		r = answer(req, &rec, &why);
	}
	if (r < 0) {
		rec = record_error(req, &why);
		failed = 1;
	}
	if (!rec)
		return err_sys(e, ENOMEM, "answer");
	r = record_write(STDOUT_FILENO, rec, e);
	return r < 0 ? r : failed;
}

static int serve(json_t *defaults, struct err *e)
{
	struct jsonl in = {.fd = STDIN_FILENO};
	struct record_line line;
	struct err why = {0};
	int r, failed = 0;
	char *text;

	for (;;) {
		r = jsonl_next(&in, &text, &line.len, &why);
		if (r == 0 || (r < 0 && r != -EMSGSIZE))
			break;
		if (r == -EMSGSIZE) {
			auto_json json_t *rec = record_error(NULL, &why);

			r = rec ? record_write(STDOUT_FILENO, rec, e)
				: err_sys(e, ENOMEM, "answer");
			failed = 1;
		} else {
			line.text = text;
			line.line = in.line;
			r = serve_line(&line, defaults, e);
			failed |= r > 0;
		}
		if (r < 0)
			break;
	}
	jsonl_done(&in);
	return r < 0 ? r : failed;
}

/* Flags into ${defaults}; 1: there is nothing more to do. */
static int parse(int argc, char **argv, json_t *defaults, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(fields),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == ROW_HELP) {
			opt_help(STDOUT_FILENO, usage, OPT_TABLE(fields));
			return 1;
		}
		if (r == ROW_VERSION) {
			printf("%s\n", DSEC_VERSION);
			return 1;
		}
		if (r == OPT_WORD)
			return err_set(e, -EINVAL, "usage", "%s", usage);
		if (r >= 0)
			r = field_of_flag(&fields[row], arg, defaults, e);
		if (r < 0)
			return r;
	}
	return 0;
}

int main(int argc, char **argv)
{
	auto_json json_t *defaults = json_object();
	struct err e = {0};
	int r;

	log_init("@PROG@");
	r = parse(argc, argv, defaults, &e);
	if (r == 0)
		r = serve(defaults, &e);
	else if (r == 1)
		return EXIT_OK;
	if (r >= 0)
		return r ? EXIT_NO : EXIT_OK;
	log_err(&e);
	return exit_of(&e);
}
