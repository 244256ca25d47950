/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inject PID: have a process that waits in a system call make others, and print
 * what comes of each: a name and the error, or "done".  What a process that was
 * taken over could do is what these can.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>

#ifdef __x86_64__
static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void wait_stop(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		die("wait");
}

/* It is behind a system call: that instruction is used again. */
static long call(pid_t pid, const struct user_regs_struct *at, long nr, long a,
		 long b, long c)
{
	struct user_regs_struct r = *at;

	r.rip -= 2;
	r.orig_rax = (unsigned long long)-1;
	r.rax = (unsigned long long)nr;
	r.rdi = (unsigned long long)a;
	r.rsi = (unsigned long long)b;
	r.rdx = (unsigned long long)c;
	r.r10 = r.r8 = r.r9 = 0;
	if (ptrace(PTRACE_SETREGS, pid, 0, &r) < 0)
		die("set");
	for (int i = 0; i < 2; i++) {
		if (ptrace(PTRACE_SYSCALL, pid, 0, 0) < 0)
			die("go on");
		wait_stop(pid);
	}
	if (ptrace(PTRACE_GETREGS, pid, 0, &r) < 0)
		die("get");
	return (long)r.rax;
}

int main(int argc, char **argv)
{
	/* Nothing that would do harm if it were done. */
	const struct {
		const char *name;
		long nr, a, b, c;
	} calls[] = {
		{"getpid", SYS_getpid, 0, 0, 0},
		{"open", SYS_open, 0, O_RDONLY, 0},
		{"openat", SYS_openat, AT_FDCWD, 0, O_RDONLY},
		{"openat2", SYS_openat2, AT_FDCWD, 0, 0},
		{"execve", SYS_execve, 0, 0, 0},
		{"execveat", SYS_execveat, -1, 0, 0},
		{"fork", SYS_fork, 0, 0, 0},
		{"clone", SYS_clone, SIGCHLD, 0, 0},
		{"clone3", SYS_clone3, 0, 0, 0},
		{"ptrace", SYS_ptrace, PTRACE_PEEKTEXT, 1, 0},
		{"process_vm_readv", SYS_process_vm_readv, 1, 0, 0},
		{"kill", SYS_kill, 1, 0, 0},
		{"socket-inet", SYS_socket, AF_INET, SOCK_STREAM, 0},
		{"socket-unix", SYS_socket, AF_UNIX, SOCK_STREAM, 0},
		{"connect", SYS_connect, -1, 0, 0},
		{"mount", SYS_mount, 0, 0, 0},
		{"unshare", SYS_unshare, CLONE_NEWUSER, 0, 0},
		{"setns", SYS_setns, -1, 0, 0},
		{"setuid", SYS_setuid, 0, 0, 0},
		{"chroot", SYS_chroot, 0, 0, 0},
		{"bpf", SYS_bpf, -1, 0, 0},
		{"io_uring_setup", SYS_io_uring_setup, 0, 0, 0},
		{"unlinkat", SYS_unlinkat, AT_FDCWD, 0, 0},
		{"prctl", SYS_prctl, 0, 0, 0},
	};
	struct user_regs_struct at;
	pid_t pid = argc == 2 ? atoi(argv[1]) : 0;
	long text, r;

	if (pid <= 1 || ptrace(PTRACE_ATTACH, pid, 0, 0) < 0)
		die("attach");
	wait_stop(pid);
	if (ptrace(PTRACE_GETREGS, pid, 0, &at) < 0)
		die("get");
	errno = 0;
	text = ptrace(PTRACE_PEEKTEXT, pid, (void *)(at.rip - 2), 0);
	if (errno || (text & 0xffff) != 0x050f)
		die("it is in no system call");
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		r = call(pid, &at, calls[i].nr, calls[i].a, calls[i].b,
			 calls[i].c);
		printf("%s %s\n", calls[i].name,
		       r < 0 ? strerrorname_np((int)-r) : "done");
	}
	/* As if a signal had come. */
	at.rax = (unsigned long long)-EINTR;
	at.orig_rax = (unsigned long long)-1;
	if (ptrace(PTRACE_SETREGS, pid, 0, &at) < 0 ||
	    ptrace(PTRACE_DETACH, pid, 0, 0) < 0)
		die("leave");
	return 0;
}
#else
int main(void)
{
	puts("unknown architecture");
	return 1;
}
#endif
