/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_CKPT_CKPT_CMD_H
#define DSEC_CKPT_CKPT_CMD_H

#include "base/err.h"
#include "base/opt.h"
#include "wire/json.h"

/* What a supervisor writes down is no longer. */
#define STATE_MAX (64 * 1024 * 1024)

/*
 * The verbs, a file each.  argv[0] is the verb itself and options follow; every
 * verb has its own table and answers -h.  The exit status is returned; what a
 * verb has to say is one record on stdout (restore: see there).
 */
int cmd_dump(int argc, char **argv);
int cmd_restore(int argc, char **argv);
int cmd_reclaim(int argc, char **argv);
int cmd_prefetch(int argc, char **argv);
int cmd_pss(int argc, char **argv);

/*
 * cmd_hook(action): the engine runs us as its action script, with the action in
 * CRTOOLS_SCRIPT_ACTION; a status that is not 0 makes it give up.  Actions of a
 * dump go to hook_dump(), those of a restore to hook_restore().
 */
int cmd_hook(const char *action);
int hook_dump(const char *action);
int hook_restore(const char *action);

/* cmd_fail(e): the error record on stdout; the exit status for ${e}. */
int cmd_fail(const struct err *e);

/*
 * cmd_parse(argc, argv, t, usage, take, arg, ret_id, e):
 * A verb's command line: ${take} with each option but --help, which is a row of
 * each table, and one word, the sandbox.  1: help was asked for, and given.
 */
int cmd_parse(int argc, char **argv, struct opt_table t, const char *usage,
	      opt_flag_fn *take, void *arg, const char **ret_id, struct err *e);

/* cmd_number(word, ret, e): a decimal option's value, 0 to INT_MAX. */
int cmd_number(const char *word, int *ret, struct err *e);

#endif
