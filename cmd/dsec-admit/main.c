/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/opt.h"
#include "base/version.h"
#include "box/claim.h"
#include "box/spec.h"
#include "wire/exit.h"
#include "wire/jsonl.h"
#include "wire/record.h"

static const char usage[] =
	"usage: dsec-admit [FLAGS] < REQUESTS, or dsec-admit --report";

/* Flags of ours, after the fields of a create request. */
enum { OURS_REPORT, OURS_HELP, OURS_VERSION, OURS_LEN };
static const struct opt ours[OURS_LEN] = {
	[OURS_REPORT] = {"report", NULL, 'r', NULL, "print the node's report"},
	[OURS_HELP] = {"help", NULL, 'h', NULL, "print this"},
	[OURS_VERSION] = {"version", NULL, 0, NULL, "print the version"},
};

struct admitter {
	struct tree tree;
	struct field *fields; /* spec_fields, then ours */
	size_t n;
	json_t *defaults; /* of the command line */
	bool report;
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
	return 0;
}

static int pack_amounts(const struct admit_amounts *a, json_t **ret,
			struct err *e)
{
	return json_pack_or(ret, e, "{s:I, s:f, s:I, s:I, s:I}", "memory_mb",
			    (json_int_t)a->memory_mb, "cpu_cores",
			    (double)a->cpu_milli / 1000, "disk_mb",
			    (json_int_t)a->disk_mb, "pids", (json_int_t)a->pids,
			    "sandboxes", (json_int_t)a->sandboxes);
}

static int set_amounts(json_t *rec, const char *key,
		       const struct admit_amounts *a, struct err *e)
{
	json_t *obj = NULL;
	int r;

	r = pack_amounts(a, &obj, e);
	if (r == 0 && json_object_set_new(rec, key, obj) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

static int report(const struct tree *t, json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = NULL;
	struct admit_amounts limit, left;
	char id[BOX_ID_LEN + 1];
	struct admit_node n = {0};
	int r;

	r = tree_new_id(t, id, e);
	if (r == 0)
		r = claim_node(t, &n, e);
	if (r < 0)
		return r;
	limit = left = admit_limit(&n);
	admit_sub(&left, &n.held);
	r = json_pack_or(&rec, e,
			 "{s:b, s:s%, s:b, s:I, s:f, s:I, s:I, s:I, s:I}", "ok",
			 1, "node", id, (size_t)4, "draining", n.now.draining,
			 "memory_available_mb",
			 (json_int_t)n.now.memory_available_mb, "memory_full",
			 (double)n.now.memory_full_milli / 1000, "disk_free_mb",
			 (json_int_t)n.now.disk_free_mb, "tasks",
			 (json_int_t)n.now.tasks, "tasks_max",
			 (json_int_t)n.now.tasks_max, "memory_reserve_mb",
			 (json_int_t)n.rules.memory_reserve_mb);
	if (r == 0)
		r = set_amounts(rec, "capacity", &n.capacity, e);
	if (r == 0)
		r = set_amounts(rec, "limit", &limit, e);
	if (r == 0)
		r = set_amounts(rec, "held", &n.held, e);
	if (r == 0)
		r = set_amounts(rec, "free", &left, e);
	if (r == 0)
		*ret_rec = steal_ptr(rec);
	return r;
}

static int answer(const struct admitter *a, json_t *req, json_t **ret_rec,
		  struct err *e)
{
	auto_json json_t *rec = NULL;
	struct admit_amounts claim;
	int r;

	r = spec_complete(req, e);
	if (r == 0)
		r = claim_check(&a->tree, req, e);
	if (r < 0)
		return r;
	rec = record_ok(req);
	if (!rec)
		return err_sys(e, ENOMEM, "answer");
	claim = claim_amounts(req);
	r = set_amounts(rec, "claim", &claim, e);
	if (r == 0)
		*ret_rec = steal_ptr(rec);
	return r;
}

/* One line in, one record out.  0; 1 when the record is a failure; -errno when
 * no record could be written. */
static int serve_line(const struct admitter *a, const struct record_line *line,
		      struct err *e)
{
	auto_json json_t *req = NULL, *rec = NULL;
	enum record_kind kind;
	struct err why = {0};
	int r, failed = 0;

	r = record_take(line, a->fields, spec_fields_len, a->defaults, &kind,
			&req, &why);
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

static int serve(const struct admitter *a, struct err *e)
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
			a->report = true;
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
	if (!a->report)
		return serve(a, e);
	r = report(&a->tree, &rec, e);
	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

int main(int argc, char **argv)
{
	struct admitter a = {.n = 0};
	struct err e = {0};
	int r;

	log_init("dsec-admit");
	r = make_table(&a, &e);
	if (r == 0)
		r = parse(&a, argc, argv, &e);
	if (r == 0)
		r = run(&a, &e);
	else if (r == 1)
		r = 0;
	json_decref(a.defaults);
	free(a.fields);
	if (r >= 0)
		return r ? EXIT_NO : EXIT_OK;
	log_err(&e);
	return exit_of(&e);
}
