/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup_priv.h"

static char parent[64];
static int mode_now;

/* A child that joins; it runs ${fn} and exits with what that returns. */
static pid_t spawn_by(struct cgroup_join *join, int (*fn)(void))
{
	struct clone_args args = {.exit_signal = SIGCHLD};
	long pid;

	if (join->into >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = (unsigned)join->into;
	}
	pid = syscall(SYS_clone3, &args, sizeof(args));
	if (pid == 0)
		_exit(cgroup_leaf_join(join) < 0 ? 99 : fn());
	cgroup_join_done(join);
	return (pid_t)pid;
}

static pid_t spawn(const struct cgroup_root *root, const char *id,
		   const char *leaf, int (*fn)(void))
{
	struct cgroup_join join;
	struct err e;

	if (cgroup_leaf_prepare(root, id, leaf, &join, &e) < 0) {
		printf("# %s\n", e.msg);
		return -1;
	}
	return spawn_by(&join, fn);
}

/* Whatever goes wrong, not for ever. */
static int sleep_long(void)
{
	alarm(60);
	for (;;)
		pause();
	return 0;
}

static int nothing(void)
{
	return 7;
}

static int eat_memory(void)
{
	size_t len = (size_t)256 << 20;
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return 1;
	for (size_t i = 0; i < len; i += 4096)
		*(volatile char *)(p + i) = 1;
	return 0;
}

/* Never the same process for long: each forks and goes. */
static int fork_storm(void)
{
	for (;;) {
		pid_t pid = fork();

		if (pid > 0)
			_exit(0);
		if (pid == 0)
			fork();
	}
	return 0;
}

static bool good(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %s (%s)\n", what, e->msg, e->code);
	return ok(r >= 0, "%s", what);
}

static bool ended(pid_t pid, int sig, const char *what)
{
	int status = 0;

	if (waitpid(pid, &status, 0) != pid)
		return ok(false, "%s", what);
	return ok(WIFSIGNALED(status) && WTERMSIG(status) == sig, "%s", what);
}

static uint64_t file(int tree, const char *id, const char *name)
{
	char path[CGROUP_PATH_MAX], text[128];
	struct err e;

	if (cgroup_path(path, id, NULL, name, &e) < 0 ||
	    cgroup_read(tree, path, text, sizeof(text), &e) < 0) {
		printf("# %s\n", e.msg);
		return UINT64_MAX;
	}
	return strtoull(text, NULL, 10);
}

static bool gone(const struct cgroup_root *root, const char *id)
{
	for (unsigned i = 0; i < root->ntrees; i++)
		if (faccessat(root->tree[i], id, F_OK, 0) == 0)
			return false;
	return true;
}

static void test_limits(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.memory_bytes = 64 << 20,
				  .cpu_milli = 1500,
				  .pids = 40};
	bool v2 = root->mode == CGROUP_V2;
	struct cgroup_stats st;
	struct err e;

	good(cgroup_make(root, "lim", &l, &e), &e, "made with limits");
	is_int((long long)file(root->memory, "lim",
			       v2 ? "memory.max" : "memory.limit_in_bytes"),
	       64 << 20, "the memory limit is there");
	is_int((long long)file(root->cpu, "lim",
			       v2 ? "cpu.max" : "cpu.cfs_quota_us"),
	       150000, "the CPU limit is there");
	is_int((long long)file(root->pids, "lim", "pids.max"), 40,
	       "the pids limit is there");
	is_int(cgroup_make(root, "lim", &l, &e), -EEXIST,
	       "a second one of that name is refused");
	is_str(e.code, "exists", "... as existing");
	good(cgroup_stats(root, "lim", &st, &e), &e, "counters");
	is_int(st.pids, 0, "nobody in it");
	is_int(cgroup_leaf_count(root, "lim", "init"), 0, "the leaf is empty");
	good(cgroup_remove(root, "lim", &e), &e, "removed");
	ok(gone(root, "lim"), "nothing of it is left");
	good(cgroup_remove(root, "lim", &e), &e, "removing nothing is fine");
	is_int(cgroup_stats(root, "lim", &st, &e), -ENOENT,
	       "counters of nothing");
}

static void test_join(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.memory_bytes = 64 << 20, .pids = 40};
	struct cgroup_stats st;
	unsigned killed = 0;
	struct err e;
	pid_t a, b;
	int status;

	good(cgroup_make(root, "join", &l, &e), &e, "made");
	good(cgroup_leaf_make(root, "join", "e0", &e), &e, "a leaf");
	is_int(cgroup_leaf_make(root, "join", "e0", &e), -EEXIST,
	       "a leaf is made once");
	a = spawn(root, "join", "init", sleep_long);
	b = spawn(root, "join", "e0", sleep_long);
	ok(a > 0 && b > 0, "children joined");
	for (int i = 0; i < 500 && file(root->pids, "join", "pids.current") < 2;
	     i++)
		poll(NULL, 0, 10);
	good(cgroup_stats(root, "join", &st, &e), &e, "counters");
	is_int(st.pids, 2, "both are counted");
	is_int(cgroup_leaf_count(root, "join", "e0"), 1, "one in its leaf");
	is_int(cgroup_remove(root, "join", &e), -EBUSY,
	       "not removed while they live");
	good(cgroup_signal(root, "join", "e0", SIGTERM, &e), &e, "signalled");
	ended(b, SIGTERM, "the leaf's process got it");
	good(cgroup_kill(root, "join", "e0", 5000, &killed, &e), &e,
	     "an empty leaf is killed at once");
	is_int(killed, 0, "nobody was there");
	is_int(waitpid(a, &status, WNOHANG), 0, "pid 1 lives on");
	good(cgroup_leaf_remove(root, "join", "e0", &e), &e, "leaf removed");
	good(cgroup_kill(root, "join", "e0", 5000, &killed, &e), &e,
	     "killing what is gone is fine");
	good(cgroup_leaf_make(root, "join", "e1", &e), &e, "the next leaf");
	b = spawn(root, "join", "e1", nothing);
	waitpid(b, &status, 0);
	ok(WIFEXITED(status) && WEXITSTATUS(status) == 7,
	   "a command runs in it");
	good(cgroup_kill(root, "join", NULL, 5000, &killed, &e), &e,
	     "the whole is killed");
	is_int(killed, 1, "one was left");
	ended(a, SIGKILL, "pid 1 is dead");
	good(cgroup_remove(root, "join", &e), &e, "removed with its leaves");
	ok(gone(root, "join"), "nothing of it is left");
}

static char state(pid_t pid)
{
	char path[64], text[512], *p;
	struct err e;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (cgroup_read(AT_FDCWD, path, text, sizeof(text), &e) < 0)
		return '?';
	p = strrchr(text, ')');
	return p ? p[2] : '?';
}

/* utime + stime of a process that spins: it must stand still while frozen. */
static unsigned long ticks(pid_t pid)
{
	unsigned long u = 0, s = 0;
	char path[64], text[512], *p;
	struct err e;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	if (cgroup_read(AT_FDCWD, path, text, sizeof(text), &e) < 0)
		return 0;
	p = strrchr(text, ')');
	if (p)
		sscanf(p + 2,
		       "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu "
		       "%lu",
		       &u, &s);
	return u + s;
}

static int spin(void)
{
	alarm(60);
	for (;;)
		__asm__ volatile("" ::: "memory");
	return 0;
}

static void test_freeze(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.cpu_milli = 200, .pids = 40};
	unsigned long before;
	unsigned killed = 0;
	struct err e;
	pid_t a, b;

	good(cgroup_make(root, "frz", &l, &e), &e, "made");
	good(cgroup_leaf_make(root, "frz", "e0", &e), &e, "a leaf");
	good(cgroup_freeze(root, "frz", true, 5000, &e), &e,
	     "an empty one freezes");
	good(cgroup_freeze(root, "frz", false, 5000, &e), &e, "... and thaws");
	a = spawn(root, "frz", "init", sleep_long);
	b = spawn(root, "frz", "e0", spin);
	for (int i = 0; i < 500 && ticks(b) == 0; i++)
		poll(NULL, 0, 10);
	good(cgroup_freeze(root, "frz", true, 5000, &e), &e, "frozen");
	before = ticks(b);
	poll(NULL, 0, 100);
	is_int((long long)ticks(b), (long long)before, "it stands still");
	good(cgroup_freeze(root, "frz", false, 5000, &e), &e, "thawed");
	for (int i = 0; i < 500 && ticks(b) == before; i++)
		poll(NULL, 0, 10);
	ok(ticks(b) > before, "it runs again");
	good(cgroup_freeze(root, "frz", true, 5000, &e), &e, "frozen again");
	good(cgroup_kill(root, "frz", "e0", 5000, &killed, &e), &e,
	     "a leaf of a frozen one is killed");
	is_int(killed, 1, "with its process");
	ended(b, SIGKILL, "it is dead");
	ok(state(a) != '?', "pid 1 is not");
	good(cgroup_kill(root, "frz", NULL, 5000, &killed, &e), &e,
	     "a frozen one is killed");
	is_int(killed, 1, "pid 1 was there");
	ended(a, SIGKILL, "it is dead");
	good(cgroup_remove(root, "frz", &e), &e, "removed");
	ok(gone(root, "frz"), "nothing of it is left");
}

static bool same_pids(const struct cgroup_root *root, const char *leaf, pid_t a,
		      pid_t b)
{
	auto_free pid_t *pid = NULL;
	struct err e;
	size_t n = 0;

	if (cgroup_pids(root, "lvs", leaf, &pid, &n, &e) < 0)
		return false;
	if (n != (size_t)(a > 0) + (size_t)(b > 0))
		return false;
	for (size_t i = 0; i < n; i++)
		if (pid[i] != a && pid[i] != b)
			return false;
	return true;
}

static int note_leaf(const struct cgroup_root *root, const char *id,
		     const char *leaf, void *arg, struct err *e)
{
	(void)root;
	(void)id;
	(void)e;
	strcat(arg, leaf);
	return strlen(arg) > 60 ? -EINVAL : 0;
}

/* As a restore does it: all come in with pid 1 and go to their leaves. */
static void test_leaves(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.pids = 40};
	char names[128] = "";
	unsigned long before;
	struct err e;
	pid_t a, b;

	good(cgroup_make(root, "lvs", &l, &e), &e, "made");
	good(cgroup_leaf_make(root, "lvs", "e7", &e), &e, "a leaf");
	good(cgroup_each_leaf(root, "lvs", note_leaf, names, &e), &e, "leaves");
	is_str(names, "e7init", "that of pid 1 last");
	a = spawn(root, "lvs", "init", sleep_long);
	b = spawn(root, "lvs", "init", spin);
	for (int i = 0; i < 500 && ticks(b) == 0; i++)
		poll(NULL, 0, 10);
	ok(same_pids(root, "init", a, b), "both are in init's leaf");
	good(cgroup_leaf_freeze(root, "lvs", "e7", true, 0, &e), &e,
	     "an empty leaf is to freeze");
	good(cgroup_leaf_add(root, "lvs", "e7", b, &e), &e, "one goes there");
	for (int i = 0; i < 500 && cgroup_is_frozen(root, "lvs", "e7", &e) != 1;
	     i++)
		poll(NULL, 0, 10);
	is_int(cgroup_is_frozen(root, "lvs", "e7", &e), 1, "and is frozen");
	is_int(cgroup_is_frozen(root, "lvs", NULL, &e), 0, "not all is");
	before = ticks(b);
	poll(NULL, 0, 50);
	is_int((long long)ticks(b), (long long)before, "it stands still");
	ok(same_pids(root, "init", a, 0) && same_pids(root, "e7", b, 0),
	   "each is in its leaf");
	ok(same_pids(root, NULL, a, b), "and both are the sandbox's");
	good(cgroup_freeze(root, "lvs", true, 5000, &e), &e, "all freezes");
	is_int(cgroup_is_frozen(root, "lvs", "init", &e), 1, "all is frozen");
	is_int(cgroup_is_frozen(root, "lvs", NULL, &e), 1, "as a whole");
	good(cgroup_freeze(root, "lvs", false, 5000, &e), &e, "and thaws");
	is_int(cgroup_is_frozen(root, "lvs", "e7", &e), 1, "the leaf does not");
	good(cgroup_leaf_freeze(root, "lvs", "e7", false, 5000, &e), &e,
	     "it is thawed by itself");
	for (int i = 0; i < 500 && ticks(b) == before; i++)
		poll(NULL, 0, 10);
	ok(ticks(b) > before, "it runs");
	is_int(cgroup_leaf_add(root, "lvs", "e8", b, &e), -ENOENT,
	       "not to a leaf that is not there");
	good(cgroup_swap_allow(root, "lvs", true, &e), &e, "swap");
	good(cgroup_swap_allow(root, "lvs", false, &e), &e, "none");
	good(cgroup_kill(root, "lvs", NULL, 5000, NULL, &e), &e, "killed");
	ended(a, SIGKILL, "both");
	ended(b, SIGKILL, "are dead");
	good(cgroup_remove(root, "lvs", &e), &e, "removed");
	ok(gone(root, "lvs"), "nothing of it is left");
}

static void test_storm(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.cpu_milli = 1000, .pids = 60};
	uint64_t t0;
	struct err e;
	pid_t a, b;

	good(cgroup_make(root, "storm", &l, &e), &e, "made");
	good(cgroup_leaf_make(root, "storm", "e0", &e), &e, "a leaf");
	a = spawn(root, "storm", "init", sleep_long);
	b = spawn(root, "storm", "e0", fork_storm);
	for (int i = 0;
	     i < 500 && file(root->pids, "storm", "pids.current") < 20; i++)
		poll(NULL, 0, 10);
	t0 = clock_ms();
	good(cgroup_kill(root, "storm", "e0", 10000, NULL, &e), &e,
	     "a fork storm is killed");
	printf("# in %d ms\n", (int)(clock_ms() - t0));
	waitpid(b, NULL, 0);
	is_int(cgroup_leaf_count(root, "storm", "e0"), 0, "none is left");
	is_int(cgroup_leaf_count(root, "storm", "init"), 1, "pid 1 lives");
	good(cgroup_leaf_remove(root, "storm", "e0", &e), &e, "leaf removed");
	good(cgroup_kill(root, "storm", NULL, 5000, NULL, &e), &e, "killed");
	waitpid(a, NULL, 0);
	good(cgroup_remove(root, "storm", &e), &e, "removed");
	ok(gone(root, "storm"), "nothing of it is left");
}

static void test_oom(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.memory_bytes = 32 << 20, .pids = 40};
	struct cgroup_stats st = {0};
	struct err e;
	pid_t a;

	good(cgroup_make(root, "oom", &l, &e), &e, "made");
	a = spawn(root, "oom", "init", eat_memory);
	ended(a, SIGKILL, "over its limit it is killed");
	good(cgroup_stats(root, "oom", &st, &e), &e, "counters");
	is_int((long long)st.oom_kills, 1, "one kill is counted");
	ok(st.memory_peak_bytes > (30 << 20) &&
		   st.memory_peak_bytes <= (32 << 20),
	   "the peak is the limit (%" PRIu64 ")", st.memory_peak_bytes);
	ok(st.cpu_us > 0, "CPU time is counted (%" PRIu64 " us)", st.cpu_us);
	good(cgroup_remove(root, "oom", &e), &e, "removed");
}

/* Runs in some group below the top: what it starts must live. */
static int launch_from(enum cgroup_mode mode, bool killed)
{
	struct cgroup_root *root = NULL;
	int status = -1;
	struct err e;
	pid_t pid;

	if (cgroup_open_as(parent, mode, &root, &e) < 0)
		return 1;
	printf("# from a %s group: clone into %d\n",
	       killed ? "killed" : "fresh", root->clone_into);
	fflush(stdout);
	if (!killed && !root->clone_into)
		return 2;
	if (cgroup_leaf_make(root, "again", killed ? "e3" : "e2", &e) < 0)
		return 3;
	pid = spawn(root, "again", killed ? "e3" : "e2", nothing);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 4;
	return WIFEXITED(status) && WEXITSTATUS(status) == 7 ? 0 : 5;
}

/* Joins ${leaf}, not by cloning, which is what may not work, and launches. */
static void launch_in(const struct cgroup_root *root, const char *leaf,
		      bool killed, const char *what)
{
	struct cgroup_root joins = *root;
	struct cgroup_join join;
	int status = -1;
	struct err e;
	pid_t pid;

	joins.clone_into = false;
	good(cgroup_leaf_make(root, "again", leaf, &e), &e, "a leaf");
	if (killed)
		good(cgroup_kill(root, "again", leaf, 5000, NULL, &e), &e,
		     "killed");
	pid = fork();
	if (pid == 0) {
		if (cgroup_leaf_prepare(&joins, "again", leaf, &join, &e) < 0 ||
		    cgroup_leaf_join(&join) < 0)
			_exit(99);
		_exit(launch_from(root->mode, killed));
	}
	waitpid(pid, &status, 0);
	is_int(status, 0, what);
}

static void test_caller_killed(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.pids = 40};
	struct err e;

	good(cgroup_make(root, "again", &l, &e), &e, "made");
	launch_in(root, "e0", false, "a launch from a group below the top");
	launch_in(root, "e1", true, "a launch from one that was killed once");
	good(cgroup_kill(root, "again", NULL, 5000, NULL, &e), &e, "killed");
	good(cgroup_remove(root, "again", &e), &e, "removed");
}

/* A supervisor outlives the group that started it. */
static int start_supervisor(void)
{
	struct cgroup_root *root = NULL;
	struct cgroup_join join;
	struct err e;

	if (cgroup_open_as(parent, mode_now, &root, &e) < 0 ||
	    cgroup_supervisor_prepare(root, &join, &e) < 0 ||
	    spawn_by(&join, sleep_long) < 0)
		return 1;
	return sleep_long();
}

static void test_supervisor(const struct cgroup_root *root)
{
	struct cgroup_limits l = {.memory_bytes = 64 << 20, .pids = 40};
	struct err e;
	pid_t a;

	good(cgroup_make(root, "who", &l, &e), &e, "made");
	a = spawn(root, "who", "init", start_supervisor);
	for (int i = 0;
	     i < 500 && cgroup_leaf_count(root, "supervisors", NULL) < 1; i++)
		poll(NULL, 0, 10);
	is_int(cgroup_leaf_count(root, "supervisors", NULL), 1, "one is there");
	good(cgroup_kill(root, "who", NULL, 5000, NULL, &e), &e,
	     "who started it is killed");
	waitpid(a, NULL, 0);
	is_int(cgroup_leaf_count(root, "supervisors", NULL), 1, "it lives on");
	is_int(kill((pid_t)file(root->tree[0], "supervisors", "cgroup.procs"),
		    SIGKILL),
	       0, "until it is told");
	for (int i = 0;
	     i < 500 && cgroup_leaf_count(root, "supervisors", NULL) > 0; i++)
		poll(NULL, 0, 10);
	good(cgroup_remove(root, "who", &e), &e, "removed");
}

static void remove_parents(const struct cgroup_root *root)
{
	char path[PATH_MAX], at[64];
	ssize_t n;

	for (unsigned i = 0; i < root->ntrees; i++) {
		unlinkat(root->tree[i], "self-check", AT_REMOVEDIR);
		unlinkat(root->tree[i], "supervisors", AT_REMOVEDIR);
		snprintf(at, sizeof(at), "/proc/self/fd/%d", root->tree[i]);
		n = readlink(at, path, sizeof(path) - 1);
		if (n <= 0)
			continue;
		path[n] = '\0';
		ok(rmdir(path) == 0, "our parent in tree %u goes", i);
	}
}

static void test_mode(int want)
{
	struct cgroup_root *root = NULL;
	struct err e;

	mode_now = want;
	if (cgroup_open_as(parent, want, &root, &e) < 0) {
		skip(cgroup_mode_name((enum cgroup_mode)want), e.msg);
		return;
	}
	printf("# mode %s, clone into %d\n", cgroup_mode_name(root->mode),
	       root->clone_into);
	is_int(cgroup_mode(root), want, "the mode that was asked for");
	test_limits(root);
	test_join(root);
	test_freeze(root);
	test_leaves(root);
	test_storm(root);
	test_oom(root);
	test_supervisor(root);
	if (root->clone_into) {
		/* Older kernels have no such call: the child joins itself. */
		root->clone_into = false;
		test_join(root);
		test_caller_killed(root);
	}
	remove_parents(root);
	cgroup_close(root);
}

int main(void)
{
	if (geteuid() != 0) {
		printf("1..0 # SKIP must be root\n");
		return 0;
	}
	snprintf(parent, sizeof(parent), "dsec-test-%d", (int)getpid());
	test_mode(CGROUP_V2);
	test_mode(CGROUP_HYBRID);
	test_mode(CGROUP_V1);
	return tap_done();
}
