/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/engine.h"
#include "life/recover.h"
#include "doctor.h"
#include "sys/reclaim.h"

/*
 * What pauses rest on: the checkpoint engine, swap, and sandboxes on the disk
 * that wait for a supervisor.
 */

static void check_engine(struct doctor *d)
{
	struct engine en = {0};
	struct err e = {0};

	if (engine_get(&d->tree, &en, &e) == 0) {
		d_feature(d, "checkpoint", true);
		d_text(d, "checkpoint_engine", en.path);
		d_text(d, "checkpoint_engine_version", en.version);
		return;
	}
	d_feature(d, "checkpoint", false);
	d_text(d, "checkpoint_why", e.msg);
	d_finding(d, "checkpoint",
		  !strcmp(e.code, "configuration") ? SEV_ERROR : SEV_INFO,
		  !strcmp(e.code, "unsupported") ? "make deps" : NULL,
		  "no pause to disk, no fork with memory: %s", e.msg);
}

/* Half of the memory: what compresses 2:1 frees a quarter. */
static void offer_swap(struct doctor *d, const struct reclaim_node *n)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
	long long gib = (long long)pages * page / 2 >> 30;
	bool loaded = access("/sys/class/zram-control", F_OK) == 0 ||
		      access("/sys/block/zram0", F_OK) == 0;
	char fix[512];

	if (gib < 1)
		gib = 1;
	/* udev holds a new device for a moment, and it cannot be set up then */
	if (n->zram_can)
		snprintf(fix, sizeof(fix),
			 "%sdev=$(zramctl --find --algorithm lz4 --size %lldG) "
			 "&& mkswap $dev && swapon -p 100 $dev",
			 loaded ? "" : "modprobe zram; udevadm settle; ", gib);
	else
		snprintf(fix, sizeof(fix),
			 "fallocate -l %lldG /swapfile && chmod 600 /swapfile "
			 "&& mkswap /swapfile && swapon /swapfile",
			 gib);
	d_finding(d, "swap", SEV_INFO, fix,
		  "no swap: a paused sandbox keeps its memory%s",
		  n->zram_can ? "; zram would compress it" : "");
}

static void check_memory(struct doctor *d)
{
	struct reclaim_node n;
	struct err e = {0};

	if (reclaim_node(&n, &e) < 0) {
		d_finding(d, "swap", SEV_WARNING, NULL, "%s", e.msg);
		return;
	}
	d_feature(d, "swap", n.swap_total_bytes > 0);
	d_feature(d, "zram", n.zram_used);
	d_feature(d, "ksm", n.ksm_runs);
	d_feature(d, "ksm_possible", n.ksm_can);
	d_value(d, "swap_mb", (int64_t)(n.swap_total_bytes >> 20));
	d_value(d, "swap_free_mb", (int64_t)(n.swap_free_bytes >> 20));
	if (n.ksm_runs)
		d_value(d, "ksm_saved_mb", (int64_t)(n.ksm_saved_bytes >> 20));
	if (n.swap_total_bytes == 0)
		offer_swap(d, &n);
}

void check_pausing(struct doctor *d)
{
	check_engine(d);
	check_memory(d);
}

/* --- those that wait ----------------------------------------------------- */

static int count_one(void *arg, const char *id, const json_t *spec,
		     struct err *e)
{
	int64_t *n = arg;

	(void)id;
	(void)spec;
	(void)e;
	++*n;
	return 0;
}

void check_waiting(struct doctor *d)
{
	struct err e = {0};
	int64_t n = 0;

	if (recover_each(&d->tree, count_one, &n, &e) < 0) {
		d_finding(d, "recovery", SEV_WARNING, NULL, "%s", e.msg);
		return;
	}
	d_value(d, "recovery", n);
	if (n > 0)
		d_finding(d, "recovery", SEV_WARNING, "dsec-doctor --fix",
			  "%lld sandboxes are paused to disk and have no "
			  "supervisor any more: the next program that names "
			  "one recovers it, --fix all of them",
			  (long long)n);
}

struct fixing {
	struct doctor *d;
	struct cgroup_root *cgroups;
};

static int fix_one(void *arg, const char *id, const json_t *spec, struct err *e)
{
	struct fixing *f = arg;
	struct err why = {0};
	const char *name = json_str(spec, "name");

	(void)e;
	if (recover(&f->d->tree, f->cgroups, id, &why) == 0)
		d_fixed(f->d, "recovered sandbox %s%s%s: it is paused to disk",
			id, *name ? ", " : "", name);
	else
		d_finding(f->d, "recovery", SEV_WARNING, NULL,
			  "%s; its checkpoint is kept", why.msg);
	return 0;
}

int fix_waiting(struct doctor *d, struct cgroup_root *cgroups, struct err *e)
{
	struct fixing f = {d, cgroups};

	return recover_each(&d->tree, fix_one, &f, e);
}
