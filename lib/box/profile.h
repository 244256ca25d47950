/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_PROFILE_H
#define BOX_PROFILE_H

#include <linux/capability.h>
#include <linux/filter.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/*
 * A confinement profile as data: share/profiles/NAME.json says what it is, and
 * libexec/NAME.bpf holds its system-call filters, compiled at build time by
 * dsec-seccomp.  Loading reads the one .bpf file, which carries both.
 */
#define PROFILE_FILTERS_MAX 2

struct profile {
	char name[33];
	bool nested; /* inner user namespaces are allowed */
	bool sealed; /* all namespaces stay the host's user namespace's */
	bool checkpointable; /* by its shape; the image may forbid it still */
	uint64_t caps;	     /* all that anything inside may ever hold */
	unsigned nfilters;
	struct sock_fprog filters[PROFILE_FILTERS_MAX]; /* point into blob */
	char *blob; /* owned: profile_done() */
};

/*
 * profile_load(name, ret, e):
 * "bad_value" for a name that is none of ours, "configuration" when the file is
 * damaged or of another architecture.
 */
int profile_load(const char *name, struct profile *ret, struct err *e);
void profile_done(struct profile *p);

/*
 * profile_apply(p):
 * In the child, last before exec: permitted, effective, inheritable and ambient
 * capabilities cut to caps, no_new_privs, the filters.  The bounding set is not
 * cut, which would be a call per capability: with no_new_privs an exec gains
 * nothing that was not permitted before, whatever is bounding.  Raw system
 * calls only, four of them.  uid and gid must be set already.  0 or -errno.
 */
int profile_apply(const struct profile *p);

/*
 * profile_apply_init(p), profile_leave_init(p):
 * The same for pid 1, which keeps one capability more, PROFILE_INIT_CAP, that
 * is good for nothing in a user namespace.  The kernel lets nobody trace a
 * process, read it, or look through its links in /proc, who lacks a capability
 * that it is permitted (but for CAP_SYS_PTRACE, which nothing inside has).
 * That, and not being non-dumpable, protects pid 1: the memory of what the
 * checkpoint engine restores belongs to the host's user namespace, and a
 * process like that which is not dumpable either could not be checkpointed
 * again.  profile_leave_init() is for a child of it, before its exec.
 */
#define PROFILE_INIT_CAP CAP_BLOCK_SUSPEND
int profile_apply_init(const struct profile *p);
int profile_leave_init(const struct profile *p);

#endif
