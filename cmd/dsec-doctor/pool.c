/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/proc.h"
#include "doctor.h"
#include "sys/pool.h"

/* What mkfs.btrfs takes, and some room. */
#define POOL_MIN_MB   128
#define TOOL_LIMIT_MS 120000

void check_pool(struct doctor *d)
{
	auto_pool struct pool p = POOL_INIT;
	char fix[PATH_MAX + 64], image[PATH_MAX];
	enum pool_quota quota;

	if (access(d->tree.lib, F_OK) < 0 ||
	    pool_open(d->tree.lib, &p, NULL) < 0)
		return;
	quota = pool_quota(&p);
	d_word(d, "pool", pool_kind_name(p.kind));
	d_word(d, "pool_quota", pool_quota_name(quota));
	if (p.kind == POOL_BTRFS && quota == POOL_QUOTA_NONE) {
		snprintf(fix, sizeof(fix),
			 "btrfs quota enable --simple %s/pool", d->tree.lib);
		d_finding(d, "pool_quota", SEV_WARNING, fix,
			  "quota is off: disk limits cannot be enforced");
	}
	if (p.kind == POOL_BTRFS)
		return;
	if (tree_path(image, NULL, "%s/pool.img", d->tree.lib) == 0 &&
	    access(image, F_OK) == 0)
		d_finding(d, "pool", SEV_WARNING, "dsec-doctor --fix",
			  "%s is not mounted", image);
	else
		d_finding(d, "pool", SEV_WARNING,
			  "dsec-doctor --fix --pool-size 20G",
			  "writable layers are plain directories: no disk "
			  "limits, and copies take time");
}

static int tool(struct err *e, const char *const *argv)
{
	int r = proc_run(argv, -1, -1, TOOL_LIMIT_MS, e);

	if (r > 0)
		return err_set(e, -EIO, "system", "%s failed with status %d",
			       argv[0], r);
	return r;
}

static int room_for(const struct doctor *d, int64_t size_mb, struct err *e)
{
	struct statvfs st;
	uint64_t free_mb;

	if (statvfs(d->tree.lib, &st) < 0)
		return err_sys(e, errno, "'%s'", d->tree.lib);
	free_mb = (uint64_t)st.f_bavail * st.f_frsize / (1024 * 1024);
	if (size_mb < POOL_MIN_MB)
		return err_set(e, -EINVAL, "bad_value",
			       "a pool of %lld MiB: at least %d",
			       (long long)size_mb, POOL_MIN_MB);
	if ((uint64_t)size_mb > free_mb)
		return err_set(e, -ENOSPC, "no_space",
			       "a pool of %lld MiB, and %s has %llu left",
			       (long long)size_mb, d->tree.lib,
			       (unsigned long long)free_mb);
	return 0;
}

/* Whole or not there: a file system that is half made is not left. */
static int make_image(const struct doctor *d, const char *image,
		      int64_t size_mb, struct err *e)
{
	char tmp[PATH_MAX + 8];
	auto_close int fd = -1;
	int r;

	r = room_for(d, size_mb, e);
	if (r < 0)
		return r;
	snprintf(tmp, sizeof(tmp), "%s.new", image);
	unlink(tmp);
	fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(e, errno, "create '%s'", tmp);
	if (ftruncate(fd, (off_t)size_mb * 1024 * 1024) < 0)
		r = err_sys(e, errno, "size of '%s'", tmp);
	if (r == 0)
		r = tool(e, (const char *[]){"mkfs.btrfs", "-q", tmp, NULL});
	if (r == -ENOENT)
		err_set(e, r, "configuration",
			"mkfs.btrfs is not installed (package btrfs-progs)");
	if (r == 0 && rename(tmp, image) < 0)
		r = err_sys(e, errno, "rename '%s'", tmp);
	if (r < 0)
		unlink(tmp);
	return r;
}

static int mount_image(const char *image, const char *at, struct err *e)
{
	if (mkdir(at, 0700) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '%s'", at);
	return tool(e, (const char *[]){"mount", "-t", "btrfs", "-o",
					"loop,noatime,nosuid,nodev", image, at,
					NULL});
}

static int quota_on(struct doctor *d, struct err *e)
{
	auto_pool struct pool p = POOL_INIT;
	int r;

	r = pool_open(d->tree.lib, &p, e);
	if (r < 0 || p.kind != POOL_BTRFS || pool_quota(&p) != POOL_QUOTA_NONE)
		return r;
	r = pool_quota_enable(&p, e);
	if (r == 0)
		d_fixed(d, "turned on the pool's quota (%s)",
			pool_quota_name(pool_quota(&p)));
	return r;
}

static bool is_btrfs(const struct doctor *d)
{
	auto_pool struct pool p = POOL_INIT;

	return pool_open(d->tree.lib, &p, NULL) == 0 && p.kind == POOL_BTRFS;
}

int fix_pool(struct doctor *d, int64_t size_mb, struct err *e)
{
	char image[PATH_MAX], at[PATH_MAX];
	int r;

	r = tree_path(image, e, "%s/pool.img", d->tree.lib);
	if (r == 0)
		r = tree_path(at, e, "%s/pool", d->tree.lib);
	if (r < 0 || is_btrfs(d))
		return r < 0 ? r : quota_on(d, e);
	if (access(image, F_OK) < 0) {
		if (size_mb <= 0)
			return 0; /* not asked for */
		r = make_image(d, image, size_mb, e);
		if (r < 0)
			return r;
		d_fixed(d, "made %s, %lld MiB", image, (long long)size_mb);
	}
	r = mount_image(image, at, e);
	if (r < 0)
		return r;
	d_fixed(d, "mounted %s on %s", image, at);
	return quota_on(d, e);
}
