/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "ckpt/snap.h"
#include "box/claim.h"
#include "life/teardown.h"
#include "doctor.h"
#include "sys/pool.h"

#define RETAIN_S 86400

/* --- records of the dead ------------------------------------------------- */

static int64_t retain_s(void)
{
	const char *s = getenv("DSEC_RETAIN_S");

	return s && *s && s[strspn(s, "0123456789")] == '\0' ? atoll(s)
							     : RETAIN_S;
}

/* A directory holds an hour and is named by it: it goes as a whole. */
static bool too_old(const char *hour)
{
	struct tm tm = {0};
	const char *end = strptime(hour, "%Y%m%d%H", &tm);

	return end && !*end &&
	       (int64_t)timegm(&tm) + 3600 + retain_s() <
		       (int64_t)(clock_wall_ms() / 1000);
}

static int prune(struct doctor *d, struct err *e)
{
	auto_dir DIR *dir = NULL;
	const struct dirent *de;
	char path[PATH_MAX];
	unsigned n = 0;
	int r;

	r = tree_path(path, e, "%s/dead", d->tree.lib);
	if (r < 0)
		return r;
	dir = opendir(path);
	while (r == 0 && dir && (de = readdir(dir))) {
		if (!too_old(de->d_name))
			continue;
		r = fd_remove_tree(dirfd(dir), de->d_name, e);
		n += r == 0;
	}
	if (n > 0)
		d_fixed(d, "dropped %u hours of records of ended sandboxes", n);
	return r;
}

/* --- what belongs to nobody ---------------------------------------------- */

void check_dead(struct doctor *d)
{
	auto_json json_t *list = NULL;
	struct err e = {0};

	check_layer_mounts(d);
	check_waiting(d);
	if (leaks(d, &list, &e) < 0) {
		d_finding(d, "leaks", SEV_WARNING, NULL, "%s", e.msg);
		return;
	}
	d_value(d, "leaks", (int64_t)json_array_size(list));
	if (json_array_size(list) > 0)
		d_finding(d, "leaks", SEV_WARNING, "dsec-doctor --fix",
			  "%zu things belong to no sandbox: dsec-doctor "
			  "--leaks lists them",
			  json_array_size(list));
}

static int remove_path(const char *path, struct err *e)
{
	auto_close int dir = -1;
	const char *base = strrchr(path, '/');
	char parent[PATH_MAX];

	snprintf(parent, sizeof(parent), "%.*s", (int)(base - path), path);
	dir = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", parent);
	return fd_remove_tree(dir, base + 1, e);
}

/* One that was launched leaves an end. */
static int bury_layer(struct doctor *d, const struct cgroup_root *cgroups,
		      const char *id, struct err *e)
{
	auto_json json_t *why = NULL;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/spec.json", d->tree.lib, id);
	if (r < 0)
		return r;
	if (access(path, F_OK) < 0)
		return teardown_layer(&d->tree, cgroups, id, e);
	if (!teardown_lost(&d->tree, id, &why))
		return 0; /* somebody brings it back, or saw to it */
	r = teardown(&d->tree, cgroups, id, why, e);
	if (r == 0)
		d_fixed(d,
			"recorded sandbox %s as lost with the node: it was not "
			"paused to disk",
			id);
	return r;
}

/* A checkpoint that was begun and that nobody goes on with. */
static int drop_half(struct doctor *d, const char *id, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = ckpt_dir(&d->tree, id, path, e);
	if (r == 0)
		ckpt_discard(path);
	return r;
}

static int sweep_snapshots(struct doctor *d, struct err *e)
{
	auto_pool struct pool p = POOL_INIT;
	int r;

	r = pool_open(d->tree.lib, &p, e);
	return r < 0 ? r : snap_sweep(&d->tree, &p, NULL, e);
}

static int remove_one(struct doctor *d, const struct cgroup_root *cgroups,
		      const char *kind, const json_t *leak, struct err *e)
{
	const char *path = json_str(leak, "path");
	const char *id = json_str(leak, "sandbox");

	/* Mounts first: nothing is ever removed through one. */
	if (!strcmp(kind, "mount"))
		return umount2(path, MNT_DETACH) < 0
			       ? err_sys(e, errno, "unmount '%s'", path)
			       : 0;
	if (!strcmp(kind, "process"))
		return kill((pid_t)strtol(strrchr(path, '/') + 1, NULL, 10),
			    SIGKILL) < 0 &&
				       errno != ESRCH
			       ? err_sys(e, errno, "kill '%s'", path)
			       : 0;
	if (!strcmp(kind, "cgroup"))
		return cgroup_kill(cgroups, id, NULL, 5000, NULL, e) < 0
			       ? -EBUSY
			       : cgroup_remove(cgroups, id, e);
	if (!strcmp(kind, "layer"))
		return bury_layer(d, cgroups, id, e);
	if (!strcmp(kind, "checkpoint"))
		return drop_half(d, id, e);
	if (!strcmp(kind, "snapshot"))
		return sweep_snapshots(d, e);
	if (!strcmp(kind, "claim"))
		return 0; /* buried by the sweep */
	return remove_path(path, e);
}

static int remove_all(struct doctor *d, const json_t *list, struct err *e)
{
	/* What others stand on comes last. */
	static const char *const kinds[] = {"process",	  "mount",    "cgroup",
					    "checkpoint", "snapshot", "layer",
					    "name",	  "uid",      "task",
					    "run",	  "file"};
	struct cgroup_root *cgroups = NULL;
	int r, first = 0;

	r = cgroup_open(d->tree.cgroup, &cgroups, e);
	if (r < 0)
		return r;
	for (size_t k = 0; k < array_len(kinds); k++)
		for (size_t i = 0; i < json_array_size(list); i++) {
			const json_t *leak = json_array_get(list, i);

			if (strcmp(json_str(leak, "leak"), kinds[k]))
				continue;
			r = remove_one(d, cgroups, kinds[k], leak,
				       first ? NULL : e);
			if (r == 0)
				d_fixed(d, "removed %s %s", kinds[k],
					json_str(leak, "path"));
			else if (first == 0)
				first = r;
		}
	cgroup_close(cgroups);
	return first;
}

int fix_dead(struct doctor *d, struct err *e)
{
	auto_json json_t *list = NULL;
	struct cgroup_root *cgroups = NULL;
	unsigned buried = 0;
	int r;

	/* Stale mounts first: a burial does not go through one. */
	r = leaks(d, &list, e);
	if (r == 0)
		r = remove_all(d, list, e);
	if (r == 0)
		r = cgroup_open(d->tree.cgroup, &cgroups, e);
	if (r < 0)
		return r;
	r = claim_sweep(&d->tree, teardown_bury, cgroups, &buried, e);
	if (r == 0)
		r = fix_networks(d, e);
	if (r == 0)
		r = fix_waiting(d, cgroups, e);
	cgroup_close(cgroups);
	if (buried > 0)
		d_fixed(d, "removed %u sandboxes whose supervisor had died",
			buried);
	if (r == 0)
		r = prune(d, e);
	return r < 0 ? r : fix_layer_mounts(d, e);
}

/* --- what the node prepared ---------------------------------------------- */

/* The mount point that was mounted last of those under ${top}. */
static bool last_mount(const char *top, char *at)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, here[PATH_MAX];
	size_t size = 0, n = strlen(top);
	bool any = false;

	while (f && getline(&line, &size, f) > 0) {
		if (sscanf(line, "%*s %*s %*s %*s %4095s", here) != 1 ||
		    strncmp(here, top, n) != 0 || here[n] != '/')
			continue;
		snprintf(at, PATH_MAX, "%s", here);
		any = true;
	}
	free(line);
	if (f)
		fclose(f);
	return any;
}

int unmount_prepared(struct doctor *d, struct err *e)
{
	char top[PATH_MAX], at[PATH_MAX];
	int r;

	r = tree_path(top, e, "%s/mnt", d->tree.run);
	while (r == 0 && last_mount(top, at)) {
		/* Sandboxes hold copies of their own: nobody is disturbed. */
		if (umount2(at, MNT_DETACH) < 0)
			return err_sys(e, errno, "unmount '%s'", at);
		d_fixed(d, "unmounted %s", at);
		if (rmdir(at) < 0 && errno != ENOENT && errno != ENOTDIR)
			return err_sys(e, errno, "remove '%s'", at);
	}
	return r;
}
