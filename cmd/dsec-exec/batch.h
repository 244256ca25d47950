/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_BATCH_H
#define DSEC_EXEC_BATCH_H

#include "exec.h"

/*
 * Record mode: requests from standard input, or one per sandbox named on the
 * command line, many at once on one loop.
 */
struct batch_opts {
	const struct tree *tree;
	json_t *req;	    /* fields from flags: what lines do not say */
	const char **words; /* sandboxes */
	size_t nwords;	    /* 0: standard input */
	unsigned jobs;	    /* requests worked on at once */
};

/* batch_run(o, e): the exit status, or -errno where nothing could begin. */
int batch_run(const struct batch_opts *o, struct err *e);

#endif
