/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "box/env.h"
#include "box/init_report.h"
#include "box/launch.h"
#include "box/net.h"
#include "box/node.h"
#include "box/reapply.h"
#include "box/stage.h"
#include "box/user.h"
#include "sys/clone.h"
#include "sys/cpus.h"
#include "sys/userns.h"

/*
 * Stacks of the children, used one launch at a time (we have no threads): the
 * staging child's, and the one that first serves the maker of the user
 * namespace and then the command's child.
 */
#define STACK (64 * 1024)
static struct {
	_Alignas(16) char stage[STACK], second[STACK];
} stacks;

static int wait_pid(pid_t pid)
{
	int status = 0;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return status;
}

void launch_end(struct launched *p)
{
	if (p->pid <= 0)
		return;
	/* By number, which is its own until it is waited for: whoever gives up
	 * on it may have moved the pidfd already. */
	kill(p->pid, SIGKILL);
	wait_pid(p->pid);
	p->pid = 0;
}

static int stage_error(const struct stage *st, struct err *e)
{
	if (!st->what)
		return err_set(e, -ECHILD, "system",
			       "pid 1 was killed while the sandbox was made");
	if (st->r == -EIDRM || st->r == -ELOOP)
		return err_set(e, st->r, "bad_path",
			       "%s: the image has a link "
			       "there",
			       st->what);
	/* By force (dsec-doctor --unmount): it is claimed. */
	if (st->r == -ESTALE)
		return err_set(e, st->r, "busy",
			       "a layer was unmounted while the sandbox was "
			       "made: try again");
	if (st->r == -ENOTDIR)
		return err_set(e, st->r, "bad_path",
			       "%s: the image has something there that is no "
			       "directory",
			       st->what);
	if (st->r == -EINVAL && !strcmp(st->what, STAGE_MAP_LIB))
		return err_set(e, st->r, "configuration",
			       "this kernel cannot map ids on the file system "
			       "of DSEC_LIB, '%s': use ext4, xfs or btrfs",
			       st->l->tree->lib);
	return err_sys(e, -st->r, "%s", st->what);
}

/* The usual answer needs no look into the sandbox's files. */
static int user_of(const struct launch *l, pid_t pid, struct user *ret,
		   struct err *e)
{
	const char *word = json_str(l->spec, "init_user");
	auto_close int root = -1;
	char path[64];

	if (!*word)
		word = l->image->user;
	memset(ret, 0, sizeof(*ret));
	if (!strcmp(word, "root") || !strcmp(word, "0")) {
		ret->name = strdup("root");
		ret->home = strdup("/root");
		return ret->name && ret->home
			       ? 0
			       : err_sys(e, ENOMEM, "user '%s'", word);
	}
	snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(e, errno, "open the sandbox's root");
	return user_resolve(root, word, l->image->user, ret, e);
}

/* The working directory that the image names and did not have: it was made, and
 * belongs to the image's user.  One that the image does not know either, every
 * command will be told. */
static int give_cwd(const struct launch *l, const struct stage *st, pid_t pid,
		    struct err *e)
{
	auto_close int root = -1, dir = -1;
	auto_user struct user u = {0};
	char path[64];

	if (user_of(l, pid, &u, NULL) < 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
	root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(e, errno, "open the sandbox's root");
	dir = fd_openat2(root, st->cwd, O_PATH | O_DIRECTORY,
			 RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS |
				 RESOLVE_NO_XDEV);
	/* Covered by /dev, /proc or a directory of the host, whose owner is
	 * not ours to change. */
	if (dir == -EXDEV)
		return 0;
	if (dir < 0)
		return err_sys(e, -dir, "open '%s' in the sandbox", st->cwd);
	if (fchownat(dir, "", l->uid_base + u.uid, l->uid_base + u.gid,
		     AT_EMPTY_PATH) < 0)
		return err_sys(e, errno, "give '%s' to the image's user",
			       st->cwd);
	return 0;
}

/* Pid 1 runs: say who the command is, let it go, and hear whether it went. */
static int release_command(const struct launch *l, struct stage *st, pid_t pid,
			   struct err *e)
{
	const json_t *maps[] = {l->image->env, json_object_get(l->spec, "env")};
	struct become *b = l->command;
	auto_user struct user u = {0};
	char **envp = NULL;
	int r;

	r = user_of(l, pid, &u, e);
	if (r == 0)
		r = env_build(maps, array_len(maps), u.home, u.name, &envp, e);
	b->uid = u.uid;
	b->gid = u.gid;
	b->groups = u.groups;
	b->ngroups = u.ngroups;
	b->envp = (const char *const *)envp;
	/* So that it can open /dev/stdout and the like anew. */
	for (int i = 0; r == 0 && i < 3; i++)
		if (b->fds[i] >= 0 && fchown(b->fds[i], l->uid_base + u.uid,
					     l->uid_base + u.gid) < 0)
			r = err_sys(e, errno, "give a stream to the command");
	clone_wake(&st->go, r < 0 ? 2 : 1);
	clone_wait_clear(&st->command_tid, 0);
	env_free(envp);
	if (r == 0 && b->failed < 0)
		r = become_error(b, e);
	return r;
}

#define HELLO_MS 10000

/* Until it says so itself, pid 1 could be traced from inside. */
static int wait_hello(const struct launched *p, struct err *e)
{
	struct pollfd pfd = {.fd = p->report, .events = POLLIN};
	struct init_report rep;
	int r;

	do
		r = poll(&pfd, 1, HELLO_MS);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return err_set(e, -ETIMEDOUT, "timeout",
			       "pid 1 did not begin within %d s",
			       HELLO_MS / 1000);
	if (r < 0 || read(p->report, &rep, sizeof(rep)) != sizeof(rep) ||
	    rep.pid != INIT_HELLO)
		return err_set(e, -ECHILD, "system",
			       "pid 1 was killed while the sandbox was made");
	return 0;
}

/* Pid 1's program has begun: all that is to be true before another runs. */
static int settle(struct launch *l, struct stage *st, struct launched *p,
		  struct net *net, struct err *e)
{
	int r;

	/* The helper works while pid 1 does. */
	r = net_send(net, p->pid, e);
	if (r == 0)
		r = wait_hello(p, e);
	if (r == 0)
		r = reapply_rest(l->cgroups, l->id, l->spec, e);
	if (r == 0 && st->cwd_made)
		r = give_cwd(l, st, p->pid, e);
	if (r == 0)
		r = net_finish(net, e);
	if (r == 0 && l->command)
		r = release_command(l, st, p->pid, e);
	return r;
}

static int run_stage(struct launch *l, struct stage *st, struct launched *p,
		     struct net *net, struct err *e)
{
	struct clone_child c = {
		.flags = CLONE_VFORK | CLONE_FILES | CLONE_NEWPID | CLONE_NEWNS,
		.exit_signal = SIGCHLD,
		.into_cgroup = st->join.into,
		.pidfd = &p->pidfd,
		.stack = stacks.stage,
		.stack_size = sizeof(stacks.stage),
	};
	int r;

	/* Suspended until pid 1 executed or failed. */
	p->pid = clone_child(&c, stage_main, st);
	if (p->pid < 0)
		return err_sys(e, -p->pid, "start pid 1");
	if (st->r < 0) {
		r = stage_error(st, e);
		if (st->command_tid)
			clone_wake(&st->go, 2);
		wait_pid(p->pid);
		p->pid = 0;
		return r;
	}
	fd_close(steal_fd(&st->report_w));
	r = settle(l, st, p, net, e);
	if (r < 0)
		launch_end(p);
	return r;
}

static int start(struct launch *l, struct stage *st, struct launched *p,
		 struct net *net, struct err *e)
{
	bool nested = l->profile->nested;
	int pipefd[2], r;

	st->userns = userns_new(l->uid_base, nested, stacks.second,
				sizeof(stacks.second), e);
	if (st->userns < 0)
		return st->userns;
	r = cgroup_leaf_prepare(l->cgroups, l->id, "init", &st->join, e);
	if (r < 0)
		return r;
	if (pipe2(pipefd, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	p->report = pipefd[0];
	st->report_w = pipefd[1];
	st->parent = (int)syscall(SYS_pidfd_open, getpid(), 0);
	if (st->parent < 0)
		return err_sys(e, errno, "pidfd_open");
	r = run_stage(l, st, p, net, e);
	p->command = st->command;
	p->command_pidfd = st->command_pidfd;
	return r;
}

int launch_start(struct launch *l, struct launched *ret, struct err *e)
{
	struct launched p = {.pidfd = -1, .report = -1, .command_pidfd = -1};
	struct net net = {
		.tree = l->tree,
		.id = l->id,
		.spec = l->spec,
		.follow = l->follow,
	};
	struct stage st = {
		.l = l,
		.join.into = -1,
		.net = net_strength(l->spec) ? &net : NULL,
		.userns = -1,
		.report_w = -1,
		.parent = -1,
		.command_pidfd = -1,
		.command_stack = stacks.second,
		.command_stack_size = sizeof(stacks.second),
		.r = -ECHILD, /* killed on the way, unless it says otherwise */
	};
	int r;

	/* Children of ours stand in the sandbox with this memory. */
	prctl(PR_SET_DUMPABLE, 0);
	if (l->command) {
		l->command->profile = l->profile;
		l->command->confined = true;
	}
	r = net_begin(&net, e);
	if (r == 0)
		r = stage_lay_out(&st, e);
	if (r == 0)
		r = start(l, &st, &p, &net, e);
	net_done(&net);
	cgroup_join_done(&st.join);
	if (st.userns >= 0)
		fd_close(st.userns);
	if (st.report_w >= 0)
		fd_close(st.report_w);
	if (st.parent >= 0)
		fd_close(st.parent);
	if (r == 0) {
		*ret = p;
		return 0;
	}
	if (p.pidfd >= 0)
		fd_close(p.pidfd);
	if (p.report >= 0)
		fd_close(p.report);
	if (p.command_pidfd >= 0)
		fd_close(p.command_pidfd);
	return r;
}
