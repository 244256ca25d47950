/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/opt.h"
#include "ckpt_cmd.h"
#include "wire/exit.h"

#define USAGE "usage: dsec-ckpt restore SANDBOX"

static const struct opt options[] = {
	{"help", NULL, 'h', NULL, "show this"},
};

int cmd_restore(int argc, char **argv)
{
	struct opt_parser p = {OPT_TABLE(options), argc, argv, 1, NULL, false};
	struct err e = {0};
	const char *arg;
	int row, r;

	r = opt_next(&p, &row, &arg, &e);
	if (r >= 0) {
		opt_help(STDOUT_FILENO, USAGE, p.table);
		return EXIT_OK;
	}
	err_set(&e, -ENOTSUP, "unsupported", "restore is not there yet");
	return cmd_fail(&e);
}
