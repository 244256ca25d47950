/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "ckpt/ckpt.h"
#include "box/claim.h"
#include "box/init_report.h"
#include "box/reapply.h"
#include "box/net.h"
#include "life/teardown.h"
#include "exec.h"
#include "life.h"
#include "outer.h"
#include "pause.h"
#include "reexec.h"
#include "relay.h"
#include "wire/record.h"

#define KILL_MS	 5000
#define SWEEP_MS 1000
#define STALE	 "ckpt.old"

/* Without processes, and back. */

static int resize(struct box *b, enum claim_size size, struct err *e)
{
	auto_json json_t *spec = NULL;
	struct claim_want want = {.id = b->id, .size = size};
	struct cgroup_root *cgroups;
	int r;

	r = box_spec(b, &spec, e);
	if (r == 0)
		r = box_cgroups(b, &cgroups, e);
	if (r < 0)
		return r;
	want.spec = spec;
	/* The dead make room for it, as they do for a new one. */
	want.bury = teardown_bury;
	want.bury_arg = cgroups;
	return claim_resize(&b->tree, &want, b->claim_fd, e);
}

/* What the dying said is not how a command ended. */
static void drop_reports(struct box *b)
{
	struct init_report rep[16];

	while (read(b->report_fd, rep, sizeof(rep)) > 0)
		;
}

static void end_processes(struct box *b, struct cgroup_root *cgroups)
{
	siginfo_t si;

	/* One that cannot die yet is dead to us all the same. */
	cgroup_kill(cgroups, b->id, NULL, KILL_MS, NULL, NULL);
	if (proc_wait_pidfd(b->init_fd, KILL_MS) == 1)
		waitid(P_PIDFD, (id_t)b->init_fd, &si, WEXITED | WNOHANG);
	drop_reports(b);
}

static void remember_use(struct box *b)
{
	struct cgroup_stats st;

	box_stats(b, &st);
	b->past_cpu_us = st.cpu_us;
	b->past_peak_bytes = st.memory_peak_bytes;
}

int disk_enter(struct box *b, struct err *e)
{
	struct cgroup_root *cgroups;
	auto_close int null = -1;
	json_t *table = NULL;
	int r;

	r = box_cgroups(b, &cgroups, e);
	if (r < 0)
		return r;
	null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null < 0)
		return err_sys(e, errno, "open /dev/null");
	r = outer_table(b, false, &table, e);
	if (r == 0)
		r = outer_keep(b, e);
	if (r < 0) {
		json_decref(table);
		return r;
	}
	b->table = table;
	remember_use(b);
	relay_cut(b);
	outer_sleep(b);
	end_processes(b, cgroups);
	dup3(null, b->init_fd, O_CLOEXEC); /* its number stays taken */
	b->init_pid = 0;
	cgroup_freezer_done(&b->freezer);
	cgroup_remove(cgroups, b->id, NULL);
	b->cpu_free = false;
	net_detach(&b->tree, b->id);
	resize(b, CLAIM_DISK_ONLY, NULL);
	b->level = BOX_DISK;
	life_set_state(b, BOX_PAUSED);
	pause_expire(b);
	return 0;
}

/* Nothing of a resume that failed is left. */
static void unmake(struct box *b)
{
	struct cgroup_root *cgroups;

	if (box_cgroups(b, &cgroups, NULL) == 0) {
		cgroup_kill(cgroups, b->id, NULL, KILL_MS, NULL, NULL);
		cgroup_remove(cgroups, b->id, NULL);
	}
	net_detach(&b->tree, b->id);
	resize(b, CLAIM_DISK_ONLY, NULL);
}

static int make_group(struct box *b, struct err *e)
{
	auto_json json_t *spec = NULL;
	struct cgroup_root *cgroups;
	struct cgroup_limits lim;
	int r;

	r = box_spec(b, &spec, e);
	if (r == 0)
		r = box_cgroups(b, &cgroups, e);
	if (r < 0)
		return r;
	lim = reapply_first(spec);
	cgroup_remove(cgroups, b->id, NULL); /* if it would not go before */
	return cgroup_make(cgroups, b->id, &lim, e);
}

static int come_back(struct box *b, struct err *e)
{
	int r = resize(b, CLAIM_FULL, e);

	if (r < 0)
		return r;
	r = make_group(b, e);
	if (r == 0)
		r = reexec_restore(b, e); /* it returns when it failed */
	unmake(b);
	return r;
}

static void on_wake(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;
	struct err e = {0};

	(void)l;
	b->waking = false;
	if (b->state != BOX_PAUSED || b->level != BOX_DISK) {
		pause_unpark(b);
		return;
	}
	if (come_back(b, &e) < 0)
		pause_refuse(b, &e);
}

void disk_wake(struct box *b)
{
	if (b->waking)
		return;
	b->waking = true;
	b->wake_timer.fn = on_wake;
	b->wake_timer.arg = b;
	loop_timer_set(b->loop, &b->wake_timer, clock_ms());
}

/* It is a new instance, and says so. */
static int next_generation(struct box *b, struct err *e)
{
	auto_json json_t *spec = NULL;
	auto_close int lock = -1;
	int r;

	/* Its policy may be changed just now. */
	r = net_lock(&b->tree, b->id, &lock, e);
	if (r == 0)
		r = box_spec(b, &spec, e);
	if (r == 0 && json_object_set_new(spec, "generation",
					  json_integer(b->generation + 1)) < 0)
		r = err_sys(e, ENOMEM, "generation");
	if (r == 0)
		r = json_write_file(b->lib_fd, "spec.json", spec, 0, e);
	if (r == 0)
		b->generation++;
	return r;
}

static void on_sweep(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;
	char path[PATH_MAX];

	(void)l;
	if (tree_path(path, NULL, "%s/sb/%s/" STALE, b->tree.lib, b->id) == 0)
		(void)!ckpt_remove(path, NULL);
}

void disk_sweep(struct box *b)
{
	b->sweep_timer.fn = on_sweep;
	b->sweep_timer.arg = b;
	loop_timer_set(b->loop, &b->sweep_timer, clock_ms() + SWEEP_MS);
}

/* Out of the way at once; the work of removing it when there is time. */
void disk_forget(struct box *b)
{
	char path[PATH_MAX];

	b->sweep_timer.arg = b;
	on_sweep(b->loop, &b->sweep_timer);
	if (renameat(b->lib_fd, "ckpt", b->lib_fd, STALE) < 0) {
		if (ckpt_dir(&b->tree, b->id, path, NULL) == 0)
			(void)!ckpt_remove(path, NULL);
		return;
	}
	disk_sweep(b);
}

static int set_nonblock(struct box *b, const struct outer *o, void *arg)
{
	(void)b;
	(void)arg;
	if (o->kind != OUTER_PID)
		fcntl(o->fd, F_SETFL, O_NONBLOCK);
	return 0;
}

static void forget_table(struct box *b)
{
	outer_let_go(b);
	json_decref(b->table);
	b->table = NULL;
}

void disk_back(struct box *b, bool fork)
{
	struct err e = {0};
	int r = 0;

	forget_table(b);
	(void)outer_each(b, set_nonblock, NULL);
	b->level = BOX_FREEZE;
	b->leaves_frozen = true;
	/* The new group counts from zero. */
	b->oom_seen = 0;
	for (struct exec *x = b->execs; x; x = x->next)
		x->oom_before = 0;
	if (!fork) {
		r = next_generation(b, &e);
		disk_forget(b);
	}
	if (r == 0)
		r = pause_thaw(b, &e);
	if (r < 0)
		pause_refuse(b, &e);
	else
		pause_unpark(b);
}

void disk_failed(struct box *b, const json_t *error)
{
	auto_json json_t *rec = json_pack("{s:b, s:O}", "ok", 0, "error",
					  error);
	struct err e = {0};

	if (!rec || record_to_err(rec, &e) >= 0)
		err_set(&e, -EIO, "internal",
			"the sandbox did not come back, nobody says why");
	unmake(b);
	pause_refuse(b, &e);
}
