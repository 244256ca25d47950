/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Profiles: a file that is not whole is refused, and one that is applied makes
 * the kernel answer as the table says.  Every call that must fail is also made
 * without the profile, where it must fail otherwise or not at all.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "box/profile.h"
#include "box/profile_file.h"
#include "../tap.h"

#define CAPS                                                                   \
	(1u << CAP_CHOWN | 1u << CAP_DAC_OVERRIDE | 1u << CAP_FOWNER |         \
	 1u << CAP_FSETID | 1u << CAP_KILL | 1u << CAP_SETGID |                \
	 1u << CAP_SETUID | 1u << CAP_SETPCAP | 1u << CAP_NET_BIND_SERVICE |   \
	 1u << CAP_SYS_CHROOT | 1u << CAP_SETFCAP)

static char libexec[4096], scratch[64] = "/tmp/dsec-profile.XXXXXX";

static void test_shipped(void)
{
	static const struct {
		const char *name;
		bool nested, sealed, checkpointable;
	} want[] = {
		{"default", false, false, true},
		{"sealed", false, true, false},
		{"nested", true, false, false},
	};
	struct profile p;
	struct err e;

	for (size_t i = 0; i < array_len(want); i++) {
		e = (struct err){0};
		if (!ok(profile_load(want[i].name, &p, &e) == 0, "%s: %s",
			want[i].name, e.msg))
			continue;
		is_str(p.name, want[i].name, "its name");
		is_int(p.nested, want[i].nested, "nested");
		is_int(p.sealed, want[i].sealed, "sealed");
		is_int(p.checkpointable, want[i].checkpointable,
		       "checkpointable");
		is_int((long long)p.caps, CAPS, "capabilities");
		ok(p.nfilters == 1 && p.filters[0].len > 100, "a filter");
		profile_done(&p);
		profile_done(&p); /* twice is fine */
	}
}

static void test_names(void)
{
	static const char *const names[] = {
		"",
		".",
		"..",
		"nosuch",
		"../default",
		"default/",
		"/etc/x",
		"a b",
		"default.bpf",
		"DEFAULT",
		"a-name-that-is-longer-than-a-name-may-be-here",
	};
	struct profile p;
	struct err e;

	for (size_t i = 0; i < array_len(names); i++) {
		e = (struct err){0};
		ok(profile_load(names[i], &p, &e) == -EINVAL &&
			   !strcmp(e.code, "bad_value"),
		   "no profile '%s'", names[i]);
	}
}

/* Write ${data} as default.bpf of the scratch directory and load that. */
static int load(const void *data, size_t len, bool with_digest, struct err *e)
{
	auto_close int dir = open(scratch, O_PATH | O_DIRECTORY | O_CLOEXEC);
	auto_buf struct buf b = {0};
	struct profile p;
	size_t at = offsetof(struct profile_file, digest);
	uint64_t digest = 0;
	int r;

	*e = (struct err){0};
	if (buf_add(&b, data, len) < 0)
		return -ENOMEM;
	if (with_digest && len >= sizeof(struct profile_file)) {
		memcpy(b.data + at, &digest, sizeof(digest));
		digest = profile_digest(b.data, b.len);
		memcpy(b.data + at, &digest, sizeof(digest));
	}
	r = fd_replace(dir, "default.bpf", b.data ? b.data : "", b.len, 0, e);
	if (r < 0)
		return r;
	r = profile_load("default", &p, e);
	if (r == 0)
		profile_done(&p);
	return r;
}

static bool refused(const void *data, size_t len, bool with_digest)
{
	struct err e;

	return load(data, len, with_digest, &e) < 0 &&
	       !strcmp(e.code, "configuration");
}

static void test_truncated(const char *data, size_t len)
{
	auto_buf struct buf longer = {0};
	size_t step, bad = 0;

	for (size_t n = 0; n < len; n += step) {
		step = n < 100 || n + 100 > len ? 1 : 61;
		if (!refused(data, n, false) || !refused(data, n, true)) {
			printf("# %zu of %zu bytes\n", n, len);
			bad++;
		}
	}
	is_int((long long)bad, 0, "no part of it passes for the whole");
	if (buf_add(&longer, data, len) == 0 &&
	    buf_add(&longer, "12345678", 8) == 0) {
		ok(refused(longer.data, len + 1, true), "a byte too many");
		ok(refused(longer.data, len + 8, true), "a filter too long");
	}
	longer.len = 0;
	while (longer.len < PROFILE_FILE_MAX + 100)
		if (buf_add(&longer, data, len) < 0)
			break;
	ok(refused(longer.data, longer.len, true), "far too long");
}

static void test_flipped(char *data, size_t len)
{
	size_t bad = 0;

	for (size_t i = 0; i < len; i += i < 100 ? 1 : 37) {
		data[i] ^= 0x10;
		if (!refused(data, len, false)) {
			printf("# byte %zu\n", i);
			bad++;
		}
		data[i] ^= 0x10;
	}
	is_int((long long)bad, 0, "no flipped bit is missed");
}

/* Whole files of somebody else's making: the digest is right. */
static void test_foreign(const char *data, size_t len)
{
	struct profile_file *h;
	auto_free char *copy = malloc(len);
	struct err e;

	if (!copy)
		return;
	h = (struct profile_file *)(void *)copy;
#define FOREIGN(what, change)                                                  \
	do {                                                                   \
		memcpy(copy, data, len);                                       \
		change;                                                        \
		ok(refused(copy, len, true), "%s", what);                      \
	} while (0)
	FOREIGN("of another kind", h->magic[7] = 'x');
	FOREIGN("of another version", h->version++);
	FOREIGN("of another architecture", h->arch ^= 0x7f);
	FOREIGN("without a filter", h->nfilters = 0);
	FOREIGN("with too many", h->nfilters = PROFILE_FILTERS_MAX + 1);
	FOREIGN("with 2^32-1 of them", h->nfilters = UINT32_MAX);
	FOREIGN("a filter of no length", h->lens[0] = 0);
	FOREIGN("a filter that goes past the end", h->lens[0]++);
	FOREIGN("a filter that ends early", h->lens[0]--);
	FOREIGN("a length that wraps", h->lens[0] += 0x20000000);
	FOREIGN("a second filter that is not counted", h->lens[1] = 1);
	FOREIGN("two that take turns", h->lens[1] = 4; h->lens[0] -= 4);
	FOREIGN("unknown flags", h->flags |= 1u << 31);
	FOREIGN("another profile", h->name[0] = 'x');
	FOREIGN("another profile that begins alike", h->name[7] = 'x');
	is_int(load(data, len, true, &e), 0, "the same file as it was");
}

static void test_damaged(void)
{
	auto_free char *data = NULL;
	char path[sizeof(libexec) + 16];
	size_t len;
	struct profile p;
	struct err e = {0};

	snprintf(path, sizeof(path), "%s/default.bpf", libexec);
	if (!ok(mkdtemp(scratch) && fd_read_file(AT_FDCWD, path, 1 << 16, &data,
						 &len, &e) == 0,
		"the file %s", e.msg))
		return;
	setenv("DSEC_LIBEXEC", scratch, 1);
	test_truncated(data, len);
	test_flipped(data, len);
	test_foreign(data, len);
	snprintf(path, sizeof(path), "%s/default.bpf", scratch);
	unlink(path);
	ok(mkdir(path, 0700) == 0 && profile_load("default", &p, &e) < 0,
	   "a directory of that name");
	rmdir(path);
	ok(rmdir(scratch) == 0, "nothing left");
	setenv("DSEC_LIBEXEC", libexec, 1);
}

/*
 * Calls with arguments that do nothing even to root outside.  ${want} and
 * ${nested} are what the profile must answer; outside it must not be that.
 */
#define SAME  -1 /* in nested: as in default */
#define OTHER -2 /* anything but EPERM and ENOSYS: the kernel's own answer */
#define P     ((long)-1)
static const struct {
	const char *name;
	int want, nested;
	long nr, args[5];
} calls[] = {
	/* first: in nested it gives what the next ones need */
	{"unshare user, mounts", EPERM, 0, SYS_unshare, {0x10020000}},
	{"mount", EPERM, OTHER, SYS_mount, {P, P, P, 0, 0}},
	{"umount2", EPERM, OTHER, SYS_umount2, {P, 0}},
	{"pivot_root", EPERM, OTHER, SYS_pivot_root, {P, P}},
	{"open_tree", EPERM, OTHER, SYS_open_tree, {-1, P, 0}},
	{"move_mount", EPERM, OTHER, SYS_move_mount, {-1, P, -1, P, 0}},
	{"fsopen", EPERM, OTHER, SYS_fsopen, {P, 0}},
	{"mount_setattr", EPERM, OTHER, SYS_mount_setattr, {-1, P, 0, P, 32}},
	{"setns", EPERM, OTHER, SYS_setns, {-1, 0}},
	{"unshare a bit that is none", EPERM, EINVAL, SYS_unshare, {1 << 12}},
	{"bpf", EPERM, SAME, SYS_bpf, {-1, P, 0}},
	{"perf_event_open", EPERM, SAME, SYS_perf_event_open, {P, 0, 0, -1, 0}},
	{"keyctl", EPERM, SAME, SYS_keyctl, {-1}},
	{"add_key", EPERM, SAME, SYS_add_key, {P, P, 0, 0, 0}},
	{"request_key", EPERM, SAME, SYS_request_key, {P, P, 0, 0}},
	{"userfaultfd", EPERM, SAME, SYS_userfaultfd, {-1}},
	{"open_by_handle_at", EPERM, SAME, SYS_open_by_handle_at, {-1, P, 0}},
	{"fanotify_init", EPERM, SAME, SYS_fanotify_init, {-1, 0}},
	{"kexec_load", EPERM, SAME, SYS_kexec_load, {0, 1 << 20, 0, 0}},
	{"finit_module", EPERM, SAME, SYS_finit_module, {-1, P, 0}},
	{"delete_module", EPERM, SAME, SYS_delete_module, {P, 0}},
	{"reboot", EPERM, SAME, SYS_reboot, {0, 0, 0, 0}},
	{"syslog", EPERM, SAME, SYS_syslog, {99, 0, 0}},
	{"swapon", EPERM, SAME, SYS_swapon, {P, 0}},
	{"acct", EPERM, SAME, SYS_acct, {P}},
	{"clock_settime", EPERM, SAME, SYS_clock_settime, {99, P}},
	{"settimeofday", EPERM, SAME, SYS_settimeofday, {P, 0}},
	{"kcmp", EPERM, SAME, SYS_kcmp, {0, 0, 99, 0, 0}},
	{"mbind", EPERM, SAME, SYS_mbind, {1, 4096, 99, 0, 0}},
	{"sched core", EPERM, SAME, SYS_prctl, {62, 99, 0, 0, 0}},
	{"io_uring_setup", ENOSYS, SAME, SYS_io_uring_setup, {0, P}},
	{"clone3", ENOSYS, SAME, SYS_clone3, {P, 0}},
	{"file_setattr", EPERM, SAME, 469, {-1, P, P, 0, 0}},
	{"vsock", EAFNOSUPPORT, SAME, SYS_socket, {40, 1, 0}},
	{"vsock with a high bit",
	 EAFNOSUPPORT,
	 SAME,
	 SYS_socket,
	 {40 | 1L << 32, 1, 0}},
	{"packet", EAFNOSUPPORT, SAME, SYS_socket, {17, 3, 0}},
	{"netfilter", EAFNOSUPPORT, SAME, SYS_socket, {16, 3, 12}},
	{"TIOCSTI", EPERM, SAME, SYS_ioctl, {-1, 0x5412, P}},
	{"TIOCSTI with a high bit",
	 EPERM,
	 SAME,
	 SYS_ioctl,
	 {-1, 0x5412 | 1L << 32, P}},
	{"TIOCSTI with the highest",
	 EPERM,
	 SAME,
	 SYS_ioctl,
	 {-1, (long)(0x5412 | 1ul << 63), P}},
	{"FSSETXATTR", EPERM, SAME, SYS_ioctl, {-1, 0x401c5820, P}},
	{"btrfs subvolume", EPERM, SAME, SYS_ioctl, {-1, 0x5000940e, P}},
	{"personality", EPERM, SAME, SYS_personality, {ADDR_COMPAT_LAYOUT}},
#if defined(__x86_64__)
	{"iopl", EPERM, SAME, SYS_iopl, {99}},
	{"sysfs", EPERM, SAME, SYS_sysfs, {99, 0, 0}},
#endif
	/* and what must go on working */
	{"FICLONE", OTHER, SAME, SYS_ioctl, {-1, 0x40049409, P}},
	{"TIOCGWINSZ", OTHER, SAME, SYS_ioctl, {-1, 0x5413, P}},
	{"unshare files", 0, SAME, SYS_unshare, {0x400}},
	{"no randomizing", 0, SAME, SYS_personality, {ADDR_NO_RANDOMIZE}},
	{"ask", OTHER, SAME, SYS_personality, {0xffffffff}},
	{"inet", OTHER, SAME, SYS_socket, {2, 1, 0}},
	{"route", OTHER, SAME, SYS_socket, {16, 3, 0}},
	{"memfd", OTHER, SAME, SYS_memfd_create, {P, 0}},
	{"ptrace", OTHER, SAME, SYS_ptrace, {99, 0, 0, 0}},
	{"landlock", OTHER, SAME, SYS_landlock_create_ruleset, {P, 0, 0}},
	{"seccomp", OTHER, SAME, SYS_seccomp, {99, 0, 0}},
	{"close_range", 0, SAME, SYS_close_range, {1000000, 1000001, 4}},
	{"set priority", 0, SAME, SYS_setpriority, {0, 0, 0}},
};

struct result {
	int errs[array_len(calls)];
	uint64_t caps;
	int applied, forked, x32_signal;
};

static int wait_signal(pid_t pid)
{
	int status = 0;

	if (waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int x32_signal(void)
{
#if defined(__x86_64__)
	pid_t pid = fork();

	if (pid == 0) {
		signal(SIGSYS, SIG_IGN);
		syscall(0x40000000 + SYS_getpid);
		_exit(0);
	}
	return wait_signal(pid);
#else
	return SIGSYS;
#endif
}

static void try_all(const struct profile *p, struct result *ret)
{
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2];
	long r;

	ret->applied = p ? 0 : 0;
	if (p && ret->applied == 0)
		ret->applied = profile_apply(p);
	syscall(SYS_capget, &h, d);
	ret->caps = d[0].permitted | (uint64_t)d[1].permitted << 32;
	ret->forked = wait_signal(fork() ?: (_exit(0), 0)) == 0;
	ret->x32_signal = x32_signal();
	for (size_t i = 0; i < array_len(calls); i++) {
		r = syscall(calls[i].nr, calls[i].args[0], calls[i].args[1],
			    calls[i].args[2], calls[i].args[3],
			    calls[i].args[4]);
		ret->errs[i] = r < 0 ? errno : 0;
	}
}

/* In a child of its own; NULL: the calls without a profile. */
static struct result *tried(const char *name)
{
	struct result *ret = mmap(NULL, sizeof(*ret), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct profile p;
	struct err e = {0};
	pid_t pid;

	if (ret == MAP_FAILED)
		return NULL;
	if (name && profile_load(name, &p, &e) < 0) {
		ok(false, "%s", e.msg);
		return NULL;
	}
	ret->applied = -1;
	pid = fork();
	if (pid == 0) {
		try_all(name ? &p : NULL, ret);
		_exit(0);
	}
	is_int(wait_signal(pid), 0, name ? name : "outside");
	if (name)
		profile_done(&p);
	return ret;
}

static bool is_as(int got, int want)
{
	if (want == OTHER)
		return got != EPERM && got != ENOSYS && got != EAFNOSUPPORT;
	return got == want;
}

static void compare(const char *name, bool nested, const struct result *in,
		    const struct result *out)
{
	int want;

	is_int(in->applied, 0, name);
	is_int((long long)in->caps, CAPS, "capabilities");
	is_int(in->forked, 1, "fork");
	is_int(in->x32_signal, SIGSYS, "x32 ends in SIGSYS");
	for (size_t i = 0; i < array_len(calls); i++) {
		want = nested && calls[i].nested != SAME ? calls[i].nested
							 : calls[i].want;
		if (!ok(is_as(in->errs[i], want), "%s: %s", name,
			calls[i].name))
			printf("# errno %d, want %d\n", in->errs[i], want);
		if (want <= 0 || want == EINVAL)
			continue;
		/* Otherwise it was the filter's to refuse. */
		if (out->errs[i] == want)
			printf("# %s: the kernel says so by itself here\n",
			       calls[i].name);
	}
}

static void test_apply(void)
{
	static const char *const names[] = {"default", "sealed", "nested"};
	struct result *out = tried(NULL), *in;

	if (!out)
		return;
	for (size_t i = 0; i < array_len(names); i++) {
		in = tried(names[i]);
		if (in) {
			compare(names[i], i == 2, in, out);
			munmap(in, sizeof(*in));
		}
	}
	munmap(out, sizeof(*out));
}

/* A user of the sandbox that is not root: no capability to cut the rest by. */
static void test_plain_user(void)
{
	struct profile p;
	struct err e = {0};
	int status = -1;
	pid_t pid;

	if (!ok(profile_load("default", &p, &e) == 0, "default %s", e.msg))
		return;
	pid = fork();
	if (pid == 0) {
		if (setresgid(1000, 1000, 1000) || setresuid(1000, 1000, 1000))
			_exit(1);
		if (profile_apply(&p) != 0)
			_exit(2);
		if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1)
			_exit(3);
		_exit(syscall(SYS_keyctl, -1) == -1 && errno == EPERM ? 0 : 4);
	}
	waitpid(pid, &status, 0);
	is_int(status, 0, "as uid 1000");
	profile_done(&p);
}

int main(void)
{
	const char *bin = getenv("BIN");

	snprintf(libexec, sizeof(libexec), "%s/../libexec/dsec",
		 bin ? bin : "bin");
	setenv("DSEC_LIBEXEC", libexec, 1);
	test_shipped();
	test_names();
	test_damaged();
	if (geteuid() == 0) {
		test_apply();
		test_plain_user();
	} else {
		skip("profiles applied", "needs root");
	}
	return tap_done();
}
