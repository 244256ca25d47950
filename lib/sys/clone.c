/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/futex.h>
#include <linux/sched.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sys/clone.h"

/*
 * libc has no wrapper that takes both a stack and 64 bits of flags.  The child
 * starts on an empty stack, so it must not return through ours: it calls fn
 * and exits right here.
 */
static long raw_clone3(struct clone_args *args, size_t size, int (*fn)(void *),
		       void *arg)
{
#if defined(__x86_64__)
	register long ret __asm__("rax") = SYS_clone3;
	register void *r8 __asm__("r8") = (void *)(uintptr_t)fn;
	register void *r9 __asm__("r9") = arg;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 1f\n\t"
			 "xor %%ebp, %%ebp\n\t"
			 "mov %%r9, %%rdi\n\t"
			 "call *%%r8\n\t"
			 "mov %%eax, %%edi\n\t"
			 "mov %[exit], %%eax\n\t"
			 "syscall\n\t"
			 "hlt\n"
			 "1:"
			 : "+r"(ret)
			 : "D"(args), "S"(size), "r"(r8),
			   "r"(r9), [exit] "i"(SYS_exit)
			 : "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_clone3;
	register void *x0 __asm__("x0") = args;
	register size_t x1 __asm__("x1") = size;
	register void *x9 __asm__("x9") = (void *)(uintptr_t)fn;
	register void *x10 __asm__("x10") = arg;

	__asm__ volatile("svc 0\n\t"
			 "cbnz x0, 1f\n\t"
			 "mov x29, xzr\n\t"
			 "mov x0, x10\n\t"
			 "blr x9\n\t"
			 "mov x8, %[exit]\n\t"
			 "svc 0\n"
			 "1:"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x9),
			   "r"(x10), [exit] "i"(SYS_exit)
			 : "memory");
	return (long)x0;
#else
#error "no clone3 for this architecture"
#endif
}

static pid_t plain_clone(const struct clone_child *c, int (*fn)(void *),
			 void *arg)
{
	int flags = (int)c->flags | CLONE_VM | c->exit_signal;
	char *top = (char *)c->stack + c->stack_size;
	pid_t pid;

	if (c->pidfd)
		flags |= CLONE_PIDFD;
	if (c->clear_tid)
		flags |= CLONE_CHILD_CLEARTID;
	pid = clone(fn, top, flags, arg, c->pidfd, NULL, c->clear_tid);
	return pid < 0 ? -errno : pid;
}

static pid_t full_clone(const struct clone_child *c, int (*fn)(void *),
			void *arg)
{
	struct clone_args a;

	memset(&a, 0, sizeof(a));
	a.flags = c->flags | CLONE_VM;
	a.exit_signal = (uint64_t)c->exit_signal;
	a.stack = (uint64_t)(uintptr_t)c->stack;
	a.stack_size = c->stack_size;
	if (c->into_cgroup >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = (uint64_t)c->into_cgroup;
	}
	if (c->pidfd) {
		a.flags |= CLONE_PIDFD;
		a.pidfd = (uint64_t)(uintptr_t)c->pidfd;
	}
	if (c->clear_tid) {
		a.flags |= CLONE_CHILD_CLEARTID;
		a.child_tid = (uint64_t)(uintptr_t)c->clear_tid;
	}
	return (pid_t)raw_clone3(&a, sizeof(a), fn, arg);
}

pid_t clone_child(const struct clone_child *c, int (*fn)(void *), void *arg)
{
	pid_t pid = c->plain ? plain_clone(c, fn, arg) : full_clone(c, fn, arg);

	/* The kernel may have stored the number of one that it took back. */
	if (pid < 0 && c->pidfd)
		*c->pidfd = -1;
	return pid;
}

pid_t clone_fork(const struct clone_child *c)
{
	struct clone_args a;
	pid_t pid;

	memset(&a, 0, sizeof(a));
	a.flags = c->flags;
	a.exit_signal = (uint64_t)c->exit_signal;
	if (c->into_cgroup >= 0) {
		a.flags |= CLONE_INTO_CGROUP;
		a.cgroup = (uint64_t)c->into_cgroup;
	}
	if (c->pidfd) {
		a.flags |= CLONE_PIDFD;
		a.pidfd = (uint64_t)(uintptr_t)c->pidfd;
	}
	pid = (pid_t)syscall(SYS_clone3, &a, sizeof(a));
	if (pid >= 0)
		return pid;
	if (c->pidfd)
		*c->pidfd = -1;
	return -errno;
}

int clone_wait_clear(const pid_t *tid, unsigned timeout_ms)
{
	struct timespec ts = {timeout_ms / 1000,
			      (long)(timeout_ms % 1000) * 1000000};
	pid_t is;
	long r;

	while ((is = __atomic_load_n(tid, __ATOMIC_ACQUIRE)) != 0) {
		r = syscall(SYS_futex, tid, FUTEX_WAIT, is,
			    timeout_ms ? &ts : NULL, NULL, 0);
		if (r < 0 && errno == ETIMEDOUT)
			return -ETIMEDOUT;
	}
	return 0;
}

void clone_wait(const int *word, int is)
{
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == is)
		syscall(SYS_futex, word, FUTEX_WAIT, is, NULL, NULL, 0);
}

void clone_wake(int *word, int to)
{
	__atomic_store_n(word, to, __ATOMIC_RELEASE);
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}
