/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box.h"
#include "state.h"

#define QUIET_MS 1000 /* of quiet before things are let go */

uint64_t box_now(const struct box *b)
{
	uint64_t now = b->state == BOX_PAUSED ? b->paused_at : clock_ms();

	return now - b->paused_total;
}

uint64_t box_real(const struct box *b, uint64_t at)
{
	return at + b->paused_total;
}

int box_cgroups(struct box *b, struct cgroup_root **ret, struct err *e)
{
	int r;

	if (!b->cgroups) {
		r = cgroup_open(b->tree.cgroup, &b->cgroups, e);
		if (r < 0)
			return r;
	}
	*ret = b->cgroups;
	return 0;
}

int box_freeze(struct box *b, bool on, unsigned timeout_ms, struct err *e)
{
	struct cgroup_root *cgroups;
	int r;

	if (b->freezer.file < 0) {
		r = box_cgroups(b, &cgroups, e);
		if (r == 0)
			r = cgroup_freezer_open(cgroups, b->id, &b->freezer, e);
		if (r < 0)
			return r;
	}
	r = cgroup_freezer_set(&b->freezer, on, timeout_ms, e);
	if (r < 0) /* whatever it is, it is looked for again */
		cgroup_freezer_done(&b->freezer);
	return r;
}

int box_profile(struct box *b, struct err *e)
{
	auto_json json_t *spec = NULL;
	int r;

	if (b->profile.name[0])
		return 0;
	r = box_spec(b, &spec, e);
	return r < 0 ? r
		     : profile_load(json_str(spec, "profile"), &b->profile, e);
}

int box_null(struct box *b, struct err *e)
{
	if (b->null_fd >= 0)
		return 0;
	b->null_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	return b->null_fd < 0 ? err_sys(e, errno, "open /dev/null") : 0;
}

int box_spec(struct box *b, json_t **ret, struct err *e)
{
	return json_read_file(b->lib_fd, "spec.json", ret, e);
}

int box_root(struct box *b, struct err *e)
{
	char path[40];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/root", b->init_pid);
	fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_set(e, -ESRCH, "stopped", "the sandbox has ended");
	return fd;
}

void box_stats(struct box *b, struct cgroup_stats *ret)
{
	struct cgroup_root *cgroups;

	*ret = (struct cgroup_stats){0};
	if (b->init_pid && box_cgroups(b, &cgroups, NULL) == 0)
		cgroup_stats(cgroups, b->id, ret, NULL);
	ret->cpu_us += b->past_cpu_us;
	if (ret->memory_peak_bytes < b->past_peak_bytes)
		ret->memory_peak_bytes = b->past_peak_bytes;
}

uint64_t box_oom_kills(struct box *b)
{
	struct cgroup_root *cgroups;
	uint64_t kills = 0;

	if (box_cgroups(b, &cgroups, NULL) == 0)
		cgroup_oom_kills(cgroups, b->id, &kills, NULL);
	return kills;
}

/* The pages below us that a deep call touched, and the heap's. */
static void give_back(void)
{
	char here;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t top = ((uintptr_t)&here & ~(page - 1)) - page;

	madvise((void *)(top - 32 * page), 32 * page, MADV_DONTNEED);
	malloc_trim(0);
}

static void on_quiet(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	if (b->job || b->waking || b->measure || b->nexecs > 0 ||
	    b->nconns > 0 || b->nsessions > 0 || b->nleft > 0) {
		loop_timer_set(l, t, clock_ms() + QUIET_MS);
		return;
	}
	cgroup_close(b->cgroups);
	b->cgroups = NULL;
	cgroup_freezer_done(&b->freezer);
	state_close(b);
	profile_done(&b->profile);
	journal_free(b->steps);
	journal_free(b->keys);
	b->steps = b->keys = NULL;
	if (b->null_fd >= 0)
		fd_close(steal_fd(&b->null_fd));
	give_back();
}

void box_busy(struct box *b)
{
	b->trim_timer.fn = on_quiet;
	b->trim_timer.arg = b;
	loop_timer_set(b->loop, &b->trim_timer, clock_ms() + QUIET_MS);
}
