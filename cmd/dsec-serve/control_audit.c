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

void control_audit_reopen(struct control *c)
{
	struct err e = {0};
	int r = c->audit ? audit_reopen(c->audit, &e) : 0;

	if (r == 0 && c->audit)
		log_info("the audit log goes on in a new file");
	else if (r < 0 && r != -EEXIST)
		log_err(&e);
}

void control_audit_denied(struct control *c, const struct call *k,
			  const json_t *rec)
{
	const char *code = json_str(json_object_get(rec, "error"), "code");
	struct audit_entry entry = {
		.who = k->client ? k->client->uri : NULL,
		.program = k->program,
		.decision = AUDIT_DENY,
		.code = code,
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

	if (!c->audit || strcmp(code, "permission"))
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

void control_audit_cut(struct control *c, const struct client *cl)
{
	const struct audit_entry entry = {
		.who = cl->uri,
		.program = "hello",
		.op = "cut",
		.decision = AUDIT_DENY,
		.code = "permission",
		.at_ms = clock_wall_ms(),
	};
	struct err e = {0};

	if (c->audit && audit_add(c->audit, &entry, NULL, &e) < 0)
		log_err(&e);
}
