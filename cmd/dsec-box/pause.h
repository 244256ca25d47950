/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_PAUSE_H
#define DSEC_BOX_PAUSE_H

#include "conn.h"

/*
 * Pause and resume.  Freezing and thawing are done when the call returns, so
 * nobody ever sees them half way.  What takes longer (to push memory out, to
 * write a checkpoint, to come back from one) is a job beside the loop: whoever
 * needs the sandbox awake meanwhile is parked, and taken up when it is over.
 */

/*
 * pause_awake(a, req, e): the request ${req} of ${a} needs the sandbox awake.
 * 0: it runs, resumed if it was paused; 1: ${a} is parked, and the whole
 * request is taken up later; -errno: "stopped", or it cannot be resumed.
 */
int pause_awake(struct ask *a, json_t *req, struct err *e);

/* pause_awake_for(a, req, key, e): the same for one that must have ${key}. */
int pause_awake_for(struct ask *a, json_t *req, const char *key, struct err *e);

/*
 * pause_wake(b, e): the same for who is no request: 0: it runs; 1: not yet, and
 * relay_awake() or relay_refuse() will come.
 */
int pause_wake(struct box *b, struct err *e);

/* The ops: 1: the ask is answered or waits; -errno. */
int pause_op_pause(struct ask *a, json_t *req, struct err *e);
int pause_op_resume(struct ask *a, json_t *req, struct err *e);
int pause_op_hold(struct ask *a, json_t *req, struct err *e);
int pause_op_snapshot(struct ask *a, json_t *req, struct err *e);

/* pause_deserted(b): an ask is gone; whatever was for its sake ends. */
void pause_deserted(struct box *b);

/* pause_abort(b): the sandbox ends: no job, nobody is parked. */
void pause_abort(struct box *b);

/* pause_level(b): the word for its level. */
const char *pause_level(const struct box *b);

/* pause_expire(b): arm ttl_paused, as far as it runs. */
void pause_expire(struct box *b);

/*
 * pause_cpu(b, limited, e): its CPU limit taken away for the time in which it
 * stands still and the engine works in its group, which would crawl with a
 * small share; and put back, which pause_thaw() does too.
 *
 * pause_freeze(b, e), pause_thaw(b, e): from BOX_RUNNING to BOX_PAUSED and
 * back, from any level but BOX_DISK.  On failure it is as it was.
 */
int pause_cpu(struct box *b, bool limited, struct err *e);
int pause_freeze(struct box *b, struct err *e);
int pause_thaw(struct box *b, struct err *e);

/* pause_over(b): its own time runs again. */
void pause_over(struct box *b);

/* pause_unpark(b): take up what was parked, oldest first.
 * pause_refuse(b, why): those that need it awake fail; then the same. */
void pause_unpark(struct box *b);
void pause_refuse(struct box *b, const struct err *why);

/* job.c */

struct job_want {
	bool snapshot;	      /* or a pause */
	enum box_level level; /* of a pause */
	const char *id;	      /* of the snapshot */
	bool fs_only;
};

/* job_start(a, want, e): begin it for ${a}; as an op. */
int job_start(struct ask *a, const struct job_want *want, struct err *e);

/*
 * job_abort(b, why): end it at once, the state being somebody else's affair.
 * job_cancel(b): it is not wanted any more: the sandbox will be as it was.
 * job_deserted(b): an ask is gone: nobody may wait for a snapshot any more.
 */
void job_abort(struct box *b, const struct err *why);
void job_cancel(struct box *b);
void job_deserted(struct box *b);

/* disk.c */

/*
 * disk_enter(b, e): the checkpoint is durable: end the processes and give back
 * what is not needed.  On failure nothing has changed.
 */
int disk_enter(struct box *b, struct err *e);

/* disk_wake(b): have it back soon; for all that are parked by then. */
void disk_wake(struct box *b);

/*
 * disk_back(b): after a load: the processes are there again, all but pid 1
 * frozen: it runs.  disk_failed(b, error): they are not, and ${error} (of a
 * record, or NULL) tells why.
 */
void disk_back(struct box *b, bool fork);
void disk_failed(struct box *b, const json_t *error);

/* disk_forget(b): the checkpoint is stale from now on.  disk_sweep(b): remove
 * a stale one soon, if there is one. */
void disk_forget(struct box *b);
void disk_sweep(struct box *b);

#endif
