/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three children in a row, all sharing our memory.  The first joins the
 * sandbox's cgroups and namespaces; it stays outside the pid namespace, so
 * nobody inside can see or signal it.  The second is its child and inside: a
 * process whose parent ends is adopted by the pid 1 of its parent's namespace,
 * not its own.  The third is the command, whose parent is pid 1 when the second
 * ends.
 *
 * We are suspended meanwhile (CLONE_VFORK), which also keeps the OOM killer
 * from choosing a child whose memory is ours.  Those inside can be stopped or
 * killed from inside before the command executes.  A timer ends the wait for
 * what was stopped; it is the first's, because a stop signal that is pending
 * keeps the second from hearing of its own.  Whoever ends early, we see to it
 * that nobody stands on our stacks any more.
 *
 * A sandbox that was restored has a time namespace of its own, which lets
 * nobody in who shares memory.  There the first child is a fork, and the second
 * and third share its memory; what they have to say is in pages of all of us.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "box/become.h"
#include "box/enter.h"
#include "sys/clone.h"

#define STACK	      (32 * 1024)
#define START_SECONDS 2

/* One entry at a time: we have no threads. */
static struct {
	_Alignas(16) char joiner[STACK], second[STACK], command[STACK];
} stacks;

struct entry {
	const struct enter *en;
	bool own_time; /* it has a time namespace of its own */
	struct cgroup_join join;
	struct become b;
	struct entered out;
	int second; /* pidfd */
	enum { JOIN_CGROUP, JOIN_NS, OPEN_TTY, CLONE_COMMAND } step;
	int r;	  /* of the joiner: -errno */
	bool cut; /* something inside ended the start */
};

static int command_main(void *arg)
{
	struct entry *en = arg;

	become(&en->b);
	return 1;
}

/* Commands do not inherit what protects their supervisor. */
static void reset_oom_score(void)
{
	int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	/* Refused where ours is above 0, which is nothing to undo. */
	if (write(fd, "0", 1) < 0)
		errno = 0;
	close(fd);
}

/* As root inside, so that the terminal belongs to an id that exists there. */
static int open_tty(struct entry *en)
{
	if (syscall(SYS_setresgid, 0, 0, 0) < 0 ||
	    syscall(SYS_setresuid, 0, 0, 0) < 0)
		return -errno;
	en->out.tty = open("/dev/pts/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC |
						    O_NOFOLLOW | O_NONBLOCK);
	if (en->out.tty < 0)
		return -errno;
	en->b.tty_master = en->out.tty;
	return 0;
}

/* Inside the pid namespace; suspended until the command executes. */
static int second_main(void *arg)
{
	struct entry *en = arg;
	struct clone_child c = {
		.flags = CLONE_VFORK,
		.exit_signal = SIGCHLD,
		.into_cgroup = -1,
		.pidfd = &en->out.pidfd,
		.stack = stacks.command,
		.stack_size = sizeof(stacks.command),
	};
	pid_t pid;

	/* Not for the command to say: it may be killed before it runs. */
	pid = clone_child(&c, command_main, en);
	if (pid < 0)
		en->r = pid;
	else
		en->out.inner = pid;
	return pid < 0;
}

/* Whoever is killed while it clones leaves the number of a descriptor that the
 * kernel took back; nobody has opened another since. */
static void end(int *pidfd)
{
	if (*pidfd >= 0 && fcntl(*pidfd, F_GETFD) < 0)
		*pidfd = -1;
	if (*pidfd < 0)
		return;
	syscall(SYS_pidfd_send_signal, *pidfd, SIGKILL, NULL, 0);
	proc_wait_pidfd(*pidfd, -1);
}

/* The first or the second was killed: others may stand on our stacks still.
 * The second goes first, or it could start the command after that was ended. */
static void cut(struct entry *en)
{
	en->cut = true;
	end(&en->second);
	end(&en->out.pidfd);
}

static int clone_second(struct entry *en)
{
	struct itimerval limit = {.it_value.tv_sec = START_SECONDS};
	struct clone_child c = {
		.flags = CLONE_VFORK | CLONE_FILES,
		.into_cgroup = -1,
		.pidfd = &en->second,
		.stack = stacks.second,
		.stack_size = sizeof(stacks.second),
	};
	int status = 0;
	pid_t pid;

	if (setitimer(ITIMER_REAL, &limit, NULL) < 0)
		return -errno;
	pid = clone_child(&c, second_main, en);
	if (pid < 0)
		return pid;
	while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		cut(en);
	return en->r;
}

static int joiner_main(void *arg)
{
	static const int all = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID |
			       CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
			       CLONE_NEWCGROUP;
	struct entry *en = arg;

	en->step = JOIN_CGROUP;
	en->r = cgroup_leaf_join(&en->join);
	if (en->r < 0)
		return 1;
	reset_oom_score();
	en->step = JOIN_NS;
	en->r = setns(en->en->init_pidfd,
		      all | (en->own_time ? CLONE_NEWTIME : 0)) < 0
			? -errno
			: 0;
	if (en->r == 0 && en->en->tty) {
		en->step = OPEN_TTY;
		en->r = open_tty(en);
	}
	if (en->r == 0) {
		en->step = CLONE_COMMAND;
		en->r = clone_second(en);
	}
	return en->r < 0;
}

static int joiner_error(const struct entry *en, struct err *e)
{
	static const char *const steps[] = {"join the sandbox's cgroups",
					    "join the sandbox's namespaces",
					    "open a terminal",
					    "start the command"};

	/* The namespaces of a pid 1 that ended: gone, or closed to forks. */
	if ((en->step == JOIN_NS && en->r == -ESRCH) ||
	    (en->step == CLONE_COMMAND && en->r == -ENOMEM &&
	     proc_wait_pidfd(en->en->init_pidfd, 0) == 1))
		return err_set(e, -ESRCH, "stopped", "the sandbox ended");
	return err_sys(e, -en->r, "%s", steps[en->step]);
}

static int stuck(struct err *e)
{
	return err_set(e, -ETIMEDOUT, "timeout",
		       "the command did not start within %d s: something "
		       "inside the sandbox holds it up",
		       START_SECONDS);
}

static int run(struct entry *en, struct err *e)
{
	struct clone_child c = {
		.flags = CLONE_VFORK | CLONE_FILES,
		.into_cgroup = en->join.into,
		.stack = stacks.joiner,
		.stack_size = sizeof(stacks.joiner),
	};
	int status = 0;
	pid_t pid;

	pid = en->own_time ? clone_fork(&c) : clone_child(&c, joiner_main, en);
	if (pid == 0)
		_exit(joiner_main(en));
	if (pid < 0)
		return err_sys(e, -pid, "start a child");
	while (waitpid(pid, &status, __WALL) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status))
		cut(en);
	if (en->second >= 0)
		fd_close(steal_fd(&en->second));
	if (en->cut)
		return stuck(e);
	if (en->r < 0)
		return joiner_error(en, e);
	return en->b.failed < 0 ? become_error(&en->b, e) : 0;
}

static ino_t time_ns(pid_t pid)
{
	char path[40];
	struct stat st;

	snprintf(path, sizeof(path), "/proc/%d/ns/time", (int)pid);
	return stat(path, &st) < 0 ? 0 : st.st_ino;
}

/* Where nobody can tell, there are no time namespaces. */
static bool has_own_time(int init_pidfd)
{
	pid_t pid = proc_pid_of(init_pidfd);
	ino_t theirs;

	if (pid <= 0)
		return false;
	theirs = time_ns(pid);
	return theirs && theirs != time_ns(getpid());
}

static struct become become_of(const struct enter *en)
{
	return (struct become){
		.profile = en->profile,
		.argv = en->argv,
		.envp = en->envp,
		.cwd = en->cwd,
		.cwd_default = en->cwd_default,
		.uid = en->uid,
		.gid = en->gid,
		.groups = en->groups,
		.ngroups = en->ngroups,
		.cpus = en->cpus,
		.fds = {en->fds[0], en->fds[1], en->fds[2]},
		.extra = {en->extra_fd, en->extra_fd2},
		.tty_master = -1,
		.rows = en->rows,
		.cols = en->cols,
		.exe_fd = en->exe_fd,
	};
}

static int enter(struct entry *entry, struct entered *ret, struct err *e)
{
	const struct enter *en = entry->en;
	int r;

	r = cgroup_leaf_prepare(en->cgroups, en->id, en->leaf, &entry->join, e);
	if (r < 0)
		return r;
	r = run(entry, e);
	cgroup_join_done(&entry->join);
	if (r == 0) {
		*ret = entry->out;
		return 0;
	}
	if (entry->out.pidfd >= 0)
		fd_close(entry->out.pidfd);
	if (entry->out.tty >= 0)
		fd_close(entry->out.tty);
	return r;
}

int enter_start(const struct enter *en, struct entered *ret, struct err *e)
{
	struct entry own, *entry = &own;
	bool own_time = has_own_time(en->init_pidfd);
	int r;

	if (own_time) {
		entry = mmap(NULL, sizeof(*entry), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (entry == MAP_FAILED)
			return err_sys(e, errno, "memory");
	}
	*entry = (struct entry){
		.en = en,
		.own_time = own_time,
		.b = become_of(en),
		.out = {.pidfd = -1, .tty = -1},
		.second = -1,
	};
	r = enter(entry, ret, e);
	if (own_time)
		munmap(entry, sizeof(*entry));
	return r;
}
