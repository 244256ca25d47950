/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_EXEC_H
#define DSEC_BOX_EXEC_H

#include "box.h"
#include "box/enter.h"
#include "box/init_report.h"
#include "conn.h"
#include "stream.h"

/*
 * A command: started by exec_start.c, ended by exec_end.c.  It is running until
 * pid 1 reports its end, then what is left in its pipes is recorded, its
 * left-behind processes go, and its record is written and answered.
 */
enum exec_kind {
	EXEC_COMMAND,
	EXEC_SESSION, /* a command of a session: no process of its own */
	EXEC_FILE,    /* the sealed helper: no recording */
};

/* Bytes for a command's stdin, in the order they came. */
struct exec_input {
	struct exec_input *next;
	struct ask *list;
	char *data;
	size_t len, done;
	bool close;
};

struct exec {
	struct box *box;
	struct exec *next;
	enum exec_kind kind;
	char name[24]; /* "e3"; also that of its leaf */
	struct session *session;
	uint64_t number;
	char *script;	     /* of a session: what it runs, until it does */
	struct exec *queued; /* the next one waiting for the session */
	bool session_ended;  /* and took the session with it */

	/* Its processes. */
	pid_t inner; /* its number inside */
	int pidfd;
	struct loop_source pid_src;
	bool leaf_made, leave;
	bool left; /* and somebody is */

	/* Its streams.  With a terminal, what the master says goes through a
	 * pipe of ours and is stdout. */
	struct stream out[2];
	bool has_out[2];
	bool tty;
	int tty_fd, tty_pipe;
	struct loop_source tty_src;
	bool tty_watched;
	struct loop_timer tty_retry;

	/* Its stdin: a write end of ours, or (stdin_ref) an O_PATH reference
	 * to the pipe whose write end the client has. */
	int stdin_fd, stdin_ref;
	struct exec_input *input;
	struct loop_source input_src;

	struct ask *waiters;
	struct loop_timer timeout, kill, late;
	uint64_t timeout_at, kill_at; /* box_now(); 0: none */
	unsigned grace_ms;

	/* How it ends. */
	const char *cause; /* "timeout", "killed", ..: ended by us */
	int asked_signal;
	bool gone;	/* pid 1 reported it, or it is lost */
	bool finishing; /* its streams are being emptied */
	bool holding;	/* exec_settled() is to wait */
	bool lost;	/* it is gone, nobody can say how */
	struct init_report report;
	uint64_t started_ms, ended_ms; /* wall clock */
	uint64_t started_at, ended_at; /* box_now() */
	uint64_t oom_before;
	unsigned left_killed;

	/* Where its record goes besides out/. */
	int64_t step; /* -1: none */
	char *key;
	uint64_t key_hash;
};

/* exec_start.c */

/*
 * exec_request(a, req, e): the op "exec".  1: the ask is taken care of
 * (answered or waiting); -errno: nothing runs.
 */
int exec_request(struct ask *a, json_t *req, struct err *e);

/* exec_first(b): the spec's own command, if it has one, as e0. */
void exec_first(struct box *b);

/* exec_file(a, req, e): the op "file"; as exec_request(). */
int exec_file(struct ask *a, json_t *req, struct err *e);

struct exec *exec_new(struct box *b, enum exec_kind kind, struct err *e);

/*
 * exec_hand_over(x, a, req, stdin_wr, e): the event "started" with what is to
 * be handed over (*${stdin_wr} too, if it is not -1), and the ask waits for the
 * record; or "detach": it is answered.  1, or -errno.
 */
int exec_hand_over(struct exec *x, struct ask *a, const json_t *req,
		   int *stdin_wr, struct err *e);

/* exec_attach(x, a, req, e): pipes for "attach" of ${req}, and the event. */
int exec_attach(struct exec *x, struct ask *a, const json_t *req,
		struct err *e);

/* exec_streams(x, out, err, e): record from those pipes (borrowed). */
int exec_streams(struct exec *x, const int src[2], struct err *e);

/* exec_restream(x, src, e): the same after a re-exec, of what has not ended. */
int exec_restream(struct exec *x, const int src[2], struct err *e);

/* exec_find(b, name): a running one, or NULL. */
struct exec *exec_find(struct box *b, const char *name);

/* exec_watch(x, en, e): it runs: its end is waited for from here on. */
int exec_watch(struct exec *x, struct entered *en, struct err *e);

/* exec_undo(x): started but not to be kept: nothing of it stays. */
void exec_undo(struct exec *x);

/* exec_options(x, req, e): step, key, timeouts. */
int exec_options(struct exec *x, const json_t *req, struct err *e);

/* exec_armed(x): start its timeout. */
void exec_armed(struct exec *x);

/* exec_end.c */

/* exec_reports(b): read what pid 1 has to say. */
void exec_reports(struct box *b);

/* exec_awaited(x): its process is dead: its report is due. */
void exec_awaited(struct exec *x);

/* exec_gone(x): its main process ended, x->report says how. */
void exec_gone(struct exec *x);

/* exec_finish(x): it is gone: sweep, empty its pipes, and be done with it. */
void exec_finish(struct exec *x);

/* exec_on_kill(l, t): the grace of ${t}->arg, a struct exec, is over. */
void exec_on_kill(struct loop *l, struct loop_timer *t);

/* exec_settled(x): when it is gone and its streams ended, it is done with. */
void exec_settled(struct exec *x);

/* exec_kill(x, cause, grace_ms): SIGTERM, then SIGKILL, to all of it. */
void exec_kill(struct exec *x, const char *cause, unsigned grace_ms);

/* exec_record(x): its record as it stands; NULL when out of memory. */
json_t *exec_record(const struct exec *x);

/* exec_timers(b, on): (re)arm the timers of all, or still them for a pause. */
void exec_timers(struct box *b, bool on);

/* exec_drain(x): it is frozen: record what it has written, as far as readers
 * let that be.  May end it. */
void exec_drain(struct exec *x);

/* exec_sleep(x): its processes may end, and that is not its end. */
void exec_sleep(struct exec *x);

/* exec_abandon(x): the sandbox is over; its record says so. */
void exec_abandon(struct exec *x, const char *cause);

/* exec_deserted(a): the ask that started something goes away unanswered. */
void exec_deserted(struct ask *a);

void exec_free(struct exec *x);

/* tty.c */

/* exec_tty(x, e): what its terminal says becomes its stdout. */
int exec_tty(struct exec *x, struct err *e);

/* exec_tty_drain(x): read what there is; true when there will be no more. */
bool exec_tty_drain(struct exec *x);

/* exec_tty_empty(x): all it says is frozen: take it, whoever reads slowly.
 * exec_tty_sleep(x): do not watch it. */
void exec_tty_empty(struct exec *x);
void exec_tty_sleep(struct exec *x);
void exec_tty_done(struct exec *x);

/* input.c */

/* exec_input(x, a, data, len, close): write to its stdin; answers the ask. */
int exec_input(struct exec *x, struct ask *a, char *data, size_t len,
	       bool close, struct err *e);
void exec_input_drop(struct exec *x);

/* exec_input_add(x, data, len, close, ret, e): queue it, without writing any:
 * exec_input_run(x) does.  ${data} is taken over. */
int exec_input_add(struct exec *x, char *data, size_t len, bool close,
		   struct exec_input **ret, struct err *e);
void exec_input_run(struct exec *x);

#endif
