/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_NODE_KEEPER_H
#define DSEC_SERVE_NODE_KEEPER_H

#include "base/loop.h"
#include "box/select.h"
#include "box/tree.h"
#include "net/chan.h"
#include "serve/audit.h"
#include "serve/auth.h"
#include "serve/coproc.h"
#include "serve/once.h"
#include "serve/relay.h"

/*
 * The keeper: root, without network.  It holds the coprocesses and connections
 * to supervisors; what it is asked comes from workers, as lines over a socket:
 *   {"n":7,"who":URI,"within":PROJECT,"req":{..}}, {"cancel":7}, {"drop":7},
 *   {"denied":CODE,"who":URI,"req":{..}} for the audit log,
 *   {"tty":7}: its terminal is dead, is there another?
 * and goes back as {"n":7,"rec":{..}}, with descriptors where "rec" says so.
 * It trusts a worker with nothing: who may what is looked up here again, and
 * every sandbox is held against the project's subtree.
 */

/* The programs it keeps running. */
enum filter {
	FILTER_RUN,
	FILTER_EXEC,
	FILTER_PAUSE,
	FILTER_FORK,
	FILTER_NET,
	FILTER_WAIT, /* dsec-ps --wait */
	FILTER_IMG,
	FILTER_ADMIT,
	FILTERS
};

struct keeper;

/* What is asked counts up: so few are in one that it need not be searched. */
#define ERRAND_BUCKETS 1024

/* A worker, one of several while one replaces another. */
struct channel {
	struct channel *next;
	struct keeper *keeper;
	struct chan chan;
	struct loop_source src;
	struct errand *errands[ERRAND_BUCKETS]; /* by their n */
	bool dead;
	bool holds; /* some of what its errands read, until there is room */
};

struct part;

struct errand {
	struct errand *next, **pprev; /* of its bucket */
	struct channel *channel;      /* NULL: nobody waits any more */
	struct keeper *keeper;
	int64_t n;
	json_t *req; /* as it was asked, without what is the wire's */
	const char *program;
	json_t *line; /* as it came, with who asks */
	enum auth_op needs;
	/* the audit log; held: it is not there yet */
	struct audit_wait wait_audit;
	bool auditing, held, stopped;
	uint64_t since_ms;
	struct errand *next_held;
	/* what it waits for, one of */
	struct relay *relay;
	struct coproc_call *filter;
	struct once *once;
	struct select_walk *walk;
	struct select select;
	enum filter which; /* of a walk, or of filter */
	struct part *parts;
	unsigned nparts;
	/* what came */
	bool many;	   /* records are told as events, then how many */
	unsigned expected; /* of these; 0: until the program ends */
	json_t *page;	   /* they are sorted, and told as far as asked */
	unsigned count, failed;
	struct err first; /* of those that failed */
	bool wait;	  /* run: then for its first command */
	bool report;
	struct loop_timer soon;
};

struct keeper {
	struct loop *loop;
	struct tree tree;
	struct auth *auth;
	struct chan ctl; /* to the one who started us */
	struct loop_source ctl_src, signals;
	struct channel *channels;
	char paths[FILTERS + 1][PATH_MAX];
	struct coproc *filters[FILTERS];
	unsigned nerrands, nonce;
	bool retiring;
	struct audit *audit; /* NULL: it cannot be written */
	struct loop_timer audit_again;
	struct errand *held, **held_end;
	struct known { /* sandboxes, by a hash of their ids */
		char id[BOX_ID_LEN + 1];
		char *project;
	} known[1024];
	uint64_t asked, refused;
	char store[PATH_MAX]; /* of images */
	struct hidden {	      /* directories, and what they are called */
		const char *path, *word;
	} hidden[4];
};

/* node_find.c */

/*
 * find_sandbox(k, word, within, id, e):
 * The id of the sandbox ${word}, also of one that has ended, if its project is
 * in ${within}; one that is not does not exist ("sandbox_unknown").
 * find_snapshot(k, req, key, within, e): the same for the snapshot that ${req}
 * names by id; "snapshot_unknown".
 */
must_check int find_sandbox(struct keeper *k, const char *word,
			    const char *within, char *id, struct err *e);
must_check int find_snapshot(struct keeper *k, const json_t *req,
			     const char *key, const char *within,
			     struct err *e);

/* node_errand.c */

/* errand_line(ch, obj): a line of a worker. */
void errand_line(struct channel *ch, const json_t *obj);
/* errand_find(ch, n): that of the worker's number; NULL: there is none. */
struct errand *errand_find(struct channel *ch, int64_t n);
/* errand_tell(c, rec): an event to who asked; ${rec} is borrowed. */
void errand_tell(struct errand *c, const json_t *rec);
/* errand_answer(c, rec), errand_fail(c, why): the end; ${rec} is borrowed. */
void errand_answer(struct errand *c, const json_t *rec);
void errand_fail(struct errand *c, const struct err *why);
/* errand_drop(c): nobody waits for it any more. */
void errand_drop(struct errand *c);
/* errand_record(c, rec): one of several records of the request, or the only. */
void errand_record(struct errand *c, json_t *rec);
/* errand_page(c): tell those of c->page that were asked for.  errand_count(c):
 * the end of several. */
void errand_page(struct errand *c);
void errand_count(struct errand *c);
/* errand_go(c): it may be done, and everybody knows. */
void errand_go(struct errand *c);
/* errand_net_looks(req): does it, for dsec-net, change nothing? */
bool errand_net_looks(const json_t *req);

/* node_route.c */

/* route(c, e): set out; later, by errand_answer(). */
must_check int route(struct errand *c, struct err *e);
/* filter_of(k, which, ret, e): the program, made when it is first needed. */
must_check int filter_of(struct keeper *k, enum filter which,
			 struct coproc **ret, struct err *e);
must_check int route_filter(struct errand *c, enum filter which, struct err *e);

/* node_audit.c */

/*
 * keeper_audit(c, e): write down that it is done: 0, it may be; 1: errand_go()
 * comes when it is there, or errand_fail(); -errno: it must not be.
 * keeper_deny(c, why): that it was refused.  keeper_note(k, line): that a
 * worker refused something, as its line says.
 */
must_check int keeper_audit(struct errand *c, struct err *e);
void keeper_deny(struct errand *c, const struct err *why);
void keeper_note(struct keeper *k, const json_t *line);
void keeper_audit_open(struct keeper *k);
void keeper_audit_close(struct keeper *k);

/* node_words.c */

/*
 * errand_own_words(c, rec): a copy of ${rec} in the words of who asked, where
 * it has others; else NULL.  keeper_plain(ch, n, rec): the same of an answer to
 * errand ${n} whose error names directories of the node, without them; a path
 * inside a sandbox that was asked for stays what it is.  keeper_hide(k): the
 * directories.
 */
json_t *errand_own_words(const struct errand *c, const json_t *rec);
json_t *keeper_plain(struct channel *ch, int64_t n, const json_t *rec);
void keeper_hide(struct keeper *k);

/* node_walk.c: one request for all the sandboxes of a selector */

must_check int walk_start(struct errand *c, enum filter which, struct err *e);
void walk_cancel(struct errand *c);

/* keeper_send(ch, n, rec, fds): ${rec} is borrowed, descriptors are taken. */
void keeper_send(struct channel *ch, int64_t n, const json_t *rec,
		 struct relay_fds *fds);
/* keeper_full(ch): enough waits for it: hold what can be held.
 * keeper_hold(ch, o): until there is room again. */
bool keeper_full(const struct channel *ch);
void keeper_hold(struct channel *ch, struct once *o);
/* keeper_settled(k): a call ended. */
void keeper_settled(struct keeper *k);
/* keeper_state(k): what it says of itself: a new object, or NULL. */
json_t *keeper_state(const struct keeper *k);

#endif
