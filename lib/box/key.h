/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_KEY_H
#define BOX_KEY_H

#include <stdbool.h>

#include "box/tree.h"
#include "wire/json.h"

/*
 * Idempotency keys of requests that make sandboxes: $DSEC_RUN/key/<hash>.
 *
 * key_begin(k, t, req, stop, ret_rec, e):
 * Take the key's lock.  1 with the first one's record in *${ret_rec}, marked as
 * repeated and with the id of ${req}; 0 when this request is the first (or has
 * no key).  While the first is worked on it waits, until ${stop}, a signalfd,
 * has a signal: "cancelled" (-1: however long it takes), or not at all
 * (KEY_NO_WAIT): -EAGAIN.  "key_conflict".
 *
 * 0, with k->made: whoever was the first died; what he was making is that
 * sandbox, if it is there at all.
 *
 * key_making(k, id, e): from now on ${id} is what is being made for it, whoever
 * dies; to be called before anything of it is there.
 *
 * key_known(t, key): is there a request with that key, done or under way?
 *
 * key_fence(t, key, attempt, ret_known, e): if there is none, from now on a
 * request with that key is "cancelled" unless it has that "attempt": so that
 * one that is on its way somewhere still does nothing when it comes.
 *
 * key_end(k, rec, e): keep the record (NULL: it failed, nothing is kept).
 * key_done(k): let go.
 */
struct key {
	int lock;		   /* -1: there is no key */
	json_t *request;	   /* what the record is for, as it was asked */
	char *only;		   /* the attempt that may do it; NULL: any */
	char made[BOX_ID_LEN + 1]; /* "": nothing is known to be made */
};

#define KEY_INIT    ((struct key){.lock = -1})
#define KEY_NO_WAIT (-2)

int key_making(struct key *k, const char *id, struct err *e);
int key_begin(struct key *k, const struct tree *t, const json_t *req, int stop,
	      json_t **ret_rec, struct err *e);
bool key_known(const struct tree *t, const char *key);
int key_fence(const struct tree *t, const char *key, const char *attempt,
	      bool *ret_known, struct err *e);
int key_end(const struct key *k, const json_t *rec, struct err *e);
void key_done(struct key *k);

#endif
