/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/opt.h"
#include "box/tree.h"
#include "ckpt_cmd.h"
#include "wire/exit.h"

#define USAGE                                                                  \
	"usage: dsec-ckpt dump --init PID --to DIR --state FD [OPTION...] "    \
	"SANDBOX"

enum {
	OPT_INIT,
	OPT_TO,
	OPT_STATE,
	OPT_LAYER,
	OPT_FS_ONLY,
	OPT_DURABLE,
	OPT_FROZEN,
	OPT_HELP,
};

static const struct opt options[] = {
	[OPT_INIT] = {"init", NULL, 0, "PID", "its pid 1, on the node"},
	[OPT_TO] = {"to", NULL, 0, "DIR", "the directory to make"},
	[OPT_STATE] = {"state", NULL, 0, "FD", "what the supervisor knows"},
	[OPT_LAYER] = {"layer", NULL, 0, "ID",
		       "copy the writable layer too, as the pool's layer ID"},
	[OPT_FS_ONLY] = {"fs-only", NULL, 0, NULL,
			 "nothing but the layer; no engine is needed"},
	[OPT_DURABLE] = {"durable", NULL, 0, NULL, "sync all of it"},
	[OPT_FROZEN] = {"frozen", NULL, 0, NULL,
			"it is frozen and the state is written: do not ask"},
	[OPT_HELP] = {"help", NULL, 'h', NULL, "show this"},
};

struct args {
	const char *id, *to, *layer;
	int init, state;
	bool fs_only, durable, frozen;
};

static int take(struct args *a, int row, const char *arg, struct err *e)
{
	switch (row) {
	case OPT_INIT:
		return cmd_number(arg, &a->init, e);
	case OPT_TO:
		a->to = arg;
		return 0;
	case OPT_STATE:
		return cmd_number(arg, &a->state, e);
	case OPT_LAYER:
		a->layer = arg;
		return 0;
	case OPT_FS_ONLY:
		a->fs_only = true;
		return 0;
	case OPT_DURABLE:
		a->durable = true;
		return 0;
	default:
		a->frozen = true;
		return 0;
	}
}

static int check(const struct args *a, struct err *e)
{
	if (!a->id || !tree_is_id(a->id) || !a->to || a->to[0] != '/' ||
	    (a->layer && !tree_is_id(a->layer)) ||
	    (!a->fs_only && (a->init <= 0 || a->state < 0)) ||
	    (a->fs_only && !a->layer))
		return err_set(e, -EINVAL, "usage", "%s", USAGE);
	return 0;
}

/* 1: help was asked for. */
static int parse(int argc, char **argv, struct args *a, struct err *e)
{
	struct opt_parser p = {OPT_TABLE(options), argc, argv, 1, NULL, false};
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_WORD && !a->id) {
			a->id = arg;
			continue;
		}
		if (r == OPT_WORD)
			return err_set(e, -EINVAL, "usage", "%s", USAGE);
		if (r >= 0 && row == OPT_HELP)
			return 1;
		if (r >= 0)
			r = take(a, row, arg, e);
		if (r < 0)
			return r;
	}
	return check(a, e);
}

int hook_dump(const char *action)
{
	(void)action;
	return EXIT_OK;
}

int cmd_dump(int argc, char **argv)
{
	struct args a = {.state = -1};
	struct err e = {0};
	int r;

	r = parse(argc, argv, &a, &e);
	if (r == 1) {
		opt_help(STDOUT_FILENO, USAGE, OPT_TABLE(options));
		return EXIT_OK;
	}
	if (r == 0)
		r = err_set(&e, -ENOTSUP, "unsupported",
			    "dump is not there yet");
	return cmd_fail(&e);
}
