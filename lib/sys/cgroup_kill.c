/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "sys/cgroup_priv.h"

/* Freezing before a kill without cgroup.kill: longer than this and the
 * processes are killed as they run. */
#define FREEZE_FIRST_MS 500

/* A group that is killed by the kernel and not empty after so long is looked
 * at by process. */
#define KILL_FIRST_MS 50

static bool has_pid(const struct cgroup_pids *pids, pid_t pid)
{
	for (size_t i = 0; i < pids->n; i++)
		if (pids->pid[i] == pid)
			return true;
	return false;
}

#define SIGNAL_BATCH 64

/*
 * A number read from cgroup.procs may be another process by the time it is
 * used.  So: a pidfd first, then the list again.  A pid that is in the list
 * still belongs to the group, and the pidfd to the same process or a dead one.
 */
static int signal_batch(const struct cgroup_root *root, const char *dir,
			const pid_t *pid, size_t n, int sig, struct err *e)
{
	int fd[SIGNAL_BATCH], r;
	struct cgroup_pids again = {NULL, 0};

	for (size_t i = 0; i < n; i++)
		fd[i] = (int)syscall(SYS_pidfd_open, pid[i], 0);
	r = cgroup_read_pids(root, dir, &again, e);
	for (size_t i = 0; i < n; i++) {
		if (fd[i] < 0)
			continue;
		if (r == 0 && has_pid(&again, pid[i]))
			syscall(SYS_pidfd_send_signal, fd[i], sig, NULL, 0);
		fd_close(fd[i]);
	}
	free(again.pid);
	return r;
}

static int signal_dir(const struct cgroup_root *root, const char *dir, int sig,
		      struct err *e)
{
	struct cgroup_pids pids = {NULL, 0};
	size_t n;
	int r;

	r = cgroup_read_pids(root, dir, &pids, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < pids.n && r == 0; i += n) {
		n = pids.n - i < SIGNAL_BATCH ? pids.n - i : SIGNAL_BATCH;
		r = signal_batch(root, dir, pids.pid + i, n, sig, e);
	}
	free(pids.pid);
	return r;
}

/* pid 1 and whatever shares its leaf apart. */
static int signal_leaf(const struct cgroup_root *root, const char *id,
		       const char *leaf, void *arg, struct err *e)
{
	const int *sig = arg;

	if (!strcmp(leaf, "init"))
		return 0;
	return cgroup_signal(root, id, leaf, *sig, e);
}

int cgroup_signal(const struct cgroup_root *root, const char *id,
		  const char *leaf, int sig, struct err *e)
{
	char dir[CGROUP_PATH_MAX];
	int r;

	if (!leaf)
		return cgroup_each_leaf(root, id, signal_leaf, &sig, e);
	r = cgroup_path(dir, id, leaf, NULL, e);
	return r < 0 ? r : signal_dir(root, dir, sig, e);
}

int cgroup_leaf_count(const struct cgroup_root *root, const char *id,
		      const char *leaf)
{
	char dir[CGROUP_PATH_MAX];
	struct cgroup_pids pids = {NULL, 0};
	int r;

	r = cgroup_path(dir, id, leaf, NULL, NULL);
	if (r == 0)
		r = cgroup_read_pids(root, dir, &pids, NULL);
	if (r < 0)
		return r;
	free(pids.pid);
	return (int)pids.n;
}

static int count_leaf(const struct cgroup_root *root, const char *id,
		      const char *leaf, void *arg, struct err *e)
{
	int n = cgroup_leaf_count(root, id, leaf);

	(void)e;
	if (n > 0)
		*(unsigned *)arg += (unsigned)n;
	return 0;
}

static int kill_leaf(const struct cgroup_root *root, const char *id,
		     const char *leaf, void *arg, struct err *e)
{
	(void)arg;
	return cgroup_signal(root, id, leaf, SIGKILL, e);
}

/* v1: processes of a frozen sandbox die only outside its frozen group, so let
 * those of a leaf, which have their SIGKILL already, go up to the parent. */
static int move_out(const struct cgroup_root *root, const char *dir,
		    struct err *e)
{
	auto_close int fd = -1;
	struct cgroup_pids pids = {NULL, 0};
	char text[16];
	int r, n;

	fd = openat(root->tree[0], "cgroup.procs", O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open cgroup.procs");
	r = cgroup_read_pids(root, dir, &pids, e);
	if (r < 0)
		return r;
	for (size_t i = 0; i < pids.n; i++) {
		n = snprintf(text, sizeof(text), "%d", (int)pids.pid[i]);
		if (write(fd, text, (size_t)n) < 0 && errno != ESRCH) {
			r = err_sys(e, errno, "move a process out");
			break;
		}
	}
	free(pids.pid);
	return r;
}

/* What is below init's leaf is frozen if that is, and that if the sandbox is.
 */
static bool is_frozen_above(const struct cgroup_root *root, const char *id)
{
	char path[CGROUP_PATH_MAX], text[32];

	if (cgroup_path(path, id, "init", "freezer.state", NULL) < 0 ||
	    cgroup_read(root->tree[0], path, text, sizeof(text), NULL) < 0)
		return false;
	return strncmp(text, "THAWED", 6) != 0;
}

static bool is_empty(const struct cgroup_root *root, const char *id,
		     const char *leaf)
{
	unsigned n = 0;

	if (leaf)
		count_leaf(root, id, leaf, &n, NULL);
	else
		cgroup_each_leaf(root, id, count_leaf, &n, NULL);
	return n == 0;
}

/*
 * Without cgroup.kill: stop them first, so that nothing forks away from the
 * list, then SIGKILL each, then let them run to die of it.  What could not be
 * stopped in time gets its signals running; rounds go on until none is left.
 */
static int kill_round(const struct cgroup_root *root, const char *id,
		      const char *leaf, const char *dir, struct err *e)
{
	bool above = root->mode == CGROUP_V1 && leaf &&
		     is_frozen_above(root, id);
	int r;

	if (!above) {
		r = cgroup_freeze_dir(root, dir, true, FREEZE_FIRST_MS, e);
		if (r < 0)
			return r;
	}
	r = leaf ? cgroup_signal(root, id, leaf, SIGKILL, e)
		 : cgroup_each_leaf(root, id, kill_leaf, NULL, e);
	if (above)
		return r < 0 ? r : move_out(root, dir, e);
	cgroup_freeze_dir(root, dir, false, 0, NULL);
	return r;
}

static int kill_by_hand(const struct cgroup_root *root, const char *id,
			const char *leaf, const char *dir, unsigned timeout_ms,
			struct err *e)
{
	uint64_t until = clock_ms() + timeout_ms;
	int r;

	do {
		struct cgroup_wait w = cgroup_wait_for(64);

		r = kill_round(root, id, leaf, dir, e);
		if (r < 0)
			return r;
		do
			if (is_empty(root, id, leaf))
				return 1;
		while (cgroup_wait_more(&w, -1));
	} while (clock_ms() < until);
	return 0;
}

/*
 * What the kernel's kill of a group reached is gone soon.  It passes over a
 * process whose first thread has ended while others run on; a signal to the
 * process as a whole does not.
 */
static int finish_kill(const struct cgroup_root *root, const char *id,
		       const char *leaf, const char *dir, unsigned timeout_ms,
		       struct err *e)
{
	unsigned first = timeout_ms < KILL_FIRST_MS ? timeout_ms
						    : KILL_FIRST_MS;
	int r;

	r = cgroup_wait_event(root, dir, "populated", 0, first, e);
	if (r != 0)
		return r;
	r = leaf ? cgroup_signal(root, id, leaf, SIGKILL, e)
		 : cgroup_each_leaf(root, id, kill_leaf, NULL, e);
	return r < 0 ? r
		     : cgroup_wait_event(root, dir, "populated", 0,
					 timeout_ms - first, e);
}

/* 1 none is left, 0 some are, or -errno. */
static int kill_dir(const struct cgroup_root *root, const char *id,
		    const char *leaf, const char *dir, unsigned timeout_ms,
		    struct err *e)
{
	char path[CGROUP_PATH_MAX + 16];
	int r;

	if (root->mode == CGROUP_V1)
		return kill_by_hand(root, id, leaf, dir, timeout_ms, e);
	snprintf(path, sizeof(path), "%s/cgroup.kill", dir);
	r = fd_write_str(root->tree[0], path, "1", e);
	if (r == 0)
		return finish_kill(root, id, leaf, dir, timeout_ms, e);
	/* The file came later than the rest of v2. */
	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	if (r != -ENOENT || faccessat(root->tree[0], path, F_OK, 0) < 0)
		return r;
	return kill_by_hand(root, id, leaf, dir, timeout_ms, e);
}

int cgroup_kill(const struct cgroup_root *root, const char *id,
		const char *leaf, unsigned timeout_ms, unsigned *ret_killed,
		struct err *e)
{
	char dir[CGROUP_PATH_MAX];
	unsigned killed = 0;
	struct err why;
	int r;

	r = cgroup_path(dir, id, leaf, NULL, e);
	if (r < 0)
		return r;
	if (ret_killed && leaf)
		count_leaf(root, id, leaf, &killed, NULL);
	else if (ret_killed)
		cgroup_each_leaf(root, id, count_leaf, &killed, NULL);
	r = kill_dir(root, id, leaf, dir, timeout_ms, &why);
	/* A group that is not there, or goes while we look, holds nobody. */
	if (r == -ENOENT || r == -ENODEV)
		r = 1;
	if (r == 0)
		r = err_set(&why, -ETIMEDOUT, "timeout",
			    "processes of '%s' were left %u ms after SIGKILL",
			    dir, timeout_ms);
	if (r < 0) {
		if (e)
			*e = why;
		return r;
	}
	if (ret_killed)
		*ret_killed = killed;
	return 0;
}
