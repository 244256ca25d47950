/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_PAUSE_H
#define DSEC_PAUSE_H

#include "base/loop.h"
#include "life/ctl.h"
#include "box/select.h"
#include "sys/cgroup.h"
#include "wire/exit.h"
#include "wire/input.h"

#define GRACE_MS 2000 /* where the request does not say */

enum op { OP_PAUSE, OP_RESUME, OP_STOP };

/* A selector's request while its sandboxes are walked. */
struct walk {
	json_t *req;
	struct select sel;	/* points into req */
	struct select_walk *at; /* NULL: no walk is on */
	unsigned long found;
};

struct app {
	struct tree tree;
	struct loop *loop;
	struct input *input; /* NULL: the requests came as words */
	json_t *words;	     /* an array of them */
	size_t next_word;
	struct cgroup_root *cgroups; /* opened when a teardown needs it */
	json_t *defaults;
	struct walk walk;
	struct job *jobs; /* in the order of their requests */
	unsigned njobs, jobs_max;
	unsigned nheavy, heavy_max; /* those that copy memory */
	bool ended; /* no more requests will come, or none is wanted */
	struct loop_timer pump;
	enum exit_status status;
};

/*
 * One sandbox to be paused, resumed or stopped.  Two for the same sandbox run
 * one after the other, as they were asked for.
 */
struct job {
	struct app *app;
	json_t *req; /* its record's id, in and sandbox */
	char id[BOX_ID_LEN + 1];
	enum op op;
	int64_t grace_ms;
	struct ctl *ctl;
	struct recovery *recovery; /* it gets a supervisor */
	int pidfd;		   /* a one-shot's owner; -1 */
	struct loop_source source;
	struct loop_timer again, deadline, force;
	bool own_deadline; /* deadline_ms of the request, not ours */
	bool started;
	bool heavy;	/* once it is started */
	bool lost_once; /* its supervisor died, and it got another */
	struct job *next;
};

/* app_answer(app, rec), app_fail(app, req, why): write one final record and
 * count it; ${rec} is taken over. */
void app_answer(struct app *app, json_t *rec);
void app_fail(struct app *app, const json_t *req, const struct err *why);

/* app_pump(app): soon, from the loop, start what there is room for. */
void app_pump(struct app *app);

/* app_cgroups(app, e): NULL with ${e} set when there are none. */
struct cgroup_root *app_cgroups(struct app *app, struct err *e);

/* job_new(app, req, id, e): takes ${req} over on success. */
int job_new(struct app *app, json_t *req, const char *id, struct err *e);
void job_start(struct job *j);
/* job_may_start(j): there is room for work of its weight. */
bool job_may_start(struct job *j);
void job_fail(struct job *j, const struct err *why);
void job_again(struct job *j, unsigned after_ms);

/* job_done(j, from): answer with the keys of a record of the supervisor's or
 * of dead/ (may be NULL) and end the job. */
void job_done(struct job *j, const json_t *from);

/*
 * A sandbox that cannot be asked to stop.  stop_ended(): it may be on record
 * as ended; stop_one_shot(): its owner ends it on a signal; stop_lost(): nobody
 * owns it any more and what is left of it is removed here; stop_kept(): it is
 * on the disk, and could not be given a supervisor.  All end the job, now or
 * later.
 */
void stop_ended(struct job *j, const struct err *why);
void stop_one_shot(struct job *j);
void stop_lost(struct job *j, const struct err *why);
void stop_kept(struct job *j);

#endif
