/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "box/tree.h"
#include "ckpt_cmd.h"
#include "wire/exit.h"
#include "wire/record.h"

#define USAGE "usage: dsec-ckpt OPERATION [OPTION...] SANDBOX"

static const struct verb {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
} verbs[] = {
	{"dump", cmd_dump, "write the processes of a sandbox into files"},
	{"restore", cmd_restore, "make them anew, then become its supervisor"},
	{"reclaim", cmd_reclaim, "push the memory of a frozen sandbox out"},
	{"prefetch", cmd_prefetch, "read it back in"},
	{"pss", cmd_pss, "what its processes have in memory"},
};

int cmd_fail(const struct err *e)
{
	auto_json json_t *rec = record_error(NULL, e);
	struct err lost = {0};

	if (rec && record_write(STDOUT_FILENO, rec, &lost) < 0) {
		log_err(e);
		return exit_of(&lost);
	}
	return exit_of(e);
}

int cmd_number(const char *word, int *ret, struct err *e)
{
	char *end;
	long v;

	errno = 0;
	v = strtol(word, &end, 10);
	if (errno || end == word || *end || v < 0 || v > INT_MAX)
		return err_set(e, -EINVAL, "usage", "'%s' is no number", word);
	*ret = (int)v;
	return 0;
}

struct parse {
	struct opt_table table;
	opt_flag_fn *take;
	void *arg;
	const char *usage, *id;
	bool help;
};

static int parse_flag(void *arg, int row, const char *value, struct err *e)
{
	struct parse *p = arg;

	if (strcmp(opt_row(p->table, (size_t)row)->name, "help") != 0)
		return p->take(p->arg, row, value, e);
	p->help = true;
	return 0;
}

static int parse_word(void *arg, const char *word, struct err *e)
{
	struct parse *p = arg;

	if (p->id)
		return err_set(e, -EINVAL, "usage", "%s", p->usage);
	p->id = word;
	return 0;
}

int cmd_parse(int argc, char **argv, struct opt_table t, const char *usage,
	      opt_flag_fn *take, void *arg, const char **ret_id, struct err *e)
{
	struct parse p = {t, take, arg, usage, NULL, false};
	struct opt_parser o = {t, argc, argv, 1, NULL, false};
	int r = opt_each(&o, parse_flag, parse_word, &p, e);

	if (r == 0 && p.help) {
		opt_help(STDOUT_FILENO, usage, t);
		return 1;
	}
	if (r == 0 && (!p.id || !tree_is_id(p.id)))
		return err_set(e, -EINVAL, "usage", "%s", usage);
	*ret_id = p.id;
	return r;
}

int cmd_hook(const char *action)
{
	static const char *const dump[] = {
		"pre-dump",
		"network-lock",
		"network-unlock",
		"post-dump",
	};

	for (size_t i = 0; i < array_len(dump); i++)
		if (!strcmp(action, dump[i]))
			return hook_dump(action);
	return hook_restore(action);
}

static int help(void)
{
	printf("%s\n\noperations:\n", USAGE);
	for (size_t i = 0; i < array_len(verbs); i++)
		printf("    %-9s %s\n", verbs[i].name, verbs[i].help);
	return fflush(stdout) ? EXIT_STDOUT_LOST : EXIT_OK;
}

int main(int argc, char **argv)
{
	const char *action = getenv("CRTOOLS_SCRIPT_ACTION");

	log_init("dsec-ckpt");
	umask(077);
	if (action)
		return cmd_hook(action);
	if (argc > 1 && (!strcmp(argv[1], "-h") || !strcmp(argv[1], "--help")))
		return help();
	for (size_t i = 0; argc > 1 && i < array_len(verbs); i++)
		if (!strcmp(argv[1], verbs[i].name))
			return verbs[i].run(argc - 1, argv + 1);
	log_error(USAGE);
	return EXIT_USAGE_ERROR;
}
