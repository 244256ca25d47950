/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "ckpt/engine_priv.h"
#include "box/init_report.h"
#include "sys/mount.h"
#include "sys/userns.h"

/*
 * The try happens in a child with a mount namespace of its own, on a tmpfs that
 * only it sees, and it is the first process of a pid namespace, which dies with
 * us: whatever goes wrong, all is gone when it has ended, what the engine has
 * made half too.  What is dumped is our own pid 1, staged as a launch stages
 * it: the pid namespace and the mounts made by the host, then the user
 * namespace and the others in it.
 */

/* Ids that no sandbox and no user of a host has. */
#define TRY_UID_BASE 2000027648U

#define HELLO_MS 5000
#define INIT_MAX (4U << 20)

struct
try {
	const struct tree *tree;
	const struct engine *en;
	char run_dir[PATH_MAX];
	char stage[16]; /* "/mnt": where the tmpfs is */
	char libexec[PATH_MAX];
	int userns;
	int report[2]; /* pid 1's pipe */
	pid_t init;
	unsigned timeout_ms; /* for a dump, and for a restore */
};

/* What the child tells: both have the same literals. */
struct told {
	int r;
	struct err e;
};

/* Nothing we need may be below the directory that the tmpfs hides. */
static bool hides(const char *dir, const char *path)
{
	size_t n = strlen(dir);

	return !strncmp(dir, path, n) && (path[n] == '/' || !path[n]);
}

static int mount_stage(struct try *y, struct err *e)
{
	static const char *const places[] = {"/mnt", "/media", "/srv", "/opt"};
	const char *p;

	if (unshare(CLONE_NEWNS) < 0 ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  NULL) < 0)
		return err_sys(e, errno, "mounts of its own for a try");
	for (size_t i = 0; i < array_len(places); i++) {
		p = places[i];
		if (hides(p, y->run_dir) || hides(p, y->en->path) ||
		    hides(p, y->libexec) || hides(p, y->en->shim) ||
		    mount("dsec-try", p, "tmpfs", MS_NOSUID | MS_NODEV,
			  "mode=0755,size=64m") < 0)
			continue;
		snprintf(y->stage, sizeof(y->stage), "%s", p);
		return 0;
	}
	return err_sys(e, ENOENT, "a directory to stage a try on");
}

static int make_root(struct try *y, struct err *e)
{
	auto_free char *init = NULL;
	auto_close int fd = -1;
	size_t len;
	int r;

	r = fd_read_file(AT_FDCWD, y->libexec, INIT_MAX, &init, &len, e);
	if (r < 0)
		return r;
	umask(022); /* whatever our caller's is: others must get in */
	if (chdir(y->stage) < 0 || mkdir("root", 0755) < 0 ||
	    mkdir("root/proc", 0755) < 0 || mkdir("img", 0755) < 0 ||
	    mkdir("work", 0700) < 0 ||
	    chown("root", TRY_UID_BASE, TRY_UID_BASE) < 0 ||
	    mount("root", "root", NULL, MS_BIND, NULL) < 0)
		return err_sys(e, errno, "stage a try on %s", y->stage);
	fd = open("root/init", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0555);
	if (fd < 0)
		return err_sys(e, errno, "stage a try on %s", y->stage);
	return fd_write_all(fd, init, len, e);
}

/* The first process of its pid namespace; the host's root still. */
static int become_init(const struct try *y)
{
	char *const argv[] = {(char *)(uintptr_t) "init", NULL};
	char *const env[] = {NULL};

	if (unshare(CLONE_NEWNS) < 0 || chdir("root") < 0 ||
	    mount("proc", "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC,
		  NULL) < 0 ||
	    mount_pivot() < 0 || setsid() < 0)
		return errno;
	if (setns(y->userns, CLONE_NEWUSER) < 0 || setresgid(0, 0, 0) < 0 ||
	    setresuid(0, 0, 0) < 0 ||
	    unshare(CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
		    CLONE_NEWCGROUP) < 0)
		return errno;
	umask(022);
	if (y->report[1] != INIT_REPORT_FD &&
	    dup2(y->report[1], INIT_REPORT_FD) < 0)
		return errno;
	fcntl(INIT_REPORT_FD, F_SETFD, 0);
	close_range(0, INIT_REPORT_FD - 1, 0);
	close_range(INIT_REPORT_FD + 1, ~0U, 0);
	execve("/init", argv, env);
	return errno;
}

static int start_init(struct try *y, struct err *e)
{
	struct init_report hello;
	struct pollfd p;

	y->init = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
	if (y->init == 0)
		_exit(become_init(y));
	if (y->init < 0)
		return err_sys(e, errno, "start a process to dump");
	fd_close(y->report[1]);
	y->report[1] = -1;
	p = (struct pollfd){.fd = y->report[0], .events = POLLIN};
	if (poll(&p, 1, HELLO_MS) != 1 ||
	    read(y->report[0], &hello, sizeof(hello)) != sizeof(hello)) {
		int status = 0;

		kill(y->init, SIGKILL);
		waitpid(y->init, &status, 0);
		return err_sys(e,
			       WIFEXITED(status) ? WEXITSTATUS(status)
						 : ETIMEDOUT,
			       "start a process to dump");
	}
	return 0;
}

static int run_engine(const struct try *y, struct engine_args *args,
		      const char *log, struct err *e)
{
	const struct engine_run run = {
		.args = args->v,
		.keep = args->keep,
		.nkeep = args->nkeep,
		.out = -1,
		.run_dir = y->run_dir,
		.own_tmp = true,
	};
	auto_close int work = open("work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r;

	r = engine_run(y->en, &run, y->timeout_ms, work, log, e);
	engine_args_done(args);
	return r;
}

static int dump(struct try *y, struct err *e)
{
	const struct engine_dump what = {
		.init = y->init,
		.images = "img",
		.work = "work",
		.log = "dump.log",
	};
	struct engine_args args;
	int r;

	r = y->en->ops->dump(&what, &args);
	if (r < 0)
		err_sys(e, -r, "arguments of the engine");
	else
		r = run_engine(y, &args, "dump.log", e);
	kill(y->init, SIGKILL);
	while (waitpid(y->init, NULL, 0) < 0 && errno == EINTR)
		;
	return r < 0 ? err_wrap(e, r, "dump") : 0;
}

/* A new pipe for the one that was dumped, whose name is "pipe:[1234]". */
static int new_report(struct try *y, char *of, size_t size, struct err *e)
{
	struct stat st;

	if (fstat(y->report[0], &st) < 0)
		return err_sys(e, errno, "look at a pipe");
	fd_close(y->report[0]);
	if (pipe2(y->report, O_CLOEXEC) < 0) {
		y->report[0] = y->report[1] = -1;
		return err_sys(e, errno, "make a pipe");
	}
	snprintf(of, size, "pipe:[%lu]", (unsigned long)st.st_ino);
	return 0;
}

static int restored_pid(pid_t *ret, struct err *e)
{
	auto_free char *text = NULL;
	size_t len;
	long pid;
	int r;

	r = fd_read_file(AT_FDCWD, "pid", 32, &text, &len, NULL);
	pid = r < 0 ? 0 : strtol(text, NULL, 10);
	if (pid <= 1)
		return err_set(e, -EBADMSG, "engine",
			       "the engine does not say what it restored");
	*ret = (pid_t)pid;
	return 0;
}

/* It is our child, runs (or sleeps), and is a pid 1 of ours. */
static int check_restored(struct try *y, struct err *e)
{
	char path[64], exe[64];
	ssize_t n;
	int r;

	r = restored_pid(&y->init, e);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/%d/exe", (int)y->init);
	n = readlink(path, exe, sizeof(exe) - 1);
	exe[n > 0 ? n : 0] = '\0';
	if (waitpid(y->init, NULL, WNOHANG) != 0 || !strstr(exe, "/init"))
		return err_set(e, -EIO, "engine",
			       "what was restored is not what was dumped");
	kill(y->init, SIGKILL);
	while (waitpid(y->init, NULL, 0) < 0 && errno == EINTR)
		;
	return 0;
}

static int restore(struct try *y, struct err *e)
{
	char root[32], of[64];
	struct engine_given pipe = {.kind = ENGINE_PIPE, .of = of};
	const struct engine_restore what = {
		.images = "img",
		.work = "work",
		.log = "restore.log",
		.root = root,
		.pid_file = "../pid",
		.given = &pipe,
		.ngiven = 1,
	};
	struct engine_args args;
	int r;

	r = new_report(y, of, sizeof(of), e);
	if (r < 0)
		return r;
	pipe.fd = y->report[1];
	if (unshare(CLONE_NEWCGROUP) < 0)
		return err_sys(e, errno, "a cgroup namespace for a try");
	snprintf(root, sizeof(root), "%s/root", y->stage);
	r = y->en->ops->restore(&what, &args);
	if (r < 0)
		return err_sys(e, -r, "arguments of the engine");
	r = run_engine(y, &args, "restore.log", e);
	return r < 0 ? err_wrap(e, r, "restore") : check_restored(y, e);
}

static int try_all(struct try *y, struct err *e)
{
	char stack[16384] __attribute__((aligned(16)));
	int r;

	r = proc_libexec("dsec-init", y->libexec, sizeof(y->libexec), e);
	if (r < 0)
		return r;
	r = engine_run_dir(y->tree, y->run_dir, e);
	if (r < 0)
		return r;
	/* With a /proc that knows the numbers processes have here. */
	r = mount_stage(y, e);
	if (r < 0)
		return r;
	y->userns = userns_new(TRY_UID_BASE, false, stack, sizeof(stack), e);
	if (y->userns < 0)
		return y->userns;
	if (pipe2(y->report, O_CLOEXEC) < 0)
		return err_sys(e, errno, "make a pipe");
	r = make_root(y, e);
	if (r < 0)
		return r;
	r = start_init(y, e);
	if (r < 0)
		return r;
	r = dump(y, e);
	return r < 0 ? r : restore(y, e);
}

/* Its parent has no number here, but lives while its end of ${life} is open:
 * who dies lets go of that before children are told. */
static void child(struct try *y, int life[2], struct told *told)
{
	struct pollfd p = {.fd = life[0]};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(life[1]);
	if (poll(&p, 1, 0) != 0)
		_exit(1);
	told->r = try_all(y, &told->e);
	_exit(0); /* its children, if any are left, die with it */
}

static int start(struct try *y, int life[2], struct told *told,
		 struct engine_proc *ret, struct err *e)
{
	int r;

	ret->pid = (pid_t)syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0,
				  0);
	if (ret->pid == 0)
		child(y, life, told);
	ret->pidfd = ret->pid < 0 ? -1
				  : (int)syscall(SYS_pidfd_open, ret->pid, 0);
	if (ret->pidfd >= 0)
		return 0;
	r = err_sys(e, errno, "start a try of the engine");
	engine_kill(ret);
	return r;
}

int engine_try(const struct tree *t, const struct engine *en,
	       unsigned timeout_ms, struct err *e)
{
	struct try y = {.tree = t, .en = en, .timeout_ms = timeout_ms};
	struct engine_proc p;
	struct told *told;
	int life[2], r;

	told = mmap(NULL, sizeof(*told), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (told == MAP_FAILED)
		return err_sys(e, errno, "memory for a try of the engine");
	if (pipe2(life, O_CLOEXEC) < 0) {
		r = err_sys(e, errno, "make a pipe");
		munmap(told, sizeof(*told));
		return r;
	}
	told->r = err_set(&told->e, -EIO, "engine", "the try ended early");
	r = start(&y, life, told, &p, e);
	if (r == 0)
		r = engine_wait(&p, 2 * timeout_ms + HELLO_MS, e);
	if (r >= 0) {
		if (told->r < 0 && e)
			*e = told->e;
		r = told->r;
	}
	close(life[0]);
	close(life[1]);
	munmap(told, sizeof(*told));
	return r;
}
