/* SPDX-License-Identifier: Apache-2.0 */
#include "sys/cpus.h"

/* The ${n}th CPU of ${set}. */
static int nth(const cpu_set_t *set, unsigned n)
{
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, set) && n-- == 0)
			return cpu;
	return 0;
}

void cpus_pick(unsigned slot, uint64_t cpu_milli, cpu_set_t *ret)
{
	uint64_t want = (cpu_milli + 500) / 1000;
	unsigned have;
	cpu_set_t may;

	CPU_ZERO(ret);
	if (sched_getaffinity(0, sizeof(may), &may) < 0)
		return;
	have = (unsigned)CPU_COUNT(&may);
	if (want == 0)
		want = 1;
	if (want >= have)
		return;
	for (uint64_t i = 0; i < want; i++)
		CPU_SET(nth(&may, (unsigned)((slot * want + i) % have)), ret);
}
