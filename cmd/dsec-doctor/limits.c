/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "doctor.h"
#include "sys/cgroup.h"

/*
 * Limits of the whole machine that thousands of sandboxes run into before they
 * run out of memory.  A row that is below ${least} is a finding, and --fix
 * writes ${set}.
 */
struct limit {
	const char *name; /* as sysctl(8) writes it, or NULL: not one */
	const char *path;
	int64_t least, set;
	enum severity sev;
	const char *why;
};

/* clang-format off */
static const struct limit limits[] = {
	{"fs.inotify.max_user_instances", "/proc/sys/fs/inotify/max_user_instances", 1024, 8192, SEV_WARNING, "one watcher per sandbox of an owner uses them up"},
	{"fs.inotify.max_user_watches", "/proc/sys/fs/inotify/max_user_watches", 65536, 1048576, SEV_WARNING, "each watched directory is one"},
	{"kernel.pid_max", "/proc/sys/kernel/pid_max", 131072, 4194304, SEV_WARNING, "some 10 processes for each of 10,000 sandboxes do not fit"},
	{"kernel.threads-max", "/proc/sys/kernel/threads-max", 131072, 1048576, SEV_WARNING, "the threads of all sandboxes together"},
	{"kernel.pty.max", "/proc/sys/kernel/pty/max", 16384, 65536, SEV_INFO, "each command with a terminal takes one"},
	{"kernel.keys.maxkeys", "/proc/sys/kernel/keys/maxkeys", 2000, 20000, SEV_INFO, "keys of one user"},
	{"fs.file-max", "/proc/sys/fs/file-max", 1048576, 9223372036854775807, SEV_WARNING, "the open files of all sandboxes together"},
	{"fs.nr_open", "/proc/sys/fs/nr_open", 1048576, 1048576, SEV_WARNING, "the open files of one process"},
	{"fs.pipe-max-size", "/proc/sys/fs/pipe-max-size", 1048576, 1048576, SEV_WARNING, "output is read through pipes of 1 MiB"},
	{"fs.pipe-user-pages-soft", "/proc/sys/fs/pipe-user-pages-soft", 16384, 65536, SEV_INFO, "pipes of one user beyond it get a single page"},
	{"net.ipv4.neigh.default.gc_thresh3", "/proc/sys/net/ipv4/neigh/default/gc_thresh3", 8192, 65536, SEV_INFO, "neighbours of all networks together"},
	{"user.max_user_namespaces", "/proc/sys/user/max_user_namespaces", 20000, 200000, SEV_WARNING, "each sandbox is one"},
	{"user.max_mnt_namespaces", "/proc/sys/user/max_mnt_namespaces", 20000, 200000, SEV_WARNING, "each sandbox is one"},
	{"user.max_pid_namespaces", "/proc/sys/user/max_pid_namespaces", 20000, 200000, SEV_WARNING, "each sandbox is one"},
	{"user.max_net_namespaces", "/proc/sys/user/max_net_namespaces", 20000, 200000, SEV_WARNING, "each sandbox is one"},
	{NULL, "/sys/kernel/rcu_expedited", 1, 1, SEV_WARNING, "launches wait for grace periods of the kernel: 15 ms in place of 6 in the slowest tenth"},
};
/* clang-format on */

static int read_limit(const char *path, int64_t *ret)
{
	auto_free char *text = NULL;
	char *end;
	size_t len;
	int r;

	r = fd_read_file(AT_FDCWD, path, 64, &text, &len, NULL);
	if (r < 0)
		return r;
	errno = 0;
	*ret = strtoll(text, &end, 10);
	/* Some are unsigned: what does not fit is not too small. */
	if (errno == ERANGE)
		*ret = INT64_MAX;
	return end == text ? -EINVAL : 0;
}

static void command(const struct limit *l, char *buf, size_t size)
{
	if (l->name)
		snprintf(buf, size, "sysctl -w %s=%lld", l->name,
			 (long long)l->set);
	else
		snprintf(buf, size, "echo %lld > %s", (long long)l->set,
			 l->path);
}

static const char *name_of(const struct limit *l)
{
	return l->name ? l->name : strrchr(l->path, '/') + 1;
}

/* With 1 a process that changes its uid can be traced by those it became: the
 * one that enters a sandbox shares its memory with the supervisor. */
static void check_dumpable(struct doctor *d)
{
	int64_t v;

	if (read_limit("/proc/sys/fs/suid_dumpable", &v) < 0)
		return;
	d_value(d, "fs.suid_dumpable", v);
	if (v == 1)
		d_finding(d, "fs.suid_dumpable", SEV_ERROR,
			  "sysctl -w fs.suid_dumpable=0",
			  "is 1: a sandbox could read and write the memory of "
			  "its supervisor, which therefore does not start");
}

void check_limits(struct doctor *d)
{
	struct rlimit files;
	char fix[256];
	int64_t v;

	for (size_t i = 0; i < array_len(limits); i++) {
		const struct limit *l = &limits[i];

		if (read_limit(l->path, &v) < 0)
			continue; /* a kernel without it has no such limit */
		d_value(d, name_of(l), v);
		if (v >= l->least)
			continue;
		command(l, fix, sizeof(fix));
		d_finding(d, name_of(l), l->sev, fix,
			  "is %lld, should be at least %lld: %s", (long long)v,
			  (long long)l->least, l->why);
	}
	check_dumpable(d);
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return;
	d_value(d, "open_files_hard", (int64_t)files.rlim_max);
	if (files.rlim_max < 65536)
		d_finding(d, "open_files_hard", SEV_WARNING,
			  "ulimit -Hn 1048576",
			  "is %llu: one program talks to a thousand sandboxes "
			  "at once",
			  (unsigned long long)files.rlim_max);
}

int fix_limits(struct doctor *d, struct err *e)
{
	char fix[256], text[32];
	int64_t v;
	int r, first = 0;

	for (size_t i = 0; i < array_len(limits); i++) {
		const struct limit *l = &limits[i];

		if (read_limit(l->path, &v) < 0 || v >= l->least)
			continue;
		command(l, fix, sizeof(fix));
		snprintf(text, sizeof(text), "%lld", (long long)l->set);
		r = fd_write_str(AT_FDCWD, l->path, text, first ? NULL : e);
		if (r == 0)
			d_fixed(d, "%s (was %lld)", fix, (long long)v);
		else if (first == 0)
			first = r;
	}
	return first;
}

/* --- control groups ------------------------------------------------------ */

static void controllers(struct doctor *d)
{
	auto_free char *text = NULL;
	size_t len;

	if (fd_read_file(AT_FDCWD, "/sys/fs/cgroup/cgroup.controllers", 4096,
			 &text, &len, NULL) < 0)
		return;
	text[strcspn(text, "\n")] = '\0';
	d_word(d, "cgroup_controllers", text);
}

void check_cgroup(struct doctor *d)
{
	struct cgroup_root *root = NULL;
	struct err e = {0};

	controllers(d);
	if (cgroup_open(d->tree.cgroup, &root, &e) < 0) {
		d_word(d, "cgroup", "none");
		d_finding(d, "cgroup", SEV_ERROR, NULL, "%s", e.msg);
		return;
	}
	d_word(d, "cgroup", cgroup_mode_name(cgroup_mode(root)));
	d_feature(d, "cgroup_clone_into", cgroup_clone_into(root));
	if (cgroup_mode(root) == CGROUP_V1)
		d_finding(d, "cgroup", SEV_INFO, NULL,
			  "no v2 tree: commands are killed one process at a "
			  "time");
	cgroup_close(root);
}
