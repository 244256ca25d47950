/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "box/net.h"
#include "ckpt/engine.h"
#include "ckpt/identity.h"
#include "box/reapply.h"
#include "ckpt/restore_priv.h"
#include "sys/clone.h"
#include "sys/userns.h"

#define LOG_MAX	     (16 << 20)
#define KILL_MS	     10000
#define USERNS_STACK 16384

/* All that is under way. */
struct run {
	const struct restore *rs;
	struct launch l;
	struct restore_stage g;
	struct restore_fds fds;
	struct restore_hook hook;
	pid_t engine; /* 0: reaped */
	int pidfd;
	uint64_t began, deadline;
	uint64_t engine_ms;
};

static int open_shared(struct run *u, struct err *e)
{
	struct restore_shared *s;

	s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (s == MAP_FAILED)
		return err_sys(e, errno, "memory");
	s->work = -1;
	for (size_t i = 0; i < RESTORE_TTYS_MAX; i++)
		s->master[i] = s->peer[i] = -1;
	u->g.shared = s;
	return 0;
}

static int open_userns(struct run *u, struct err *e)
{
	auto_free char *stack = malloc(USERNS_STACK);

	if (!stack)
		return err_sys(e, ENOMEM, "stack");
	u->g.st.userns = userns_new(u->l.uid_base, u->rs->profile->nested,
				    stack, USERNS_STACK, e);
	return u->g.st.userns < 0 ? u->g.st.userns : 0;
}

/* The layer was mounted volatile: that work directory serves no other mount. */
static int renew_work(const struct restore *rs, struct err *e)
{
	auto_close int home = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s", rs->tree->lib, rs->id);
	if (r < 0)
		return r;
	home = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (home < 0)
		return err_sys(e, errno, "open '%s'", path);
	return pool_work_new(home, e);
}

static void init(struct run *u, const struct restore *rs)
{
	memset(u, 0, sizeof(*u));
	u->rs = rs;
	u->began = clock_ms();
	u->deadline = u->began + (rs->engine->timeout_ms
					  ? rs->engine->timeout_ms
					  : ENGINE_TIMEOUT_MAX);
	u->pidfd = -1;
	u->hook = (struct restore_hook){{-1, -1}, {-1, -1}};
	u->l = (struct launch){
		.tree = rs->tree,
		.id = rs->id,
		.spec = rs->spec,
		.image = rs->image,
		.profile = rs->profile,
		.cgroups = rs->cgroups,
		.pool = rs->pool,
		.uid_base = (uid_t)json_int(rs->spec, "uid_base", 0),
	};
	u->g.rs = rs;
	u->g.fds = &u->fds;
	u->g.st.l = &u->l;
	u->g.st.join.into = u->g.st.userns = -1;
}

static int prepare(struct run *u, struct err *e)
{
	const struct restore *rs = u->rs;
	int r;

	if (!u->l.uid_base) /* or root inside would be the node's */
		return err_set(e, -EBADMSG, "internal",
			       "its spec has no uid range");
	r = reapply_later(rs->cgroups, rs->pool, rs->id, rs->spec, e);
	if (r == 0)
		r = open_shared(u, e);
	if (r == 0)
		r = renew_work(rs, e);
	if (r == 0)
		r = restore_fds_make(rs, &u->fds, e);
	if (r == 0)
		r = restore_hook_open(&u->hook, u->g.hook_env,
				      sizeof(u->g.hook_env), e);
	if (r == 0)
		r = open_userns(u, e);
	if (r == 0)
		r = restore_stage_lay_out(&u->g, e);
	if (r == 0)
		r = cgroup_leaf_prepare(rs->cgroups, rs->id, "init",
					&u->g.st.join, e);
	if (r == 0)
		r = identity_merge(rs->tree, &u->g.merge, e);
	return r;
}

/* The child shares our descriptors, so that terminals come to us, until it
 * becomes the engine; we are suspended so long. */
static int start(struct run *u, struct err *e)
{
	struct clone_child c = {
		.flags = CLONE_FILES | CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.into_cgroup = u->g.st.join.into,
		.pidfd = &u->pidfd,
	};
	struct restore_shared *s = u->g.shared;

	u->engine = clone_fork(&c);
	if (u->engine == 0)
		restore_stage_main(&u->g);
	for (size_t i = 0; i < u->fds.nttys; i++) {
		u->fds.ttys[i].master = s->master[i];
		u->fds.ttys[i].peer = s->peer[i];
	}
	if (u->engine < 0) {
		int r = err_sys(e, -u->engine, "start the engine");

		u->engine = 0;
		return r;
	}
	if (s->staged)
		return 0;
	if (s->e.r == 0)
		return err_set(e, -ECHILD, "system",
			       "a child was killed while the sandbox was made");
	if (e)
		*e = s->e;
	return s->e.r;
}

/* All it said, for whoever looks for the reason (DSEC_DEBUG=engine). */
static void show_log(const struct run *u)
{
	auto_free char *text = NULL;

	if (log_debugging("engine") &&
	    fd_read_file(u->g.shared->work, "restore.log", LOG_MAX, &text, NULL,
			 NULL) == 0)
		log_debug("engine", "%s", text);
}

static int engine_failed(const struct run *u, int status, struct err *e)
{
	char words[ERR_MSG_MAX / 2];

	show_log(u);
	engine_last_words(u->g.shared->work, "restore.log", words,
			  sizeof(words));
	err_set(e, -EIO, "engine", "the checkpoint engine failed (%s %d): %s",
		WIFSIGNALED(status) ? "signal" : "status",
		WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
		words);
	if (e)
		e->infra = true;
	return -EIO;
}

static int engine_late(const struct run *u, struct err *e)
{
	err_set(e, -ETIMEDOUT, "engine",
		"the checkpoint engine was not done within %u ms",
		(unsigned)(u->deadline - u->began));
	if (e)
		e->infra = true;
	return -ETIMEDOUT;
}

static int reap_engine(struct run *u, struct err *e)
{
	int status = 0;

	while (waitpid(u->engine, &status, 0) < 0 && errno == EINTR)
		;
	u->engine = 0;
	u->engine_ms = clock_ms() - u->began;
	return status ? engine_failed(u, status, e) : 0;
}

/* Until it ends, do what it asks for. */
static int attend(struct run *u, struct err *e)
{
	struct pollfd p[] = {
		{.fd = u->hook.req[0], .events = POLLIN},
		{.fd = u->pidfd, .events = POLLIN},
	};
	struct err why = {0};
	uint64_t now;
	int r;

	for (;;) {
		now = clock_ms();
		if (now >= u->deadline)
			return engine_late(u, e);
		r = poll(p, 2, (int)(u->deadline - now));
		if (r < 0 && errno != EINTR)
			return err_sys(e, errno, "wait for the engine");
		if (r <= 0)
			continue;
		if (p[0].revents & POLLIN) {
			r = restore_hook_serve(u->rs, &u->hook, &why);
			if (r < 0) {
				if (e)
					*e = why;
				return r;
			}
		} else if (p[1].revents) {
			return reap_engine(u, e);
		}
	}
}

/* Pid 1 is our child now. */
static int find_init(const struct run *u, pid_t *ret, struct err *e)
{
	auto_free char *text = NULL;
	int r;

	r = fd_read_file(u->g.shared->work, "pid", 32, &text, NULL, e);
	if (r < 0)
		return err_wrap(e, r, "what the engine made");
	*ret = (pid_t)strtol(text, NULL, 10);
	if (*ret <= 1 || waitpid(*ret, NULL, WNOHANG) != 0)
		return err_set(e, -ECHILD, "engine",
			       "pid 1 ended as soon as it was made");
	return 0;
}

/* With everything in its place: who it is from now on. */
static int finish(struct run *u, json_t **ret_rec, struct err *e)
{
	auto_free struct restore_pid *pids = NULL;
	struct identity idn = {.rs = u->rs, .merge = u->g.merge};
	auto_json json_t *rec = NULL;
	size_t npids = 0;
	int r;

	r = find_init(u, &idn.init, e);
	if (r == 0)
		r = restore_pids(u->rs, &pids, &npids, e);
	if (r == 0)
		r = restore_fds_place(u->rs, &u->fds, pids, npids, e);
	if (r == 0)
		r = reapply(u->rs->cgroups, u->rs->pool, u->rs->id, u->rs->spec,
			    e);
	if (r == 0)
		r = restore_net(u->rs, idn.init, e);
	if (r < 0)
		return r;
	idn.init_pidfd = RESTORE_FD_INIT;
	idn.report[0] = RESTORE_FD_REPORT;
	idn.report[1] = restore_fds_report(u->rs, &u->fds);
	r = identity_take(&idn, &rec, e);
	if (r < 0)
		return r;
	if (json_object_set_new(rec, "engine_ms",
				json_integer((json_int_t)u->engine_ms)) < 0 ||
	    json_object_set_new(rec, "restore_ms",
				json_integer((json_int_t)(clock_ms() -
							  u->began))) < 0)
		return err_sys(e, ENOMEM, "record");
	*ret_rec = steal_ptr(rec);
	return 0;
}

static void kill_all(const struct restore *rs)
{
	(void)cgroup_kill(rs->cgroups, rs->id, NULL, KILL_MS, NULL, NULL);
}

/* Once all are killed. */
static void clear_away(const struct restore *rs)
{
	/* Pid 1 may have become ours before we heard of it. */
	while (waitpid(-1, NULL, WNOHANG | __WALL) > 0)
		;
	net_detach(rs->tree, rs->id);
	/* Nothing is ever cloned into a group that was killed. */
	(void)cgroup_remove(rs->cgroups, rs->id, NULL);
	restore_release(rs);
}

/* Nobody of it is left: the engine's helpers and what it made half. */
static void undo(struct run *u)
{
	if (u->engine > 0)
		kill(u->engine, SIGKILL);
	kill_all(u->rs);
	if (u->engine > 0)
		while (waitpid(u->engine, NULL, 0) < 0 && errno == EINTR)
			;
	clear_away(u->rs);
}

void restore_undo(const struct restore *rs)
{
	kill_all(rs);
	clear_away(rs);
}

static void done(struct run *u)
{
	cgroup_join_done(&u->g.st.join);
	restore_hook_done(&u->hook);
	restore_fds_done(&u->fds);
	if (u->g.st.userns >= 0)
		fd_close(u->g.st.userns);
	if (u->pidfd >= 0)
		fd_close(u->pidfd);
	if (!u->g.shared)
		return;
	if (u->g.shared->work >= 0)
		fd_close(u->g.shared->work);
	munmap(u->g.shared, sizeof(*u->g.shared));
}

int restore_run(const struct restore *rs, json_t **ret_rec, struct err *e)
{
	auto_free struct run *u = malloc(sizeof(*u));
	int r;

	if (!u)
		return err_sys(e, ENOMEM, "restore");
	/* Children of ours stand in the sandbox with this memory. */
	prctl(PR_SET_DUMPABLE, 0);
	init(u, rs);
	r = prepare(u, e);
	if (r == 0)
		r = start(u, e);
	if (r == 0)
		r = attend(u, e);
	if (r == 0)
		r = finish(u, ret_rec, e);
	if (r < 0)
		undo(u);
	done(u);
	return r;
}
