/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_TERMINAL_H
#define DSEC_EXEC_TERMINAL_H

#include <termios.h>

#include "exec.h"

/*
 * Our own terminal, when a command is to have one.  Standard input need not be
 * a terminal: then its size comes from standard output or is 24 by 80, and
 * there is nothing to set or restore.
 */
struct terminal {
	bool wanted;	     /* the command gets a terminal */
	bool interactive;    /* and our keys */
	bool is_command_tty; /* what we write to is one */
	bool saved;
	struct termios was;
};

/* terminal_raw(t, e): raw mode, when wanted, interactive and possible. */
int terminal_raw(struct terminal *t, struct err *e);
void terminal_restore(struct terminal *t);

/* terminal_describe(t, req): "tty", "rows" and "cols", where not given. */
void terminal_describe(const struct terminal *t, json_t *req);

/* terminal_copy_size(t, master): our size to the command's terminal. */
void terminal_copy_size(const struct terminal *t, int master);

#endif
