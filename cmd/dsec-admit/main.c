/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/version.h"
#include "box/claim.h"
#include "box/spec.h"
#include "report.h"
#include "wire/exit.h"
#include "wire/input.h"
#include "wire/jsonl.h"
#include "wire/record.h"

static const char usage[] =
	"usage: dsec-admit [FLAGS] < REQUESTS, or dsec-admit --report | "
	"--drain | --undrain";

/* Flags of ours, after the fields of a create request. */
enum {
	OURS_OP, /* a field of requests */
	OURS_REPORT,
	OURS_DRAIN,
	OURS_UNDRAIN,
	OURS_HELP,
	OURS_VERSION,
	OURS_LEN
};
static const struct opt ours[OURS_LEN] = {
	[OURS_REPORT] = {"report", NULL, 'r', NULL, "print the node's report"},
	[OURS_DRAIN] = {"drain", NULL, 0, NULL, "take no new sandboxes"},
	[OURS_UNDRAIN] = {"undrain", NULL, 0, NULL, "take them again"},
	[OURS_HELP] = {"help", NULL, 'h', NULL, "print this"},
	[OURS_VERSION] = {"version", NULL, 0, NULL, "print the version"},
};

enum op_kind { OP_ADMIT, OP_REPORT, OP_DRAIN, OP_UNDRAIN };

struct admitter {
	struct tree tree;
	struct report_cache cache;
	struct field *fields; /* spec_fields, then ours */
	size_t n;
	json_t *defaults; /* of the command line */
	enum op_kind op;  /* the one of the command line */
};

static int make_table(struct admitter *a, struct err *e)
{
	a->n = spec_fields_len + OURS_LEN;
	a->fields = calloc(a->n, sizeof(*a->fields));
	a->defaults = json_object();
	if (!a->fields || !a->defaults)
		return err_sys(e, ENOMEM, "start");
	memcpy(a->fields, spec_fields, spec_fields_len * sizeof(*a->fields));
	for (size_t i = 0; i < OURS_LEN; i++)
		a->fields[spec_fields_len + i].opt = ours[i];
	a->fields[spec_fields_len + OURS_OP].key = "op";
	a->fields[spec_fields_len + OURS_OP].type = FIELD_STR;
	return 0;
}

/* --- operations ------------------------------------------------------------
 */

static int op_report(struct admitter *a, json_t *req, json_t *rec,
		     struct err *e)
{
	(void)req;
	return report_make(&a->tree, &a->cache, rec, e);
}

/* The mark is on tmpfs: a node that comes up again takes sandboxes. */
static int set_draining(const struct tree *t, bool on, struct err *e)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/draining", t->run);
	if (r < 0)
		return r;
	if (!on)
		return unlink(path) < 0 && errno != ENOENT
			       ? err_sys(e, errno, "remove '%s'", path)
			       : 0;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	return fd < 0 ? err_sys(e, errno, "make '%s'", path) : 0;
}

static int drain(struct admitter *a, bool on, json_t *rec, struct err *e)
{
	int r = set_draining(&a->tree, on, e);

	if (r == 0 &&
	    json_object_set_new(rec, "draining", json_boolean(on)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

static int op_drain(struct admitter *a, json_t *req, json_t *rec, struct err *e)
{
	(void)req;
	return drain(a, true, rec, e);
}

static int op_undrain(struct admitter *a, json_t *req, json_t *rec,
		      struct err *e)
{
	(void)req;
	return drain(a, false, rec, e);
}

static int op_admit(struct admitter *a, json_t *req, json_t *rec, struct err *e)
{
	struct admit_amounts claim;
	int r;

	r = spec_complete(req, e);
	if (r == 0)
		r = claim_check(&a->tree, req, e);
	if (r < 0)
		return r;
	claim = claim_amounts(req);
	return report_amounts(rec, "claim", &claim, e);
}

static const struct op {
	const char *name;
	int (*fn)(struct admitter *a, json_t *req, json_t *rec, struct err *e);
} ops[] = {
	[OP_ADMIT] = {"admit", op_admit},
	[OP_REPORT] = {"report", op_report},
	[OP_DRAIN] = {"drain", op_drain},
	[OP_UNDRAIN] = {"undrain", op_undrain},
};

static int answer(struct admitter *a, json_t *req, json_t **ret_rec,
		  struct err *e)
{
	auto_json json_t *rec = record_ok(req);
	const char *op = json_str(req, "op");
	size_t i = 0;
	int r;

	if (!rec)
		return err_sys(e, ENOMEM, "answer");
	while (*op && i < array_len(ops) && strcmp(op, ops[i].name))
		i++;
	if (i == array_len(ops))
		return err_set(e, -EBADMSG, "bad_value",
			       "'op' is admit, report, drain or undrain");
	/* It is no field of a sandbox. */
	json_object_del(req, "op");
	r = ops[i].fn(a, req, rec, e);
	if (r == 0)
		*ret_rec = steal_ptr(rec);
	return r;
}

/* One line in, one record out.  0; 1 when the record is a failure; -errno when
 * no record could be written. */
static int serve_line(struct admitter *a, const struct record_line *line,
		      struct err *e)
{
	auto_json json_t *req = NULL, *rec = NULL;
	enum record_kind kind;
	struct err why = {0};
	int r, failed = 0;

	r = record_take(line, a->fields, spec_fields_len + 1, a->defaults,
			&kind, &req, &why);
	if (r == 0 && kind == RECORD_PASS) {
		rec = json_incref(req);
		failed = 1;
	} else if (r == 0) {
		r = answer(a, req, &rec, &why);
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

static int serve(struct admitter *a, struct err *e)
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
			r = serve_line(a, &line, e);
			failed |= r > 0;
		}
		if (r < 0)
			break;
	}
	jsonl_done(&in);
	return r < 0 ? r : failed;
}

/* Flags into defaults; 1: there is nothing more to do. */
static int parse(struct admitter *a, int argc, char **argv, struct err *e)
{
	struct opt_table table = {a->fields, a->n, sizeof(*a->fields)};
	struct opt_parser p = {.table = table,
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_WORD)
			return err_set(e, -EINVAL, "usage", "%s", usage);
		if (r < 0)
			return r;
		if ((size_t)row < spec_fields_len) {
			r = field_of_flag(&a->fields[row], arg, a->defaults, e);
			if (r < 0)
				return r;
		} else if ((size_t)row == spec_fields_len + OURS_REPORT) {
			a->op = OP_REPORT;
		} else if ((size_t)row == spec_fields_len + OURS_DRAIN) {
			a->op = OP_DRAIN;
		} else if ((size_t)row == spec_fields_len + OURS_UNDRAIN) {
			a->op = OP_UNDRAIN;
		} else if ((size_t)row == spec_fields_len + OURS_HELP) {
			opt_help(STDOUT_FILENO, usage, table);
			return 1;
		} else {
			printf("%s\n", DSEC_VERSION);
			return 1;
		}
	}
	if (p.i < argc)
		return err_set(e, -EINVAL, "usage", "%s", usage);
	return 0;
}

static int run(struct admitter *a, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r;

	r = tree_init(&a->tree, e);
	if (r == 0)
		r = tree_make(&a->tree, e);
	if (r < 0)
		return r;
	if (a->op == OP_ADMIT) {
		r = input_wanted("--report, --drain or --undrain", e);
		return r < 0 ? r : serve(a, e);
	}
	rec = record_ok(NULL);
	r = rec ? ops[a->op].fn(a, NULL, rec, e) : err_sys(e, ENOMEM, "answer");
	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

int main(int argc, char **argv)
{
	struct admitter a = {.n = 0};
	struct err e = {0};
	int r;

	log_init("dsec-admit");
	signal(SIGPIPE, SIG_IGN);
	r = make_table(&a, &e);
	if (r == 0)
		r = parse(&a, argc, argv, &e);
	if (r == 0)
		r = run(&a, &e);
	else if (r == 1)
		r = 0;
	report_done(&a.cache);
	json_decref(a.defaults);
	free(a.fields);
	if (r >= 0)
		return r ? EXIT_NO : EXIT_OK;
	log_err(&e);
	return exit_of(&e);
}
