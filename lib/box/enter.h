/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_ENTER_H
#define BOX_ENTER_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "box/profile.h"
#include "sys/cgroup.h"

/*
 * Start a command in a running sandbox, from outside: a child joins the
 * namespaces of its pid 1 by pidfd, forks twice so that pid 1 becomes the
 * parent, gives up everything the profile does not leave, and executes.
 */
struct enter {
	int init_pidfd;
	const char *id;
	const char *leaf; /* of the sandbox, made already */
	const struct cgroup_root *cgroups;
	const struct profile *profile;
	cpu_set_t cpus;
	const char *const *argv;
	const char *const *envp;
	const char *cwd;  /* absolute, inside */
	bool cwd_default; /* not asked for: "/" for who may not enter it */
	uid_t uid;	  /* ids as seen inside */
	gid_t gid;
	const gid_t *groups;
	size_t ngroups;
	int fds[3]; /* the command's 0, 1 and 2; borrowed.  With tty: unused */
	bool tty;   /* a new terminal of the sandbox is its 0, 1 and 2 */
	unsigned short rows, cols;
	int exe_fd;    /* -1: argv[0], by envp's PATH; else this sealed file */
	int extra_fd;  /* -1, or one more descriptor, which becomes its 3 */
	int extra_fd2; /* the same for its 4 */
};

struct entered {
	pid_t inner; /* in the sandbox's: what dsec-init reports */
	int pidfd;   /* close-on-exec, the caller's */
	int tty;     /* master, close-on-exec, the caller's; -1 without tty */
};

/*
 * enter_start(en, ret, e):
 * Return 0 when the command executes.  Otherwise nothing was left running, and
 * the code is "command_not_found", "command_not_executable", "cwd",
 * "args_too_long", "stopped" (pid 1 is gone) or a system error.
 */
int enter_start(const struct enter *en, struct entered *ret, struct err *e);

#endif
