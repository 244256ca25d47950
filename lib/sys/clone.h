/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CLONE_H
#define SYS_CLONE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/*
 * Children that share our memory and run on a stack of their own: 0.03 ms where
 * a fork costs 1.6, because no page table is copied.
 *
 * Rules for the function that runs in such a child: it allocates nothing, and
 * the parent is either suspended (CLONE_VFORK) or inside one system call
 * while it runs, because both use the same errno.
 */
struct clone_child {
	uint64_t flags; /* CLONE_VM is added */
	int exit_signal;
	int into_cgroup; /* -1, or a directory for CLONE_INTO_CGROUP */
	int *pidfd;	 /* NULL, or where CLONE_PIDFD puts it; -1 on failure */
	/* By clone, not clone3, which filters refuse: 32-bit flags, no
	 * into_cgroup. */
	bool plain;
	pid_t *clear_tid; /* NULL, or cleared and woken when it execs or ends */
	void *stack;
	size_t stack_size; /* a multiple of 16 */
};

/*
 * clone_child(c, fn, arg):
 * Run fn(arg) in a child, which exits with its value.  Return its pid, or
 * -errno.
 */
pid_t clone_child(const struct clone_child *c, int (*fn)(void *), void *arg);

/*
 * clone_fork(c):
 * A fork: ${c}'s flags without CLONE_VM, no stack; 0 in the child, which has
 * our memory for itself.  For what refuses to happen where memory is shared.
 */
pid_t clone_fork(const struct clone_child *c);

/*
 * clone_wait_clear(tid, timeout_ms): wait until *${tid} is 0; -ETIMEDOUT.
 * 0 waits for ever.
 */
int clone_wait_clear(const pid_t *tid, unsigned timeout_ms);

/* clone_wait(word, is), clone_wake(word, to): a one-word hand-over. */
void clone_wait(const int *word, int is);
void clone_wake(int *word, int to);

#endif
