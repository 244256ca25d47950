/* SPDX-License-Identifier: Apache-2.0 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/proc.h"
#include "box/profile.h"
#include "doctor.h"

/* What a launch executes; all but the first are not for people. */
static const char *const programs[] = {"dsec-box", "dsec-init", "dsec-file"};
static const char *const profiles[] = {"default", "sealed", "nested"};

/* An executable without an interpreter needs nothing else to run. */
static int is_static(const char *path, bool *ret)
{
	Elf64_Ehdr head;
	Elf64_Phdr ph;
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) ||
	    memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 ||
	    head.e_phentsize != sizeof(ph))
		return -ENOEXEC;
	*ret = true;
	for (unsigned i = 0; i < head.e_phnum; i++) {
		if (pread(fd, &ph, sizeof(ph),
			  (off_t)(head.e_phoff + i * sizeof(ph))) !=
		    (ssize_t)sizeof(ph))
			return -ENOEXEC;
		if (ph.p_type == PT_INTERP)
			*ret = false;
	}
	return 0;
}

static void check_programs(struct doctor *d)
{
	char path[PATH_MAX];

	for (size_t i = 0; i < array_len(programs); i++) {
		struct err e = {0};
		bool fixed = false;
		int r = proc_libexec(programs[i], path, sizeof(path), &e);

		if (r == 0)
			r = is_static(path, &fixed);
		if (r < 0)
			d_finding(d, programs[i], SEV_ERROR, "make install",
				  "the program is missing or damaged: %s",
				  strerror(-r));
		else if (!fixed)
			d_finding(d, programs[i], SEV_ERROR, "make install",
				  "is linked dynamically: it must run where "
				  "there are no libraries");
	}
}

static void check_profiles(struct doctor *d)
{
	for (size_t i = 0; i < array_len(profiles); i++) {
		struct profile p = {.blob = NULL};
		struct err e = {0};

		if (profile_load(profiles[i], &p, &e) < 0)
			d_finding(d, "profile", SEV_ERROR, "make install",
				  "profile '%s': %s", profiles[i], e.msg);
		else
			profile_done(&p);
	}
}

static void check_space(struct doctor *d, const char *path)
{
	struct statvfs st;
	uint64_t free_mb;

	if (statvfs(path, &st) < 0 || st.f_blocks == 0)
		return;
	free_mb = (uint64_t)st.f_bavail * st.f_frsize / (1024 * 1024);
	d_value(d, "library_free_mb", (int64_t)free_mb);
	if (st.f_bavail < st.f_blocks / 20)
		d_finding(d, "library_free_mb", SEV_WARNING, NULL,
			  "%s has %llu MiB left, less than a twentieth", path,
			  (unsigned long long)free_mb);
	if (st.f_files && st.f_favail < st.f_files / 50)
		d_finding(d, "library_inodes", SEV_WARNING, NULL,
			  "%s has %llu inodes left", path,
			  (unsigned long long)st.f_favail);
}

/* Who may look into it, may connect to supervisors and read outputs. */
static void check_private(struct doctor *d, const char *path, bool *ret_there)
{
	struct stat st;
	char fix[PATH_MAX + 32];

	*ret_there = lstat(path, &st) == 0;
	if (!*ret_there) {
		d_finding(d, "directories", SEV_WARNING, "dsec-doctor --fix",
			  "%s is not there yet", path);
		return;
	}
	snprintf(fix, sizeof(fix), "chown root:root %s && chmod 700 %s", path,
		 path);
	if (!S_ISDIR(st.st_mode))
		d_finding(d, "directories", SEV_ERROR, NULL,
			  "%s is not a directory", path);
	else if (st.st_uid != geteuid() || (st.st_mode & 022))
		d_finding(d, "directories", SEV_ERROR, fix,
			  "others may change %s", path);
}

void check_node(struct doctor *d)
{
	char fix[PATH_MAX + 128];
	bool run, lib;

	check_private(d, d->tree.run, &run);
	check_private(d, d->tree.lib, &lib);
	check_network(d);
	d_feature(d, "run_on_tmpfs", is_on_tmpfs(d->tree.run));
	if (!is_on_tmpfs(d->tree.run)) {
		snprintf(fix, sizeof(fix),
			 "mount -t tmpfs -o mode=700,nosuid,nodev dsec %s",
			 d->tree.run);
		d_finding(d, "run_on_tmpfs", SEV_WARNING, fix,
			  "%s is on a disk: launches are slower, and claims "
			  "outlive a reboot",
			  d->tree.run);
	}
	if (lib)
		check_space(d, d->tree.lib);
	if (run && lib)
		check_config(d);
	check_programs(d);
	check_profiles(d);
}

/* An empty directory that is no mount may become one. */
static bool is_empty(const char *path)
{
	return rmdir(path) == 0 && mkdir(path, 0700) == 0;
}

int fix_node(struct doctor *d, struct err *e)
{
	bool was = access(d->tree.lib, F_OK) == 0;
	int r;

	r = fd_mkdir_p(d->tree.run, 0700, e);
	if (r < 0)
		return r;
	if (!is_on_tmpfs(d->tree.run) && is_empty(d->tree.run)) {
		if (mount("dsec", d->tree.run, "tmpfs", MS_NOSUID | MS_NODEV,
			  "mode=700") < 0)
			return err_sys(e, errno, "mount a tmpfs on '%s'",
				       d->tree.run);
		d_fixed(d, "mounted a tmpfs on %s", d->tree.run);
	}
	r = tree_make(&d->tree, e);
	if (r == 0 && !was)
		d_fixed(d, "made %s and %s", d->tree.run, d->tree.lib);
	return r;
}
