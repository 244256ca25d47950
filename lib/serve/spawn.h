/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_SPAWN_H
#define SERVE_SPAWN_H

#include <sys/types.h>

#include "base/cleanup.h"

/*
 * A child with pipes at its stdin and stdout (our ends do not block) and our
 * stderr; it has nothing else of ours, no signal blocked, and a session of its
 * own, since a terminal's signals are the daemon's affair.
 */
struct spawned {
	pid_t pid;	     /* 0: none */
	int to, from, pidfd; /* -1: closed */
};

must_check int spawn_filter(const char *const *argv, struct spawned *ret,
			    struct err *e);

/* spawn_wait(p): reap it; its exit status, -1 for a signal. */
int spawn_wait(struct spawned *p);

/* spawn_done(p): close what is open. */
void spawn_done(struct spawned *p);

#endif
