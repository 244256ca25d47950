/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_BECOME_H
#define BOX_BECOME_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "box/profile.h"

/*
 * The last steps of every process that runs a sandbox's code: from a child of
 * ours that stands in all the sandbox's namespaces, with full capabilities in
 * its user namespace, to the program.
 */
struct become {
	const struct profile *profile;
	bool confined; /* by its parent already: profile applied, root inside */
	const char *const *argv, *const *envp;
	const char *cwd;
	bool cwd_default; /* not asked for: "/" for who may not enter it */
	uid_t uid;
	gid_t gid;
	const gid_t *groups;
	size_t ngroups;
	cpu_set_t cpus;
	int fds[3];	/* its 0, 1, 2; -1: the sandbox's /dev/null */
	int extra[2];	/* its 3 and 4, or -1 */
	int tty_master; /* -1, or a terminal to take as 0, 1 and 2 */
	unsigned short rows, cols;
	int exe_fd; /* -1: argv[0] by PATH; else this file */

	/* out, when it fails */
	enum become_stage {
		BECOME_SETUP,
		BECOME_IDS,
		BECOME_CWD,
		BECOME_EXEC,
	} stage;
	int failed; /* -errno */
};

/* become(b): execute; returns only when that fails, with ${b} telling why. */
void become(struct become *b);

/* become_error(b, e): why, as the codes of PROTOCOL.md; -errno. */
int become_error(const struct become *b, struct err *e);

#endif
