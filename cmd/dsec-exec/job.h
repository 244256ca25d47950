/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_JOB_H
#define DSEC_EXEC_JOB_H

#include "base/loop.h"
#include "exec.h"
#include "wire/jsonl.h"

/*
 * One request of record mode, from its line to its final record.  It belongs to
 * whoever made it; it reports through job_ops and is then forgotten by freeing
 * it, which is not to happen before job_ops.done.
 */
struct job;

struct job_ops {
	/* An event record (borrowed). */
	void (*event)(void *arg, const json_t *rec);
	/* The final record (borrowed), NULL when memory is out.  The job may
	 * be freed here. */
	void (*done)(void *arg, struct job *j, const json_t *rec);
};

struct job {
	struct job *prev, *next; /* the owner's list */
	const struct tree *tree;
	struct loop *loop;
	const struct job_ops *ops;
	void *arg;
	json_t *req;  /* checked by field_check() and op_check() */
	bool running; /* job_start() was called */

	/* Private from here. */
	struct ctl *ctl;
	struct loop_source source;
	bool watching;
	struct loop_timer deadline; /* of the request, or of its end */
	struct loop_timer retry;    /* of connecting */
	struct recovery *recovery;  /* its sandbox gets a supervisor */
	bool recovered;		    /* ... it has one: once */
	uint64_t give_up_ms;	    /* clock_ms() when retrying ends */
	char exec[65];
	bool ending;	/* it has failed; its command is being killed */
	struct err why; /* for that reason */
	pid_t child;	/* a file operation; 0: none */
	int child_fd;	/* its records; -1 */
	struct jsonl lines;
	json_t *child_rec;
	void (*finish)(struct job *j, json_t *rec);
};

/* job_new(req): a new one with the request, which becomes its own, and its
 * deadline running; NULL when out of memory. */
struct job *job_new(const struct job *like, json_t *req);
void job_free(struct job *j);

/* job_start(j): begin; ops may be called before it returns. */
void job_start(struct job *j);

/* job_end(j, why): make it fail for that reason.  A command that it started and
 * did not detach is killed; the final record comes when that is done. */
void job_end(struct job *j, const struct err *why);

/* job_names_id(req, ctl, e): the request names its sandbox by id from here on,
 * as every record does that is made from it. */
int job_names_id(json_t *req, const struct ctl *ctl, struct err *e);

#endif
