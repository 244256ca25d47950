/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_BACKOFF_H
#define BASE_BACKOFF_H

#include <stdint.h>

/*
 * How long to wait before a process that ended is started again: at once when
 * it had lived for a while, else 100 ms and twice as long each time, up to 5 s.
 * All zero is a fresh one.
 */
struct backoff {
	unsigned delay_ms; /* of the last time */
};

#define BACKOFF_MAX 5000

/* backoff_next(b, lived_ms): it ended after so long; the delay, 1 or more. */
unsigned backoff_next(struct backoff *b, uint64_t lived_ms);

#endif
