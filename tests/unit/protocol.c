/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of PROTOCOL.md are those of the code, row by row, both ways. */
#include <fcntl.h>
#include <stdlib.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "box/spec.h"
#include "wire/exit.h"

static char *page;

#define CODES	 "| code | exit | meaning |"
#define OUTCOMES "| outcome | infra | meaning |"
#define FIELDS	 "| field | flag | type | default | meaning |"

/*
 * The row of a table that begins with ${head}, in a buffer; NULL if there is
 * none.  With ${head} NULL nothing is looked for.  How many rows there are
 * into *${ret_n} (may be NULL).
 */
static const char *row(const char *table, const char *head, size_t *ret_n)
{
	static char line[1024];
	const char *at = strstr(page, table), *found = NULL;
	size_t n = 0, len;

	for (; at && *at == '|'; at += len + (at[len] == '\n'), n++) {
		len = strcspn(at, "\n");
		if (!head || strncmp(at, head, strlen(head)) ||
		    len >= sizeof(line))
			continue;
		memcpy(line, at, len);
		line[len] = '\0';
		found = line;
	}
	if (ret_n)
		*ret_n = n < 2 ? 0 : n - 2;
	return found;
}

static void check_count(const char *table, size_t want, const char *what)
{
	size_t n;

	row(table, NULL, &n);
	is_int((long long)n, (long long)want, what);
}

static void check_codes(void)
{
	char want[512], head[64];

	for (size_t i = 0; i < exit_codes_len; i++) {
		const struct exit_code *c = &exit_codes[i];

		snprintf(head, sizeof(head), "| `%s` |", c->code);
		snprintf(want, sizeof(want), "| `%s` | %d | %s |", c->code,
			 (int)c->status, c->meaning);
		is_str(row(CODES, head, NULL), want, c->code);
	}
	check_count(CODES, exit_codes_len, "as many codes as in the code");
}

static void check_outcomes(void)
{
	char want[512], head[64];

	for (size_t i = 0; i < exit_outcomes_len; i++) {
		const struct exit_outcome *o = &exit_outcomes[i];

		snprintf(head, sizeof(head), "| `%s` |", o->outcome);
		snprintf(want, sizeof(want), "| `%s` | %s | %s |", o->outcome,
			 o->infra ? "true" : "false", o->meaning);
		is_str(row(OUTCOMES, head, NULL), want, o->outcome);
	}
	check_count(OUTCOMES, exit_outcomes_len, "as many outcomes");
}

static void check_field(const struct field *f)
{
	char head[64], flag[128], letter[16] = "";
	const char *line;

	if (f->opt.letter)
		snprintf(letter, sizeof(letter), ", `-%c`", f->opt.letter);
	snprintf(head, sizeof(head), "| `%s` |", f->key);
	snprintf(flag, sizeof(flag), " `--%s`%s |",
		 f->opt.alias ? f->opt.alias : f->opt.name, letter);
	line = row(FIELDS, head, NULL);
	if (!ok(line != NULL, "%s has a row", f->key))
		return;
	ok(strstr(line, flag) != NULL, "%s: the flag is%s", f->key, flag);
	ok(!f->later == !strstr(line, "refused until"), "%s: %s", f->key,
	   f->later ? "refused until later" : "accepted");
}

static void check_fields(void)
{
	size_t n = 0;

	for (size_t i = 0; i < spec_fields_len; i++) {
		if (!spec_fields[i].key)
			continue;
		check_field(&spec_fields[i]);
		n++;
	}
	check_count(FIELDS, n, "as many fields");
}

int main(void)
{
	struct err e = {0};

	if (!is_int(fd_read_file(AT_FDCWD, "PROTOCOL.md", 1 << 20, &page, NULL,
				 &e),
		    0, "PROTOCOL.md is read"))
		return tap_done();
	check_codes();
	check_outcomes();
	check_fields();
	free(page);
	return tap_done();
}
