/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/securebits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/clone.h"
#include "sys/userns.h"

/* Steps of the hand-over between us and the child. */
enum { MAKING, MADE, MAPPED, FAILED };

struct maker {
	uid_t base;
	bool nested;
	int step;
	int r;	/* the child's -errno */
	int ns; /* its descriptor */
	pid_t parent;
};

/* In the namespace, with full capabilities over it. */
static int forbid_nesting(void)
{
	int fd, r = 0;

	fd = open("/proc/sys/user/max_user_namespaces", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	if (write(fd, "0", 1) != 1)
		r = -errno;
	close(fd);
	return r;
}

static int maker_main(void *arg)
{
	struct maker *m = arg;

	/* Keep our capabilities while the owner's uid is taken on: a node that
	 * restricts unprivileged user namespaces must not see one. */
	if (prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP) < 0 ||
	    syscall(SYS_setresgid, m->base, m->base, m->base) < 0 ||
	    syscall(SYS_setresuid, m->base, m->base, m->base) < 0 ||
	    syscall(SYS_unshare, CLONE_NEWUSER) < 0) {
		m->r = -errno;
		clone_wake(&m->step, FAILED);
		return 1;
	}
	/* Nobody would wake us once our parent is gone. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != m->parent)
		return 1;
	clone_wake(&m->step, MADE);
	clone_wait(&m->step, MADE);
	if (m->step == MAPPED && !m->nested)
		m->r = forbid_nesting();
	return 0;
}

static int write_map(pid_t pid, const char *name, const char *map, size_t len)
{
	char path[64];
	int fd, r = 0;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (write(fd, map, len) != (ssize_t)len)
		r = -errno;
	close(fd);
	return r;
}

static int map_and_open(struct maker *m, pid_t pid, struct err *e)
{
	char map[64], path[64];
	int len, r;

	len = snprintf(map, sizeof(map), "0 %u %d\n", m->base, USERNS_IDS);
	r = write_map(pid, "uid_map", map, (size_t)len);
	if (r == 0)
		r = write_map(pid, "gid_map", map, (size_t)len);
	if (r < 0)
		return err_sys(e, -r, "map ids from %u", m->base);
	snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)pid);
	m->ns = open(path, O_RDONLY | O_CLOEXEC);
	if (m->ns < 0)
		return err_sys(e, errno, "open a user namespace");
	return 0;
}

int userns_new(uid_t base, bool nested, void *stack, size_t stack_size,
	       struct err *e)
{
	struct maker m = {
		.base = base,
		.nested = nested,
		.ns = -1,
		.parent = getpid(),
	};
	struct clone_child c = {
		.into_cgroup = -1,
		.stack = stack,
		.stack_size = stack_size,
	};
	int r = 0;
	pid_t pid;

	pid = clone_child(&c, maker_main, &m);
	if (pid < 0)
		return err_sys(e, -pid, "start a child");
	clone_wait(&m.step, MAKING);
	if (m.step == MADE) {
		r = map_and_open(&m, pid, e);
		clone_wake(&m.step, r < 0 ? FAILED : MAPPED);
	}
	/* Its exit signal is none, hence __WALL. */
	while (waitpid(pid, NULL, __WALL) < 0 && errno == EINTR)
		;
	if (r == 0 && m.r < 0)
		r = err_sys(e, -m.r, "make a user namespace for uid %u", base);
	if (r < 0) {
		if (m.ns >= 0)
			fd_close(m.ns);
		return r;
	}
	return m.ns;
}
