/* SPDX-License-Identifier: Apache-2.0 */
#include "base/backoff.h"

#define FIRST	  100
#define STEADY_MS 10000 /* one that lived so long was sound */

unsigned backoff_next(struct backoff *b, uint64_t lived_ms)
{
	if (lived_ms > STEADY_MS)
		b->delay_ms = 0;
	else if (b->delay_ms == 0)
		b->delay_ms = FIRST;
	else if (b->delay_ms < BACKOFF_MAX)
		b->delay_ms *= 2;
	if (b->delay_ms > BACKOFF_MAX)
		b->delay_ms = BACKOFF_MAX;
	return b->delay_ms ? b->delay_ms : 1;
}
