/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the root of a sandbox would try against the kernel: groups 1 to 6.
 * tests/sys/escape.t knows what each profile must answer.
 *
 *	escape            all of it
 *	escape control    only what is harmless where it works, for a run
 *without confinement that shows that the attempts do work
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <termios.h>

#include "attempt.h"

static bool control;

/* --- 1: /proc, /sys, /dev ---------------------------------------------- */

static long read_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_NONBLOCK);
	char buf[64];
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, buf, sizeof(buf));
	if (n < 0)
		return -errno;
	return own(n == 0 ? "empty" : "data");
}

static long list_dir(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *de;

	if (!d)
		return -errno;
	while ((de = readdir(d)))
		if (strcmp(de->d_name, ".") && strcmp(de->d_name, ".."))
			return own("data");
	return own("empty");
}

/* Write back what is there, which changes nothing where it works. */
static long rewrite_file(const char *path)
{
	char buf[256] = "0\n";
	int fd = open(path, O_RDONLY);
	ssize_t n = 2;

	if (fd >= 0) {
		n = read(fd, buf, sizeof(buf));
		close(fd);
	}
	fd = open(path, O_WRONLY);
	if (fd < 0)
		return -errno;
	return result(write(fd, buf, n > 0 ? (size_t)n : 2));
}

static long write_low_score(const char *path)
{
	int fd = open(path, O_WRONLY);

	return fd < 0 ? -errno : result(write(fd, "-900", 4));
}

static long open_write(const char *path)
{
	return result(open(path, O_WRONLY | O_NONBLOCK));
}

static long open_read(const char *path)
{
	return result(open(path, O_RDONLY | O_NONBLOCK));
}

static long read_link(const char *path)
{
	char buf[4096];

	return result(readlink(path, buf, sizeof(buf)));
}

static const char *const masked_files[] = {
	"kcore",      "keys",	     "key-users",   "latency_stats",
	"timer_list", "sched_debug", "kallsyms",    "kmsg",
	"kpagecount", "kpageflags",  "kpagecgroup", "interrupts",
	"config.gz",  "vmallocinfo", "slabinfo",    "pagetypeinfo",
	"cmdline",    "modules",
};
static const char *const masked_dirs[] = {
	"/proc/acpi",
	"/proc/scsi",
	"/proc/asound",
	"/proc/driver",
	"/proc/pressure",
	"/proc/bus",
	"/proc/fs",
	"/proc/irq",
	"/sys/firmware",
	"/sys/kernel",
	"/sys/devices/virtual/powercap",
};
static const char *const sysctls[] = {
	"kernel/core_pattern",
	"kernel/sysrq",
	"vm/drop_caches",
	"kernel/hostname",
	"kernel/domainname",
	"vm/overcommit_memory",
	"kernel/modprobe",
	"kernel/shmmax",
	"kernel/msgmax",
	"kernel/sem",
	"fs/mqueue/msg_max",
	"net/ipv4/ip_forward",
	"net/core/somaxconn",
	"net/ipv4/ping_group_range",
	"user/max_user_namespaces",
	"fs/suid_dumpable",
	"kernel/ns_last_pid",
};
static const char *const devices[] = {
	"mem",	       "kmem",	   "port",	    "kmsg",
	"sda",	       "vda",	   "loop-control",  "loop0",
	"fuse",	       "kvm",	   "net/tun",	    "vhost-vsock",
	"vhost-net",   "hwrng",	   "btrfs-control", "mapper/control",
	"userfaultfd", "snapshot", "rtc0",	    "zram0",
};
static const char *const pid1_files[] = {
	"mem", "environ", "maps", "auxv", "stack", "syscall",
};
static const char *const pid1_links[] = {
	"exe", "root", "cwd", "fd/3", "ns/mnt", "ns/user", "ns/net",
};

static void each(int group, const char *what, attempt_fn *fn, const char *dir,
		 const char *const *names, size_t n)
{
	char path[128], name[192];

	for (size_t i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s%s", dir, names[i]);
		snprintf(name, sizeof(name), "%s %s", what, path);
		attempt(group, name, fn, path);
	}
}

static void group_1(void)
{
	each(1, "read", read_file, "/proc/", masked_files, LEN(masked_files));
	each(1, "list", list_dir, "", masked_dirs, LEN(masked_dirs));
	each(1, "read", read_file, "/proc/1/", pid1_files, LEN(pid1_files));
	each(1, "link", read_link, "/proc/1/", pid1_links, LEN(pid1_links));
	attempt(1, "write /proc/1/mem", open_write, "/proc/1/mem");
	attempt(1, "write /proc/1/clear_refs", open_write,
		"/proc/1/clear_refs");
	attempt(1, "write /proc/1/fd/3", open_write, "/proc/1/fd/3");
	attempt(1, "list /proc/1/fd", list_dir, "/proc/1/fd");
	attempt(1, "list /proc/1/map_files", list_dir, "/proc/1/map_files");
	if (control)
		return;
	each(1, "write", rewrite_file, "/proc/sys/", sysctls, LEN(sysctls));
	each(1, "open", open_read, "/dev/", devices, LEN(devices));
	attempt(1, "open /proc/sysrq-trigger", open_write,
		"/proc/sysrq-trigger");
	attempt(1, "open /proc/irq", open_write,
		"/proc/irq/default_smp_affinity");
	attempt(1, "oom_score_adj -900", write_low_score,
		"/proc/self/oom_score_adj");
	attempt(1, "oom_score_adj of pid 1", write_low_score,
		"/proc/1/oom_score_adj");
	attempt(1, "cgroup tree", open_write, "/sys/fs/cgroup/cgroup.procs");
}

/* --- 2: mounts ---------------------------------------------------------- */

static const struct {
	const char *name, *source, *target, *type;
	unsigned long flags;
} mounts[] = {
	{"mount tmpfs", "x", "/mnt", "tmpfs", 0},
	{"mount proc", "x", "/mnt", "proc", 0},
	{"mount sysfs", "x", "/mnt", "sysfs", 0},
	{"mount cgroup2", "x", "/mnt", "cgroup2", 0},
	{"mount devpts", "x", "/mnt", "devpts", 0},
	{"mount mqueue", "x", "/mnt", "mqueue", 0},
	{"mount bind", "/", "/mnt", NULL, MS_BIND},
	{"mount rbind", "/", "/mnt", NULL, MS_BIND | MS_REC},
	{"remount /proc/sys rw", NULL, "/proc/sys", NULL, MS_REMOUNT | MS_BIND},
	{"remount /usr rw", NULL, "/usr", NULL, MS_REMOUNT | MS_BIND},
	{"remount /", NULL, "/", NULL, MS_REMOUNT | MS_BIND},
	{"move /proc", "/proc", "/mnt", NULL, MS_MOVE},
	{"make / shared", NULL, "/", NULL, MS_SHARED | MS_REC},
};

static long try_mount(const char *arg)
{
	size_t i = (size_t)atoi(arg);

	return result(mount(mounts[i].source, mounts[i].target, mounts[i].type,
			    mounts[i].flags, NULL));
}

static long try_umount(const char *path)
{
	return result(umount2(path, MNT_DETACH));
}

static long try_fsopen(const char *type)
{
	return result(syscall(SYS_fsopen, type, 0));
}

static long try_fspick(const char *path)
{
	return result(syscall(SYS_fspick, AT_FDCWD, path, 0));
}

static long try_open_tree(const char *path)
{
	/* OPEN_TREE_CLONE | AT_RECURSIVE */
	return result(syscall(SYS_open_tree, AT_FDCWD, path, 1 | 0x8000));
}

static long try_move_mount(const char *path)
{
	return result(
		syscall(SYS_move_mount, AT_FDCWD, path, AT_FDCWD, "/mnt", 0));
}

static long try_mount_setattr(const char *path)
{
	uint64_t attr[4] = {1 /* MOUNT_ATTR_RDONLY */, 0, 0, 0};

	return result(syscall(SYS_mount_setattr, AT_FDCWD, path, 0, attr,
			      sizeof(attr)));
}

static long try_pivot(const char *arg)
{
	(void)arg;
	return result(syscall(SYS_pivot_root, "/mnt", "/mnt"));
}

/* The classic way out of chroot: it must lead to the sandbox's own root. */
static long chroot_out(const char *arg)
{
	struct stat root, now;

	(void)arg;
	if (stat("/", &root) < 0 ||
	    (mkdir("/tmp/out", 0700) < 0 && errno != EEXIST) ||
	    chroot("/tmp/out") < 0)
		return -errno;
	for (int i = 0; i < 64; i++)
		if (chdir("..") < 0)
			return -errno;
	if (chroot(".") < 0 || stat("/", &now) < 0)
		return -errno;
	return own(root.st_ino == now.st_ino && root.st_dev == now.st_dev
			   ? "same-root"
			   : "out");
}

static const char *const umounts[] = {
	"/proc/kcore", "/proc/sys", "/proc/kallsyms", "/proc",
	"/dev",	       "/usr",	    "/sys",	      "/",
};

static void group_2(void)
{
	char arg[16];

	for (size_t i = 0; i < LEN(mounts); i++) {
		snprintf(arg, sizeof(arg), "%zu", i);
		attempt(2, mounts[i].name, try_mount, arg);
	}
	attempt(2, "fsopen tmpfs", try_fsopen, "tmpfs");
	attempt(2, "open_tree /", try_open_tree, "/");
	attempt(2, "move_mount /proc", try_move_mount, "/proc");
	attempt(2, "mount_setattr /", try_mount_setattr, "/");
	attempt(2, "fspick /", try_fspick, "/");
	attempt(2, "pivot_root", try_pivot, NULL);
	if (control)
		return;
	each(2, "umount", try_umount, "", umounts, LEN(umounts));
	attempt(2, "chroot out", chroot_out, NULL);
}

/* --- 3: devices, handles, namespaces ------------------------------------ */

static long make_device(const char *arg)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/dev.%d", arg + 2, (int)getpid());
	if (mknod(path, (arg[0] == 'b' ? S_IFBLK : S_IFCHR) | 0600,
		  makedev(arg[0] == 'b' ? 8 : 1, 1)) < 0)
		return -errno;
	unlink(path);
	return 0;
}

struct handle {
	struct file_handle h;
	unsigned char bytes[128];
};

/* A host's ext4 has inode 2 as its root: no need to be told a handle. */
static long handle_of_host(const char *arg)
{
	struct handle f = {.h = {.handle_bytes = 8, .handle_type = 1}};
	uint32_t root[2] = {2, 0};
	int fd = open("/", O_RDONLY | O_DIRECTORY);

	(void)arg;
	memcpy(f.bytes, root, sizeof(root));
	return result(open_by_handle_at(fd, &f.h, O_RDONLY));
}

static long own_handle(const char *path)
{
	struct handle f = {.h = {.handle_bytes = 128}};
	int mount_id, fd = open(path, O_RDONLY | O_DIRECTORY);

	if (name_to_handle_at(AT_FDCWD, path, &f.h, &mount_id, 0) < 0)
		return -errno;
	return result(open_by_handle_at(fd, &f.h, O_RDONLY));
}

static long enter_ns(const char *path)
{
	int fd = open(path, O_RDONLY);

	return fd < 0 ? -errno : result(setns(fd, 0));
}

static long enter_pid1(const char *arg)
{
	int fd = (int)syscall(SYS_pidfd_open, 1, 0);

	(void)arg;
	return fd < 0 ? -errno : result(setns(fd, CLONE_NEWNS | CLONE_NEWNET));
}

static long take_fd_of_pid1(const char *arg)
{
	int fd = (int)syscall(SYS_pidfd_open, 1, 0);

	(void)arg;
	return fd < 0 ? -errno : result(syscall(SYS_pidfd_getfd, fd, 3, 0));
}

static void group_3(void)
{
	static const char *const spaces[] = {"mnt", "net",    "pid", "ipc",
					     "uts", "cgroup", "user"};
	size_t n = LEN(spaces) - (control ? 1 : 0);

	attempt(3, "mknod block", make_device, "b /tmp");
	attempt(3, "mknod char", make_device, "c /tmp");
	attempt(3, "mknod block on shm", make_device, "b /dev/shm");
	attempt(3, "open_by_handle_at a host root", handle_of_host, NULL);
	attempt(3, "open_by_handle_at own file", own_handle, "/usr");
	each(3, "setns", enter_ns, "/proc/1/ns/", spaces, n);
	each(3, "setns", enter_ns, "/proc/self/ns/", spaces, n);
	attempt(3, "setns pidfd of pid 1", enter_pid1, NULL);
	attempt(3, "pidfd_getfd of pid 1", take_fd_of_pid1, NULL);
}

/* --- 4: namespaces of one's own ----------------------------------------- */

static const struct {
	const char *name;
	unsigned long flag;
} flags[] = {
	{"user", CLONE_NEWUSER},     {"mnt", CLONE_NEWNS},
	{"net", CLONE_NEWNET},	     {"pid", CLONE_NEWPID},
	{"ipc", CLONE_NEWIPC},	     {"uts", CLONE_NEWUTS},
	{"cgroup", CLONE_NEWCGROUP}, {"time", CLONE_NEWTIME},
};

static long try_unshare(const char *arg)
{
	return result(syscall(SYS_unshare, flags[atoi(arg)].flag));
}

static long end_of(long pid)
{
	if (pid == 0)
		_exit(0);
	return pid < 0 ? -errno : result(waitpid((pid_t)pid, NULL, 0));
}

static long try_clone(const char *arg)
{
	return end_of(syscall(SYS_clone, flags[atoi(arg)].flag | SIGCHLD, 0, 0,
			      0, 0));
}

static long try_clone3(const char *arg)
{
	uint64_t a[8] = {strtoul(arg, NULL, 0), 0, 0, 0, SIGCHLD, 0, 0, 0};

	return end_of(syscall(SYS_clone3, a, sizeof(a)));
}

static long try_fork(const char *arg)
{
	(void)arg;
	return end_of(fork());
}

static int put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n > 0 ? 0 : -1;
}

/* As root of user, mount, pid, net and ipc namespaces made inside. */
static long do_inner(const char *what)
{
	static const char *const types[] = {"tmpfs", "proc", "sysfs", "cgroup2",
					    "mqueue"};

	for (size_t i = 0; i < LEN(types); i++)
		if (!strcmp(what, types[i]))
			return mount("x", "/mnt", what, 0, NULL);
	if (!strncmp(what, "umount ", 7))
		return umount2(what + 7, MNT_DETACH);
	if (!strncmp(what, "remount ", 8))
		return mount(NULL, what + 8, NULL, MS_REMOUNT | MS_BIND, NULL);
	if (!strncmp(what, "write ", 6))
		return open(what + 6, O_WRONLY);
	if (!strcmp(what, "device"))
		return mknod("/tmp/inner", S_IFBLK | 0600, makedev(8, 0));
	if (!strcmp(what, "packet"))
		return socket(AF_PACKET, SOCK_RAW, 0);
	if (!strcmp(what, "nft"))
		return socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
	if (!strcmp(what, "pid 1 outside"))
		return open("/proc/1/root", O_PATH);
	return 0;
}

static long inner(const char *what)
{
	pid_t pid;
	int status;

	if (unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
		    CLONE_NEWIPC) < 0)
		return -errno;
	if (put("/proc/self/setgroups", "deny") < 0 ||
	    put("/proc/self/uid_map", "0 0 1") < 0 ||
	    put("/proc/self/gid_map", "0 0 1") < 0)
		return own("no-map");
	pid = fork();
	if (pid == 0)
		_exit(do_inner(what) < 0 ? errno : 0);
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : own("killed");
}

static const char *const inners[] = {
	"nothing",
	"tmpfs",
	"mqueue",
	"proc",
	"sysfs",
	"cgroup2",
	"umount /proc/kallsyms",
	"umount /proc/sys",
	"umount /proc",
	"umount /usr",
	"remount /proc/sys",
	"remount /usr",
	"write /proc/sys/kernel/core_pattern",
	"write /proc/sys/kernel/sem",
	"device",
	"packet",
	"nft",
	"pid 1 outside",
};

static void group_4(void)
{
	char arg[16], name[64];

	for (size_t i = 0; i < LEN(flags); i++) {
		snprintf(arg, sizeof(arg), "%zu", i);
		snprintf(name, sizeof(name), "unshare %s", flags[i].name);
		attempt(4, name, try_unshare, arg);
		if (flags[i].flag == CLONE_NEWTIME)
			continue; /* it lies in the exit signal's bits */
		snprintf(name, sizeof(name), "clone %s", flags[i].name);
		attempt(4, name, try_clone, arg);
	}
	attempt(4, "clone3", try_clone3, "0");
	attempt(4, "clone3 user", try_clone3, "0x10000000");
	attempt(4, "fork", try_fork, NULL);
	each(4, "inner", inner, "", inners, LEN(inners));
}

/* --- 5: system calls ----------------------------------------------------- */

/* Arguments that do nothing even where the call is allowed. */
static const struct {
	const char *name;
	long nr, args[5];
} calls[] = {
	{"add_key", SYS_add_key, {-1, -1, 0, 0, 0}},
	{"request_key", SYS_request_key, {-1, -1, 0, 0, 0}},
	{"keyctl", SYS_keyctl, {0, -3, 1, 0, 0}},
	{"io_uring_setup", SYS_io_uring_setup, {1, -1, 0, 0, 0}},
	{"io_uring_enter", SYS_io_uring_enter, {-1, 0, 0, 0, 0}},
	{"io_uring_register", SYS_io_uring_register, {-1, 0, 0, 0, 0}},
	{"userfaultfd", SYS_userfaultfd, {1, 0, 0, 0, 0}},
	{"bpf", SYS_bpf, {0, -1, 0, 0, 0}},
	{"perf_event_open", SYS_perf_event_open, {-1, 0, 0, -1, 0}},
	{"kexec_load", SYS_kexec_load, {0, 1 << 20, 0, 0, 0}},
	{"kexec_file_load", SYS_kexec_file_load, {-1, -1, 0, 0, 0}},
	{"init_module", SYS_init_module, {0, 0, -1, 0, 0}},
	{"finit_module", SYS_finit_module, {-1, -1, 0, 0, 0}},
	{"delete_module", SYS_delete_module, {-1, 0, 0, 0, 0}},
	{"reboot", SYS_reboot, {0, 0, 0, 0, 0}},
	{"swapon", SYS_swapon, {-1, 0, 0, 0, 0}},
	{"swapoff", SYS_swapoff, {-1, 0, 0, 0, 0}},
	{"acct", SYS_acct, {-1, 0, 0, 0, 0}},
	{"quotactl", SYS_quotactl, {-1, -1, 0, 0, 0}},
	{"syslog", SYS_syslog, {10, 0, 0, 0, 0}},
	{"clock_settime", SYS_clock_settime, {99, -1, 0, 0, 0}},
	{"settimeofday", SYS_settimeofday, {-1, 0, 0, 0, 0}},
	{"adjtimex", SYS_adjtimex, {-1, 0, 0, 0, 0}},
	{"clock_adjtime", SYS_clock_adjtime, {99, -1, 0, 0, 0}},
	{"fanotify_init", SYS_fanotify_init, {-1, 0, 0, 0, 0}},
	{"set_mempolicy", SYS_set_mempolicy, {99, 0, 0, 0, 0}},
	{"mbind", SYS_mbind, {1, 4096, 99, 0, 0}},
	{"migrate_pages", SYS_migrate_pages, {-1, 1, -1, -1, 0}},
	{"kcmp", SYS_kcmp, {0, 0, 99, 0, 0}},
	{"memfd_secret", SYS_memfd_secret, {-1, 0, 0, 0, 0}},
	{"sethostname", SYS_sethostname, {-1, 1, 0, 0, 0}},
	{"setdomainname", SYS_setdomainname, {-1, 1, 0, 0, 0}},
#if defined(__x86_64__)
	{"iopl", SYS_iopl, {99, 0, 0, 0, 0}},
	{"ioperm", SYS_ioperm, {1 << 20, 1, 1, 0, 0}},
	{"modify_ldt", SYS_modify_ldt, {0, 0, 0, 0, 0}},
	{"sysfs", SYS_sysfs, {99, 0, 0, 0, 0}},
	{"ustat", SYS_ustat, {-1, -1, 0, 0, 0}},
	{"uselib", SYS_uselib, {-1, 0, 0, 0, 0}},
#endif
	{"a call of the future", 4000, {0, 0, 0, 0, 0}},
	{"vhangup", SYS_vhangup, {0, 0, 0, 0, 0}}, /* last: see control */
};

static long try_call(const char *arg)
{
	size_t i = (size_t)atoi(arg);

	return result(syscall(calls[i].nr, calls[i].args[0], calls[i].args[1],
			      calls[i].args[2], calls[i].args[3],
			      calls[i].args[4]));
}

static long try_x32(const char *arg)
{
	(void)arg;
#if defined(__x86_64__)
	signal(SIGSYS, SIG_IGN);
	return result(syscall(0x40000000 + SYS_getpid));
#else
	return own("SIGSYS");
#endif
}

static long try_int80(const char *arg)
{
	(void)arg;
#if defined(__x86_64__)
	long r = 20; /* getpid of i386 */

	__asm__ volatile("int $0x80" : "+a"(r) : : "memory");
	return r < 0 ? r : 0;
#else
	return own("SIGSYS");
#endif
}

/* Type into a terminal of our own. */
static long try_sti(const char *arg)
{
	int m = posix_openpt(O_RDWR | O_NOCTTY), s;

	if (m < 0 || grantpt(m) < 0 || unlockpt(m) < 0)
		return own("no-pty");
	setsid();
	s = open(ptsname(m), O_RDWR);
	if (s < 0 || ioctl(s, TIOCSCTTY, 0) < 0)
		return own("no-tty");
	return result(
		syscall(SYS_ioctl, s, TIOCSTI | strtoul(arg, NULL, 0), "x"));
}

static long try_ioctl(const char *arg)
{
	char buf[4096] = "";
	int fd = open("/tmp", O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		return -errno;
	return result(syscall(SYS_ioctl, fd, strtoul(arg, NULL, 0), buf));
}

static void group_5(void)
{
	char arg[16];

	for (size_t i = 0; i < LEN(calls) - (control ? 1 : 0); i++) {
		snprintf(arg, sizeof(arg), "%zu", i);
		attempt(5, calls[i].name, try_call, arg);
	}
	attempt(5, "x32", try_x32, NULL);
	attempt(5, "int80", try_int80, NULL);
	attempt(5, "TIOCSTI", try_sti, "0");
	attempt(5, "TIOCSTI with a high bit", try_sti, "0x100000000");
	attempt(5, "TIOCSTI with the highest", try_sti, "0x8000000000000000");
	attempt(5, "FSSETXATTR", try_ioctl, "0x401c5820");
	attempt(5, "btrfs snapshot", try_ioctl, "0x50009417");
	if (!control)
		attempt(5, "FIFREEZE", try_ioctl, "0xc0045877");
}

/* --- 6: sockets ----------------------------------------------------------- */

static const struct {
	const char *name;
	int domain, type, protocol;
} sockets[] = {
	{"packet", AF_PACKET, SOCK_RAW, 0},
	{"raw", AF_INET, SOCK_RAW, IPPROTO_TCP},
	{"raw6", AF_INET6, SOCK_RAW, IPPROTO_TCP},
	{"vsock", AF_VSOCK, SOCK_STREAM, 0},
	{"alg", AF_ALG, SOCK_SEQPACKET, 0},
	{"xdp", 44, SOCK_RAW, 0},
	{"key", 15, SOCK_RAW, 2},
	{"bluetooth", 31, SOCK_RAW, 0},
	{"can", 29, SOCK_RAW, 1},
	{"tipc", 30, SOCK_RDM, 0},
	{"netlink netfilter", AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER},
	{"netlink xfrm", AF_NETLINK, SOCK_RAW, NETLINK_XFRM},
	{"netlink audit", AF_NETLINK, SOCK_RAW, NETLINK_AUDIT},
	{"netlink generic", AF_NETLINK, SOCK_RAW, NETLINK_GENERIC},
	{"netlink route", AF_NETLINK, SOCK_RAW, NETLINK_ROUTE},
	{"tcp", AF_INET, SOCK_STREAM, 0},
	{"tcp6", AF_INET6, SOCK_STREAM, 0},
	{"unix", AF_UNIX, SOCK_STREAM, 0},
};

static long try_socket(const char *arg)
{
	size_t i = (size_t)atoi(arg);

	return result(socket(sockets[i].domain, sockets[i].type,
			     sockets[i].protocol));
}

/* One netlink request; its acknowledgement is the answer. */
static long rtnetlink(void *msg, size_t len)
{
	struct nlmsghdr *h = msg;
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char rest[512];
	} ack;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	if (fd < 0)
		return -errno;
	h->nlmsg_len = (uint32_t)len;
	if (send(fd, msg, len, 0) < 0 || recv(fd, &ack, sizeof(ack), 0) < 0)
		return -errno;
	return ack.h.nlmsg_type == NLMSG_ERROR ? ack.e.error : own("no-ack");
}

static long add_address(const char *arg)
{
	struct {
		struct nlmsghdr h;
		struct ifaddrmsg a;
		struct rtattr attr;
		uint32_t ip;
	} m = {
		.h = {.nlmsg_type = RTM_NEWADDR,
		      .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE},
		.a = {.ifa_family = AF_INET,
		      .ifa_prefixlen = 32,
		      .ifa_index = 1},
		.attr = {.rta_len = 8, .rta_type = IFA_LOCAL},
		.ip = htonl(0x7f090807),
	};

	(void)arg;
	return rtnetlink(&m, sizeof(m));
}

static long add_link(const char *arg)
{
	struct {
		struct nlmsghdr h;
		struct ifinfomsg i;
		struct rtattr info;
		struct rtattr kind;
		char name[8];
	} m = {
		.h = {.nlmsg_type = RTM_NEWLINK,
		      .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE |
				     NLM_F_EXCL},
		.info = {.rta_len = 16, .rta_type = IFLA_LINKINFO},
		.kind = {.rta_len = 4 + 5, .rta_type = IFLA_INFO_KIND},
		.name = "veth",
	};

	(void)arg;
	return rtnetlink(&m, sizeof(m));
}

static long lo_down(const char *arg)
{
	struct ifreq ifr = {.ifr_name = "lo"};
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	(void)arg;
	return fd < 0 ? -errno : result(ioctl(fd, SIOCSIFFLAGS, &ifr));
}

static void group_6(void)
{
	char arg[16], name[64];

	for (size_t i = 0; i < LEN(sockets); i++) {
		snprintf(arg, sizeof(arg), "%zu", i);
		snprintf(name, sizeof(name), "socket %s", sockets[i].name);
		attempt(6, name, try_socket, arg);
	}
	attempt(6, "add an address", add_address, NULL);
	attempt(6, "add a link", add_link, NULL);
	attempt(6, "take lo down", lo_down, NULL);
}

int main(int argc, char **argv)
{
	control = argc > 1 && !strcmp(argv[1], "control");
	attempt_alone = control;
	signal(SIGHUP, SIG_IGN);
	group_1();
	group_2();
	group_3();
	group_4();
	group_5();
	group_6();
	say(0, "end", "ok");
	return 0;
}
