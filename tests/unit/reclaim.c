/* SPDX-License-Identifier: Apache-2.0 */
/* Memory out of RAM and back.  Where the node has swap, anonymous memory too.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "sys/cgroup_priv.h"
#include "sys/reclaim.h"

#define MIB (1024 * 1024)

static char dir[] = "/tmp/dsec-reclaim.XXXXXX";
static const struct reclaim_opts opts = {.timeout_ms = 30000, .stop = -1};

static bool good(int r, const struct err *e, const char *what)
{
	if (r < 0)
		printf("# %s: %s (%s)\n", what, e->msg, e->code);
	return ok(r >= 0, "%s", what);
}

/* A process of ${id} that runs ${fn}, which says when it is ready. */
static pid_t start(const struct cgroup_root *root, const char *id,
		   void (*fn)(int ready))
{
	struct cgroup_join join;
	struct err e = {0};
	char byte;
	int ends[2];
	pid_t pid;

	if (cgroup_leaf_prepare(root, id, "init", &join, &e) < 0 ||
	    pipe2(ends, O_CLOEXEC) < 0)
		return -1;
	pid = fork();
	if (pid == 0) {
		if (cgroup_leaf_join(&join) < 0)
			_exit(99);
		fn(ends[1]);
		_exit(0);
	}
	cgroup_join_done(&join);
	fd_close(ends[1]);
	ok(read(ends[0], &byte, 1) == 1, "a process is ready");
	fd_close(ends[0]);
	return pid;
}

static char *fill(size_t len)
{
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		_exit(1);
	for (size_t i = 0; i < len; i += 64)
		p[i] = (char)(i / 4096 + 1);
	return p;
}

/* A file that was read, 64 MiB of its own, and then counting. */
static void keep(int ready)
{
	static char block[MIB];
	char path[64];
	char *p = fill(64 * MIB);
	int fd;

	snprintf(path, sizeof(path), "%s/file", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	for (int i = 0; i < 16; i++)
		if (write(fd, block, sizeof(block)) != sizeof(block))
			_exit(1);
	if (fsync(fd) < 0 || write(ready, "x", 1) != 1)
		_exit(1);
	for (;;) {
		for (size_t i = 0; i < 64 * (size_t)MIB; i += 4096)
			if (p[i] != (char)(i / 4096 + 1))
				_exit(2);
		poll(NULL, 0, 10);
	}
}

/* What parent and child share. */
static void share(int ready)
{
	char *p = fill(32 * MIB);

	if (fork() == 0) {
		poll(NULL, 0, -1);
		_exit(p[0]);
	}
	if (write(ready, "x", 1) != 1)
		_exit(1);
	poll(NULL, 0, -1);
}

static void test_node(void)
{
	struct reclaim_node n;
	struct err e = {0};

	good(reclaim_node(&n, &e), &e, "what the node has");
	ok(n.swap_free_bytes <= n.swap_total_bytes, "its swap: %llu MiB",
	   (unsigned long long)n.swap_total_bytes / MIB);
	ok(n.zram_can || !n.zram_used, "what is used can be");
	ok(n.ksm_can == (access("/sys/kernel/mm/ksm", F_OK) == 0), "KSM");
}

static void check_out(const struct cgroup_root *root,
		      const struct reclaim_done *d)
{
	struct err e = {0};
	uint64_t bytes = 1;

	printf("# %llu of %llu bytes freed, %llu in swap, %llu left\n",
	       (unsigned long long)d->freed_bytes,
	       (unsigned long long)d->before_bytes,
	       (unsigned long long)d->swapped_bytes,
	       (unsigned long long)d->anon_left_bytes);
	ok(!d->cut, "in time");
	is_int((long long)(d->before_bytes - d->after_bytes),
	       (long long)d->freed_bytes, "the numbers fit");
	ok(d->freed_bytes > 12 * MIB, "the file's pages went");
	good(reclaim_prefetch(root, "out", &opts, &bytes, &e), &e, "prefetch");
	if (d->swap) {
		ok(d->anon_left_bytes < 64 * MIB / 20, "95 %% went to swap");
		ok(d->swapped_bytes > 60 * MIB, "and are counted there");
		ok(bytes >= d->swapped_bytes / 2, "they are asked for");
	} else {
		ok(d->anon_left_bytes >= 64 * MIB, "memory without a file did "
						   "not: no swap");
		is_int((long long)d->swapped_bytes, 0, "none is there");
		is_int((long long)bytes, 0, "nothing to be asked for");
	}
}

static void test_out(const struct cgroup_root *root)
{
	const struct cgroup_limits limits = {.memory_bytes = 256 * MIB};
	struct reclaim_done d;
	struct err e = {0};
	pid_t pid;
	int status = 0;

	good(cgroup_make(root, "out", &limits, &e), &e, "a sandbox");
	pid = start(root, "out", keep);
	good(cgroup_freeze(root, "out", true, 5000, &e), &e, "frozen");
	if (good(reclaim_memory(root, "out", &opts, &d, &e), &e, "reclaim"))
		check_out(root, &d);
	is_int(cgroup_is_frozen(root, "out", NULL, &e), 1, "it is frozen yet");
	good(cgroup_swap_allow(root, "out", false, &e), &e, "no more swap");
	good(cgroup_freeze(root, "out", false, 5000, &e), &e, "thawed");
	poll(NULL, 0, 300);
	is_int(waitpid(pid, &status, WNOHANG), 0, "it has what it had");
	good(cgroup_kill(root, "out", NULL, 5000, NULL, &e), &e, "killed");
	waitpid(pid, NULL, 0);
	good(cgroup_remove(root, "out", &e), &e, "removed");
}

/* It ends when it is told to, and fails when there is nothing. */
static void test_cut(const struct cgroup_root *root)
{
	const struct cgroup_limits limits = {.memory_bytes = 256 * MIB};
	struct reclaim_opts now = {.timeout_ms = 30000};
	struct reclaim_done d;
	struct err e = {0};
	uint64_t t0 = clock_ms();
	int ends[2];

	is_int(reclaim_memory(root, "none", &opts, &d, &e), -ENOENT,
	       "nothing to do it to");
	good(cgroup_make(root, "cut", &limits, &e), &e, "a sandbox");
	good(reclaim_memory(root, "cut", &opts, &d, &e), &e, "an empty one");
	if (pipe2(ends, O_CLOEXEC) < 0)
		return;
	fd_close(ends[1]);
	now.stop = ends[0];
	good(reclaim_memory(root, "cut", &now, &d, &e), &e, "stopped at once");
	ok(clock_ms() - t0 < 10000, "is soon over");
	fd_close(ends[0]);
	good(cgroup_remove(root, "cut", &e), &e, "removed");
}

static void test_pss(const struct cgroup_root *root)
{
	const struct cgroup_limits limits = {.memory_bytes = 256 * MIB};
	struct reclaim_pss pss;
	struct err e = {0};
	pid_t pid;

	good(cgroup_make(root, "pss", &limits, &e), &e, "a sandbox");
	pid = start(root, "pss", share);
	good(reclaim_pss(root, "pss", &pss, &e), &e, "its memory");
	is_int(pss.processes, 2, "of two processes");
	ok(pss.rss_bytes + pss.swap_bytes >= 64 * MIB, "each has all of it");
	ok(pss.pss_bytes >= 30 * MIB && pss.pss_bytes < 48 * MIB,
	   "together once: %llu MiB", (unsigned long long)pss.pss_bytes / MIB);
	good(cgroup_kill(root, "pss", NULL, 5000, NULL, &e), &e, "killed");
	waitpid(pid, NULL, 0);
	good(cgroup_remove(root, "pss", &e), &e, "removed");
	good(reclaim_pss(root, "pss", &pss, &e), &e, "of what is not there");
	is_int(pss.processes, 0, "is none");
}

static void remove_parents(const struct cgroup_root *root)
{
	char path[PATH_MAX], at[64];
	ssize_t n;

	for (unsigned i = 0; i < root->ntrees; i++) {
		unlinkat(root->tree[i], "self-check", AT_REMOVEDIR);
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
	struct err e = {0};
	char parent[64];

	snprintf(parent, sizeof(parent), "dsec-test-%d", (int)getpid());
	if (cgroup_open_as(parent, want, &root, &e) < 0) {
		skip(cgroup_mode_name((enum cgroup_mode)want), e.msg);
		return;
	}
	printf("# %s\n", cgroup_mode_name(root->mode));
	root->clone_into = false; /* our children join by themselves */
	test_out(root);
	test_cut(root);
	test_pss(root);
	remove_parents(root);
	cgroup_close(root);
}

int main(void)
{
	struct err e = {0};

	if (geteuid() != 0) {
		printf("1..0 # SKIP needs root\n");
		return 0;
	}
	if (!mkdtemp(dir))
		return 1;
	test_node();
	test_mode(CGROUP_V2);
	test_mode(CGROUP_HYBRID);
	test_mode(CGROUP_V1);
	good(fd_remove_tree(AT_FDCWD, dir, &e), &e, "cleaned up");
	return tap_done();
}
