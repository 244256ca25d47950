/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_CONN_H
#define DSEC_BOX_CONN_H

#include "box.h"
#include "wire/jsonl.h"

/*
 * Connections, and the requests that wait for an answer.
 *
 * An ask is a request that was read and not answered yet.  It belongs to its
 * connection and dies with it; while something is to happen first it hangs in
 * one list of those who wait for that.  The list's owner answers all of them.
 *
 * Whatever is sent may close the connection.  Both stay valid until the
 * callback that did it is over, and what else is sent to them goes nowhere.
 */
struct ask {
	struct box *box;
	struct conn *conn;
	json_t *echo;		   /* the keys to echo: id, sandbox, in */
	struct ask *next, **pprev; /* of the connection's */
	struct ask *wait_next, **wait_pprev;
	struct loop_timer deadline;
	bool repeated; /* its answer was another's first */
	bool starter;  /* it started what it waits for */
	char exec[24]; /* the command it waits for, if any */
	bool job;      /* box.job is its */
	json_t *req;   /* parked: what it asks for */
	bool awake;    /* parked: for the sandbox to be awake */
	bool relayed;  /* it has a connection into the sandbox */
	char *key;     /* its answer is kept under, if any */
	uint64_t key_hash;
};

struct conn_out;

struct conn {
	struct box *box;
	uint64_t id;
	struct loop_source src;
	struct jsonl in;
	struct conn_out *out, **out_end;
	size_t out_bytes;
	struct ask *asks;
	unsigned nasks;
	bool broken; /* nothing can be sent: the loop will close it */
	bool dead;
	struct conn *next;
};

/* conn_listen(b, e): serve the listening socket. */
int conn_listen(struct box *b, struct err *e);

/* conn_adopt(b, fd, ret, e): serve a connected socket; ${fd} is taken over. */
int conn_adopt(struct box *b, int *fd, struct conn **ret, struct err *e);

/* conn_pending(b): somebody has not taken all that was sent to him. */
bool conn_pending(const struct box *b);

/*
 * conn_save_out(c): what is still to be sent to it, with its descriptors;
 * conn_load_out(c, j): the same in the next program.
 */
json_t *conn_save_out(const struct conn *c);
int conn_load_out(struct conn *c, const json_t *j);

/* conn_close_all(b): of connections and asks nothing is left. */
void conn_close_all(struct box *b);

/*
 * ask_new(c, req, ret, e): an ask of ${c}, with what is echoed of ${req}.
 * "busy" when the connection has too many.
 */
int ask_new(struct conn *c, const json_t *req, struct ask **ret, struct err *e);

/*
 * ask_wait(a, list): wait in ${list}; it leaves the one it was in.
 * ask_unwait(a): in none any more.
 */
void ask_wait(struct ask *a, struct ask **list);
void ask_unwait(struct ask *a);

/*
 * ask_event(a, rec, fds, n): send ${rec} (taken over), which has "event", with
 * descriptors (taken over).  ask_answer(a, rec): the final record: ${rec}
 * (taken over; NULL: nothing to add) with id and "ok":true.  ask_fail(a, why):
 * the final record is that error.  After a final record the ask is gone.
 */
void ask_event(struct ask *a, json_t *rec, int *fds, size_t n);
void ask_answer(struct ask *a, json_t *rec);
void ask_fail(struct ask *a, const struct err *why);

#endif
