/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_FORK_H
#define DSEC_FORK_H

#include "base/loop.h"
#include "life/create.h"
#include "box/key.h"
#include "ckpt/snap.h"
#include "wire/exit.h"
#include "wire/input.h"

/*
 * One loop reads requests and writes records.  What takes long (a snapshot, a
 * copy, a removal) is done by a worker, a process forked for that one thing: as
 * many at once as there are CPUs, so straight-line code may block.  The locks
 * of snapshots are held here, and by workers that inherited them.
 */

#define COUNT_MAX 1000

struct app {
	struct tree tree;
	struct creator creator; /* opened before the first worker */
	bool opened;
	struct loop *loop;
	struct input *input; /* NULL: the requests came as words */
	json_t *words;	     /* an array of them */
	size_t next_word;
	json_t *defaults;
	struct request *requests; /* in their order */
	unsigned nrequests;
	struct worker *workers; /* that run */
	unsigned nworkers, jobs_max;
	bool ended; /* no more requests will come, or none is wanted */
	bool lost;  /* nobody reads our records */
	struct loop_timer pump;
	enum exit_status status;
};

enum op { OP_FORK, OP_LIST, OP_INSPECT, OP_REMOVE };

enum phase {
	PHASE_WAIT,  /* for its key, or for a place */
	PHASE_SNAP,  /* a worker takes the snapshot */
	PHASE_COPY,  /* workers make copies */
	PHASE_DROP,  /* a worker removes the snapshot */
	PHASE_ENDED, /* to be freed */
};

/* A request: a sandbox or snapshot, and what is to be made from it. */
struct request {
	struct app *app;
	json_t *req;
	enum op op;
	enum phase phase;
	struct snap snap;
	char source[BOX_ID_LEN + 1]; /* of a sandbox; "" from a snapshot */
	char project[257];	     /* where names are looked up and put */
	json_t *spec;		     /* the source's spec.json, once known */
	json_t *taken;		     /* what the snapshot's taking said */
	bool memory;		     /* copies have their processes */
	bool keep;		     /* the snapshot has a name */
	unsigned count, next, running;
	uint64_t began_ms;
	struct key key;
	json_t *records;     /* with a key: what was answered */
	const char *stopped; /* "cancelled" or "deadline": no more is begun */
	bool failed;
	struct loop_timer deadline, again;
	struct request *next_one;
};

/* --- main.c -------------------------------------------------------------- */

/* app_answer(app, rec): write one record; ${rec} is taken over (NULL: out of
 * memory).  app_fail(app, rec, why): the same of a failure, which counts. */
void app_answer(struct app *app, json_t *rec);
void app_fail(struct app *app, json_t *rec, const struct err *why);

/* app_pump(app): soon, from the loop, start what there is room for. */
void app_pump(struct app *app);

/* --- request.c ----------------------------------------------------------- */

/* request_new(app, req, e): a checked request; takes ${req} over on success. */
int request_new(struct app *app, json_t *req, struct err *e);

/* request_go(r): begin what it can begin; it may end by that. */
void request_go(struct request *r);
void request_stop(struct request *r, const char *code);
void request_free(struct request *r);

/* --- work.c -------------------------------------------------------------- */

/*
 * In a worker: do it for ${r}, the copy number ${index}, and return its record.
 * ${stop} reads as "stop now".
 */
typedef int work_fn(struct request *r, unsigned index, int stop,
		    json_t **ret_rec, struct err *e);

/* Here, when it ended: its record, or why there is none. */
typedef void work_done_fn(struct request *r, unsigned index, json_t *rec,
			  const struct err *why);

/* work_start(r, index, fn, done, e). */
int work_start(struct request *r, unsigned index, work_fn *fn,
	       work_done_fn *done, struct err *e);

/* work_stop(r): tell its workers to stop. */
void work_stop(struct request *r);

/* --- what workers do ----------------------------------------------------- */

work_fn take_snapshot, make_copy; /* copy.c */
work_fn drop_snapshot;		  /* snaps.c */

/* --- snaps.c ------------------------------------------------------------- */

/* snaps_open(r, word, e): the snapshot that the request's copies are made
 * from. */
int snaps_open(struct request *r, const char *word, struct err *e);
int snaps_list(struct request *r, struct err *e);
int snaps_inspect(struct request *r, json_t **ret_rec, struct err *e);

#endif
