/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box/claim.h"
#include "life/recover.h"
#include "life/teardown.h"
#include "pause.h"

#define AGAIN_MS 20
/* What the owner of a one-shot has, beyond the grace, to take it down. */
#define OWNER_MS 5000

void stop_ended(struct job *j, const struct err *why)
{
	auto_json json_t *dead = NULL;

	(void)why;
	if (ctl_dead(&j->app->tree, j->id, &dead, NULL) == 0)
		job_done(j, dead);
	else
		job_again(j, AGAIN_MS); /* it is stopping */
}

/* The lock of its claim, if nobody else has it: then what is left is ours. */
static int take_claim(const struct job *j, struct err *e)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	struct stat st;
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", j->app->tree.run, j->id);
	if (r < 0)
		return r;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return err_sys(e, errno, "lock '%s'", path);
	/* Released between our opening and our locking it. */
	if (fstat(fd, &st) < 0 || st.st_nlink == 0)
		return -ENOENT;
	return steal_fd(&fd);
}

static json_t *killed_by_us(void)
{
	return json_pack("{s:s, s:b}", "outcome", "killed", "infra", 0);
}

/* Remove what a dead owner left; ${why} goes on record unless one is there. */
static int clean_up(const struct job *j, const json_t *why, struct err *e)
{
	const struct tree *t = &j->app->tree;
	auto_json json_t *claim = NULL, *killed = NULL;
	struct cgroup_root *cgroups;
	auto_close int fd = -1;
	int r;

	fd = take_claim(j, e);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return fd;
	cgroups = app_cgroups(j->app, e);
	if (!cgroups)
		return e->r;
	select_life(t, j->id, &claim);
	/* To bury one that is on the disk is not to end it. */
	if (!why && teardown_kept(t, j->id))
		why = killed = killed_by_us();
	r = why ? teardown(t, cgroups, j->id, why, e)
		: teardown_bury(t, j->id, claim, cgroups, e);
	return r < 0 ? r : claim_release(t, j->id, &fd, e);
}

static void finish(struct job *j, const json_t *why)
{
	auto_json json_t *dead = NULL;
	struct err e = {0};
	int r;

	r = clean_up(j, why, &e);
	if (r == -EWOULDBLOCK)
		job_again(j, AGAIN_MS);
	else if (r < 0)
		job_fail(j, &e);
	else if (ctl_dead(&j->app->tree, j->id, &dead, NULL) == 0)
		job_done(j, dead);
	else
		job_done(j, why);
}

void stop_kept(struct job *j)
{
	auto_json json_t *why = killed_by_us();
	struct cgroup_root *cgroups;
	struct err e = {0};
	int r;

	cgroups = app_cgroups(j->app, &e);
	r = cgroups ? recover_drop(&j->app->tree, cgroups, j->id, why, &e)
		    : e.r;
	if (r == -EBUSY)
		job_again(j, AGAIN_MS);
	else if (r < 0)
		job_fail(j, &e);
	else
		job_done(j, why);
}

void stop_lost(struct job *j, const struct err *why)
{
	/* Alive and not listening: it is being made, or on its way out. */
	if (select_life(&j->app->tree, j->id, NULL) == SELECT_LIVE)
		job_again(j, AGAIN_MS);
	else if (j->op == OP_STOP)
		finish(j, NULL);
	else
		job_fail(j, why);
}

/* --- one-shots: dsec-run itself is the owner ------------------------------ */

static void killed(struct job *j)
{
	auto_json json_t *why = killed_by_us();

	finish(j, why);
}

static void on_owner_gone(struct loop *l, struct loop_source *s,
			  uint32_t events)
{
	(void)l;
	(void)events;
	killed(s->arg);
}

static void on_force(struct loop *l, struct loop_timer *t)
{
	struct job *j = t->arg;

	(void)l;
	pidfd_send_signal(j->pidfd, SIGKILL, NULL, 0);
}

/*
 * The owner by its pidfd: the claim is still held after it was opened, so the
 * number was still the owner's when it was.
 */
static int open_owner(struct job *j, struct err *e)
{
	auto_json json_t *claim = NULL;
	int64_t pid;

	if (select_life(&j->app->tree, j->id, &claim) != SELECT_LIVE)
		return -ESRCH;
	pid = json_int(claim, "pid", 0);
	if (pid <= 1 || pid > INT32_MAX)
		return err_set(e, -EBADMSG, "internal",
			       "the claim of sandbox %s names no owner", j->id);
	if (j->pidfd < 0)
		j->pidfd = pidfd_open((pid_t)pid, 0);
	if (j->pidfd < 0)
		return errno == ESRCH ? -ESRCH
				      : err_sys(e, errno, "open process %lld",
						(long long)pid);
	return select_life(&j->app->tree, j->id, NULL) == SELECT_LIVE ? 0
								      : -ESRCH;
}

static int signal_owner(struct job *j, struct err *e)
{
	struct loop *l = j->app->loop;
	int r;

	r = open_owner(j, e);
	if (r < 0)
		return r;
	if (pidfd_send_signal(j->pidfd, SIGTERM, NULL, 0) < 0)
		return errno == ESRCH ? -ESRCH : err_sys(e, errno, "signal");
	j->force.fn = on_force;
	loop_timer_set(l, &j->force,
		       clock_ms() + (uint64_t)j->grace_ms + OWNER_MS);
	return loop_add(l, &j->source, j->pidfd, EPOLLIN, on_owner_gone, j, e);
}

void stop_one_shot(struct job *j)
{
	struct err e = {0};
	int r;

	r = signal_owner(j, &e);
	if (r == -ESRCH)
		killed(j);
	else if (r < 0)
		job_fail(j, &e);
}
