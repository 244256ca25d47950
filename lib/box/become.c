/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdint.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/sig.h"
#include "box/become.h"

#define CLEAR 16 /* descriptors from here on are out of the way of 0 to 5 */

static int out_of_the_way(int *fd)
{
	int r;

	if (*fd < 0 || *fd >= CLEAR)
		return 0;
	r = fcntl(*fd, F_DUPFD_CLOEXEC, CLEAR);
	if (r < 0)
		return -errno;
	*fd = r;
	return 0;
}

static int put(int fd, int at)
{
	if (fd >= 0)
		return dup2(fd, at) < 0 ? -errno : 0;
	fd = open("/dev/null", O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fd == at) /* it must not close on exec */
		return fcntl(fd, F_SETFD, 0) < 0 ? -errno : 0;
	return dup2(fd, at) < 0 ? -errno : 0;
}

/* The peer of the master by descriptor, not by a name under /dev/pts. */
static int take_tty(struct become *b)
{
	struct winsize ws = {.ws_row = b->rows, .ws_col = b->cols};
	int zero = 0, fd;

	if (ioctl(b->tty_master, TIOCSPTLCK, &zero) < 0)
		return -errno;
	fd = ioctl(b->tty_master, TIOCGPTPEER, O_RDWR | O_NOCTTY);
	if (fd < 0)
		return -errno;
	if (fchown(fd, b->uid, 5) < 0 && fchown(fd, b->uid, b->gid) < 0)
		return -errno;
	if ((ws.ws_row || ws.ws_col) && ioctl(fd, TIOCSWINSZ, &ws) < 0)
		return -errno;
	if (ioctl(fd, TIOCSCTTY, 0) < 0)
		return -errno;
	for (int i = 0; i < 3; i++)
		b->fds[i] = fd;
	return 0;
}

/* Descriptors 0 to 4 as asked, the program's file right after, nothing else. */
static int arrange(struct become *b)
{
	unsigned first = 3;
	int r = 0;

	if (setsid() < 0 && errno != EPERM)
		return -errno;
	if (b->tty_master >= 0)
		r = take_tty(b);
	for (int i = 0; r == 0 && i < 3; i++)
		r = out_of_the_way(&b->fds[i]);
	for (int i = 0; r == 0 && i < 2; i++)
		r = out_of_the_way(&b->extra[i]);
	if (r == 0)
		r = out_of_the_way(&b->exe_fd);
	for (int i = 0; r == 0 && i < 3; i++)
		r = put(b->fds[i], i);
	for (int i = 0; r == 0 && i < 2; i++)
		if (b->extra[i] >= 0) {
			r = put(b->extra[i], 3 + i);
			first = 4 + (unsigned)i;
		}
	if (r == 0 && b->exe_fd >= 0) {
		if (dup3(b->exe_fd, (int)first, O_CLOEXEC) < 0)
			return -errno;
		b->exe_fd = (int)first++;
	}
	if (r == 0 && syscall(SYS_close_range, first, ~0U, 0) < 0)
		r = -errno;
	return r;
}

/* Limits are those of the sandbox, not those our caller happened to have. */
static int limits(const struct become *b)
{
	/* 1, not 0: that keeps a crash from starting the node's handler. */
	static const struct rlimit core = {1, 1};
	static const struct rlimit nofile = {1024, 1048576};
	struct rlimit had;

	if (setrlimit(RLIMIT_CORE, &core) < 0)
		return -errno;
	if (setrlimit(RLIMIT_NOFILE, &nofile) < 0) {
		/* Without CAP_SYS_RESOURCE the hard limit stays ours. */
		if (getrlimit(RLIMIT_NOFILE, &had) < 0)
			return -errno;
		had.rlim_cur = had.rlim_max < 1024 ? had.rlim_max : 1024;
		if (setrlimit(RLIMIT_NOFILE, &had) < 0)
			return -errno;
	}
	if (CPU_COUNT(&b->cpus) > 0 &&
	    sched_setaffinity(0, sizeof(b->cpus), &b->cpus) < 0)
		return -errno;
	return 0;
}

static int take_ids(const struct become *b)
{
	if (b->confined && b->uid == 0 && b->gid == 0 && b->ngroups == 0)
		return 0;
	/* Raw: libc would ask threads of a process that is not ours. */
	if (syscall(SYS_setgroups, b->ngroups, b->groups) < 0 ||
	    syscall(SYS_setresgid, b->gid, b->gid, b->gid) < 0 ||
	    syscall(SYS_setresuid, b->uid, b->uid, b->uid) < 0)
		return -errno;
	return 0;
}

/*
 * Whoever came from outside was not the sandbox's root, so that becoming a
 * user took nothing from him: his own rights must decide about the working
 * directory and the program.
 */
static int drop_caps(const struct become *b)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct none[2] = {{0}, {0}};

	if (b->uid == 0)
		return 0;
	return syscall(SYS_capset, &head, none) < 0 ? -errno : 0;
}

static int enter_cwd(const struct become *b)
{
	if (chdir(b->cwd) == 0)
		return 0;
	if (errno == EACCES && b->cwd_default && chdir("/") == 0)
		return 0;
	return -errno;
}

static const char *path_of(const struct become *b)
{
	for (const char *const *p = b->envp; *p; p++)
		if (!strncmp(*p, "PATH=", 5))
			return *p + 5;
	return "/usr/bin:/bin";
}

/* A file that is there and yet "no such file" wants a loader that is not. */
static int try_exec(const struct become *b, const char *file)
{
	int r;

	execve(file, (char *const *)(uintptr_t)b->argv,
	       (char *const *)(uintptr_t)b->envp);
	r = -errno;
	return r == -ENOENT && access(file, F_OK) == 0 ? -ELIBACC : r;
}

static int search(const struct become *b)
{
	const char *name = b->argv[0], *p = path_of(b), *end;
	size_t n, len = strlen(name);
	char file[PATH_MAX];
	int r, worst = -ENOENT;

	for (;; p = end + 1) {
		end = strchrnul(p, ':');
		n = (size_t)(end - p);
		if (n + 1 + len + 1 <= sizeof(file)) {
			/* An empty entry is the working directory. */
			memcpy(file, p, n);
			file[n] = '/';
			memcpy(file + n + (n > 0), name, len + 1);
			r = try_exec(b, file);
			if (r == -EACCES)
				worst = r;
			else if (r != -ENOENT && r != -ENOTDIR)
				return r;
		}
		if (!*end)
			return worst;
	}
}

static int execute(const struct become *b)
{
	if (b->exe_fd >= 0) {
		execveat(b->exe_fd, "", (char *const *)(uintptr_t)b->argv,
			 (char *const *)(uintptr_t)b->envp, AT_EMPTY_PATH);
		return -errno;
	}
	if (strchr(b->argv[0], '/'))
		return try_exec(b, b->argv[0]);
	return search(b);
}

static bool ok(struct become *b, enum become_stage stage, int r)
{
	if (r == 0)
		return true;
	b->stage = stage;
	b->failed = r;
	return false;
}

void become(struct become *b)
{
	if (!ok(b, BECOME_SETUP, arrange(b)) ||
	    !ok(b, BECOME_SETUP, limits(b)) || !ok(b, BECOME_IDS, take_ids(b)))
		return;
	umask(022);
	sig_reset();
	if (!ok(b, BECOME_SETUP,
		b->confined ? profile_leave_init(b->profile)
			    : profile_apply(b->profile)) ||
	    !ok(b, BECOME_SETUP, drop_caps(b)) ||
	    !ok(b, BECOME_CWD, enter_cwd(b)))
		return;
	ok(b, BECOME_EXEC, execute(b));
}

static int exec_error(const struct become *b, struct err *e)
{
	const char *name = b->argv[0];

	switch (-b->failed) {
	case ENOENT:
	case ENOTDIR:
		return err_set(e, -ENOENT, "command_not_found",
			       "'%s': not found in the sandbox", name);
	case ELIBACC:
		return err_set(e, -EACCES, "command_not_executable",
			       "'%s' is there, but not the interpreter that "
			       "its first line or its ELF header names",
			       name);
	case EACCES:
	case EPERM:
	case EISDIR:
	case ENOEXEC:
	case ELIBBAD:
		return err_set(e, -EACCES, "command_not_executable",
			       "'%s' cannot be executed: %s", name,
			       strerror(-b->failed));
	case E2BIG:
		return err_set(e, -E2BIG, "args_too_long",
			       "argument list too long: one string may have "
			       "131,071 bytes, all together a quarter of the "
			       "stack limit (2 MiB)");
	default:
		return err_sys(e, -b->failed, "execute '%s'", name);
	}
}

int become_error(const struct become *b, struct err *e)
{
	if (b->stage == BECOME_EXEC)
		return exec_error(b, e);
	if (b->stage == BECOME_CWD)
		return err_set(e, -ENOENT, "cwd", "working directory '%s': %s",
			       b->cwd, strerror(-b->failed));
	if (b->stage == BECOME_IDS)
		return err_sys(e, -b->failed, "become uid %u, gid %u", b->uid,
			       b->gid);
	return err_sys(e, -b->failed, "set up the command");
}
