/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "sys/confine.h"

#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

int confine_state(struct err *e)
{
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) < 0)
		return err_sys(e, errno, "give up privileges");
	return 0;
}

static int set_caps(uint32_t keep)
{
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2] = {
		{.effective = keep, .permitted = keep}};

	return (int)syscall(SYS_capset, &head, caps);
}

int confine_caps(uint32_t keep, struct err *e)
{
	for (int cap = 0; prctl(PR_CAPBSET_READ, cap, 0, 0, 0) >= 0; cap++)
		if (prctl(PR_CAPBSET_READ, cap, 0, 0, 0) > 0 &&
		    prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0)
			return err_sys(e, errno, "drop capabilities");
	if (setgroups(0, NULL) < 0 || set_caps(keep) < 0)
		return err_sys(e, errno, "drop capabilities");
	return 0;
}

int confine_user(uid_t uid, gid_t gid, struct err *e)
{
	int r = confine_caps(1U << CAP_SETGID | 1U << CAP_SETUID, e);

	if (r < 0)
		return r;
	if (setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0 ||
	    set_caps(0) < 0)
		return err_sys(e, errno, "become uid %u", (unsigned)uid);
	return confine_state(e);
}

int confine_root(const char *path, struct err *e)
{
	if (chdir(path) < 0 || chroot(".") < 0 || chdir("/") < 0)
		return err_sys(e, errno, "make '%s' the root", path);
	return 0;
}

#define LOAD(at) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (at))
#define EQ(v)	 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (v), 0, 1)
#define RET(v)	 BPF_STMT(BPF_RET | BPF_K, (v))
#define FIELD(f) ((unsigned)offsetof(struct seccomp_data, f))
#define DENY(n)	 (SECCOMP_RET_ERRNO | (n))

int confine_calls(const unsigned *calls, size_t n, const unsigned *families,
		  size_t nfamilies, struct err *e)
{
#if defined(ARCH) && !defined(__SANITIZE_ADDRESS__)
	struct sock_filter code[2 * (CONFINE_MAX + CONFINE_FAMILIES) + 16];
	struct sock_fprog prog = {.filter = code};
	unsigned at = 0;

	assert(n <= CONFINE_MAX && nfamilies <= CONFINE_FAMILIES);
#define ADD(...)                                                               \
	do                                                                     \
		code[at++] = (struct sock_filter)__VA_ARGS__;                  \
	while (0)
	ADD(LOAD(FIELD(arch)));
	ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0));
	ADD(RET(SECCOMP_RET_KILL_PROCESS));
	ADD(LOAD(FIELD(nr)));
	for (size_t i = 0; i < n; i++) {
		ADD(EQ(calls[i]));
		ADD(RET(SECCOMP_RET_ALLOW));
	}
	ADD(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 1, 0));
	ADD(RET(DENY(ENOSYS)));
	ADD(LOAD(FIELD(args[0]))); /* the lower half: little endian */
	for (size_t i = 0; i < nfamilies; i++) {
		ADD(EQ(families[i]));
		ADD(RET(SECCOMP_RET_ALLOW));
	}
	ADD(RET(DENY(EAFNOSUPPORT)));
#undef ADD
	prog.len = (unsigned short)at;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog) < 0)
		return err_sys(e, errno, "filter system calls");
#else
	(void)calls;
	(void)n;
	(void)families;
	(void)nfamilies;
	(void)e;
#endif
	return 0;
}

/* The busiest first: they are compared one by one. */
static const unsigned internet[] = {
#ifdef SYS_epoll_wait
	SYS_epoll_wait,
#endif
	SYS_epoll_pwait,    SYS_splice,	      SYS_recvmsg,
	SYS_sendmsg,	    SYS_recvfrom,     SYS_sendto,
	SYS_epoll_ctl,	    SYS_accept4,      SYS_close,
	SYS_setsockopt,	    SYS_getsockopt,   SYS_getsockname,
	SYS_getpeername,    SYS_connect,      SYS_shutdown,
	SYS_write,	    SYS_read,	      SYS_pipe2,
	SYS_fcntl,	    SYS_bind,	      SYS_socketpair,
	SYS_writev,	    SYS_readv,	      SYS_pread64,
	SYS_pwrite64,	    SYS_lseek,	      SYS_fstat,
	SYS_ftruncate,	    SYS_fsync,	      SYS_fdatasync,
	SYS_recvmmsg,	    SYS_sendmmsg,     SYS_brk,
	SYS_mmap,	    SYS_munmap,	      SYS_mremap,
	SYS_mprotect,	    SYS_madvise,      SYS_getrandom,
	SYS_clock_gettime,  SYS_gettimeofday, SYS_clock_nanosleep,
	SYS_nanosleep,	    SYS_ppoll,	      SYS_getpid,
	SYS_gettid,	    SYS_getppid,      SYS_getuid,
	SYS_geteuid,	    SYS_futex,	      SYS_rt_sigaction,
	SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_restart_syscall,
	SYS_tgkill,	    SYS_exit,	      SYS_exit_group,
	SYS_getrusage,	    SYS_sched_yield,  SYS_dup,
	SYS_newfstatat,
#ifdef SYS_poll
	SYS_poll,
#endif
#ifdef SYS_time
	SYS_time,
#endif
};

int confine_internet(struct err *e)
{
	static const unsigned families[] = {AF_INET, AF_INET6, AF_NETLINK};

	return confine_calls(internet, array_len(internet), families,
			     array_len(families), e);
}
