/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PROC_H
#define BASE_PROC_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * proc_run(argv, stdin_fd, stdout_fd, timeout_ms, e):
 * Run a tool of the host (argv[0] by PATH) and wait for it.  Descriptors of -1
 * mean /dev/null; stderr is ours.  Return its exit status (0 to 255), or
 * -errno: -ENOENT if there is no such program, -ETIMEDOUT (it was killed),
 * -ECHILD if a signal ended it.
 */
int proc_run(const char *const *argv, int stdin_fd, int stdout_fd,
	     unsigned timeout_ms, struct err *e);

/*
 * proc_run_fds(argv, fds, timeout_ms, e): the same with fds[0] to fds[2]; -1
 * means /dev/null, for stderr too.
 */
int proc_run_fds(const char *const *argv, const int *fds, unsigned timeout_ms,
		 struct err *e);

/* proc_raise_files(): as many descriptors as this process may have: root a
 * million, others up to their hard limit. */
void proc_raise_files(void);

/* proc_pid_of(pidfd): the number of its process, -1 when it has ended. */
pid_t proc_pid_of(int pidfd);

/* proc_wait_pidfd(pidfd, timeout_ms): 1 it ended, 0 not yet, or -errno. */
int proc_wait_pidfd(int pidfd, int timeout_ms);

/*
 * proc_libexec(name, path, size, e):
 * The absolute path of an internal program: $DSEC_LIBEXEC/NAME, else
 * ../libexec/dsec/NAME beside the running program's own directory.
 */
int proc_libexec(const char *name, char *path, size_t size, struct err *e);

/* proc_program(name, path, size, e): the absolute path of a program for people,
 * beside the running one (of an internal one: in ../../bin). */
int proc_program(const char *name, char *path, size_t size, struct err *e);

/* proc_share(name, path, size, e): of a data file or directory that came with
 * the programs: $DSEC_SHARE/NAME, else in ../share/dsec beside the directory of
 * programs, or (not installed) in its ../share. */
int proc_share(const char *name, char *path, size_t size, struct err *e);

#endif
