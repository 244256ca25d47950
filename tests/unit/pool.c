/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/proc.h"
#include "sys/pool.h"

#define ID  "abcdefghijklmnopqrst"
#define MIB (1024 * 1024)

static bool there(const char *dir, const char *name)
{
	char path[PATH_MAX];
	struct stat st;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return lstat(path, &st) == 0;
}

/* Write ${mib} MiB below sb/<id>/${part}; the errno that ended it, or 0. */
static int fill(const char *lib, const char *part, int mib)
{
	static char block[MIB];
	char path[PATH_MAX];
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "%s/sb/" ID "/%s/fill", lib, part);
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	for (int i = 0; i < mib; i++) {
		ssize_t n = write(fd, block, sizeof(block));

		if (n != (ssize_t)sizeof(block))
			return n < 0 ? errno : EDQUOT;
	}
	return fsync(fd) < 0 ? errno : 0;
}

static void check_layer(const struct pool *p, const char *lib)
{
	struct err e = {0};

	is_int(pool_make(p, ID, 0, &e), 0, "a layer");
	ok(there(lib, "sb/" ID "/upper/."), "it has upper");
	ok(there(lib, "sb/" ID "/work/."), "it has work");
	ok(there(lib, "sb/" ID "/out/."), "it has out");
	is_int(fill(lib, "upper", 1), 0, "it takes data");
	is_int(pool_make(p, ID, 0, &e), -EEXIST, "once only");
	ok(there(lib, "sb/" ID "/upper/fill"), "the other's data is left");
	is_int(pool_remove(p, ID, &e), 0, "it is removed");
	ok(!there(lib, "sb/" ID "/upper"), "upper is gone");
	ok(there(lib, "sb/" ID), "sb/<id> is the caller's");
	is_int(pool_remove(p, ID, &e), 0, "absent is fine");
}

static void check_directory(const char *lib)
{
	auto_pool struct pool p = POOL_INIT;
	struct err e = {0};

	is_int(pool_open(lib, &p, &e), 0, "open");
	is_str(pool_kind_name(p.kind), "directory", "plain directories");
	check_layer(&p, lib);
	is_int(pool_make(&p, ID, MIB, &e), -EOPNOTSUPP, "no limit here");
	is_str(e.code, "unsupported", "the code says so");
	ok(strstr(e.msg, "dsec-doctor --fix --pool-size") != NULL,
	   "the way out is told");
	is_str(pool_quota_name(pool_quota(&p)), "none", "no quota");
}

static void check_limit(const struct pool *p, const char *lib)
{
	struct err e = {0};
	uint64_t used = 0;

	is_int(pool_quota_enable(p, &e), 0, "quota goes on");
	is_int(pool_quota_enable(p, &e), 0, "twice");
	ok(pool_quota(p) != POOL_QUOTA_NONE, "it is on (%s)",
	   pool_quota_name(pool_quota(p)));
	is_int(pool_make(p, ID, 16 * MIB, &e), 0, "a layer with a limit");
	is_int(fill(lib, "upper", 8), 0, "8 of 16 MiB fit");
	is_int(pool_usage(p, ID, &used, &e), 0, "usage is known");
	ok(used >= 8 * MIB && used < 10 * MIB, "and right: %llu",
	   (unsigned long long)used);
	is_int(fill(lib, "out", 16), EDQUOT, "16 more do not: EDQUOT");
	is_int(pool_set_limit(p, ID, 0, &e), 0, "the limit is lifted");
	is_int(fill(lib, "out", 16), 0, "now they do");
	is_int(pool_remove(p, ID, &e), 0, "it is removed");
	ok(!there(lib, "pool/" ID), "with its subvolume");
}

static void check_refused_limit(const struct pool *p, const char *lib)
{
	struct err e = {0};

	is_int(pool_make(p, ID, MIB, &e), -EOPNOTSUPP, "quota off: no limit");
	is_str(e.code, "unsupported", "the code says so");
	ok(!there(lib, "pool/" ID), "no subvolume is left");
	ok(!there(lib, "sb/" ID "/upper"), "no link is left");
}

static void check_btrfs(const char *lib)
{
	auto_pool struct pool p = POOL_INIT;
	struct err e = {0};

	is_int(pool_open(lib, &p, &e), 0, "open");
	is_str(pool_kind_name(p.kind), "btrfs", "btrfs");
	check_layer(&p, lib);
	check_refused_limit(&p, lib);
	check_limit(&p, lib);
}

static int tool(const char *const *argv)
{
	return proc_run(argv, -1, -1, 30000, NULL);
}

/* NULL, or why there is no btrfs to test with. */
static const char *mount_btrfs(const char *dir)
{
	char image[PATH_MAX], at[PATH_MAX];
	auto_close int fd = -1;

	if (geteuid() != 0)
		return "needs root";
	snprintf(image, sizeof(image), "%s/image", dir);
	snprintf(at, sizeof(at), "%s/lib/pool", dir);
	fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, 200 * MIB) < 0 || mkdir(at, 0700) < 0)
		return "no room for a file system";
	if (tool((const char *[]){"mkfs.btrfs", "-q", image, NULL}) != 0)
		return "needs mkfs.btrfs";
	if (tool((const char *[]){"mount", "-o", "loop", image, at, NULL}) != 0)
		return "cannot mount btrfs from a loop device";
	return NULL;
}

int main(void)
{
	char dir[] = "/tmp/dsec-pool.XXXXXX", lib[64], at[80];
	const char *why;
	struct err e = {0};

	if (!mkdtemp(dir))
		return 1;
	snprintf(lib, sizeof(lib), "%s/lib", dir);
	snprintf(at, sizeof(at), "%s/pool", lib);
	if (mkdir(lib, 0700) < 0)
		return 1;
	check_directory(lib);
	why = mount_btrfs(dir);
	if (why)
		skip("layers on btrfs", why);
	else
		check_btrfs(lib);
	umount2(at, 0);
	is_int(chdir("/tmp"), 0, "at /tmp");
	is_int(fd_remove_tree(AT_FDCWD, strrchr(dir, '/') + 1, &e), 0,
	       "all is removed");
	return tap_done();
}
