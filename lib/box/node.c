/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "box/node.h"
#include "box/profile_file.h"

#define INIT_SIZE_MAX (64 * 1024)

static const struct {
	const char *name;
	unsigned major, minor;
} devices[] = {
	{"null", 1, 3},	  {"zero", 1, 5},    {"full", 1, 7},
	{"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
};

static const struct {
	const char *name, *target;
} links[] = {
	{"ptmx", "pts/ptmx"},	       {"fd", "/proc/self/fd"},
	{"stdin", "/proc/self/fd/0"},  {"stdout", "/proc/self/fd/1"},
	{"stderr", "/proc/self/fd/2"},
};

static int put_init(int dir, const char *data, size_t len, struct err *e)
{
	auto_close int fd = -1;
	int r;

	fd = openat(dir, "dsec-init", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0100);
	if (fd < 0)
		return err_sys(e, errno, "create dsec-init");
	r = fd_write_all(fd, data, len, e);
	if (r == 0 && fchmod(fd, 0555) < 0)
		r = err_sys(e, errno, "mode of dsec-init");
	return r;
}

static int fill(int dir, struct err *e)
{
	for (size_t i = 0; i < array_len(devices); i++)
		if (mknodat(dir, devices[i].name, S_IFCHR | 0666,
			    makedev(devices[i].major, devices[i].minor)) < 0 ||
		    fchmodat(dir, devices[i].name, 0666, 0) < 0)
			return err_set(e, -errno, "configuration",
				       "make the device %s: %m",
				       devices[i].name);
	for (size_t i = 0; i < array_len(links); i++)
		if (symlinkat(links[i].target, dir, links[i].name) < 0)
			return err_sys(e, errno, "link %s", links[i].name);
	if (mkdirat(dir, "pts", 0755) < 0 || mkdirat(dir, "shm", 0755) < 0 ||
	    mkdirat(dir, ".empty", 0555) < 0)
		return err_sys(e, errno, "make directories");
	return 0;
}

static int build(const char *path, const char *init, size_t len, struct err *e)
{
	auto_close int dir = -1;
	int r;

	/* One that was killed half way, or a stale mount: start afresh. */
	while (umount2(path, MNT_DETACH) == 0)
		;
	if (mkdir(path, 0755) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '%s'", path);
	if (mount("dsec-dev", path, "tmpfs", MS_NOSUID,
		  "mode=755,size=256k,nr_inodes=64") < 0)
		return err_sys(e, errno, "mount a tmpfs on '%s'", path);
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = fill(dir, e);
	/* Last: its presence says that all is there. */
	if (r == 0)
		r = put_init(dir, init, len, e);
	if (r == 0 &&
	    mount(NULL, path, NULL,
		  MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID, NULL) < 0)
		r = err_sys(e, errno, "make '%s' read-only", path);
	if (r < 0)
		umount2(path, MNT_DETACH);
	return r;
}

/* Which dsec-init the template holds: one that was replaced gets a new one. */
static int template_path(const struct tree *t, const char *file, char *path,
			 struct err *e)
{
	struct stat st;

	if (stat(file, &st) < 0)
		return err_sys(e, errno, "'%s'", file);
	return tree_path(path, e, "%s/mnt/dev-r-%llx-%llx-%llx", t->run,
			 (unsigned long long)st.st_size,
			 (unsigned long long)st.st_mtim.tv_sec,
			 (unsigned long long)st.st_mtim.tv_nsec);
}

/* The lock is on $DSEC_RUN/mnt; who comes second finds it made. */
static int make_template(const struct tree *t, const char *init, size_t len,
			 const char *path, struct err *e)
{
	char mnt[PATH_MAX], sign[PATH_MAX + 16];
	auto_close int lock = -1;
	mode_t mask;
	int r;

	snprintf(sign, sizeof(sign), "%s/dsec-init", path);
	if (access(sign, F_OK) == 0)
		return 0;
	r = tree_path(mnt, e, "%s/mnt", t->run);
	if (r < 0)
		return r;
	lock = open(mnt, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (lock < 0)
		return err_sys(e, errno, "open '%s'", mnt);
	if (flock(lock, LOCK_EX) < 0)
		return err_sys(e, errno, "lock '%s'", mnt);
	if (access(sign, F_OK) == 0)
		return 0;
	mask = umask(0);
	r = build(path, init, len, e);
	umask(mask);
	return r;
}

int node_dev(const struct tree *t, char *path, struct err *e)
{
	char file[PATH_MAX], sign[PATH_MAX + 16];
	auto_free char *init = NULL;
	size_t len;
	int r;

	r = proc_libexec("dsec-init", file, sizeof(file), e);
	if (r == 0)
		r = template_path(t, file, path, e);
	if (r < 0)
		return r;
	snprintf(sign, sizeof(sign), "%s/dsec-init", path);
	if (access(sign, F_OK) == 0)
		return 0;
	r = fd_read_file(AT_FDCWD, file, INIT_SIZE_MAX, &init, &len, e);
	return r < 0 ? r : make_template(t, init, len, path, e);
}

int node_dev_with(const struct tree *t, const char *init, char *path,
		  struct err *e)
{
	auto_free char *theirs = NULL, *ours = NULL;
	char file[PATH_MAX + 16];
	size_t n, m;
	int r;

	r = fd_read_file(AT_FDCWD, init, INIT_SIZE_MAX, &theirs, &n, e);
	if (r == 0)
		r = node_dev(t, path, e);
	if (r < 0)
		return r;
	snprintf(file, sizeof(file), "%s/dsec-init", path);
	r = fd_read_file(AT_FDCWD, file, INIT_SIZE_MAX, &ours, &m, e);
	if (r < 0 || (n == m && !memcmp(theirs, ours, n)))
		return r;
	r = tree_path(path, e, "%s/mnt/dev-r-%zx-%llx", t->run, n,
		      (unsigned long long)profile_digest(theirs, n));
	return r < 0 ? r : make_template(t, theirs, n, path, e);
}
