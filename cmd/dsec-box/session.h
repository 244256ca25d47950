/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_SESSION_H
#define DSEC_BOX_SESSION_H

#include "exec.h"

/*
 * A session: a shell that lives on, with its directory, variables and jobs.
 *
 * The shell reads its script from a pipe of ours on its stdin and says how a
 * command ended on a second one, its descriptor 3; both are kept from what it
 * runs.  A command goes to it as one eval of a quoted text, when the one before
 * has ended: no here-document, quote or backslash of it can reach what comes
 * after.  What arrives on the second pipe is no more trusted than output.
 */

/* The ops: 1: the ask is answered or waits; -errno. */
int session_open(struct ask *a, json_t *req, struct err *e);
int session_close(struct ask *a, json_t *req, struct err *e);

/* session_exec(a, req, e): the op "exec" with "session". */
int session_exec(struct ask *a, const json_t *req, struct err *e);

const char *session_name(const struct session *s);

/* session_report(b, rep): the end of a shell, if it is one. */
void session_report(struct box *b, const struct init_report *rep);

/* session_kill(s, grace_ms): end it and all that runs in it. */
void session_kill(struct session *s, unsigned grace_ms);

/* session_forget(s, x): ${x} waited for its turn, and does not any more. */
bool session_forget(struct session *s, struct exec *x);

/* session_signal(s, sig, e): to all that runs in it; SIGINT spares the shell.*/
int session_signal(struct session *s, int sig, struct err *e);

/* session_idle(s, x): its command ${x} is done with; the next one's turn. */
void session_idle(struct session *s, struct exec *x);

/* session_abandon_all(b): the sandbox is over: they end with their commands. */
void session_abandon_all(struct box *b);

#endif
