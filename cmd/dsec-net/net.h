/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_H
#define DSEC_NET_H

#include <sys/types.h>

#include "base/loop.h"
#include "box/select.h"
#include "wire/exit.h"
#include "wire/input.h"
#include "wire/jsonl.h"

/* Requests are worked on by processes of their own, a bounded number, each with
 * one at a time: what one of them waits for holds up no other. */
struct job;

struct worker {
	struct app *app;
	pid_t pid;
	int fd; /* requests out, records in */
	struct loop_source source;
	struct jsonl in;
	struct job *job; /* NULL: idle */
	struct worker *next;
};

/* A request for one sandbox.  Two for the same one run one after the other. */
struct job {
	struct app *app;
	json_t *req;
	char id[BOX_ID_LEN + 1];
	struct worker *worker; /* NULL: not begun */
	struct loop_timer deadline;
	bool told; /* answered: nobody waits for it any more */
	struct job *next;
};

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
	json_t *words;
	size_t next_word;
	json_t *defaults;
	struct walk walk;
	struct job *jobs; /* in the order of their requests */
	unsigned njobs, jobs_max;
	struct worker *workers;
	unsigned nworkers, workers_max;
	bool ended; /* no more requests will come, or none is wanted */
	struct loop_timer pump;
	enum exit_status status;
};

/* What a request has; rows of main.c as well. */
extern const struct field net_fields[];
extern const size_t net_fields_len;

/* requests_run(app, e): all of stdin's, or of ${app}->words. */
int requests_run(struct app *app, struct err *e);

/* app_answer(app, rec), app_fail(app, req, why): write one final record and
 * count it; ${rec} is taken over. */
void app_answer(struct app *app, json_t *rec);
void app_fail(struct app *app, const json_t *req, const struct err *why);
/* app_pump(app): soon, from the loop, start what there is room for. */
void app_pump(struct app *app);
/* job_end(j): its worker is done with it, or never had it. */
void job_end(struct job *j);

/* worker_give(j, e): to an idle worker, a new one if need be and there may be
 * one; 1, 0: all are busy, or -errno.  workers_end(app): they end. */
int worker_give(struct job *j, struct err *e);
void workers_end(struct app *app);

/* The other modes, each a whole program. */
int mode_compile(const struct tree *t, struct err *e);
int mode_services(const struct tree *t, struct err *e);
int mode_uplink(const struct tree *t, const char *what, struct err *e);
int mode_connect(const struct tree *t, const char *sandbox, const char *port,
		 struct err *e);
/* denied_tell(t, req, e): an event for each line of what the sandbox of ${req}
 * was refused, and the final record. */
int denied_tell(const struct tree *t, const json_t *req, struct err *e);
/* ${words}: requests of one sandbox each. */
int mode_denied(const struct tree *t, const json_t *words, bool follow,
		struct err *e);

#endif
