/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_JOB_FILE_H
#define DSEC_EXEC_JOB_FILE_H

#include "job.h"

/*
 * job_file_start(j, finish, e): do a file operation in a process of its own;
 * ${finish} is called with the final record, or NULL.  job_file_stop(j): end
 * it; safe where there is none.
 */
int job_file_start(struct job *j, void (*finish)(struct job *, json_t *),
		   struct err *e);
void job_file_stop(struct job *j);

#endif
