/* SPDX-License-Identifier: Apache-2.0 */
/* Lines as they come in, cut anywhere, through the reader and every check. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "fuzz.h"
#include "wire/jsonl.h"
#include "wire/record.h"

/* A field of each type. */
static const struct field fields[] = {
	{{.name = NULL}, "sandbox", FIELD_STR, 1, 64, NULL},
	{{"str", NULL, 's', "S", "s"}, "str", FIELD_STR, 0, 8, NULL},
	{{"name", NULL, 0, "S", "s"}, "name", FIELD_NAME, 1, 8, NULL},
	{{"int", NULL, 0, "N", "s"}, "int", FIELD_INT, -5, 5, NULL},
	{{"num", NULL, 0, "N", "s"}, "num", FIELD_NUM, 10, 5000, NULL},
	{{"bool", NULL, 0, NULL, "s"}, "bool", FIELD_BOOL, 0, 0, NULL},
	{{"mb", NULL, 0, "M", "s"}, "mb", FIELD_MB, 1, 0, NULL},
	{{"s", NULL, 0, "T", "s"}, "s", FIELD_S, 1, 0, NULL},
	{{"ms", NULL, 0, "T", "s"}, "ms", FIELD_MS, 1, 0, NULL},
	{{"cmd", NULL, 0, "C", "s"}, "cmd", FIELD_CMD, 0, 0, NULL},
	{{"strs", NULL, 0, "S", "s"}, "strs", FIELD_STRS, 0, 0, NULL},
	{{"map", NULL, 0, "K=V", "s"}, "map", FIELD_MAP, 0, 0, NULL},
	{{"obj", NULL, 0, "J", "s"}, "obj", FIELD_OBJ, 0, 0, NULL},
	{{"data", NULL, 0, "D", "s"}, "data", FIELD_BYTES, 0, 64, NULL},
	{{"later", NULL, 0, "D", "s"}, "later", FIELD_STR, 0, 0, "later"},
};

/* Whatever was taken can be written and read again, and is the same. */
static void check_again(const json_t *rec)
{
	auto_free char *text = json_dumps(rec, JSON_COMPACT);
	auto_json json_t *again = NULL;

	if (text && strlen(text) <= JSON_LINE_MAX)
		assert(json_parse(text, strlen(text), &again, NULL) == 0 &&
		       json_equal(rec, again));
}

static void one_line(const char *text, size_t len, uint64_t line)
{
	struct record_line l = {text, len, line};
	auto_json json_t *req = NULL;
	auto_json json_t *rec = NULL;
	auto_free char *data = NULL;
	enum record_kind kind;
	struct err e = {0};
	size_t n;
	int r;

	r = record_take(&l, fields, array_len(fields), NULL, &kind, &req, &e);
	assert(r == 0 || e.code);
	rec = r < 0 ? record_error(req, &e) : record_ok(req);
	assert(rec);
	check_again(rec);
	if (r < 0)
		return;
	check_again(req);
	record_to_err(req, &e);
	if (kind == RECORD_REQUEST)
		assert(json_get_bytes(req, "data", &data, &n, &e) <= 1);
}

static void one_flag(const char *text)
{
	auto_json json_t *obj = json_object();
	size_t i = (unsigned char)text[0] % array_len(fields);
	struct err e = {0};

	if (!obj || !fields[i].opt.name || !text[0])
		return;
	if (field_of_flag(&fields[i], text + 1, obj, &e) == 0)
		field_check(fields, array_len(fields), obj, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct jsonl in = {.fd = -1};
	auto_free char *copy = calloc(1, size + 1);
	size_t cut = size ? data[0] % size : 0, len;
	struct err e = {0};
	char *text;
	int r;

	if (!copy)
		return 0;
	memcpy(copy, data, size);
	for (int half = 0; half < 2; half++) {
		if (jsonl_feed(&in, half ? copy + cut : copy,
			       half ? size - cut : cut) < 0)
			break;
		while ((r = jsonl_next(&in, &text, &len, &e)) == 1 ||
		       r == -EMSGSIZE)
			if (r == 1)
				one_line(text, len, in.line);
	}
	jsonl_done(&in);
	one_flag(copy);
	return 0;
}
