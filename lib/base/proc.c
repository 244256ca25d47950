/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"

#define FILES_MAX 1048576 /* what kernels allow as they come */

extern char **environ;

void proc_raise_files(void)
{
	struct rlimit lim = {FILES_MAX, FILES_MAX};

	if (setrlimit(RLIMIT_NOFILE, &lim) == 0 ||
	    getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

pid_t proc_pid_of(int pidfd)
{
	auto_free char *text = NULL;
	char path[40], *line;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	if (fd_read_file(AT_FDCWD, path, 4096, &text, NULL, NULL) < 0)
		return -1;
	line = strstr(text, "\nPid:");
	return line ? (pid_t)strtol(line + 5, NULL, 10) : -1;
}

int proc_wait_pidfd(int pidfd, int timeout_ms)
{
	struct pollfd p = {.fd = pidfd, .events = POLLIN};
	int r;

	do
		r = poll(&p, 1, timeout_ms);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : r;
}

static void set_fd(posix_spawn_file_actions_t *fa, int fd, int at)
{
	if (fd == STDERR_FILENO && at == fd)
		return; /* ours, open or not */
	if (fd >= 0)
		posix_spawn_file_actions_adddup2(fa, fd, at);
	else
		posix_spawn_file_actions_addopen(fa, at, "/dev/null",
						 at ? O_WRONLY : O_RDONLY, 0);
}

static int spawn(const char *const *argv, const int *fds, pid_t *ret_pid)
{
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t at;
	sigset_t none, all;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&fa);
	posix_spawnattr_init(&at);
	posix_spawnattr_setsigmask(&at, &none);
	posix_spawnattr_setsigdefault(&at, &all);
	posix_spawnattr_setflags(&at, POSIX_SPAWN_SETSIGMASK |
					      POSIX_SPAWN_SETSIGDEF);
	for (int i = 0; i < 3; i++)
		set_fd(&fa, fds[i], i);
	r = posix_spawnp(ret_pid, argv[0], &fa, &at,
			 (char *const *)(uintptr_t)argv, environ);
	posix_spawnattr_destroy(&at);
	posix_spawn_file_actions_destroy(&fa);
	return -r;
}

int proc_run(const char *const *argv, int stdin_fd, int stdout_fd,
	     unsigned timeout_ms, struct err *e)
{
	const int fds[] = {stdin_fd, stdout_fd, STDERR_FILENO};

	return proc_run_fds(argv, fds, timeout_ms, e);
}

int proc_run_fds(const char *const *argv, const int *fds, unsigned timeout_ms,
		 struct err *e)
{
	auto_close int pidfd = -1;
	int r, status, ended;
	pid_t pid;

	r = spawn(argv, fds, &pid);
	if (r < 0)
		return err_sys(e, -r, "run %s", argv[0]);
	pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	ended = pidfd < 0 ? 1 : proc_wait_pidfd(pidfd, (int)timeout_ms);
	if (ended <= 0)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return err_sys(e, errno, "wait for %s", argv[0]);
	if (ended <= 0)
		return err_set(e, -ETIMEDOUT, "timeout",
			       "%s took more than %u ms", argv[0], timeout_ms);
	if (!WIFEXITED(status))
		return err_set(e, -ECHILD, "system", "%s ended by signal %d",
			       argv[0], WTERMSIG(status));
	return WEXITSTATUS(status);
}

/* Our own directory; it is asked for once, and stays what it was when an
 * upgrade has replaced the program. */
static int own_dir(const char **ret, struct err *e)
{
	static char dir[PATH_MAX];
	ssize_t n;

	*ret = dir;
	if (dir[0])
		return 0;
	n = readlink("/proc/self/exe", dir, sizeof(dir) - 1);
	if (n < 0)
		return err_sys(e, errno, "find our own directory");
	dir[n] = '\0';
	*strrchr(dir, '/') = '\0';
	return 0;
}

int proc_libexec(const char *name, char *path, size_t size, struct err *e)
{
	const char *dir = getenv("DSEC_LIBEXEC"), *own, *slash;
	int len, r;

	if (dir && *dir) {
		len = snprintf(path, size, "%s/%s", dir, name);
	} else {
		r = own_dir(&own, e);
		if (r < 0)
			return r;
		/* An internal program finds its siblings beside itself. */
		slash = strrchr(own, '/');
		len = snprintf(path, size, "%s/%s%s", own,
			       slash && !strcmp(slash, "/dsec")
				       ? ""
				       : "../libexec/dsec/",
			       name);
	}
	if (len < 0 || (size_t)len >= size)
		return err_sys(e, ENAMETOOLONG, "path of %s", name);
	return 0;
}

int proc_program(const char *name, char *path, size_t size, struct err *e)
{
	const char *own, *slash;
	int len, r;

	r = own_dir(&own, e);
	if (r < 0)
		return r;
	slash = strrchr(own, '/');
	len = snprintf(path, size, "%s/%s%s", own,
		       slash && !strcmp(slash, "/dsec") ? "../../bin/" : "",
		       name);
	if (len < 0 || (size_t)len >= size)
		return err_sys(e, ENAMETOOLONG, "path of %s", name);
	return 0;
}

int proc_share(const char *name, char *path, size_t size, struct err *e)
{
	const char *dir = getenv("DSEC_SHARE"), *own, *slash, *up;
	int len, r;

	if (dir && *dir) {
		len = snprintf(path, size, "%s/%s", dir, name);
	} else {
		r = own_dir(&own, e);
		if (r < 0)
			return r;
		slash = strrchr(own, '/');
		up = slash && !strcmp(slash, "/dsec") ? "../.." : "..";
		len = snprintf(path, size, "%s/%s/share/dsec/%s", own, up,
			       name);
		if (len > 0 && (size_t)len < size && access(path, F_OK) < 0)
			len = snprintf(path, size, "%s/%s/share/%s", own, up,
				       name);
	}
	if (len < 0 || (size_t)len >= size)
		return err_sys(e, ENAMETOOLONG, "path of %s", name);
	return 0;
}
