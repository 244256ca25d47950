/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_SIG_H
#define BASE_SIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/*
 * sig_block(signals, n, e):
 * Block the ${n} signals and return a close-on-exec, non-blocking signalfd that
 * delivers them; SIGPIPE is set to be ignored as well.
 */
int sig_block(const int *signals, size_t n, struct err *e);

/*
 * sig_came(fd, wait_ms):
 * Is there a signal to be read from that ${fd}, or within ${wait_ms}?  It stays
 * there.  Of ${fd} -1 none ever is.
 */
bool sig_came(int fd, int wait_ms);

/*
 * sig_reset(): default actions and an empty mask, for a child before exec.
 * exec does the rest: a handler does not outlive it.
 */
void sig_reset(void);

/* sig_is_stop(sig): one by which people ask a program to end. */
bool sig_is_stop(int sig);

/*
 * sig_is_echo(at_ms):
 * timeout(1) sends what ends a program to it and to its group, a terminal's
 * line and a job launcher do alike: two within a moment are one.  Is this the
 * second?  ${at_ms} is 0 at first; safe in a handler.
 */
bool sig_is_echo(uint64_t *at_ms);

/* sig_by_name(name): "TERM", "SIGTERM" or "15" as a number, or -EINVAL. */
int sig_by_name(const char *name);

/* sig_name(sig): "SIGKILL" and so on, "SIG33" for those without a name. */
const char *sig_name(int sig);

#endif
