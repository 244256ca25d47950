/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_EXPIRY_H
#define DSEC_SERVE_EXPIRY_H

#include "tls/tls.h"

/* When a daemon's own certificate is good. */
struct expiry {
	uint64_t told_ms; /* clock_ms(), when it was last warned of */
	uint64_t of_ms;	  /* ... and of what time */
};

/* expiry_check(x, t): warn in the log when less than a week is left, or it is
 * not valid yet, once a day, and of another certificate at once. */
void expiry_check(struct expiry *x, const struct tls *t);

/* expiry_unfit(t): is it over, or still to come?  Why the daemon is not ready,
 * a literal; NULL. */
const char *expiry_unfit(const struct tls *t);

#endif
