/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/log.h"
#include "broker.h"

void audit_state(const struct err *why, uint64_t lost)
{
	if (why)
		log_error("requests are not written down: %s", why->msg);
	else
		log_info("requests are written down again; %llu lines of the "
			 "audit were lost",
			 (unsigned long long)lost);
}

void audit_write(struct conn *c, const char *outcome, const char *why)
{
	struct use *u = &c->use;
	auto_json json_t *line = NULL;

	if (!strcmp(outcome, "denied") &&
	    !broker_audit_may(c->s->audit, c->who.sandbox))
		return;
	if (json_pack_or(&line, NULL,
			 "{s:I,s:s,s:s?,s:s,s:s,s:i,s:I,s:I,s:I,s:s,s:s*}",
			 "at_ms", (json_int_t)clock_wall_ms(), "sandbox",
			 c->who.sandbox, "endpoint",
			 *u->endpoint ? u->endpoint : NULL, "method", u->method,
			 "path", u->path, "status", u->status, "sent_bytes",
			 (json_int_t)u->sent, "received_bytes",
			 (json_int_t)u->received, "ms",
			 (json_int_t)(clock_ms() - u->start_ms), "outcome",
			 outcome, "why", why) < 0)
		line = NULL;
	broker_audit_add(c->s->audit, line);
}
