/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/hash.h"
#include "broker.h"
#include "wire/record.h"

#define DENIED_PER_S   20
#define DENIED_SANDBOX 10 /* of one: or it could hide those of another */

/* Refusals cost a sandbox nothing: only so many of them fill the disk. */
static bool may_write(struct server *s, const char *outcome,
		      const char *sandbox)
{
	size_t at = hash_fnv(sandbox, strlen(sandbox)) % DENIED_PLACES;
	uint64_t now = clock_ms();

	if (strcmp(outcome, "denied") != 0)
		return true;
	if (now - s->denied_at_ms >= 1000) {
		s->denied_at_ms = now;
		s->denied_left = DENIED_PER_S;
		memset(s->denied_of, 0, sizeof(s->denied_of));
	}
	if (s->denied_left && s->denied_of[at] < DENIED_SANDBOX) {
		s->denied_left--;
		s->denied_of[at]++;
		return true;
	}
	s->denied_unsaid++;
	return false;
}

void audit_write(struct conn *c, const char *outcome, const char *why)
{
	struct use *u = &c->use;
	auto_json json_t *line = NULL;
	int r;

	if (!may_write(c->s, outcome, c->who.sandbox))
		return;
	r = json_pack_or(&line, NULL,
			 "{s:I,s:s,s:s?,s:s,s:s,s:i,s:I,s:I,s:I,s:s,s:s*,s:I}",
			 "at_ms", (json_int_t)clock_wall_ms(), "sandbox",
			 c->who.sandbox, "endpoint",
			 *u->endpoint ? u->endpoint : NULL, "method", u->method,
			 "path", u->path, "status", u->status, "sent_bytes",
			 (json_int_t)u->sent, "received_bytes",
			 (json_int_t)u->received, "ms",
			 (json_int_t)(clock_ms() - u->start_ms), "outcome",
			 outcome, "why", why, "n",
			 (json_int_t)c->s->denied_unsaid + 1);
	if (r == 0 && record_write(c->s->audit, line, NULL) == 0)
		c->s->denied_unsaid = 0;
}
