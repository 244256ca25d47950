/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/sig.h"
#include "base/version.h"
#include "box/spec.h"
#include "run.h"
#include "wire/exit.h"
#include "wire/record.h"

static bool arg_detach;
static unsigned arg_jobs;

static const char usage[] =
	"usage: dsec-run [FLAGS] -- COMMAND [ARGUMENT...]\n"
	"       dsec-run [FLAGS] < REQUESTS > RECORDS\n"
	"Make sandboxes: one from the flags, or one per line of JSON.\n";

static int take_own_flag(const struct field *f, const char *arg, struct err *e)
{
	char *end;
	long n;

	if (!strcmp(f->opt.name, "help")) {
		opt_help(STDOUT_FILENO, usage,
			 (struct opt_table){run_fields, run_fields_len,
					    sizeof(run_fields[0])});
		exit(EXIT_OK);
	}
	if (!strcmp(f->opt.name, "version")) {
		dprintf(STDOUT_FILENO, "dsec-run %s\n", DSEC_VERSION);
		exit(EXIT_OK);
	}
	if (!strcmp(f->opt.name, "detach")) {
		arg_detach = true;
		return 0;
	}
	n = strtol(arg, &end, 10);
	if (*end || n < 1 || n > 256)
		return err_set(e, -EINVAL, "usage", "--jobs %s: 1 to 256", arg);
	arg_jobs = (unsigned)n;
	return 0;
}

/* Flags into ${req}; *${ret_one}: the command line speaks of one sandbox. */
static int take_flags(int argc, char **argv, json_t *req, bool *ret_one,
		      struct err *e)
{
	struct opt_parser p = {
		.table = {run_fields, run_fields_len, sizeof(run_fields[0])},
		.argc = argc,
		.argv = argv,
		.i = 1,
	};
	const struct field *f;
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_WORD)
			return err_set(e, -EINVAL, "usage",
				       "'%s': a command comes after --", arg);
		if (r < 0)
			return r;
		f = &run_fields[row];
		if (!f->key)
			r = take_own_flag(f, arg, e);
		else
			r = field_of_flag(f, arg, req, e);
		if (r < 0)
			return r;
	}
	if (p.i < argc) {
		json_t *cmd = json_array();

		for (int i = p.i; cmd && i < argc; i++)
			if (json_array_append_new(cmd, json_string(argv[i])) <
			    0)
				return err_set(e, -EINVAL, "usage",
					       "argument %d is not UTF-8",
					       i - p.i);
		json_object_set_new(req, "command", cmd);
	}
	/* "--" and nothing: the image's own command. */
	*ret_one = json_object_get(req, "command") || arg_detach ||
		   (p.i > 1 && p.i == argc && !strcmp(argv[argc - 1], "--")) ||
		   json_object_get(req, "name") ||
		   (isatty(STDIN_FILENO) && !arg_jobs);
	return 0;
}

int run_signals(struct err *e)
{
	static const int all[] = {SIGINT, SIGTERM};
	int heard[array_len(all)];
	struct sigaction was;
	size_t n = 0;

	for (size_t i = 0; i < array_len(all); i++)
		if (sigaction(all[i], NULL, &was) < 0 ||
		    was.sa_handler != SIG_IGN)
			heard[n++] = all[i];
	return sig_block(heard, n, e);
}

static int one(const struct tree *t, json_t *req, struct err *e)
{
	bool raw = json_flag(req, "rm") && !arg_detach;
	auto_json json_t *rec = NULL;
	struct creator c;
	int r, sig;

	r = field_check(run_fields, run_fields_len, req, e);
	if (r < 0)
		return r;
	if (arg_detach && json_flag(req, "rm"))
		return err_set(e, -EINVAL, "usage",
			       "--rm waits for its command: leave --rm or "
			       "--detach out");
	if (raw && json_flag(req, "tty"))
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "a one-shot has no terminal: leave --rm or "
			       "--tty out");
	if (raw && json_object_get(req, "snapshot"))
		return err_set(e, -EINVAL, "bad_value",
			       "'rm': a snapshot is not made into a one-shot");
	if (raw)
		r = spec_complete(req, e);
	if (r == 0)
		r = creator_open(t, &c, e);
	if (r < 0)
		return r;
	if (!raw && !arg_detach && json_object_get(req, "command"))
		json_object_set_new(req, "wait", json_true());
	if (raw) /* and then this process ends, which closes everything */
		return one_shot_raw(&c, req, e);
	sig = run_signals(e);
	r = sig < 0 ? sig : request_do(&c, req, sig, &rec, e);
	creator_close(&c);
	if (sig >= 0)
		fd_close(sig);
	return r < 0 ? r : record_write(STDOUT_FILENO, rec, e);
}

/* A request of flags fails like one of a line, with a record; raw apart. */
static int fail(const json_t *req, const struct err *e, bool one_request)
{
	auto_json json_t *rec = NULL;
	struct err late;

	log_err(e);
	if (!strcmp(e->code, "usage"))
		return EXIT_USAGE_ERROR;
	if (one_request && json_flag(req, "rm") && !arg_detach)
		return EXIT_RAW_FAILED;
	if (one_request) {
		rec = request_failed(req, e);
		if (!rec || record_write(STDOUT_FILENO, rec, &late) < 0)
			return EXIT_STDOUT_LOST;
	}
	return exit_of(e);
}

/* Much of a launch is waiting for the kernel: few CPUs have enough to do with
 * more. */
static unsigned default_jobs(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);

	return cpus < 4 ? 8 : cpus > 64 ? 128 : 2 * (unsigned)cpus;
}

int main(int argc, char **argv)
{
	auto_json json_t *req = NULL;
	bool one_request = false;
	struct err e = {0};
	struct tree t;
	int r;

	log_init("dsec-run");
	/* Ignored by our caller, children would leave nothing to wait for. */
	signal(SIGCHLD, SIG_DFL);
	run_fields_init();
	r = json_pack_or(&req, &e, "{}");
	if (r == 0)
		r = take_flags(argc, argv, req, &one_request, &e);
	if (r == 0)
		r = tree_init(&t, &e);
	if (r == 0 && geteuid() != 0)
		r = tree_not_root(&e);
	if (one_request)
		json_object_set_new(req, "id", json_integer(1));
	if (r == 0 && one_request)
		r = one(&t, req, &e);
	else if (r == 0)
		r = stream(&t, req, arg_jobs ? arg_jobs : default_jobs(), &e);
	return r < 0 ? fail(req, &e, one_request) : r;
}
