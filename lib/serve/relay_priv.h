/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_RELAY_PRIV_H
#define SERVE_RELAY_PRIV_H

#include "base/buf.h"
#include "life/recover_child.h"
#include "serve/relay.h"

enum relay_op {
	RELAY_EXEC,
	RELAY_ATTACH,
	RELAY_WAIT,
	RELAY_CONNECT,
	RELAY_FILE,
};

struct relay {
	struct loop *loop;
	const struct tree *tree;
	json_t *req;  /* a copy, checked */
	json_t *line; /* for the supervisor */
	enum relay_op op;
	bool streams; /* its output is the caller's to read */
	json_t *want; /* of it: names; NULL: all */
	const struct relay_ops *ops;
	void *arg;
	struct ctl *ctl;
	struct loop_source src;
	bool watching, started, cancelling, over;
	struct recovery *recovery; /* it gets a supervisor */
	bool recovered;		   /* ... it has one: once */
	struct loop_timer deadline, retry;
	uint64_t give_up_ms;
	char exec[65];
	struct err why; /* of cancelling */
	/* RELAY_FILE: what the helper says */
	int said_fd; /* -1 */
	struct loop_source said_src;
	struct buf said;
	json_t *end; /* its final record, while said is not at its end */
};

/* relay_check(r, e): is the request right, and what is asked of the supervisor
 * for it?  Fills in op, streams and line. */
must_check int relay_check(struct relay *r, struct err *e);

/*
 * relay_started(r, rec, e): "started" or "connected" of the supervisor: hand on
 * what it brings.
 */
must_check int relay_started(struct relay *r, struct ctl_record *rec,
			     struct err *e);

/* relay_replay(r, rec, e): of a command that has ended, whose record ${rec} is:
 * "started" with what was recorded. */
must_check int relay_replay(struct relay *r, const json_t *rec, struct err *e);

#endif
