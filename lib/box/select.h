/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_SELECT_H
#define BOX_SELECT_H

#include "base/cleanup.h"
#include "box/tree.h"
#include "wire/json.h"

/*
 * Which sandboxes: those of a task, of a project and all below it, with all of
 * some labels; what is NULL does not narrow.  The answer is read from the
 * claims as it is walked and nothing of it is kept, so a sandbox that comes or
 * goes meanwhile may be in it or not, and 10,000 take no more memory than one.
 */
struct select {
	const char *task, *project; /* borrowed */
	const json_t *labels;	    /* object of strings, borrowed */
};

/* select_from(s, req): what a request's task, project and labels say. */
void select_from(struct select *s, const json_t *req);
bool select_narrows(const struct select *s);

/* select_match(s, rec): does a claim or spec fit? */
bool select_match(const struct select *s, const json_t *rec);

struct select_walk;

#define auto_select __attribute__((cleanup(select_cleanup)))

/*
 * select_open(t, s, ret_walk, e), select_next(w, id, ret_claim, e):
 * Walk the sandboxes that fit.  select_next() returns 1 with the id in
 * id[BOX_ID_LEN + 1] and its claim (the caller's; NULL where it is torn, which
 * only an ${s} that does not narrow lets through), 0 at the end, or -errno.
 * ${t} and ${s} must outlive the walk.
 */
must_check int select_open(const struct tree *t, const struct select *s,
			   struct select_walk **ret_walk, struct err *e);
must_check int select_next(struct select_walk *w, char *id, json_t **ret_claim,
			   struct err *e);
void select_close(struct select_walk *w);

static inline void select_cleanup(struct select_walk **w)
{
	select_close(*w);
}

/*
 * Does a sandbox live?  Its owner holds an exclusive lock on its claim for
 * life, so a claim that can be locked belongs to the dead.
 */
enum select_life {
	SELECT_GONE, /* no claim */
	SELECT_LIVE, /* the claim is held */
	SELECT_LOST, /* the claim is there and nobody holds it */
};

/*
 * select_life(t, id, ret_claim): also the claim (the caller's; NULL where there
 * is none or it is torn).  ret_claim may be NULL.
 */
enum select_life select_life(const struct tree *t, const char *id,
			     json_t **ret_claim);

#endif
