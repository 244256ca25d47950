/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_CONTROL_H
#define DSEC_SERVE_CONTROL_H

#include "expiry.h"
#include "serve.h"
#include "serve/audit.h"
#include "serve/binding.h"
#include "serve/coproc.h"
#include "serve/lookup.h"
#include "watch.h"

/*
 * The control: no privilege, no state.  *Members* are the nodes and the other
 * controls it has connections to; a *query* is a request to one of them; a
 * *job* is what it does about a request (a call) of a client.
 */
#define FRESH_MS 5000 /* a member whose report is this old is not live */
#define CODE_LEN 4    /* letters of an id that say whose it is */

struct control;
struct member;
struct query;
struct job;

/* --- members (control_member.c) ------------------------------------------ */

enum member_state {
	MEMBER_LIVE,
	MEMBER_AWAY,
	MEMBER_LOST,
};

#define ASK_BUCKETS 256

struct member {
	struct member *next;
	struct control *c;
	enum tls_kind kind; /* TLS_NODE, TLS_CONTROL */
	char name[TLS_NAME_MAX + 1];
	char address[SERVECONF_ADDR_MAX];
	char code[CODE_LEN + 1]; /* of a node: "" until it is known */
	bool said;		 /* by serve.json */
	uint64_t told_ms;	 /* when a peer last said it; 0: none has */
	bool left; /* nobody says it any more: it ends with its connection */
	bool up;
	struct conn *conn; /* NULL: none */
	struct loop_timer again;
	unsigned backoff_ms;
	uint64_t seen_ms;
	uint64_t asked_ms; /* when the report under way was asked for */
	uint64_t report_ms, report_at_ms; /* when it came, was asked for */
	json_t *report;
	struct query *reporting;
	struct query *asks[ASK_BUCKETS];
	unsigned nasks;
	struct lookup *lookup; /* its address is being found out */
};

struct query_ops {
	/* ${rec} is borrowed.  After end() or lost() the ask is gone. */
	void (*event)(void *arg, struct query *a, json_t *rec);
	void (*end)(void *arg, struct query *a, json_t *rec);
	void (*lost)(void *arg, struct query *a); /* the connection is */
};

struct query {
	struct query *next, **pprev;
	struct member *m;
	json_t *id;
	const struct query_ops *ops;
	void *arg;
};

/* members_load(c, e): those of the configuration; others are let go. */
int members_load(struct control *c, struct err *e);
void members_tick(struct control *c);

/* member_node(c, after): the nodes there are, one by one; NULL is the end, and
 * where it begins. */
struct member *member_node(const struct control *c, const struct member *after);
struct member *member_by_code(struct control *c, const char *id);
struct member *member_by_name(struct control *c, const char *name);
enum member_state member_state(const struct member *m);
const char *member_state_word(enum member_state s);

/* member_gone(m, e): why nothing can be asked of it now; -errno. */
int member_gone(const struct member *m, struct err *e);

/* nodes_unsure(c): are there nodes that may be there and cannot be asked, or
 * whose code nobody has told?  *${ret_lost}: is one of those lost? */
bool nodes_unsure(struct control *c, bool *ret_lost);

/* query_new(m, req, ops, arg, ret, e): "id" is set in ${req}, which is
 * borrowed; nothing is called before it returns.  query_drop(a): nobody waits
 * any more. query_cancel(a): it will end, one way or another. */
must_check int query_new(struct member *m, json_t *req,
			 const struct query_ops *ops, void *arg,
			 struct query **ret, struct err *e);
void query_drop(struct query *a);
void query_cancel(struct query *a);

/* --- placing (control_place.c) -------------------------------------------- */

int placer_open(struct control *c, struct err *e);
void placer_tick(struct control *c);
/* placer_report(m): what it has told. */
void placer_report(struct member *m);
/* placer_forget(m) */
void placer_forget(struct member *m);
/* placer_end(j, how): its placement: "taken", "refused", "draining",
 * "given-up". */
void placer_end(struct job *j, const char *how);
/* placer_told(c): the process that knows all nodes; 0: there is none, yet. */
pid_t placer_told(const struct control *c);
/* placer_wait(j): run_again() comes when there is one, in the order in which
 * they came; placer_leave(j): it waits no more. */
void placer_wait(struct job *j);
void placer_leave(struct job *j);

/* --- jobs ------------------------------------------------------------------
 */

#define TRIES 5 /* of a create: a first, and 4 elsewhere */

struct pipe;

struct job {
	struct job *next, **pprev;
	struct control *c;
	struct call *call;
	json_t *req; /* what nodes are asked, "caller" and so on included */
	struct query *ask; /* of the one node that it is about */
	/* a create */
	struct coproc_call *placing;
	struct job *next_waiting, **pprev_waiting; /* for the placer; NULL */
	pid_t placer;				   /* who was asked */
	int64_t placement;
	json_t *avoid; /* as it was asked for, and who refused it */
	unsigned tries;
	struct err refusal;
	bool cancelled; /* no streams any more: only its end is waited for */
	/* streams */
	struct pipe *pipes;
	json_t *final; /* once they are over */
	/* many nodes */
	struct part *parts;
	void (*parts_end)(struct job *j);
	unsigned pending; /* of the parts */
	unsigned asked, count, failed;
	bool more;  /* of a list than it was asked for, or than was kept */
	bool plain; /* they were events: nothing of it can have failed */
	struct err first; /* of those that failed; else of the missing */
	json_t *found;	  /* what they answered: "record", "node", by name */
	json_t *missing;  /* names of those that could not be asked */
	json_t *lost;	  /* of those that were not, for they are lost */
};

struct control {
	struct loop *loop;
	int dir;
	uint64_t stamp, seq;
	struct serveconf conf;
	struct auth *auth;
	struct tls *tls;
	struct expiry expiry;
	struct conn_env env;
	struct server *server;
	struct watch *watch; /* or NULL */
	struct refusals refusals;
	struct audit *audit; /* or NULL */
	struct member *members;
	unsigned lookups; /* under way */
	struct coproc *place;
	char place_path[PATH_MAX];
	const char *place_argv[2];
	pid_t place_pid; /* the process that was told of all nodes */
	struct job *jobs;
	struct job *waiting, **waiting_end; /* for the placer */
	struct loop_source signals;
	struct loop_timer tick;
	int64_t next_ask;
	json_t *capabilities;
	char run_id[24];
};

/* control_audit.c */
/* control_audit_open(c, dir, e): where the configuration says so.
 * control_audit_denied(c, k, why): if that is why it was turned away. */
must_check int control_audit_open(struct control *c, const char *dir,
				  struct err *e);
void control_audit_denied(struct control *c, const struct call *k,
			  const struct err *why);
/* control_audit_client(c, cl, op): he may not come in; "cut": not go on. */
void control_audit_client(struct control *c, const struct client *cl,
			  const char *op);

/* control_route.c */
extern const struct server_ops control_ops;
/* control_recheck(c): cut off who has no binding any more. */
void control_recheck(struct control *c);
/* job_end(j, rec): ${rec} is taken over.  job_fail(j, why). */
void job_end(struct job *j, json_t *rec);
void job_fail(struct job *j, const struct err *why);
/* job_to(j, m): ask that node, and pass on what it says. */
void job_to(struct job *j, struct member *m);
/* job_gone(j, why): its node is away or lost; who waits for the end of a
 * sandbox of a lost one is told that. */
void job_gone(struct job *j, const struct err *why);
/* job_cancelled(j): as it was told to be. */
void job_cancelled(struct job *j);
/* job_unsure(j): its node may be one that has not told its code yet. */
void job_unsure(struct job *j);
/* job_final(j, rec): the record that a node ended it with; borrowed. */
void job_final(struct job *j, json_t *rec);
/* job_lost(j, a): the node is gone in the middle; whether what was asked was
 * done nobody knows, and who asks again with its key finds out. */
void job_lost(void *arg, struct query *a);

/* control_run.c */
void run_begin(struct job *j);
void run_again(struct job *j); /* the placer is ready */
void run_stop(struct job *j);

/* control_find.c */
/* find_begin(j): if it names a sandbox or a snapshot, to the node that has it;
 * false: it names none. */
bool find_begin(struct job *j);
/* find_among(j): if a create names one, the nodes that have it go to
 * j->found, and run_again() comes; false: it names none. */
bool find_among(struct job *j);

/* control_many.c */
/*
 * many_begin(j): ask all nodes, and pass on what they say; count and failed at
 * the end.
 * many_look(j, req, only, fn): for who asks, all nodes (or that one) what they
 * have; ${req} is taken over (NULL: memory is out).  Records are collected in
 * j->found; that one has none is no failure.  fn() when all have answered.
 * many_found(j, i): whose the i-th of them is; its code may not be known yet.
 * NULL: it has left.  many_to(j): as job_to(), whose the first is.
 */
void many_begin(struct job *j);
void many_look(struct job *j, json_t *req, struct member *only,
	       void (*fn)(struct job *j));
struct member *many_found(const struct job *j, size_t i);
void many_to(struct job *j);
void many_stop(struct job *j);
/* list_begin(j): a list of all nodes' sandboxes, sorted, by pages. */
void list_begin(struct job *j);

/* control_pipe.c */
/* pipes_start(j, started, e): for the "streams" of the event; pipes_stop(j). */
must_check int pipes_start(struct job *j, const json_t *started, struct err *e);
bool pipes_over(const struct job *j); /* has all been passed on? */
/* pipes_finish(j): nothing more comes from the node. */
void pipes_finish(struct job *j);
void pipes_stop(struct job *j);

#endif
