/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

/* clock_ms(): milliseconds that never go back (CLOCK_MONOTONIC). */
uint64_t clock_ms(void);

/* clock_wall_ms(): milliseconds since 1970, for records only. */
uint64_t clock_wall_ms(void);

#endif
