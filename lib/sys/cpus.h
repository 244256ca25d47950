/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_CPUS_H
#define SYS_CPUS_H

#include <sched.h>
#include <stdint.h>

/*
 * cpus_pick(slot, cpu_milli, ret):
 * The CPUs a sandbox sees: its limit rounded (at least one), out of those we
 * may use, chosen by ${slot} so that sandboxes spread.  Empty where it may use
 * all of them, or where the kernel does not say.
 */
void cpus_pick(unsigned slot, uint64_t cpu_milli, cpu_set_t *ret);

#endif
