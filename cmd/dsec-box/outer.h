/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_OUTER_H
#define DSEC_BOX_OUTER_H

#include "exec.h"
#include "session.h"

/*
 * The descriptors of ours that lead into the sandbox: ends of the pipes of
 * commands and sessions, masters of terminals, pidfds.  A checkpoint has a
 * table of them (ckpt/restore.h), so that each can be made again under its
 * number.
 */
enum outer_kind {
	OUTER_READ,
	OUTER_WRITE, /* an end of ours, or an O_PATH reference to the pipe */
	OUTER_TTY,
	OUTER_PID,
};

struct outer {
	int fd;
	enum outer_kind kind;
	pid_t inner; /* of OUTER_PID */
};

/* outer_each(b, fn, arg): each of them, until ${fn} returns no 0. */
typedef int outer_fn(struct box *b, const struct outer *o, void *arg);
int outer_each(struct box *b, outer_fn *fn, void *arg);

/*
 * outer_drain(b): all is frozen: what stands in pipes and terminals is recorded
 * and what pid 1 reported is taken; what a reader holds up stays.
 */
void outer_drain(struct box *b);

/*
 * outer_table(b, pending, ret, e):
 * The table.  With ${pending}, what still stands in the pipes is in it;
 * nothing is taken out of them.
 */
int outer_table(struct box *b, bool pending, json_t **ret, struct err *e);

/* outer_peek(fd, ret, ret_len, e): what stands in a pipe, the caller's; NULL
 * when nothing does. */
int outer_peek(int fd, char **ret, size_t *ret_len, struct err *e);

/*
 * outer_keep(b, e): hold the other end of every pipe as well: who is outside
 * sees no end of it when the processes are gone.  outer_let_go(b): not any
 * more.
 */
int outer_keep(struct box *b, struct err *e);
void outer_let_go(struct box *b);

/*
 * outer_sleep(b): processes may end: none is watched any more, nor a terminal.
 */
void outer_sleep(struct box *b);

/*
 * outer_make(b, table, e):
 * After a reboot: every number of ${table} is in use again, pipes being pipes
 * with what stood in them and both ends held.  Before anything else is opened.
 */
int outer_make(struct box *b, const json_t *table, struct err *e);

/* outer_stdin_open(fd): has the pipe ${fd} refers to a writer still? */
bool outer_stdin_open(int fd);

#endif
