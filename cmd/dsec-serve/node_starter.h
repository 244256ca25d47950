/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_NODE_STARTER_H
#define DSEC_SERVE_NODE_STARTER_H

#include "base/backoff.h"
#include "base/loop.h"
#include "box/tree.h"
#include "net/chan.h"
#include "serve/conf.h"

enum role { ROLE_KEEPER, ROLE_WORKER, ROLES };

struct starter;

/* A process of ours. */
struct child {
	struct child *next;
	struct starter *starter;
	enum role role;
	pid_t pid;
	struct chan chan;
	struct loop_source src;
	uint64_t since_ms;
	struct loop_timer late;	 /* set while it has orders to take */
	uint64_t linked_ms;	 /* of a worker: when it was given a keeper */
	struct loop_timer alone; /* ... set while it has said it has none */
	bool retiring, dead;
};

struct starter {
	struct loop *loop;
	struct tree tree;
	char dir[PATH_MAX]; /* of serve.json */
	char exe[PATH_MAX]; /* what is executed */
	char root[PATH_MAX];
	int dirfd, lock, ready;
	int64_t generation; /* of the program: upgrades so far */
	unsigned refused;   /* upgrades that it did not get */
	struct serveconf conf;
	struct tls_pem pem;
	uint64_t stamp;
	uid_t uid;
	gid_t gid;
	int listeners[SERVECONF_LISTEN_MAX];
	size_t nlisteners;
	struct child *children;
	struct {
		struct backoff backoff;
		struct loop_timer timer;
	} again[ROLES];
	struct loop_timer tick, stop;
	struct loop_source signals;
	bool stopping;
	bool upgrades; /* when no order is on its way any more */
};

/* node_child.c */

/* child_start(s, role): a new one, told all; where that fails, later. */
void child_start(struct starter *s, enum role role);
/* children_reap(s): those that ended; what is missing is started again. */
void children_reap(struct starter *s);
/* child_retire(c): it ends when it has nothing to do. */
void child_retire(struct child *c);
/* children_reload(s): tell all of them what serve.json says now. */
void children_reload(struct starter *s);
/* children_reopen(s): the audit log may have been moved away. */
void children_reopen(struct starter *s);
/* children_busy(s): has one of them not taken all its orders yet? */
bool children_busy(const struct starter *s);
/* children_kill(s): at the end. */
void children_kill(struct starter *s);
/* child_adopt(s, role, pid, fd, retiring, e): one of the starter before. */
must_check int child_adopt(struct starter *s, const struct child *like,
			   struct err *e);

/* node_upgrade.c */

/* upgrade(s): become the new program, as soon as what was written to the
 * children is theirs. */
void upgrade(struct starter *s);

/* node.c */
/* starter_run(s, e): until it is told to stop; listeners and children are
 * there, or are made. */
must_check int starter_run(struct starter *s, struct err *e);
must_check int starter_load(struct starter *s, struct err *e);
must_check int lock_write(struct starter *s, struct err *e);
void starter_done(struct starter *s);

#endif
