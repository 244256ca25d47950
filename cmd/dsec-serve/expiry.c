/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "base/clock.h"
#include "base/log.h"
#include "expiry.h"

#define DAY_MS	86400000ull
#define WARN_MS (7 * DAY_MS)

const char *expiry_over(const struct tls *t)
{
	return tls_own_until_ms(t) <= clock_wall_ms()
		       ? "the certificate has expired"
		       : NULL;
}

void expiry_check(struct expiry *x, const struct tls *t)
{
	uint64_t until = tls_own_until_ms(t), wall = clock_wall_ms();
	uint64_t now = clock_ms();
	char uri[TLS_URI_MAX];

	if (until > wall + WARN_MS ||
	    (until == x->until_ms && now - x->told_ms < DAY_MS))
		return;
	x->told_ms = now;
	x->until_ms = until;
	tls_ident_uri(tls_own(t), uri);
	if (until <= wall)
		log_error("the certificate of %s has expired: nobody "
			  "connects; dsec-serve renew makes it anew",
			  uri);
	else
		log_error("the certificate of %s expires in %llu hours: "
			  "dsec-serve renew makes it anew",
			  uri, (unsigned long long)((until - wall) / 3600000));
}
