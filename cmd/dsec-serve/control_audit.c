/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "control.h"

/* What is done is in the logs of the nodes that do it, with who asked; what a
 * control turns away no node hears of. */

int control_audit_open(struct control *c, const char *dir, struct err *e)
{
	const char *file = c->conf.audit;
	char path[PATH_MAX];
	int n;

	if (!file)
		return 0;
	n = snprintf(path, sizeof(path), "%s%s%s", *file == '/' ? "" : dir,
		     *file == '/' ? "" : "/", file);
	if (n < 0 || (size_t)n >= sizeof(path))
		return err_set(e, -EINVAL, "configuration",
			       "'control.audit' is too long");
	return audit_open(path, c->loop, &c->audit, e);
}

void control_audit_denied(struct control *c, const struct call *k,
			  const struct err *why)
{
	struct audit_entry entry = {
		.who = k->client ? k->client->uri : NULL,
		.program = k->program,
		.decision = AUDIT_DENY,
		.code = why->code,
		.at_ms = clock_wall_ms(),
	};
	const struct {
		const char *key, **to;
	} texts[] = {
		{"op", &entry.op},	{"sandbox", &entry.sandbox},
		{"task", &entry.task},	{"project", &entry.project},
		{"id", &entry.request},
	};
	char number[32];
	struct err e = {0};

	if (!c->audit || strcmp(why->code, "permission"))
		return;
	for (size_t i = 0; i < array_len(texts); i++) {
		const json_t *v = json_object_get(k->req, texts[i].key);

		if (json_is_string(v))
			*texts[i].to = json_string_value(v);
	}
	if (json_is_integer(k->id)) {
		snprintf(number, sizeof(number), "%lld",
			 (long long)json_integer_value(k->id));
		entry.request = number;
	}
	if (audit_add(c->audit, &entry, NULL, &e) < 0)
		log_err(&e);
}

void control_audit_client(struct control *c, const struct client *cl,
			  const char *op)
{
	const struct audit_entry entry = {
		.who = cl->uri,
		.program = "hello",
		.op = op,
		.decision = AUDIT_DENY,
		.code = "permission",
		.at_ms = clock_wall_ms(),
	};
	struct err e = {0};

	if (c->audit && audit_add(c->audit, &entry, NULL, &e) < 0)
		log_err(&e);
}
