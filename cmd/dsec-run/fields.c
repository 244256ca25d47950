/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "box/spec.h"
#include "run.h"

/* What a create request has besides the spec; main.c knows the flags that are
 * no fields by their names. */
/* clang-format off */
static const struct field own[] = {
	{{"rm", NULL, 0, NULL, "a one-shot: gone when its command ended"}, "rm", FIELD_BOOL, 0, 0, NULL},
	{{"wait", NULL, 0, NULL, "answer when the command ended, with its result"}, "wait", FIELD_BOOL, 0, 0, NULL},
	{{"detach", NULL, 'd', NULL, "do not wait for the command"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"key", NULL, 0, "KEY", "idempotency key"}, "key", FIELD_STR, 1, 128, NULL},
	{{"deadline", NULL, 0, "TIME", "give up after so long"}, "deadline_ms", FIELD_MS, 1, 0, NULL},
	{{"jobs", NULL, 'j', "N", "requests from stdin worked on at once (2 per CPU, at least 8)"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"version", NULL, 0, NULL, "the version"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "cancel", FIELD_ID, 0, 0, NULL},
	{{NULL, NULL, 0, NULL, NULL}, "attempt", FIELD_STR, 1, 64, NULL},
};
/* clang-format on */

#define ROWS_MAX 64
struct field run_fields[ROWS_MAX];
size_t run_fields_len;

void run_fields_init(void)
{
	memcpy(run_fields, spec_fields, spec_fields_len * sizeof(own[0]));
	memcpy(run_fields + spec_fields_len, own, sizeof(own));
	run_fields_len = spec_fields_len + sizeof(own) / sizeof(own[0]);
}
