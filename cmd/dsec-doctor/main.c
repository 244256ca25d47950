/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/version.h"
#include "doctor.h"
#include "wire/field.h"
#include "wire/record.h"

enum {
	ROW_FIX,
	ROW_LEAKS,
	ROW_UNMOUNT,
	ROW_JSON,
	ROW_ONLY,
	ROW_POOL_SIZE,
	ROW_HELP,
	ROW_VERSION,
};

/* clang-format off */
static const struct field fields[] = {
	[ROW_FIX] = {{"fix", NULL, 0, NULL, "do what is safe and ours to do, and say what was done"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_LEAKS] = {{"leaks", NULL, 0, NULL, "a record for everything that belongs to no sandbox"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_UNMOUNT] = {{"unmount", NULL, 0, NULL, "undo the mounts that the node prepared for launches"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_JSON] = {{"json", NULL, 0, NULL, "one record in place of text"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_ONLY] = {{"only", NULL, 0, "PART", "kernel, cgroup, limits, node, pool or dead; repeats"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_POOL_SIZE] = {{"pool-size", NULL, 0, "SIZE", "--fix: make a pool of that size if there is none"}, "pool_size", FIELD_MB, 1, 0, NULL},
	[ROW_HELP] = {{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_VERSION] = {{"version", NULL, 0, NULL, "print the version"}, NULL, FIELD_NONE, 0, 0, NULL},
};
/* clang-format on */

static const char usage[] =
	"usage: dsec-doctor [--json] [--fix [--pool-size SIZE]] [--only PART]\n"
	"       dsec-doctor --leaks | --unmount\n";

static bool arg_fix, arg_leaks, arg_unmount;
static unsigned arg_parts;
static int64_t arg_pool_mb;

static void examine(struct doctor *d)
{
	static const struct {
		unsigned part;
		void (*check)(struct doctor *d);
	} checks[] = {
		{PART_KERNEL, check_kernel}, {PART_CGROUP, check_cgroup},
		{PART_LIMITS, check_limits}, {PART_NODE, check_node},
		{PART_POOL, check_pool},     {PART_DEAD, check_dead},
	};

	for (size_t i = 0; i < array_len(checks); i++)
		if (d->parts & checks[i].part)
			checks[i].check(d);
}

/* What cannot be done is a finding; the rest is done all the same. */
static void fix(struct doctor *d)
{
	static const unsigned order[] = {PART_NODE, PART_POOL, PART_LIMITS,
					 PART_DEAD};

	for (size_t i = 0; i < array_len(order); i++) {
		struct err e = {0};
		int r = 0;

		if (!(d->parts & order[i]))
			continue;
		if (order[i] == PART_NODE)
			r = fix_node(d, &e);
		else if (order[i] == PART_POOL)
			r = fix_pool(d, arg_pool_mb, &e);
		else if (order[i] == PART_LIMITS)
			r = fix_limits(d, &e);
		else
			r = fix_dead(d, &e);
		if (r < 0)
			d_finding(d, part_name(order[i]), SEV_ERROR, NULL,
				  "could not be fixed: %s", e.msg);
	}
}

static int list_leaks(struct doctor *d, struct err *e)
{
	auto_json json_t *list = NULL, *last = NULL;
	json_t *rec;
	size_t i;
	int r;

	r = leaks(d, &list, e);
	json_array_foreach(list, i, rec) {
		json_object_set_new(rec, "event", json_string("leak"));
		json_object_set_new(rec, "fix",
				    json_string("dsec-doctor --fix"));
		if (r == 0)
			r = record_write(STDOUT_FILENO, rec, e);
	}
	if (r < 0)
		return r;
	last = json_pack("{s:b, s:I}", "ok", json_array_size(list) == 0,
			 "leaks", (json_int_t)json_array_size(list));
	if (json_array_size(list) > 0)
		json_object_set_new(last, "error",
				    json_pack("{s:s, s:s, s:b}", "code",
					      "configuration", "message",
					      "something was left behind",
					      "infra", 1));
	r = record_write(STDOUT_FILENO, last, e);
	return r < 0 ? r : json_array_size(list) > 0;
}

static int unmount(struct doctor *d, struct err *e)
{
	json_t *v;
	size_t i;
	int r;

	r = unmount_prepared(d, e);
	json_array_foreach(d->fixed, i, v) {
		printf("%s\n", json_string_value(v));
	}
	return r;
}

/* --- the command line ---------------------------------------------------- */

static int flag(void *to, int row, const char *arg, struct err *e)
{
	auto_json json_t *obj = json_object();
	struct doctor *d = to;
	int r;

	switch (row) {
	case ROW_FIX:
		arg_fix = true;
		return 0;
	case ROW_LEAKS:
		arg_leaks = true;
		return 0;
	case ROW_UNMOUNT:
		arg_unmount = true;
		return 0;
	case ROW_JSON:
		d->json = true;
		return 0;
	case ROW_ONLY:
		if (!part_of(arg))
			return err_set(e, -EINVAL, "usage",
				       "--only %s: no such part", arg);
		arg_parts |= part_of(arg);
		return 0;
	case ROW_HELP:
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(fields));
		exit(EXIT_OK);
	case ROW_VERSION:
		puts("dsec-doctor " DSEC_VERSION);
		exit(EXIT_OK);
	default:
		r = field_of_flag(&fields[row], arg, obj, e);
		arg_pool_mb = json_int(obj, "pool_size", 0);
		return r;
	}
}

static int no_word(void *to, const char *word, struct err *e)
{
	(void)to;
	return err_set(e, -EINVAL, "usage", "'%s': there is nothing to name",
		       word);
}

static int parse(int argc, char **argv, struct doctor *d, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(fields),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	int r = opt_each(&p, flag, no_word, d, e);

	if (r < 0)
		return r;
	if (arg_fix + arg_leaks + arg_unmount > 1)
		return err_set(e, -EINVAL, "usage",
			       "--fix, --leaks and --unmount exclude each "
			       "other");
	if (arg_pool_mb && !arg_fix)
		return err_set(e, -EINVAL, "usage",
			       "--pool-size goes with --fix");
	d->parts = arg_parts ? arg_parts : PART_ALL;
	return tree_init(&d->tree, e);
}

static int work(struct doctor *d, struct err *e)
{
	bool ok;
	int r;

	if (geteuid() != 0)
		return err_set(e, -EPERM, "not_root",
			       "must run as root: what this machine can do is "
			       "seen by doing it");
	if (arg_leaks)
		return list_leaks(d, e);
	if (arg_unmount)
		return unmount(d, e);
	if (arg_fix)
		fix(d);
	examine(d);
	ok = d->worst < SEV_ERROR;
	r = report(d, ok, e);
	if (r < 0)
		return r;
	return ok ? 0 : 1;
}

int main(int argc, char **argv)
{
	struct doctor d = {
		.features = json_object(),
		.values = json_object(),
		.findings = json_array(),
		.fixed = json_array(),
	};
	struct err e = {0};
	int r, status;

	log_init("dsec-doctor");
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, SIG_DFL); /* tools are waited for */
	r = parse(argc, argv, &d, &e);
	if (r == 0)
		r = work(&d, &e);
	status = r < 0 ? (int)exit_of(&e) : r ? EXIT_NO : EXIT_OK;
	if (r < 0)
		log_err(&e);
	if (fflush(stdout) != 0 || ferror(stdout))
		status = EXIT_STDOUT_LOST;
	json_decref(d.features);
	json_decref(d.values);
	json_decref(d.findings);
	json_decref(d.fixed);
	json_decref(d.mounts);
	return status;
}
