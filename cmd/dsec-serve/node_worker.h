/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_NODE_WORKER_H
#define DSEC_SERVE_NODE_WORKER_H

#include "expiry.h"
#include "net/chan.h"
#include "serve/binding.h"
#include "serve/server.h"
#include "watch.h"

/*
 * The worker: TLS, requests of clients and the bytes of their streams.  What it
 * may not do itself it asks a keeper.  When that one is gone, what runs goes
 * on: descriptors are here, and the next keeper is asked how it ended.
 */
struct worker;

/* A keeper.  The first of the list is asked. */
struct keeping {
	struct keeping *next;
	struct worker *worker;
	struct chan chan;
	struct loop_source src;
	bool dead;
};

/* One of the streams of a request: bytes of descriptors, or to one. */
struct flow {
	struct flow *next;
	struct job *job;
	struct stream stream;
	/* out: parts of files, then the descriptor itself; in: the latter */
	struct flow_part {
		int fd;
		uint64_t at, len;
	} parts[3];
	unsigned nparts, part;
	int fd; /* -1: closed, or there is none */
	struct loop_source src;
	bool watched, over, sock, drop; /* drop: nobody reads what comes */
	bool tty, stale; /* stale: another terminal is asked for */
	uint64_t moved;	 /* in: bytes that it has taken */
	bool eof;	 /* in: no more comes */
	struct buf kept; /* in: what it has not taken yet */
};

/* What is asked of a keeper on behalf of a call. */
struct job {
	struct job *next, **pprev; /* in a bucket */
	struct worker *worker;
	struct call *call;
	struct keeping *keeping; /* NULL: there is none that knows of it */
	int64_t n;
	json_t *line; /* as it was sent, to be sent again */
	char exec[65], sandbox[32];
	struct flow *flows;
	unsigned nout;	   /* flows out that are not over */
	json_t *final;	   /* waits for them */
	bool connect;	   /* its end is that of its flows */
	bool began;	   /* an event came */
	bool asked_end;	   /* line asks how it ended */
	bool waiting;	   /* for a keeper */
	uint64_t since_ms; /* of that */
	struct loop_timer soon;
};

#define JOB_BUCKETS 1024

struct worker {
	struct loop *loop;
	struct chan ctl;
	struct loop_source ctl_src, signals;
	struct tls *tls;
	struct expiry expiry;
	struct conn_env env;
	struct server *server;
	struct watch *watch; /* or NULL */
	struct refusals refusals;
	struct auth *auth;
	struct keeping *keepings;
	struct job *jobs[JOB_BUCKETS];
	unsigned nwaiting;
	int64_t next_n;
	char name[128];
	bool retiring, started;
	struct loop_timer tick;
	char *scratch; /* for one read */
};

/* node_serve.c */
extern const struct server_ops serve_ops;
/* job_answer(w, m): a line of a keeper. */
void job_answer(struct worker *w, struct chan_msg *m);
/* jobs_lost(w, kp): that keeper is gone.  jobs_send(w): a new one is there.
 * jobs_expire(w): those that waited too long. */
void jobs_lost(struct worker *w, struct keeping *kp);
void jobs_send(struct worker *w);
void jobs_expire(struct worker *w);
/* serve_recheck(w): cut off who may not what he has under way any more. */
void serve_recheck(struct worker *w);
/* job_flowed(j): one of its flows is over; what follows from it comes by way of
 * the loop. */
void job_flowed(struct job *j);
/* job_asks_tty(j): for a terminal in place of one that is dead; false: there
 * is nobody to ask, or none to come. */
bool job_asks_tty(struct job *j);

/* node_flow.c */
/*
 * flows_start(j, rec, m, e): streams of ${j}->call for the descriptors that
 * came with "started".  flows_stop(j): close them all.  flows_end_input(j): the
 * command is over.
 */
must_check int flows_start(struct job *j, const json_t *rec, struct chan_msg *m,
			   struct err *e);
void flows_stop(struct job *j);
void flows_end_input(struct job *j);
/* flows_tty(j, fd, error): the terminal that was asked for, or (-1) why there
 * is none. */
void flows_tty(struct job *j, int *fd, json_t *error);
/* flows_go(j): begin, after "started" was told. */
void flows_go(struct job *j);

/* node_worker.c */
/* keeping_send(kp, obj, e): 0; -EMSGSIZE, "too_large"; or it takes nothing. */
int keeping_send(struct keeping *kp, const json_t *obj, struct err *e);

#endif
