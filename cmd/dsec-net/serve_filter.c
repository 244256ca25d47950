/* SPDX-License-Identifier: Apache-2.0 */
#include <sys/socket.h>
#include <sys/syscall.h>

#include "serve_priv.h"
#include "sys/confine.h"

/*
 * What the worker may ask of the kernel: to use the descriptors it has, to make
 * sockets of the internet and pipes, memory and time.  It opens no file, starts
 * no program and reaches no other process.  The rest fails with ENOSYS.
 */
/* The busiest first: they are compared one by one. */
static const unsigned allowed[] = {
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

int worker_filter(struct err *e)
{
	static const unsigned families[] = {AF_INET, AF_INET6, AF_NETLINK};

	return confine_calls(allowed, array_len(allowed), families,
			     array_len(families), e);
}
