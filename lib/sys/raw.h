/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_RAW_H
#define SYS_RAW_H

/*
 * raw_call6(nr, a, ...), raw_call(nr, a, ...): a system call that touches
 * nothing but registers, for children that share their parent's memory, where
 * errno is the parent's too.  The kernel's answer: -errno on failure.
 */
static inline long raw_call6(long nr, long a, long b, long c, long d, long e,
			     long f)
{
#if defined(__x86_64__)
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8),
			   "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = nr;
	register long x0 __asm__("x0") = a;
	register long x1 __asm__("x1") = b;
	register long x2 __asm__("x2") = c;
	register long x3 __asm__("x3") = d;
	register long x4 __asm__("x4") = e;
	register long x5 __asm__("x5") = f;

	__asm__ volatile("svc 0"
			 : "+r"(x0)
			 : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
			 : "memory");
	return x0;
#else
#error "how this architecture makes system calls"
#endif
}

static inline long raw_call(long nr, long a, long b, long c, long d, long e)
{
	return raw_call6(nr, a, b, c, d, e, 0);
}

#endif
