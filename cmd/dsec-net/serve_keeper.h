/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_NET_SERVE_KEEPER_H
#define DSEC_NET_SERVE_KEEPER_H

#include "base/backoff.h"
#include "base/loop.h"
#include "serve_priv.h"

/* What the keeper keeps of a sandbox: the line that would attach it, and the
 * descriptors that go with it. */
struct held {
	struct held *next;
	char *id;
	json_t *line; /* without "fds" */
	size_t nfds;
	struct held_fd {
		char name[8];
		int fd;
	} fds[HELPER_FDS_MAX];
};

#define HELD_BUCKETS 1024

struct held_table {
	struct held *buckets[HELD_BUCKETS];
	size_t n;
};

struct held *held_find(const struct held_table *t, const char *id);

/*
 * held_put(t, m, e): what the attach of ${m} has made so: its descriptors take
 * the place of those with their names, and of all of another network
 * namespace.  It takes what it keeps out of ${m}.
 * held_policy(t, m, e): the policy of ${m} in place of the one it had.
 */
int held_put(struct held_table *t, struct chan_msg *m, struct err *e);
int held_policy(struct held_table *t, const struct chan_msg *m, struct err *e);
void held_drop(struct held_table *t, const char *id);
void held_done(struct held_table *t);

/* held_send(h, c, e): attach it by ${c}. */
int held_send(const struct held *h, struct chan *c, struct err *e);

/* held_list(t), held_ports(h): the answers of these requests, or NULL. */
json_t *held_list(const struct held_table *t);
json_t *held_ports(const struct held *h);

struct keeper {
	struct loop *loop;
	const struct netconf *conf;
	int listener_fd, lock;
	struct loop_source listener, signals, worker_src;
	struct held_table held;
	int broker; /* or -1 */
	int totals_fd;
	struct totals *totals;
	int transit[6]; /* in the order of TRANSIT_FDS; -1 */
	struct client *clients;
	unsigned nclients;

	/* the worker; pid 0 while there is none */
	pid_t pid;
	struct chan worker;
	uint64_t since_ms;
	unsigned restarts;
	struct backoff backoff;
	struct loop_timer again;
	/* what it was asked, oldest first */
	struct asked *asked, **asked_end;
};

/* Somebody connected to ctl.sock. */
struct client {
	struct client *next;
	struct keeper *keeper;
	struct loop_source src;
	struct chan chan;
	bool dead;
};

/* A request that the worker has not answered. */
struct asked {
	struct asked *next;
	struct client *client; /* NULL: a replay, or he is gone */
	struct chan_msg msg;
	unsigned tries;
	bool replay;
};

/* client_answer(c, rec): takes ${rec} over.  keeper_bury(k): free clients
 * that are gone; at the end of a callback. */
void client_answer(struct client *c, json_t *rec);
void keeper_bury(struct keeper *k);
void client_error(struct client *c, const json_t *req, const struct err *e);

/*
 * handover(c, m, e): become the program that came with ${m}; does not return if
 * it works.  adopt(k, state, e): what the keeper before us was; the one who
 * asked for it gets his answer.
 */
int handover(struct client *c, struct chan_msg *m, struct err *e);
int adopt(struct keeper *k, const json_t *state, struct err *e);

/* client_new(k, fd): takes ${fd} over; NULL without memory. */
struct client *client_new(struct keeper *k, int fd);

/* worker_ask(k, c, m): ask the worker on behalf of ${c}; takes ${m} over. */
void worker_ask(struct keeper *k, struct client *c, struct chan_msg *m);
/* worker_start(k): a new one, told all. */
void worker_start(struct keeper *k);
void worker_reap(struct keeper *k);
void worker_stop(struct keeper *k);

#endif
