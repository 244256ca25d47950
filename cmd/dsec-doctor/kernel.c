/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/landlock.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "doctor.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static const struct {
	const char *name;
	int flag;
} namespaces[] = {
	{"namespace_user", CLONE_NEWUSER},     {"namespace_mount", CLONE_NEWNS},
	{"namespace_pid", CLONE_NEWPID},       {"namespace_net", CLONE_NEWNET},
	{"namespace_ipc", CLONE_NEWIPC},       {"namespace_uts", CLONE_NEWUTS},
	{"namespace_cgroup", CLONE_NEWCGROUP},
};

static int try_unshare(void *arg)
{
	return unshare(*(const int *)arg) == 0 ? 0 : errno;
}

static void check_namespaces(struct doctor *d)
{
	for (size_t i = 0; i < array_len(namespaces); i++) {
		int flag = namespaces[i].flag;
		int r = d_child(try_unshare, &flag);

		d_feature(d, namespaces[i].name, r == 0);
		if (r)
			d_finding(d, namespaces[i].name, SEV_ERROR, NULL,
				  "cannot be made: %s", strerror(r));
	}
}

/* Nonsense arguments: a kernel without the call says ENOSYS. */
static bool has_call(long nr)
{
	return syscall(nr, -1, NULL, 0, 0, 0, 0) >= 0 || errno != ENOSYS;
}

static bool has_openat2(void)
{
	struct open_how how = {.flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
			       .resolve = RESOLVE_NO_SYMLINKS};
	int fd = (int)syscall(SYS_openat2, AT_FDCWD, "/", &how, sizeof(how));

	if (fd < 0)
		return false;
	fd_close(fd);
	return true;
}

static bool has_seccomp(void)
{
	uint32_t action = SECCOMP_RET_ERRNO;

	return syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action) == 0;
}

static void check_calls(struct doctor *d)
{
	const struct {
		const char *name;
		bool on;
		const char *since;
	} needed[] = {
		{"clone3", has_call(SYS_clone3), "5.3"},
		{"pidfd", has_call(SYS_pidfd_open), "5.3"},
		{"close_range", has_call(SYS_close_range), "5.9"},
		{"openat2", has_openat2(), "5.6"},
		{"mount_api", has_call(SYS_fsopen), "5.2"},
		{"mount_setattr", has_call(SYS_mount_setattr), "5.12"},
		{"seccomp", has_seccomp(), "4.14, with CONFIG_SECCOMP_FILTER"},
	};

	for (size_t i = 0; i < array_len(needed); i++) {
		d_feature(d, needed[i].name, needed[i].on);
		if (!needed[i].on)
			d_finding(d, needed[i].name, SEV_ERROR, NULL,
				  "this kernel lacks it (it came with %s)",
				  needed[i].since);
	}
}

static void check_userfaultfd(struct doctor *d)
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0)
		fd = (int)syscall(SYS_userfaultfd,
				  O_CLOEXEC | UFFD_USER_MODE_ONLY);
	d_feature(d, "userfaultfd", fd >= 0);
	if (fd >= 0)
		fd_close(fd);
}

/* Ask for the generation of the rule set, which changes nothing. */
static bool has_nftables(void)
{
	struct {
		struct nlmsghdr h;
		struct nfgenmsg g;
	} req = {
		.h = {.nlmsg_len = sizeof(req),
		      .nlmsg_type = (NFNL_SUBSYS_NFTABLES << 8) |
				    NFT_MSG_GETGEN,
		      .nlmsg_flags = NLM_F_REQUEST,
		      .nlmsg_seq = 1},
		.g = {.version = NFNETLINK_V0},
	};
	union {
		struct nlmsghdr h;
		char buf[4096];
	} answer;
	struct timeval limit = {.tv_sec = 1};
	auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC,
				   NETLINK_NETFILTER);

	if (fd < 0 ||
	    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) <
		    0 ||
	    send(fd, &req, sizeof(req), 0) != (ssize_t)sizeof(req))
		return false;
	return recv(fd, &answer, sizeof(answer), 0) >=
		       (ssize_t)sizeof(answer.h) &&
	       answer.h.nlmsg_type != NLMSG_ERROR;
}

static void check_kvm(struct doctor *d)
{
	auto_close int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);

	d_feature(d, "kvm", fd >= 0);
}

static void check_optional(struct doctor *d)
{
	unsigned long cookie;
	long abi;

	abi = syscall(SYS_landlock_create_ruleset, NULL, 0,
		      LANDLOCK_CREATE_RULESET_VERSION);
	d_feature(d, "landlock", abi > 0);
	if (abi > 0)
		d_value(d, "landlock_abi", abi);
	check_userfaultfd(d);
	d_feature(d, "nftables", has_nftables());
	check_kvm(d);
	d_feature(d, "core_scheduling",
		  prctl(PR_SCHED_CORE, PR_SCHED_CORE_GET, 0, 0, &cookie) == 0);
	d_feature(d, "psi", access("/proc/pressure/memory", R_OK) == 0);
}

/* What root here may lack, in a container say, and what then does not work. */
static const struct {
	int cap;
	const char *name;
	enum severity sev;
	const char *without;
} caps[] = {
	{CAP_SYS_ADMIN, "CAP_SYS_ADMIN", SEV_ERROR, "no sandbox starts"},
	{CAP_SETUID, "CAP_SETUID", SEV_ERROR, "no sandbox starts"},
	{CAP_SETGID, "CAP_SETGID", SEV_ERROR, "no sandbox starts"},
	{CAP_SYS_PTRACE, "CAP_SYS_PTRACE", SEV_ERROR,
	 "no command enters a sandbox"},
	{CAP_KILL, "CAP_KILL", SEV_ERROR, "sandboxes cannot be stopped"},
	{CAP_MKNOD, "CAP_MKNOD", SEV_ERROR, "/dev cannot be made"},
	{CAP_CHOWN, "CAP_CHOWN", SEV_ERROR, "files cannot be given away"},
	{CAP_DAC_OVERRIDE, "CAP_DAC_OVERRIDE", SEV_ERROR,
	 "layers cannot be read"},
	{CAP_SYS_RESOURCE, "CAP_SYS_RESOURCE", SEV_WARNING,
	 "pipes stay small and limits cannot be raised"},
	{CAP_NET_ADMIN, "CAP_NET_ADMIN", SEV_WARNING,
	 "network policy cannot be enforced"},
	{CAP_SYS_NICE, "CAP_SYS_NICE", SEV_WARNING, "priorities cannot be set"},
};

static void check_caps(struct doctor *d)
{
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3,
	};
	struct __user_cap_data_struct data[2] = {0};
	uint64_t have;

	if (syscall(SYS_capget, &head, data) < 0)
		return;
	have = data[0].effective | (uint64_t)data[1].effective << 32;
	for (size_t i = 0; i < array_len(caps); i++)
		if (!(have >> caps[i].cap & 1))
			d_finding(d, "capabilities", caps[i].sev, NULL,
				  "%s is missing: %s", caps[i].name,
				  caps[i].without);
}

static bool reads(const char *path, char first)
{
	char c = 0;
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	return fd >= 0 && read(fd, &c, 1) == 1 && c == first;
}

static void check_apparmor(struct doctor *d)
{
	d_feature(d, "apparmor",
		  reads("/sys/module/apparmor/parameters/enabled", 'Y'));
	if (reads("/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
		  '1'))
		d_finding(d, "apparmor_userns", SEV_WARNING,
			  "sysctl -w "
			  "kernel.apparmor_restrict_unprivileged_userns=0",
			  "AppArmor strips user namespaces that are made "
			  "without privilege: profile 'nested' does not work");
	if (reads("/proc/sys/kernel/unprivileged_userns_clone", '0'))
		d_finding(d, "unprivileged_userns_clone", SEV_WARNING,
			  "sysctl -w kernel.unprivileged_userns_clone=1",
			  "user namespaces need privilege here: profile "
			  "'nested' does not work");
}

void check_kernel(struct doctor *d)
{
	struct utsname u;

	if (uname(&u) == 0) {
		json_object_set_new(d->values, "kernel",
				    json_string(u.release));
		json_object_set_new(d->values, "machine",
				    json_string(u.machine));
	}
	d_value(d, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
	d_value(d, "memory_mb",
		(int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE) /
			(1024 * 1024));
	check_namespaces(d);
	check_calls(d);
	check_optional(d);
	check_caps(d);
	check_apparmor(d);
	check_pausing(d);
	check_mounts(d);
}
