/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_INIT_REPORT_H
#define BOX_INIT_REPORT_H

#include <stdint.h>

/*
 * What pid 1 of a sandbox says to its supervisor, on a one-way pipe: one of
 * these in a single write per process it reaped, its orphans included.  pid is
 * a number of the sandbox's pid namespace, status that of wait4(), the usage
 * that of the process and the children it had waited for.
 */
struct init_report {
	int32_t pid, status;
	uint64_t utime_us, stime_us, maxrss_kb;
};

/*
 * The first one has this pid and nothing else in it: pid 1 is dsec-init now,
 * and nothing of ours any more.  Until it was read no other program may run
 * inside; launch_start() waits for it.
 */
#define INIT_HELLO (-1)

/* The descriptor pid 1 finds the pipe on; it has no other. */
#define INIT_REPORT_FD 3

#endif
