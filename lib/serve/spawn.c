/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sig.h"
#include "serve/spawn.h"

static _Noreturn void become(const char *const *argv, int in, int out)
{
	/* Above what they become, so that neither is overwritten. */
	in = fcntl(in, F_DUPFD, 3);
	out = fcntl(out, F_DUPFD, 3);
	if (in < 0 || out < 0 || dup2(in, STDIN_FILENO) < 0 ||
	    dup2(out, STDOUT_FILENO) < 0)
		_exit(71);
	syscall(SYS_close_range, 3, ~0U, 0);
	sig_reset();
	setsid();
	execv(argv[0], (char *const *)(uintptr_t)argv);
	_exit(71);
}

void spawn_done(struct spawned *p)
{
	if (p->to >= 0)
		fd_close(steal_fd(&p->to));
	if (p->from >= 0)
		fd_close(steal_fd(&p->from));
	if (p->pidfd >= 0)
		fd_close(steal_fd(&p->pidfd));
	p->pid = 0;
}

int spawn_wait(struct spawned *p)
{
	int status = 0;

	if (p->pid <= 0)
		return -1;
	while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR)
		;
	p->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int spawn_filter(const char *const *argv, struct spawned *ret, struct err *e)
{
	struct spawned p = {0, -1, -1, -1};
	int in[2], out[2], r;

	*ret = p;
	if (pipe2(in, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	if (pipe2(out, O_CLOEXEC) < 0) {
		r = err_sys(e, errno, "pipe");
		fd_close(in[0]);
		fd_close(in[1]);
		return r;
	}
	p.to = in[1];
	p.from = out[0];
	fcntl(p.to, F_SETFL, O_NONBLOCK);
	fcntl(p.from, F_SETFL, O_NONBLOCK);
	p.pid = fork();
	if (p.pid == 0)
		become(argv, in[0], out[1]);
	r = p.pid < 0 ? err_sys(e, errno, "start %s", argv[0]) : 0;
	fd_close(in[0]);
	fd_close(out[1]);
	if (r == 0) {
		p.pidfd = (int)syscall(SYS_pidfd_open, p.pid, 0);
		*ret = p;
		return 0;
	}
	p.pid = 0;
	spawn_done(&p);
	return r;
}
