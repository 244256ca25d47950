/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "base/sig.h"
#include "sys/engine.h"
#include "sys/mount.h"

/* What precedes and follows the caller's arguments: loader, options, program;
 * --no-default-config, NULL. */
#define ARGS_BEFORE 8
#define ARGS_AFTER  2
#define ENV_MAX	    16

static const char *const own_env[] = {
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LC_ALL=C",
	"HOME=/",
};

static size_t before(const struct engine *en, const char **argv)
{
	size_t n = 0;

	if (!en->loader[0]) {
		argv[n++] = en->path;
		return n;
	}
	argv[n++] = en->loader;
	if (en->shim[0]) {
		argv[n++] = "--preload";
		argv[n++] = en->shim;
	}
	argv[n++] = "--library-path";
	argv[n++] = en->libs;
	argv[n++] = en->path;
	return n;
}

/* Raw words on stderr would mix with records of ours: the exit status says
 * which step failed. */
enum child_exit { CHILD_FDS = 120, CHILD_MOUNT, CHILD_EXEC };

static int set_fds(const struct engine_run *run)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), flags;

	if (null < 0 || close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) < 0)
		return -errno;
	for (int i = 0; i < 3; i++)
		if (dup2(i && run->out >= 0 ? run->out : null, i) < 0)
			return -errno;
	for (size_t i = 0; i < run->nkeep; i++) {
		flags = fcntl(run->keep[i], F_GETFD);
		if (flags < 0 ||
		    fcntl(run->keep[i], F_SETFD, flags & ~FD_CLOEXEC) < 0)
			return -errno;
	}
	return 0;
}

static bool in_tmp(const char *path)
{
	return !strncmp(path, "/tmp/", 5);
}

/* What stays to be seen of /tmp: what is right below it, as copies. */
#define KEPT_MAX 8

struct kept {
	char path[KEPT_MAX][NAME_MAX + 8];
	int fd[KEPT_MAX];
	size_t n;
};

/* ${path}: up to its first colon, as lists have them. */
static int keep(struct kept *k, const char *path)
{
	struct mount_copy m = {.userns = -1, .recursive = true};
	int len = 5;

	if (!in_tmp(path))
		return 0;
	len += (int)strcspn(path + len, "/:");
	for (size_t i = 0; i < k->n; i++)
		if (!strncmp(k->path[i], path, (size_t)len) && !k->path[i][len])
			return 0;
	if (k->n == KEPT_MAX || len >= (int)sizeof(k->path[0]))
		return -E2BIG;
	snprintf(k->path[k->n], sizeof(k->path[0]), "%.*s", len, path);
	m.source = k->path[k->n];
	k->fd[k->n] = mount_copy_take(&m);
	return k->fd[k->n] < 0 ? k->fd[k->n] : (k->n++, 0);
}

static int keep_all(struct kept *k, const struct engine *en,
		    const struct engine_run *run)
{
	const char *const paths[] = {en->path, en->loader, en->shim};
	const char *p;
	int r = 0;

	for (size_t i = 0; r == 0 && i < array_len(paths); i++)
		r = keep(k, paths[i]);
	for (p = en->libs; r == 0 && p; p = p[0] ? p + 1 : NULL) {
		r = keep(k, p);
		p += strcspn(p, ":");
	}
	for (size_t i = 0; r == 0 && run->args[i]; i++)
		r = keep(k, run->args[i]);
	return r;
}

static int own_tmp(const struct engine *en, const struct engine_run *run)
{
	struct mount_copy m = {.target_fd = AT_FDCWD};
	struct kept k = {.n = 0};
	struct stat st;
	int r;

	r = keep_all(&k, en, run);
	if (r < 0)
		return r;
	r = mount_fs("tmpfs", "/tmp", MS_NOSUID | MS_NODEV,
		     "mode=1777,size=64m");
	for (size_t i = 0; r == 0 && i < k.n; i++) {
		m.target = k.path[i];
		if (fstat(k.fd[i], &st) < 0 ||
		    (S_ISDIR(st.st_mode) ? mkdir(m.target, 0755)
					 : mknod(m.target, S_IFREG, 0)) < 0)
			return -errno;
		r = mount_copy_put(&m, k.fd[i]);
	}
	return r;
}

static int set_mounts(const struct engine *en, const struct engine_run *run)
{
	struct statfs s;
	bool run_dir;

	run_dir = run->run_dir && !statfs(run->run_dir, &s) &&
		  s.f_type == TMPFS_MAGIC && !statfs("/run", &s) &&
		  s.f_type != TMPFS_MAGIC;
	if (!run_dir && !run->own_tmp)
		return 0;
	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return -errno;
	if (run_dir && mount(run->run_dir, "/run", NULL, MS_BIND, NULL) < 0)
		return -errno;
	return run->own_tmp ? own_tmp(en, run) : 0;
}

static void child(const struct engine *en, const struct engine_run *run,
		  const char *const *argv, const char *const *env, pid_t parent)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(CHILD_EXEC); /* it died before we asked to follow */
	sig_reset();
	umask(022); /* see the header: images */
	if (set_mounts(en, run) < 0)
		_exit(CHILD_MOUNT);
	if (set_fds(run) < 0)
		_exit(CHILD_FDS);
	execve(argv[0], (char *const *)(uintptr_t)argv,
	       (char *const *)(uintptr_t)env);
	_exit(CHILD_EXEC);
}

static void make_env(const struct engine *en, const struct engine_run *run,
		     const char **env, char *preload, size_t size)
{
	size_t n = 0;

	for (; n < array_len(own_env); n++)
		env[n] = own_env[n];
	if (en->shim[0] && !en->loader[0] &&
	    snprintf(preload, size, "LD_PRELOAD=%s", en->shim) < (int)size)
		env[n++] = preload;
	for (size_t i = 0; run->env && run->env[i] && n < ENV_MAX; i++)
		env[n++] = run->env[i];
	env[n] = NULL;
}

/* The caller's to free; NULL: no memory. */
static const char **make_argv(const struct engine *en,
			      const struct engine_run *run)
{
	const char **argv;
	size_t n = 0, at;

	while (run->args[n])
		n++;
	argv = calloc(n + ARGS_BEFORE + ARGS_AFTER, sizeof(*argv));
	if (!argv)
		return NULL;
	at = before(en, argv);
	memcpy(argv + at, run->args, n * sizeof(*argv));
	argv[at + n] = "--no-default-config";
	return argv;
}

int engine_exec(const struct engine *en, const struct engine_run *run,
		pid_t parent, struct err *e)
{
	auto_free const char **argv = make_argv(en, run);
	const char *env[ENV_MAX + 1];
	char preload[PATH_MAX + 16];

	if (!argv)
		return err_sys(e, ENOMEM, "start the checkpoint engine");
	make_env(en, run, env, preload, sizeof(preload));
	child(en, run, argv, env, parent);
	return -ECHILD; /* child() does not return */
}

int engine_spawn(const struct engine *en, const struct engine_run *run,
		 struct engine_proc *ret, struct err *e)
{
	auto_free const char **argv = make_argv(en, run);
	const char *env[ENV_MAX + 1];
	char preload[PATH_MAX + 16];
	pid_t parent = getpid();

	if (!argv)
		return err_sys(e, ENOMEM, "start the checkpoint engine");
	make_env(en, run, env, preload, sizeof(preload));
	ret->pid = fork();
	if (ret->pid == 0)
		child(en, run, argv, env, parent);
	if (ret->pid < 0)
		return err_sys(e, errno, "fork for the checkpoint engine");
	setpgid(ret->pid, ret->pid); /* both do: whoever comes first */
	ret->pidfd = (int)syscall(SYS_pidfd_open, ret->pid, 0);
	if (ret->pidfd < 0) {
		int err = errno;

		engine_kill(ret);
		return err_sys(e, err, "watch the checkpoint engine");
	}
	return 0;
}

static int reap(struct engine_proc *p, int *ret_status)
{
	int r = 0;

	while (waitpid(p->pid, ret_status, 0) < 0)
		if (errno != EINTR) {
			r = -errno;
			break;
		}
	if (p->pidfd >= 0)
		fd_close(p->pidfd);
	p->pid = 0;
	p->pidfd = -1;
	return r;
}

void engine_kill(struct engine_proc *p)
{
	int status;

	if (p->pid <= 0)
		return;
	kill(-p->pid, SIGKILL);
	kill(p->pid, SIGKILL);
	reap(p, &status);
}

/* Before it is reaped, so that its group's number is nobody else's: what it
 * started and cannot end any more. */
static void end_helpers(const struct engine_proc *p)
{
	siginfo_t si = {0};

	if (waitid(P_PID, (id_t)p->pid, &si, WEXITED | WNOWAIT) == 0 &&
	    si.si_code != CLD_EXITED)
		kill(-p->pid, SIGKILL);
}

int engine_wait(struct engine_proc *p, unsigned timeout_ms, struct err *e)
{
	int r, status;

	r = proc_wait_pidfd(p->pidfd, (int)timeout_ms);
	if (r <= 0) {
		engine_kill(p);
		err_set(e, r < 0 ? r : -ETIMEDOUT, "engine",
			"the checkpoint engine took more than %u ms and was "
			"ended",
			timeout_ms);
		if (e)
			e->infra = true;
		return r < 0 ? r : -ETIMEDOUT;
	}
	end_helpers(p);
	r = reap(p, &status);
	if (r < 0)
		return err_sys(e, -r, "wait for the checkpoint engine");
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	err_set(e, -ECHILD, "engine", "signal %d ended the checkpoint engine",
		WTERMSIG(status));
	if (e)
		e->infra = true;
	return -ECHILD;
}

static const char *why(int status)
{
	switch (status) {
	case CHILD_FDS:
		return "its descriptors could not be set";
	case CHILD_MOUNT:
		return "its /run or /tmp could not be mounted";
	case CHILD_EXEC:
		return "it could not be executed";
	default:
		return "";
	}
}

int engine_run(const struct engine *en, const struct engine_run *run,
	       unsigned timeout_ms, int dirfd, const char *log, struct err *e)
{
	struct engine_proc p;
	char words[ERR_MSG_MAX / 2];
	int r;

	r = engine_spawn(en, run, &p, e);
	if (r < 0)
		return r;
	r = engine_wait(&p, timeout_ms, e);
	if (r == 0)
		return 0;
	engine_last_words(dirfd, log, words, sizeof(words));
	if (r < 0)
		return words[0] ? err_wrap(e, r, "%s", words) : r;
	if (!words[0])
		snprintf(words, sizeof(words), "%s", why(r));
	err_set(e, -EIO, "engine", "the checkpoint engine failed (%d)%s%s", r,
		words[0] ? ": " : "", words);
	if (e)
		e->infra = true;
	return -EIO;
}
