/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>

#include "base/clock.h"

static uint64_t now_ms(clockid_t id)
{
	struct timespec ts;

	clock_gettime(id, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

uint64_t clock_ms(void)
{
	return now_ms(CLOCK_MONOTONIC);
}

uint64_t clock_wall_ms(void)
{
	return now_ms(CLOCK_REALTIME);
}
