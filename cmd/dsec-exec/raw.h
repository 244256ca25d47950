/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_RAW_H
#define DSEC_EXEC_RAW_H

#include "exec.h"

/*
 * Raw mode: one command with our standard input and output, its exit status
 * ours.
 */
struct raw_opts {
	bool interactive; /* our standard input is the command's */
	bool attach;	  /* the request is an attach, not an exec */
	bool tty;	  /* the command has, or is to have, a terminal */
};

/*
 * raw_run(tree, req, opts, ret_status, e):
 * Send ${req} (checked) and stay until the command's end.  0 with the exit
 * status to leave with, everything said on stderr that is to be said; or
 * -errno with ${e} set and nothing run that is known of.
 */
int raw_run(const struct tree *tree, json_t *req, const struct raw_opts *opts,
	    int *ret_status, struct err *e);

#endif
