/* SPDX-License-Identifier: Apache-2.0 */
/* Engines that hang, fail, print nonsense and fork; and the real one. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/sig.h"
#include "ckpt/engine_priv.h"

static char dir[] = "/tmp/engine-test-XXXXXX";

/* A shell script as engine; ${body} after "#!/bin/sh". */
static bool stub(const char *body, struct engine *en, struct err *e)
{
	auto_buf struct buf text = {0};
	auto_close int fd = -1;
	char path[128];

	snprintf(path, sizeof(path), "%s/criu", dir);
	if (buf_addf(&text, "#!/bin/sh\ncd %s\n%s\n", dir, body) < 0)
		return false;
	unlink(path);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0755);
	if (fd < 0 || fd_write_all(fd, text.data, text.len, e) < 0)
		return false;
	return engine_open(path, en, e) == 0;
}

static int version_of(const char *body, struct engine *en, struct err *e)
{
	*e = (struct err){0};
	return stub(body, en, e) ? engine_ask_version(en, e) : -EIO;
}

static void test_version(void)
{
	struct engine en;
	struct err e;
	int r;

	r = version_of("echo 'Version: 4.2.1'; echo 'GitID: v4.2.1'", &en, &e);
	ok(r == 0 && !strcmp(en.version, "4.2.1"), "a version");
	ok(version_of("echo 'Version: 10.0'", &en, &e) == 0, "a later one");
	r = version_of("echo 'Version: 4.1.1'", &en, &e);
	ok(r == -ENOTSUP && !strcmp(e.code, "unsupported") &&
		   strstr(e.msg, "4.1.1"),
	   "one that is too old");
	r = version_of("echo 'Version: 5'", &en, &e);
	ok(r == 0 && !strcmp(en.version, "5"), "without a second number");
	ok(version_of("echo hello", &en, &e) == -EBADMSG &&
		   !strcmp(e.code, "unsupported"),
	   "nonsense");
	ok(version_of("printf 'Version: %0500d\\n' 4", &en, &e) == -EBADMSG,
	   "a version without end");
	r = version_of("trap '' PIPE; while echo Version: x || exit 3; do :; "
		       "done",
		       &en, &e);
	ok(r < 0 && e.code, "one that prints for ever");
	r = version_of("exit 1", &en, &e);
	ok(r == -EIO && !strcmp(e.code, "engine") && e.infra, "one that fails");
	ok(version_of("kill -9 $$", &en, &e) == -ECHILD, "one that is killed");
	ok(engine_open("/nowhere/criu", &en, &e) == -ENOENT &&
		   !strcmp(e.code, "unsupported"),
	   "none");
	ok(engine_open("criu", &en, &e) == -EINVAL, "no absolute path");
}

static int run(const struct engine *en, const char *log, unsigned timeout_ms,
	       struct err *e)
{
	const char *const args[] = {"dump", "-t", "7", NULL};
	const struct engine_run er = {.args = args, .out = -1};
	auto_close int d = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	*e = (struct err){0};
	return engine_run(en, &er, timeout_ms, d, log, e);
}

static bool gone(const char *pid_file)
{
	auto_free char *text = NULL;
	char path[128];
	size_t len;
	pid_t pid;

	snprintf(path, sizeof(path), "%s/%s", dir, pid_file);
	if (fd_read_file(AT_FDCWD, path, 32, &text, &len, NULL) < 0)
		return false;
	pid = (pid_t)atoi(text);
	/* it may be a zombie still, of whoever adopts it */
	for (int i = 0; i < 500; i++) {
		snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
		if (access(path, F_OK) < 0)
			return pid > 1;
		usleep(10000);
	}
	return false;
}

static void test_ends(void)
{
	struct engine en;
	struct err e = {0};
	uint64_t before;
	int r;

	ok(stub("sleep 100 & echo $! > helper; echo $$ > self; wait", &en, &e),
	   "an engine that hangs");
	before = clock_ms();
	r = run(&en, "dump.log", 1000, &e);
	ok(r == -ETIMEDOUT && !strcmp(e.code, "engine") && e.infra &&
		   clock_ms() - before < 10000,
	   "is ended in time: %s", e.msg);
	ok(gone("helper") && gone("self"), "with its helpers");
	ok(stub("echo \"(00.1) Error (criu/x.c:7): Can't dump \\\"$1\\\"\" > "
		"dump.log; "
		"printf '(00.2) Error (criu/x.c:8): name \\033[2J\\n' >> "
		"dump.log; "
		"echo '(00.3) Error (criu/x.c:9): Dumping FAILED.' >> "
		"dump.log; exit 1",
		&en, &e),
	   "an engine that says why");
	r = run(&en, "dump.log", 5000, &e);
	ok(r == -EIO && strstr(e.msg, "Can't dump \"dump\"") &&
		   strstr(e.msg, "name ?[2J") && !strstr(e.msg, "FAILED"),
	   "is cited: %s", e.msg);
	ok(stub("exit 0", &en, &e) && run(&en, "dump.log", 5000, &e) == 0,
	   "its status counts, whatever its log says");
	ok(stub("exec /nowhere", &en, &e) && run(&en, "none", 5000, &e) == -EIO,
	   "a log that is not there");
}

/* libc's own two too, which signal() refuses. */
static void ignore(int s)
{
	const unsigned long action[4] = {1}; /* SIG_IGN */

	if (s != SIGCHLD) /* children would not wait for us */
		syscall(SYS_rt_sigaction, s, action, NULL, sizeof(action[0]));
}

/* What it inherits: what it is given, under its number, and nothing else. */
static void test_inherits(void)
{
	const char *const args[] = {"a b", NULL};
	const char *const env[] = {"CRTOOLS_TEST=x y", NULL};
	auto_close int out = memfd_create("out", MFD_CLOEXEC);
	auto_close int keep = open("/dev/null", O_RDWR | O_CLOEXEC);
	const struct engine_run er = {.args = args,
				      .env = env,
				      .keep = &keep,
				      .nkeep = 1,
				      .out = out};
	char text[2048], want[64];
	struct engine en;
	struct err e = {0};
	sigset_t all, old;
	ssize_t n;

	setenv("LD_LIBRARY_PATH", "/evil", 1);
	setenv("CRIU_CONFIG_FILE", "/evil", 1);
	ok(stub("echo \"$1,$2,$#\"; env; ls -l /proc/self/fd; "
		"grep -E 'Sig(Blk|Ign)' /proc/self/status",
		&en, &e),
	   "an engine that looks around");
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, &old);
	for (int s = 1; s < NSIG; s++)
		ignore(s);
	ok(engine_run(&en, &er, 5000, -1, NULL, &e) == 0, "runs: %s", e.msg);
	sigprocmask(SIG_SETMASK, &old, NULL);
	sig_reset();
	n = pread(out, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = '\0';
	ok(strstr(text, "a b,--no-default-config,2\n"), "its arguments");
	ok(strstr(text, "CRTOOLS_TEST=x y\n") && !strstr(text, "evil"),
	   "its environment");
	snprintf(want, sizeof(want), " %d -> /dev/null\n", keep);
	ok(strstr(text, want), "its descriptors");
	ok(strstr(text, "SigBlk:\t0000000000000000\nSigIgn:\t000000000"
			"0000000\n"),
	   "its signals");
	unsetenv("LD_LIBRARY_PATH");
	unsetenv("CRIU_CONFIG_FILE");
}

/* It finds itself and what it is told of in /tmp, and leaves nothing there. */
static void test_own_tmp(void)
{
	const char *args[] = {"dump", dir, NULL};
	const struct engine_run er = {
		.args = args,
		.out = -1,
		.own_tmp = true,
	};
	char there[64], left[64];
	struct engine en;
	struct err e = {0};

	snprintf(there, sizeof(there), "%s.there", dir);
	snprintf(left, sizeof(left), "%s.left", dir);
	mkdir(there, 0700);
	ok(stub("[ ! -e $PWD.there ] && : >$PWD.left && [ -e $2/criu ]", &en,
		&e) &&
		   engine_run(&en, &er, 20000, -1, NULL, &e) == 0,
	   "an engine below /tmp finds itself there, alone: %s", e.msg);
	ok(access(left, F_OK) < 0, "and what it makes there goes with it");
	unlink(left);
	rmdir(there);
}

/* Who started it is killed. */
static void test_orphan(void)
{
	const char *const args[] = {"dump", NULL};
	const struct engine_run er = {.args = args, .out = -1};
	struct engine_proc p;
	struct engine en;
	struct err e = {0};
	char path[128];
	pid_t pid;

	ok(stub("echo $$ > self.new; mv self.new self; exec sleep 100", &en,
		&e),
	   "an engine whose master");
	snprintf(path, sizeof(path), "%s/self", dir);
	unlink(path);
	pid = fork();
	if (pid == 0) {
		if (engine_spawn(&en, &er, &p, &e) < 0)
			_exit(1);
		pause();
	}
	for (int i = 0; i < 500 && access(path, F_OK) < 0; i++)
		usleep(10000);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(gone("self"), "is killed, goes with him");
}

static void test_try(struct tree *t)
{
	struct engine en;
	struct err e = {0};
	int r;

	ok(stub("[ $1 = dump ] || exit 9; kill -9 $3; exit 0", &en, &e),
	   "an engine that dumps only");
	r = engine_try(t, &en, 3000, &e);
	ok(r == -EIO && strstr(e.msg, "restore: "), "does not pass: %s", e.msg);
	ok(stub("exit 0", &en, &e), "an engine that does nothing");
	r = engine_try(t, &en, 3000, &e);
	ok(r < 0, "does not pass: %s", e.msg);
	ok(stub("[ $1 = restore ] || exit 0; echo 1 > pid; exit 0", &en, &e) &&
		   engine_try(t, &en, 3000, &e) < 0,
	   "nor one that says pid 1 is what it made");
	ok(stub("sleep 50", &en, &e), "an engine that hangs");
	r = engine_try(t, &en, 1000, &e);
	ok(r == -ETIMEDOUT && !strcmp(e.code, "engine"), "does not pass: %s",
	   e.msg);
}

/* Whoever tries is killed: what an engine has made half has no bond to it. */
static void test_try_orphan(struct tree *t)
{
	auto_close int fd = -1;
	struct pollfd p = {.events = POLLIN};
	char path[128], byte;
	struct engine en;
	struct err e = {0};
	pid_t pid;

	snprintf(path, sizeof(path), "%s/held", dir);
	ok(stub("[ $1 = restore ] || { kill -9 $3; exit 0; }\n"
		"setsid sh -c 'exec 9>held; echo >&9; sleep 100' &\nsleep 100",
		&en, &e) &&
		   mkfifo(path, 0600) == 0,
	   "a try with an engine that hangs");
	p.fd = fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	pid = fork();
	if (pid == 0)
		_exit(engine_try(t, &en, 50000, &e) < 0);
	ok(poll(&p, 1, 20000) == 1 && read(fd, &byte, 1) == 1,
	   "makes something");
	p.events = 0;
	ok(poll(&p, 1, 0) == 0, "that goes on");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(poll(&p, 1, 20000) == 1 && p.revents == POLLHUP,
	   "until its maker is killed");
}

static bool configure(const struct tree *t, const char *text)
{
	auto_close int d = open(t->config, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return text ? !fd_replace(d, "engine.json", text, strlen(text), 0, NULL)
		    : !unlinkat(d, "engine.json", 0);
}

static void test_get(struct tree *t)
{
	char conf[256], marker[128];
	struct engine en;
	struct err e = {0};

	snprintf(conf, sizeof(conf), "{\"criu\":\"%s/criu\"}", dir);
	snprintf(marker, sizeof(marker), "%s/asked", dir);
	ok(configure(t, "{\"criu\":\"x\"}") &&
		   engine_get(t, &en, &e) == -EINVAL &&
		   !strcmp(e.code, "configuration"),
	   "a wrong engine.json");
	ok(configure(t, "{\"criu\":\"/nowhere/criu\"}") &&
		   engine_get(t, &en, &e) == -ENOENT &&
		   !strcmp(e.code, "unsupported"),
	   "one that is not there");
	ok(stub("echo x >> asked; exit 1", &en, &e) && configure(t, conf) &&
		   engine_get(t, &en, &e) < 0 && !access(marker, F_OK) &&
		   !strcmp(e.code, "unsupported") && strstr(e.msg, "(1)"),
	   "one that does not work: %s", e.msg);
	unlink(marker);
	ok(engine_get(t, &en, &e) == -ENOTSUP &&
		   !strcmp(e.code, "unsupported") && access(marker, F_OK) < 0,
	   "is not asked again at once");
	ok(engine_probe(t, &en, &e) < 0 && !access(marker, F_OK),
	   "but when somebody insists");
	unlink(marker);
	ok(stub("echo x >> asked; exit 2", &en, &e) &&
		   engine_get(t, &en, &e) < 0 && !access(marker, F_OK),
	   "or when it is another file");
}

static void test_real(struct tree *t)
{
	struct engine en, again;
	struct err e = {0};
	uint64_t before, first;

	configure(t, NULL);
	if (engine_find(t, &en, &e) < 0) {
		skip("the real engine", e.msg);
		return;
	}
	before = clock_ms();
	ok(engine_get(t, &en, &e) == 0, "the engine of this node works: %s",
	   e.msg);
	first = clock_ms() - before;
	before = clock_ms();
	ok(engine_get(t, &again, &e) == 0 &&
		   !strcmp(again.version, en.version) &&
		   clock_ms() - before <= first,
	   "which is remembered (%s, %d ms)", again.version, (int)first);
}

int main(void)
{
	char run_dir[64], conf[64];
	struct tree t = {.run = run_dir, .lib = run_dir, .config = conf};
	auto_free char *libexec = NULL;
	const char *bin = getenv("BIN");
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/../libexec/dsec", bin ? bin : "bin");
	libexec = realpath(path, NULL);
	if (libexec)
		setenv("DSEC_LIBEXEC", libexec, 1);
	if (!mkdtemp(dir))
		return 1;
	snprintf(run_dir, sizeof(run_dir), "%s/run", dir);
	snprintf(conf, sizeof(conf), "%s/conf", dir);
	mkdir(run_dir, 0700);
	mkdir(conf, 0700);
	test_version();
	test_ends();
	test_inherits();
	test_orphan();
	if (geteuid() == 0) {
		test_own_tmp();
		test_try(&t);
		test_try_orphan(&t);
		test_get(&t);
		test_real(&t);
	} else {
		skip("tries", "needs root");
	}
	fd_remove_tree(AT_FDCWD, dir, NULL);
	return tap_done();
}
