/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/version.h"
#include "batch.h"
#include "exec.h"
#include "raw.h"
#include "wire/exit.h"
#include "wire/input.h"
#include "wire/record.h"

static const char usage[] =
	"usage: dsec-exec [OPTION]... SANDBOX -- COMMAND [ARG]...\n"
	"       dsec-exec [OPTION]... SANDBOX --attach EXEC\n"
	"       dsec-exec [OPTION]... SANDBOX... --cmd COMMAND | --op OP\n"
	"       dsec-exec [OPTION]... < REQUESTS > RECORDS\n"
	"       dsec-exec --cp FROM TO";

struct args {
	json_t *req; /* fields given as flags */
	const char **words;
	size_t nwords;
	bool command; /* there is -- ARGV, in req already */
	bool interactive, record, cp;
	const char *attach;
	unsigned jobs;
};

static void put(int fd, const char *text)
{
	if (fd_write_all(fd, text, strlen(text), NULL) < 0)
		return; /* nobody is left to tell */
}

/* A flag that is no field.  1: it is answered, and there is nothing to do. */
static int take_option(struct args *a, const struct field *f, const char *arg,
		       struct err *e)
{
	const char *name = f->opt.name;
	char *end;
	long n;

	if (!strcmp(name, "help")) {
		opt_help(STDOUT_FILENO, usage,
			 (struct opt_table){exec_fields, exec_fields_len,
					    sizeof(*f)});
		return 1;
	}
	if (!strcmp(name, "version")) {
		put(STDOUT_FILENO, "dsec-exec " DSEC_VERSION "\n");
		return 1;
	}
	a->interactive |= !strcmp(name, "interactive");
	a->record |= !strcmp(name, "record");
	a->cp |= !strcmp(name, "cp");
	if (!strcmp(name, "attach"))
		a->attach = arg;
	if (!strcmp(name, "jobs")) {
		n = strtol(arg, &end, 10);
		if (*arg < '0' || *arg > '9' || *end || n < f->min ||
		    n > f->max)
			return err_set(e, -EINVAL, "usage",
				       "--jobs %s: must be 1 to %lld", arg,
				       (long long)f->max);
		a->jobs = (unsigned)n;
	}
	return 0;
}

static int take_argv(struct args *a, char **argv, int n, struct err *e)
{
	auto_json json_t *list = json_array();

	if (n == 0)
		return err_set(e, -EINVAL, "usage", "no command after --");
	if (json_object_get(a->req, "command"))
		return err_set(e, -EINVAL, "usage",
			       "both --cmd and -- COMMAND");
	for (int i = 0; i < n; i++)
		if (json_array_append_new(list, json_string(argv[i])) < 0)
			return err_set(e, -EINVAL, "usage",
				       "argument %d is not UTF-8: write it in "
				       "a file and run that",
				       i);
	a->command = true;
	return json_object_set(a->req, "command", list) < 0
		       ? err_sys(e, ENOMEM, "command")
		       : 0;
}

static int parse(struct args *a, int argc, char **argv, struct err *e)
{
	struct opt_parser p = {.table = {exec_fields, exec_fields_len,
					 sizeof(struct field)},
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		const struct field *f = &exec_fields[row];

		if (r == OPT_WORD) {
			a->words[a->nwords++] = arg;
			continue;
		}
		if (r >= 0)
			r = f->key ? field_of_flag(f, arg, a->req, e)
				   : take_option(a, f, arg, e);
		if (r != 0)
			return r;
	}
	if (p.i > 1 && !strcmp(argv[p.i - 1], "--"))
		return take_argv(a, argv + p.i, argc - p.i, e);
	return 0;
}

static int too_many_words(const struct args *a, struct err *e)
{
	return err_set(e, -EINVAL, "usage",
		       "'%s' is one word too many: a command comes after --, "
		       "as in dsec-exec %s -- COMMAND",
		       a->words[1], a->words[0]);
}

static int raw_main(const struct tree *t, struct args *a, int *ret_status,
		    struct err *e)
{
	struct raw_opts opts = {.interactive = a->interactive,
				.attach = a->attach != NULL,
				.tty = json_flag(a->req, "tty")};
	int r;

	if (a->nwords > 1)
		return too_many_words(a, e);
	json_object_set_new(a->req, "sandbox", json_string(a->words[0]));
	if (a->attach && (a->command || json_object_get(a->req, "op")))
		return err_set(e, -EINVAL, "usage",
			       "--attach goes with no command and no --op");
	if (a->attach) {
		json_object_del(a->req, "tty");
		json_object_set_new(a->req, "op", json_string("attach"));
		json_object_set_new(a->req, "exec", json_string(a->attach));
	}
	r = field_check(exec_fields, exec_fields_len, a->req, e);
	if (r == 0)
		r = op_check(a->req, e);
	if (r < 0) {
		e->code = "usage";
		return r;
	}
	r = raw_run(t, a->req, &opts, ret_status, e);
	if (r < 0 && !strcmp(e->code, "too_large"))
		e->code = "args_too_long";
	return r;
}

/* The exit status when raw mode failed: what a shell would say. */
static int raw_failed(const struct err *e)
{
	if (!strcmp(e->code, "usage"))
		return EXIT_USAGE_ERROR;
	if (!strcmp(e->code, "command_not_found"))
		return RAW_NOT_FOUND;
	if (!strcmp(e->code, "command_not_executable"))
		return RAW_NOT_EXECUTABLE;
	return EXIT_RAW_FAILED;
}

static int run(struct args *a, struct err *e)
{
	bool raw = a->nwords > 0 && !a->record &&
		   !json_object_get(a->req, "detach") &&
		   (a->command || a->attach);
	struct tree tree;
	int r, status = 0;

	r = tree_init(&tree, e);
	if (r < 0)
		return r;
	if (a->cp) {
		if (a->nwords != 2)
			return err_set(e, -EINVAL, "usage",
				       "--cp takes FROM and TO");
		return copy_main(&tree, a->words[0], a->words[1], e);
	}
	if (raw) {
		r = raw_main(&tree, a, &status, e);
		if (r < 0) {
			log_err(e);
			status = raw_failed(e);
		}
		/* Short lives: the kernel gives everything back at once. */
		_exit(status);
	}
	if (a->attach || a->interactive)
		return err_set(e, -EINVAL, "usage",
			       "--%s is for raw mode: SANDBOX%s",
			       a->attach ? "attach" : "interactive",
			       a->attach ? " --attach EXEC" : " -- COMMAND");
	if (a->nwords > 1 && !json_object_get(a->req, "command") &&
	    !json_object_get(a->req, "op"))
		return too_many_words(a, e);
	if (!a->nwords) {
		r = input_wanted("SANDBOX -- COMMAND", e);
		if (r < 0)
			return r;
	}
	return batch_run(&(struct batch_opts){&tree, a->req, a->words,
					      a->nwords, a->jobs},
			 e);
}

/* A descriptor of ours must not become somebody's standard output. */
static void keep_stdio(void)
{
	static const char *const files[] = {"/dev/null", "/dev/full",
					    "/dev/null"};

	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) < 0 &&
		    open(files[fd], fd == 0 ? O_RDONLY : O_WRONLY) != fd)
			_exit(EXIT_SYSTEM);
}

int main(int argc, char **argv)
{
	struct args a = {.jobs = 64};
	struct err e = {0};
	int r;

	keep_stdio();
	log_init("dsec-exec");
	a.words = calloc((size_t)argc, sizeof(*a.words));
	r = a.words ? json_pack_or(&a.req, &e, "{}")
		    : err_sys(&e, ENOMEM, "start");
	if (r == 0)
		r = parse(&a, argc, argv, &e);
	if (r == 0)
		r = run(&a, &e);
	else if (r > 0)
		r = 0; /* --help, --version */
	json_decref(a.req);
	free(a.words);
	if (r >= 0)
		return r;
	log_err(&e);
	return (int)exit_of(&e);
}
