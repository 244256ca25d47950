/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dsec-init: pid 1 of a sandbox, a reaper and nothing else.
 *
 * It waits for children and writes a struct init_report for each to the pipe on
 * INIT_REPORT_FD.  It takes no input and handles no signal; when nobody reads
 * the pipe any more its supervisor is gone, and it ends, which ends the
 * sandbox.  No libc: a launch pays for every page of it.
 */
#include <asm/unistd.h>
#include <linux/resource.h>
#include <linux/signal.h>
#include <linux/time.h>

#include "box/init_report.h"

#define EINTR_	4
#define ECHILD_ 10
#define WALL	0x40000000

static long call4(long n, long a, long b, long c, long d)
{
#if defined(__x86_64__)
	long ret;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = n;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3)
			 : "memory");
	return x0;
#else
#error "no system call for this architecture"
#endif
}

static unsigned long us(const struct __kernel_old_timeval *t)
{
	return (unsigned long)t->tv_sec * 1000000 + (unsigned long)t->tv_usec;
}

static void say(const struct init_report *rep)
{
	long n;

	do
		n = call4(__NR_write, INIT_REPORT_FD, (long)rep, sizeof(*rep),
			  0);
	while (n == -EINTR_);
	if (n != sizeof(*rep))
		call4(__NR_exit_group, 1, 0, 0, 0);
}

static void report(int pid, int status, const struct rusage *ru)
{
	struct init_report rep;

	rep.pid = pid;
	rep.status = status;
	rep.utime_us = us(&ru->ru_utime);
	rep.stime_us = us(&ru->ru_stime);
	rep.maxrss_kb = (unsigned long)ru->ru_maxrss;
	say(&rep);
}

/* Without children: sleep until one is adopted.  SIGCHLD is blocked, so that
 * one which ends in between is not missed. */
static void wait_for_child(void)
{
	unsigned long set = 1UL << (SIGCHLD - 1);

	call4(__NR_rt_sigtimedwait, (long)&set, 0, 0, sizeof(set));
}

static void reap_for_ever(void)
{
	unsigned long set = 1UL << (SIGCHLD - 1);
	struct init_report hello = {.pid = INIT_HELLO};
	struct rusage ru;
	int status;
	long pid;

	say(&hello);
	call4(__NR_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof(set));
	for (;;) {
		pid = call4(__NR_wait4, -1, (long)&status, WALL, (long)&ru);
		if (pid > 0)
			report((int)pid, status, &ru);
		else if (pid == -ECHILD_)
			wait_for_child();
	}
}

/* The first instruction; the compiler may count on an aligned stack. */
__attribute__((naked, noreturn, used)) void _start(void);
void _start(void)
{
#if defined(__x86_64__)
	__asm__("xor %%ebp, %%ebp\n\tand $-16, %%rsp\n\tcall *%0"
		:
		: "r"(reap_for_ever));
#else
	__asm__("br %0" : : "r"(reap_for_ever));
#endif
}
