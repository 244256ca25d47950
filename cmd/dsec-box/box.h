/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_BOX_H
#define DSEC_BOX_BOX_H

#include <sys/types.h>

#include "base/loop.h"
#include "box/journal.h"
#include "box/profile.h"
#include "box/tree.h"
#include "sys/cgroup.h"
#include "wire/json.h"

/*
 * The supervisor of one sandbox.  One loop, one thread: what a callback does is
 * done before the next one runs, and that is the sandbox's lock.  An idle
 * supervisor keeps little: what is needed for an operation alone (the spec, the
 * control groups, the profile) is opened for it and let go when all is quiet.
 */

/* The descriptors it is started with. */
enum {
	BOX_FD_CLAIM = 3,
	BOX_FD_LISTEN,
	BOX_FD_REPORT,
	BOX_FD_INIT,
	BOX_FD_PUBLISH, /* and those after it; see --publish */
};

enum box_state { BOX_RUNNING, BOX_PAUSED, BOX_STOPPING, BOX_STOPPED };

/* How far it is paused.  At BOX_DISK there are no processes and no cgroup: the
 * checkpoint is the sandbox, and the descriptors that led into it wait. */
enum box_level { BOX_FREEZE, BOX_RECLAIM, BOX_DISK };

/* Running commands, file helpers included; sessions are counted apart. */
#define BOX_EXECS_MAX	 512
#define BOX_SESSIONS_MAX 64
#define BOX_CONNS_MAX	 256

struct ask;
struct conn;
struct exec;
struct job;
struct session;
struct left;
struct relay;
struct relay_port;
struct worker;

/* Time limits of the sandbox in ms; 0: none. */
struct box_ttl {
	uint64_t idle, absolute, paused;
};

struct box {
	struct loop *loop;
	struct tree tree;
	char id[BOX_ID_LEN + 1];
	int claim_fd, listen_fd, report_fd, init_fd, signal_fd;
	int run_fd, lib_fd; /* directories: sb/<id> of both trees */
	int out_fd;	    /* where recordings go */
	int null_fd;	    /* the null device; -1 until needed */
	int helper_fd;	    /* the sealed file helper; -1 until needed */
	pid_t init_pid;
	struct loop_source listen_src, report_src, init_src, signal_src;

	/* What the spec says that is asked all the time. */
	struct box_ttl ttl;
	uint64_t created_ms; /* wall clock */
	int64_t generation;
	uint32_t uid_base;

	/* Opened when needed, closed by box_trim(). */
	struct cgroup_root *cgroups;
	struct cgroup_freezer freezer; /* {-1, -1}: not open */
	int state_fds[2];	       /* state.c; -1 */
	struct profile profile;	       /* name[0] == '\0': not loaded */
	struct journal *steps, *keys;

	/* Life (life.c). */
	enum box_state state;
	enum box_level level;  /* while BOX_PAUSED */
	uint64_t since_ms;     /* wall clock: of the state */
	uint64_t paused_total; /* ms spent paused, before this pause */
	uint64_t paused_at;    /* clock_ms() of this pause; 0: none */
	uint64_t paused_wall;  /* the same on the wall, for ttl_paused */
	uint64_t active_at;    /* box_now() of the last activity */
	const char *outcome;   /* a literal of PROTOCOL.md, once known */
	uint64_t oom_seen;     /* kills by the memory limit, so far */
	json_t *death;	       /* its record, where there was no room for it */
	struct ask *stop_asks, *watchers, *holders;
	bool held; /* this pause is the holders' and ends with the last */
	bool leaves_frozen; /* restored: each leaf by itself */
	bool cpu_free;	    /* without its CPU limit: pause_cpu() */

	/* Pauses that take long, and the way back (pause.c, job.c, disk.c). */
	struct job *job;	 /* a pause or snapshot under way, or NULL */
	struct worker *prefetch; /* at work beside everything, or NULL */
	struct worker *measure;	 /* the same; measure.h */
	struct ask *measure_asks;
	struct loop_timer measure_timer;
	struct ask *parked; /* taken up when it is over */
	bool waking;	    /* a resume from disk is about to begin */
	struct loop_timer wake_timer, sweep_timer;
	json_t *table; /* at BOX_DISK: the checkpoint's descriptors */
	int *keep;     /* at BOX_DISK: the other ends of its pipes */
	size_t nkeep;
	/* Of the control groups it had before this one. */
	uint64_t past_cpu_us, past_peak_bytes;
	struct loop_timer idle_timer, absolute_timer, paused_timer;
	struct loop_timer grace_timer, poll_timer, trim_timer, reexec_timer;
	uint64_t grace_end; /* clock_ms(): SIGKILL no later than this */

	struct exec *execs; /* running or being finished */
	unsigned nexecs;
	uint64_t next_exec, next_session, next_helper;
	struct session *sessions;
	unsigned nsessions;
	/* Connections from outside (relay.h). */
	struct relay_port *ports;
	unsigned nports;
	struct relay *relays;
	unsigned nrelays;
	struct ask *connected; /* each has one of its own */
	uint64_t relays_total, relays_refused;

	struct left *left; /* left.h */
	unsigned nleft;
	struct conn *conns;
	unsigned nconns;
	uint64_t next_conn;
	struct loop_timer reap_timer;	/* of closed connections */
	struct loop_timer accept_timer; /* when there was no room for one */
};

/*
 * box_now(b): milliseconds of the sandbox's own time, which stands still while
 * it is paused.  box_real(b, at): the clock_ms() at which it will be ${at},
 * unless it is paused meanwhile.
 */
uint64_t box_now(const struct box *b);
uint64_t box_real(const struct box *b, uint64_t at);

/* box_cgroups(b, ret, e), box_profile(b, e), box_null(b, e): opened once. */
int box_cgroups(struct box *b, struct cgroup_root **ret, struct err *e);
int box_profile(struct box *b, struct err *e);
int box_null(struct box *b, struct err *e);

/* box_freeze(b, on, timeout_ms, e): cgroup_freeze() of the sandbox. */
int box_freeze(struct box *b, bool on, unsigned timeout_ms, struct err *e);

/* box_spec(b, ret, e): spec.json, the caller's. */
int box_spec(struct box *b, json_t **ret, struct err *e);

/* box_root(b, e): an O_PATH descriptor of the sandbox's root, the caller's. */
int box_root(struct box *b, struct err *e);

/* box_stats(b, ret): counters of its control group; zero when not to be had. */
void box_stats(struct box *b, struct cgroup_stats *ret);

/* box_oom_kills(b): one of its numbers, at less cost; 0 if not known. */
uint64_t box_oom_kills(struct box *b);

/* box_busy(b): let nothing go yet; box_trim() comes when all is quiet. */
void box_busy(struct box *b);

/* box_end(b): the sandbox is over: leave the loop and take it apart. */
void box_end(struct box *b);

#endif
