/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_CKPT_MEMORY_H
#define DSEC_CKPT_MEMORY_H

#include "box/tree.h"
#include "sys/reclaim.h"
#include "wire/json.h"

/* What "reclaim ID", "prefetch ID" and "pss ID" have in common. */
struct memory_job {
	const char *id;
	struct cgroup_root *cgroups;
	struct reclaim_opts opts; /* stop: a signalfd of SIGTERM and SIGINT */
};

/* The work of a verb: the keys of its answer into ${rec}. */
typedef int memory_fn(const struct memory_job *job, json_t *rec, struct err *e);

/*
 * memory_run(argc, argv, fn):
 * Parse "VERB [--timeout-ms N] ID", do it, write the record; the exit status.
 */
int memory_run(int argc, char **argv, memory_fn *fn);

#endif
