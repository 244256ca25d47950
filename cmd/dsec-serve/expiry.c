/* SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "base/clock.h"
#include "base/log.h"
#include "expiry.h"

#define HOUR_MS 3600000ull
#define DAY_MS	(24 * HOUR_MS)
#define WARN_MS (7 * DAY_MS)

const char *expiry_unfit(const struct tls *t)
{
	uint64_t wall = clock_wall_ms();

	if (tls_own_from_ms(t) > wall)
		return "the certificate is not valid yet";
	return tls_own_until_ms(t) <= wall ? "the certificate has expired"
					   : NULL;
}

void expiry_check(struct expiry *x, const struct tls *t)
{
	uint64_t from = tls_own_from_ms(t), until = tls_own_until_ms(t);
	uint64_t now = clock_ms(), wall = clock_wall_ms();
	uint64_t of = from > wall ? from : until;
	char uri[TLS_URI_MAX];

	if ((from <= wall && until > wall + WARN_MS) ||
	    (of == x->of_ms && now - x->told_ms < DAY_MS))
		return;
	x->told_ms = now;
	x->of_ms = of;
	tls_ident_uri(tls_own(t), uri);
	if (from > wall)
		log_error("the certificate of %s is not valid for %llu hours "
			  "yet: nobody connects; the clock is wrong, or "
			  "dsec-serve renew makes it anew",
			  uri, (unsigned long long)((from - wall) / HOUR_MS));
	else if (until <= wall)
		log_error("the certificate of %s has expired: nobody "
			  "connects; dsec-serve renew makes it anew",
			  uri);
	else
		log_error("the certificate of %s expires in %llu hours: "
			  "dsec-serve renew makes it anew",
			  uri, (unsigned long long)((until - wall) / HOUR_MS));
}
