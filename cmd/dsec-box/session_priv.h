/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_SESSION_PRIV_H
#define DSEC_BOX_SESSION_PRIV_H

#include "base/buf.h"
#include "session.h"

/* What session.c (its running) and session_op.c (its making) share. */
struct session {
	struct box *box;
	struct session *next;
	char name[24]; /* "s1"; also that of its leaf */
	pid_t inner;   /* its number inside */
	int pidfd;
	int script, status; /* our ends */
	int out[2];	    /* read ends of its stdout and stderr */
	struct loop_source pid_src, status_src, script_src, idle_src[2];
	struct loop_timer kill, late;
	struct buf text; /* of the script, still to be written */
	struct exec *current, *queue;
	uint64_t seq; /* of the current command */
	int last;     /* how the one before ended */
	size_t noise;
	size_t status_len;
	char status_line[64];
	struct ask *opener; /* a list of at most one */
	struct ask *closers;
	char shell[256];
	bool ready;  /* it said so */
	bool ending; /* the shell is gone: nothing begins any more */
	bool dead;   /* and all is said: it goes with its last command */
};

struct session *session_find(struct box *b, const char *name);
void session_free(struct session *s);
void session_enqueue(struct session *s, struct exec *x);
int session_watch(struct session *s, struct err *e);
void session_watch_idle(struct session *s, bool on);
int session_greet(struct session *s);

/* session_push(s): write what the pipe takes of its text. */
void session_push(struct session *s);

/* quote.c */

/* session_quote(b, word): add ${word} as one word of the shell. */
int session_quote(struct buf *b, const char *word);

/* session_word(b, text): the same for what is to be evaluated: a whole line,
 * even if it ends in a backslash. */
int session_word(struct buf *b, const char *text);

/*
 * session_may_be_open(text): may the shell come to the end of ${text} inside a
 * quotation or a substitution?  Wrongly true costs a moment, wrongly false a
 * shell that exits at it.
 */
bool session_may_be_open(const char *text);

#endif
