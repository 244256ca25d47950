/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_RESTORE_PRIV_H
#define CKPT_RESTORE_PRIV_H

#include "ckpt/restore.h"
#include "box/stage.h"

/* Descriptors of the supervisor: see cmd/dsec-box/box.h. */
enum { RESTORE_FD_REPORT = 5, RESTORE_FD_INIT = 6 };

#define RESTORE_TTYS_MAX 64

struct restore_pipe {
	const char *of; /* borrowed */
	bool inside;	/* it has an end there */
	int end[2];
};

struct restore_tty {
	const struct ckpt_tty *ck;
	int master, peer;
};

/* What leads inside. */
struct restore_fds {
	struct restore_pipe *pipes;
	size_t npipes;
	struct restore_tty ttys[RESTORE_TTYS_MAX];
	size_t nttys;
};

/*
 * restore_fds_make(rs, f, e): pipes with what stood in them.
 * restore_fds_place(rs, f, pids, npids, e): all on their numbers, pidfds too.
 * restore_fds_done(f): close what was not placed.
 * restore_release(rs): close what restore_reserve() holds; of a supervisor that
 * goes on, put that back where it was.
 */
struct restore_pid {
	pid_t pid, inner;
};
int restore_fds_make(const struct restore *rs, struct restore_fds *f,
		     struct err *e);
int restore_fds_place(const struct restore *rs, struct restore_fds *f,
		      const struct restore_pid *pids, size_t npids,
		      struct err *e);
void restore_fds_done(struct restore_fds *f);

/* restore_fds_report(rs, f): the end of pid 1's pipe that it writes to. */
int restore_fds_report(const struct restore *rs, const struct restore_fds *f);
void restore_release(const struct restore *rs);

/* Shared with the child that becomes the engine. */
struct restore_shared {
	bool staged;
	int work; /* a descriptor of the engine's working directory */
	int master[RESTORE_TTYS_MAX], peer[RESTORE_TTYS_MAX];
	struct err e;
};

struct restore_stage {
	const struct restore *rs;
	struct stage st; /* its root, layers and ids */
	struct restore_fds *fds;
	struct restore_shared *shared;
	const char *top; /* a directory everybody can traverse */
	char dev[PATH_MAX], run_dir[PATH_MAX], hook[PATH_MAX];
	char hook_env[64];
	bool merge; /* memory of this sandbox may be shared by KSM */
	pid_t parent;
};

/* restore_stage_lay_out(g, e): before the child.  restore_stage_main(g): in it;
 * does not return. */
int restore_stage_lay_out(struct restore_stage *g, struct err *e);
void restore_stage_main(struct restore_stage *g);

/* The engine's requests, as they come through its hook. */
struct restore_hook {
	int req[2], ack[2];
};
int restore_hook_open(struct restore_hook *h, char *env, size_t size,
		      struct err *e);
void restore_hook_done(struct restore_hook *h);

/* restore_hook_serve(rs, h, e): one request; -errno where it could not be
 * done, which the engine hears of too. */
int restore_hook_serve(const struct restore *rs, struct restore_hook *h,
		       struct err *e);

/* restore_pids(rs, ret, n, e): all processes with their numbers inside. */
int restore_pids(const struct restore *rs, struct restore_pid **ret, size_t *n,
		 struct err *e);

/*
 * restore_net_lay(rs): in its network namespace, before there are processes: 0
 * or -errno.
 * restore_net(rs, init, e): before any of them runs: connections to outside
 * are cut, and its network is put in place.
 */
int restore_net_lay(const struct restore *rs);
int restore_net(const struct restore *rs, pid_t init, struct err *e);

#endif
