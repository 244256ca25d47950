/* SPDX-License-Identifier: Apache-2.0 */
/* Lines, records and fields: what is taken and what is refused, by code. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "wire/exit.h"
#include "wire/jsonl.h"
#include "wire/record.h"

/* --- json ----------------------------------------------------------------- */

#define TEXT(s) s, sizeof(s) - 1

/* clang-format off */
static const struct {
	const char *what, *text;
	size_t len;
	const char *code; /* NULL: it is taken */
} parses[] = {
	{"empty object", TEXT("{}"), NULL},
	{"blanks around", TEXT(" \t{ \"a\" : 1 } \r\n"), NULL},
	{"escapes", TEXT("{\"a\":\"\\u00e9\\n\\ud83d\\ude00\"}"), NULL},
	{"the greatest integer", TEXT("{\"a\":9223372036854775807}"), NULL},
	{"the least integer", TEXT("{\"a\":-9223372036854775808}"), NULL},
	{"nothing", TEXT(""), "bad_record"},
	{"an array", TEXT("[1]"), "bad_record"},
	{"a string", TEXT("\"a\""), "bad_record"},
	{"null", TEXT("null"), "bad_record"},
	{"torn", TEXT("{\"a\":1"), "bad_record"},
	{"torn in a string", TEXT("{\"a\":\"x"), "bad_record"},
	{"torn in an escape", TEXT("{\"a\":\"\\u00"), "bad_record"},
	{"two objects", TEXT("{}{}"), "bad_record"},
	{"a tail", TEXT("{} x"), "bad_record"},
	{"a comma too many", TEXT("{\"a\":1,}"), "bad_record"},
	{"a comment", TEXT("{/**/}"), "bad_record"},
	{"single quotes", TEXT("{'a':1}"), "bad_record"},
	{"a duplicate", TEXT("{\"a\":1,\"a\":1}"), "bad_record"},
	{"a duplicate by escape", TEXT("{\"a\":1,\"\\u0061\":2}"), "bad_record"},
	{"a duplicate inside", TEXT("{\"a\":{\"b\":1,\"b\":2}}"), "bad_record"},
	{"NUL in a string", TEXT("{\"a\":\"x\0y\"}"), "bad_record"},
	{"NUL by escape", TEXT("{\"a\":\"\\u0000\"}"), "bad_record"},
	{"NUL in a key", TEXT("{\"\\u0000\":1}"), "bad_record"},
	{"NUL after it", TEXT("{}\0"), "bad_record"},
	{"a control character", TEXT("{\"a\":\"\x01\"}"), "bad_record"},
	{"a stray byte", TEXT("{\"a\":\"\xff\"}"), "bad_record"},
	{"a cut sequence", TEXT("{\"a\":\"\xc3\"}"), "bad_record"},
	{"an overlong sequence", TEXT("{\"a\":\"\xc0\xaf\"}"), "bad_record"},
	{"a surrogate in UTF-8", TEXT("{\"a\":\"\xed\xa0\x80\"}"), "bad_record"},
	{"half a surrogate", TEXT("{\"a\":\"\\ud83d\"}"), "bad_record"},
	{"beyond Unicode", TEXT("{\"a\":\"\xf4\x90\x80\x80\"}"), "bad_record"},
	{"an integer too great", TEXT("{\"a\":9223372036854775808}"), "bad_record"},
	{"a huge integer", TEXT("{\"a\":99999999999999999999999}"), "bad_record"},
	{"a real too great", TEXT("{\"a\":1e400}"), "bad_record"},
	{"NaN", TEXT("{\"a\":NaN}"), "bad_record"},
	{"Infinity", TEXT("{\"a\":-Infinity}"), "bad_record"},
	{"hexadecimal", TEXT("{\"a\":0x10}"), "bad_record"},
	{"a leading zero", TEXT("{\"a\":01}"), "bad_record"},
	{"a plus sign", TEXT("{\"a\":+1}"), "bad_record"},
};
/* clang-format on */

static void test_parse(void)
{
	for (size_t i = 0; i < array_len(parses); i++) {
		auto_json json_t *obj = NULL;
		struct err e = {0};
		int r = json_parse(parses[i].text, parses[i].len, &obj, &e);

		is_str(r < 0 ? e.code : NULL, parses[i].code, parses[i].what);
		ok((r < 0) == (obj == NULL), "... and an object only then");
	}
}

static void test_depth(void)
{
	enum { DEEP = 100000 };
	auto_free char *text = malloc(2 * DEEP + 16);
	auto_json json_t *obj = NULL;
	struct err e = {0};
	int n = sprintf(text, "{\"a\":");

	memset(text + n, '[', DEEP);
	memset(text + n + DEEP, ']', DEEP);
	text[n + 2 * DEEP] = '}';
	is_int(json_parse(text, (size_t)(n + 2 * DEEP + 1), &obj, &e), -EBADMSG,
	       "too deep");
}

static void test_bytes(void)
{
	static const char *const bad[] = {"x",	  "xx",	  "xxx",     "=xxx",
					  "====", "QQ=a", "QR==",    "QUF=",
					  "Q Q=", "QQ-_", "QQ==QQ=="};
	struct err e = {0};

	for (size_t len = 0; len < 300; len++) {
		auto_json json_t *obj = json_object();
		auto_free char *back = NULL;
		unsigned char raw[300];
		size_t n = 0;

		for (size_t i = 0; i < len; i++)
			raw[i] = (unsigned char)(i * 7 + len);
		if (json_set_bytes(obj, "x", raw, len) < 0 ||
		    json_get_bytes(obj, "x", &back, &n, &e) != 1 || n != len ||
		    memcmp(raw, back, len))
			ok(false, "%zu bytes there and back", len);
	}
	ok(true, "0 to 299 bytes there and back");
	for (size_t i = 0; i < array_len(bad); i++) {
		auto_json json_t *obj = json_pack("{s:s}", "x_b64", bad[i]);
		char *back = NULL;
		size_t n;

		is_int(json_get_bytes(obj, "x", &back, &n, &e), -EBADMSG,
		       bad[i]);
	}
}

static void test_bytes_form(void)
{
	auto_json json_t *obj = json_object(), *both = NULL;
	char *back = NULL;
	struct err e = {0};
	size_t n;

	is_int(json_set_bytes(obj, "t", "text", 4), 0, "text");
	is_int(json_set_bytes(obj, "none", NULL, 0), 0, "nothing");
	is_int(json_set_bytes(obj, "n", "a\0b", 3), 0, "with NUL");
	is_int(json_set_bytes(obj, "u", "\xff", 1), 0, "not UTF-8");
	is_str(json_str(obj, "t"), "text", "text stays text");
	ok(json_object_get(obj, "none") && !json_object_get(obj, "none_b64"),
	   "nothing is text");
	is_str(json_str(obj, "n_b64"), "YQBi", "NUL makes it base64");
	is_str(json_str(obj, "u_b64"), "/w==", "so does what is not UTF-8");
	is_int(json_get_bytes(obj, "zz", &back, &n, &e), 0, "absent");
	both = json_pack("{s:s, s:s}", "a", "x", "a_b64", "eA==");
	is_int(json_get_bytes(both, "a", &back, &n, &e), -EBADMSG, "both");
}

/* --- jsonl ---------------------------------------------------------------- */

static int memory_file(const void *data, size_t len)
{
	int fd = memfd_create("lines", MFD_CLOEXEC);

	if (fd < 0 || fd_write_all(fd, data, len, NULL) < 0)
		return -1;
	lseek(fd, 0, SEEK_SET);
	return fd;
}

/* All lines of ${fd}, as "[1]text[3]text": numbers and content. */
static void collect(int fd, char *out, size_t size)
{
	struct jsonl j = {.fd = fd};
	struct err e = {0};
	size_t n = 0, len;
	char *text;
	int r;

	out[0] = '\0';
	while ((r = jsonl_next(&j, &text, &len, &e)) != 0) {
		if (r == -EMSGSIZE)
			n += (size_t)snprintf(out + n, size - n, "[%d]!",
					      (int)j.line);
		else if (r < 0)
			break;
		else
			n += (size_t)snprintf(out + n, size - n, "[%d]%s%s",
					      (int)j.line, text,
					      text[len] ? "(no NUL)" : "");
	}
	jsonl_done(&j);
}

static void test_lines(void)
{
	static const struct {
		const char *in, *out, *what;
	} cases[] = {
		{"", "", "nothing"},
		{"a\nb\n", "[1]a[2]b", "two lines"},
		{"a\nb", "[1]a[2]b", "the last one without its newline"},
		{"\n\n \t\r\na\n\n", "[4]a", "blank lines count, no more"},
		{"a\r\n", "[1]a\r", "a carriage return is the parser's affair"},
		{"\n", "", "a newline alone"},
	};
	char out[256];

	for (size_t i = 0; i < array_len(cases); i++) {
		int fd = memory_file(cases[i].in, strlen(cases[i].in));

		collect(fd, out, sizeof(out));
		is_str(out, cases[i].out, cases[i].what);
		fd_close(fd);
	}
}

/* A first line of ${len} bytes, then "b". */
static void long_line(size_t len, bool newline, const char *want,
		      const char *what)
{
	auto_free char *text = malloc(len + 3), *out = malloc(len + 64);
	auto_close int fd = -1;
	size_t n = len;

	memset(text, 'a', len);
	if (newline) {
		memcpy(text + n, "\nb\n", 3);
		n += 3;
	}
	fd = memory_file(text, n);
	collect(fd, out, len + 64);
	if (strlen(out) > len) { /* the long line itself: its tail will do */
		ok(out[3] == 'a' && out[2 + len] == 'a', "%s: all of it", what);
		is_str(out + 3 + len, want, what);
	} else {
		is_str(out, want, what);
	}
}

static void test_long(void)
{
	long_line(JSON_LINE_MAX, true, "[2]b", "a line of the limit");
	long_line(JSON_LINE_MAX, false, "", "the same without newline");
	long_line(JSON_LINE_MAX + 1, true, "[1]![2]b", "a byte more");
	long_line(JSON_LINE_MAX + 1, false, "[1]!", "the same, torn");
	long_line(5 * JSON_LINE_MAX, true, "[1]![2]b", "five times as much");
	long_line(5 * JSON_LINE_MAX, false, "[1]!", "the same, torn");
}

static void test_pieces(void)
{
	static const char text[] = "{\"a\":1}\n\n{\"b\":2}\n{\"c\"";
	struct jsonl j = {.fd = -1};
	struct err e = {0};
	size_t len, lines = 0;
	char *line;
	int r;

	for (size_t i = 0; i < sizeof(text) - 1; i++) {
		is_int(jsonl_feed(&j, text + i, 1), 0, "a byte");
		r = jsonl_next(&j, &line, &len, &e);
		if (r == 1)
			lines++;
		else if (r != -EAGAIN)
			ok(false, "it answers %d", r);
	}
	is_int((long long)lines, 2, "two whole lines, byte by byte");
	is_int((long long)j.line, 3, "the blank one counted");
	jsonl_done(&j);
}

static void test_pipe(void)
{
	struct jsonl j = {.fd = -1};
	struct err e = {0};
	size_t len;
	char *line;
	int p[2];

	if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0) {
		ok(false, "a pipe");
		return;
	}
	j.fd = p[0];
	is_int(jsonl_next(&j, &line, &len, &e), -EAGAIN, "nothing yet");
	ok(write(p[1], "{\"a\"", 4) == 4, "half a line");
	is_int(jsonl_next(&j, &line, &len, &e), -EAGAIN, "not yet");
	ok(write(p[1], ":1}\nx", 5) == 5, "the rest");
	is_int(jsonl_next(&j, &line, &len, &e), 1, "a line");
	is_str(line, "{\"a\":1}", "the whole of it");
	is_int(jsonl_next(&j, &line, &len, &e), -EAGAIN, "no more yet");
	fd_close(p[1]);
	is_int(jsonl_next(&j, &line, &len, &e), 1, "what was left at the end");
	is_str(line, "x", "the torn one");
	is_int(jsonl_next(&j, &line, &len, &e), 0, "the end");
	is_int(jsonl_next(&j, &line, &len, &e), 0, "and it stays");
	jsonl_done(&j);
	fd_close(p[0]);
}

/* --- field ---------------------------------------------------------------- */

enum {
	F_NAME,
	F_INT,
	F_NUM,
	F_MB,
	F_S,
	F_MS,
	F_CMD,
	F_STRS,
	F_MAP,
	F_OBJ,
	F_BOOL,
	F_BYTES,
	F_LATER,
	F_FREE
};

/* clang-format off */
static const struct field fields[] = {
	[F_NAME] = {{"name", NULL, 'n', "NAME", ""}, "name", FIELD_NAME, 1, 8, NULL},
	[F_INT] = {{"int", NULL, 'i', "N", ""}, "int", FIELD_INT, -5, 100, NULL},
	[F_NUM] = {{"num", NULL, 'c', "N", ""}, "num", FIELD_NUM, 10, 4000, NULL},
	[F_MB] = {{"mb", NULL, 'm', "SIZE", ""}, "mb", FIELD_MB, 1, 16777216, NULL},
	[F_S] = {{"s", NULL, 0, "TIME", ""}, "s", FIELD_S, 1, 31536000, NULL},
	[F_MS] = {{"timeout", NULL, 't', "TIME", ""}, "timeout_ms", FIELD_MS, 1, 31536000000, NULL},
	[F_CMD] = {{"cmd", NULL, 0, "CMD", ""}, "cmd", FIELD_CMD, 0, 0, NULL},
	[F_STRS] = {{"strs", NULL, 0, "X", ""}, "strs", FIELD_STRS, 0, 0, NULL},
	[F_MAP] = {{"map", NULL, 'e', "K=V", ""}, "map", FIELD_MAP, 0, 0, NULL},
	[F_OBJ] = {{"obj", NULL, 0, "JSON", ""}, "obj", FIELD_OBJ, 0, 0, NULL},
	[F_BOOL] = {{"bool", NULL, 'b', NULL, ""}, "bool", FIELD_BOOL, 0, 0, NULL},
	[F_BYTES] = {{"data", NULL, 0, "TEXT", ""}, "data", FIELD_BYTES, 0, 0, NULL},
	[F_LATER] = {{"later", NULL, 0, "X", ""}, "later", FIELD_STR, 0, 0, "things to come"},
	[F_FREE] = {{"free", NULL, 0, "N", ""}, "free", FIELD_NUM, 0, 0, NULL},
};

/* A flag through both checks: its value as JSON, or the code. */
static const struct {
	int row;
	const char *arg, *want;
} flags[] = {
	{F_MS, "0", "bad_value"}, {F_MS, "-1", "usage"}, {F_MS, "0.5", "500"},
	{F_MS, "1", "1000"}, {F_MS, "1.5", "1500"}, {F_MS, "1e9", "usage"},
	{F_MS, "NaN", "usage"}, {F_MS, "nan", "usage"}, {F_MS, "inf", "usage"},
	{F_MS, "", "usage"}, {F_MS, "10m", "600000"}, {F_MS, "500ms", "500"},
	{F_MS, "0.5ms", "usage"}, {F_MS, "2h", "7200000"}, {F_MS, "1d", "usage"},
	{F_MS, "0x10", "usage"}, {F_MS, "1.2.3", "usage"}, {F_MS, "1.", "usage"},
	{F_MS, ".5", "usage"}, {F_MS, " 1", "usage"}, {F_MS, "1 ", "usage"},
	{F_MS, "+1", "usage"}, {F_MS, "1s", "1000"}, {F_MS, "10 m", "usage"},
	{F_MS, "99999999999999999999", "usage"}, {F_MS, "31536001", "bad_value"},
	{F_S, "300", "300"}, {F_S, "5m", "300"}, {F_S, "1d", "86400"},
	{F_S, "0.5", "usage"}, {F_S, "0.5m", "30"}, {F_S, "0", "bad_value"},
	{F_MB, "512", "512"}, {F_MB, "512M", "512"}, {F_MB, "2G", "2048"},
	{F_MB, "0.5G", "512"}, {F_MB, "1T", "1048576"}, {F_MB, "1K", "usage"},
	{F_MB, "1GB", "usage"}, {F_MB, "0", "bad_value"}, {F_MB, "-1", "usage"},
	{F_MB, "17T", "bad_value"},
	{F_INT, "5", "5"}, {F_INT, "-5", "-5"}, {F_INT, "-6", "bad_value"},
	{F_INT, "101", "bad_value"}, {F_INT, "5.0", "usage"}, {F_INT, "", "usage"},
	{F_INT, "5x", "usage"}, {F_INT, " 5", "usage"}, {F_INT, "+5", "usage"},
	{F_INT, "9999999999999999999999", "usage"}, {F_INT, "--5", "usage"},
	{F_NUM, "0.5", "0.5"}, {F_NUM, "4", "4"}, {F_NUM, "0.001", "bad_value"},
	{F_NUM, "4.1", "bad_value"}, {F_NUM, "-1", "bad_value"},
	{F_NUM, "nan", "usage"}, {F_NUM, "inf", "usage"}, {F_NUM, "1e3", "usage"},
	{F_NUM, "0x1", "usage"}, {F_FREE, "123456.5", "123456.5"},
	{F_FREE, "-1", "bad_value"},
	{F_NAME, "a.b_c-d", "\"a.b_c-d\""}, {F_NAME, "", "bad_value"},
	{F_NAME, ".a", "bad_value"}, {F_NAME, "-a", "bad_value"},
	{F_NAME, "a/b", "bad_value"}, {F_NAME, "..", "bad_value"},
	{F_NAME, "abcdefghi", "bad_value"}, {F_NAME, "\xff", "usage"},
	{F_NAME, "a\n", "bad_value"},
	{F_CMD, "ls -l", "[\"/bin/sh\",\"-c\",\"ls -l\"]"},
	{F_STRS, "x", "[\"x\"]"}, {F_STRS, "\xff", "usage"},
	{F_MAP, "K=V", "{\"K\":\"V\"}"}, {F_MAP, "K=", "{\"K\":\"\"}"},
	{F_MAP, "K=a=b", "{\"K\":\"a=b\"}"}, {F_MAP, "K", "usage"},
	{F_MAP, "=V", "usage"}, {F_MAP, "K=\xff", "usage"},
	{F_MAP, "\xff=V", "usage"},
	{F_OBJ, "{\"a\":1}", "{\"a\":1}"}, {F_OBJ, "[1]", "[1]"},
	{F_OBJ, "{\"a\":1,\"a\":2}", "usage"}, {F_OBJ, "x", "usage"},
	{F_BOOL, NULL, "true"}, {F_BYTES, "x", "\"x\""},
	{F_LATER, "x", "unsupported"},
};

/* A request through the check: what is left of it, or the code. */
static const struct {
	const char *in, *want;
} requests[] = {
	{"{}", "{}"},
	{"{\"name\":null}", "{}"},
	{"{\"zzz\":1}", "unknown_field"},
	{"{\"zzz\":null}", "{}"},
	{"{\"Name\":\"a\"}", "unknown_field"},
	{"{\"name\":5}", "bad_value"},
	{"{\"int\":5}", "{\"int\":5}"},
	{"{\"int\":5.0}", "bad_value"},
	{"{\"int\":\"5\"}", "bad_value"},
	{"{\"int\":true}", "bad_value"},
	{"{\"num\":1}", "{\"num\":1}"},
	{"{\"num\":9223372036854775807}", "bad_value"},
	{"{\"num\":-1e300}", "bad_value"},
	{"{\"num\":\"1\"}", "bad_value"},
	{"{\"timeout_ms\":0}", "bad_value"},
	{"{\"timeout_ms\":-1}", "bad_value"},
	{"{\"timeout_ms\":1.5}", "bad_value"},
	{"{\"bool\":1}", "bad_value"},
	{"{\"bool\":false}", "{\"bool\":false}"},
	{"{\"cmd\":[]}", "bad_value"},
	{"{\"cmd\":[\"\"]}", "bad_value"},
	{"{\"cmd\":[\"a\",\"\"]}", "{\"cmd\":[\"a\",\"\"]}"},
	{"{\"cmd\":[\"a\",1]}", "bad_value"},
	{"{\"cmd\":{}}", "bad_value"},
	{"{\"cmd\":\"x\"}", "{\"cmd\":[\"/bin/sh\",\"-c\",\"x\"]}"},
	{"{\"strs\":\"x\"}", "bad_value"},
	{"{\"strs\":[]}", "{\"strs\":[]}"},
	{"{\"strs\":[null]}", "bad_value"},
	{"{\"map\":{\"a\":1}}", "bad_value"},
	{"{\"map\":{\"\":\"a\"}}", "bad_value"},
	{"{\"map\":[]}", "bad_value"},
	{"{\"obj\":1}", "bad_value"},
	{"{\"data_b64\":\"eA==\"}", "{\"data_b64\":\"eA==\"}"},
	{"{\"data_b65\":\"eA==\"}", "unknown_field"},
	{"{\"name_b64\":\"eA==\"}", "unknown_field"},
	{"{\"later\":\"x\"}", "unsupported"},
	{"{\"later\":null}", "{}"},
	{"{\"id\":\"x\",\"key\":\"k\",\"deadline_ms\":5}", "{\"deadline_ms\":5,\"id\":\"x\",\"key\":\"k\"}"},
	{"{\"id\":1.5}", "bad_value"},
	{"{\"id\":{}}", "bad_value"},
	{"{\"key\":\"\"}", "bad_value"},
	{"{\"deadline_ms\":0}", "bad_value"},
};
/* clang-format on */

static void is_json(const json_t *got, const char *want, const char *what)
{
	auto_free char *text = json_dumps(got, JSON_COMPACT | JSON_SORT_KEYS |
						       JSON_ENCODE_ANY);

	is_str(text, want, what);
}

static void test_flags(void)
{
	char what[128];

	for (size_t i = 0; i < array_len(flags); i++) {
		const struct field *f = &fields[flags[i].row];
		auto_json json_t *obj = json_object();
		struct err e = {0};
		int r;

		snprintf(what, sizeof(what), "--%s %s", f->opt.name,
			 flags[i].arg ? flags[i].arg : "");
		what[strcspn(what, "\n")] = '\0';
		r = field_of_flag(f, flags[i].arg, obj, &e);
		if (r == 0)
			r = field_check(fields, array_len(fields), obj, &e);
		if (r < 0)
			is_str(e.code, flags[i].want, what);
		else
			is_json(json_object_get(obj, f->key), flags[i].want,
				what);
	}
}

static void test_requests(void)
{
	for (size_t i = 0; i < array_len(requests); i++) {
		auto_json json_t *obj = NULL;
		struct err e = {0};
		int r;

		r = json_parse(requests[i].in, strlen(requests[i].in), &obj,
			       &e);
		if (r == 0)
			r = field_check(fields, array_len(fields), obj, &e);
		if (r < 0)
			is_str(e.code, requests[i].want, requests[i].in);
		else
			is_json(obj, requests[i].want, requests[i].in);
	}
}

static void test_repeat(void)
{
	auto_json json_t *obj = json_object();
	struct err e = {0};

	is_int(field_of_flag(&fields[F_STRS], "a", obj, &e) |
		       field_of_flag(&fields[F_STRS], "b", obj, &e) |
		       field_of_flag(&fields[F_MAP], "A=1", obj, &e) |
		       field_of_flag(&fields[F_MAP], "A=2", obj, &e) |
		       field_of_flag(&fields[F_INT], "1", obj, &e) |
		       field_of_flag(&fields[F_INT], "2", obj, &e),
	       0, "flags repeat");
	is_json(obj, "{\"int\":2,\"map\":{\"A\":\"2\"},\"strs\":[\"a\",\"b\"]}",
		"lists grow, the last one counts");
}

/* --- record --------------------------------------------------------------- */

/* clang-format off */
static const struct {
	const char *in, *want; /* the request, or the code */
} takes[] = {
	{"{\"int\":1}", "{\"bool\":true,\"id\":7,\"int\":1}"},
	{"{\"id\":\"x\"}", "{\"bool\":true,\"id\":\"x\"}"},
	{"{\"id\":null,\"bool\":null}", "{\"bool\":true,\"id\":7}"},
	{"{\"id\":3,\"bool\":false}", "{\"bool\":false,\"id\":3}"},
	{"{\"ok\":true,\"id\":3,\"sandbox\":\"s\",\"zzz\":[1]}", "unknown_field"},
	{"{\"ok\":true,\"id\":3,\"zzz\":[1],\"int\":5}", "{\"bool\":true,\"id\":3,\"in\":{\"int\":5,\"zzz\":[1]}}"},
	{"{\"ok\":true}", "{\"bool\":true,\"id\":7}"},
	{"{\"ok\":true,\"in\":{\"a\":1}}", "{\"bool\":true,\"id\":7,\"in\":{\"in\":{\"a\":1}}}"},
	{"{\"ok\":1}", "unknown_field"},
	{"{\"ok\":\"true\"}", "unknown_field"},
	{"{\"ok\":null}", "{\"bool\":true,\"id\":7}"},
	{"{\"int\":1000}", "bad_value"},
	{"{\"int\"", "bad_record"},
};
/* clang-format on */

static void test_take(void)
{
	auto_json json_t *defaults = json_pack("{s:b}", "bool", 1);

	for (size_t i = 0; i < array_len(takes); i++) {
		struct record_line line = {takes[i].in, strlen(takes[i].in), 7};
		auto_json json_t *req = NULL;
		enum record_kind kind;
		struct err e = {0};
		int r;

		r = record_take(&line, fields, array_len(fields), defaults,
				&kind, &req, &e);
		if (r < 0)
			is_str(e.code, takes[i].want, takes[i].in);
		else
			is_json(req, takes[i].want, takes[i].in);
		is_int(kind, RECORD_REQUEST, "... as a request");
	}
	is_json(defaults, "{\"bool\":true}", "the defaults stay as they were");
}

static void test_pass(void)
{
	static const char text[] = "{\"ok\":false,\"id\":5,\"zzz\":null,"
				   "\"error\":{\"code\":\"memory\"}}";
	struct record_line line = {text, sizeof(text) - 1, 7};
	auto_json json_t *req = NULL;
	enum record_kind kind;
	struct err e = {0};

	is_int(record_take(&line, fields, array_len(fields), NULL, &kind, &req,
			   &e),
	       0, "somebody's failure");
	is_int(kind, RECORD_PASS, "is to be passed on");
	is_json(req,
		"{\"error\":{\"code\":\"memory\"},\"id\":5,\"ok\":false,"
		"\"zzz\":null}",
		"unchanged");
}

static void test_errors(void)
{
	auto_json json_t *req = json_pack("{s:i, s:s, s:{s:i}}", "id", 4,
					  "sandbox", "s", "in", "a", 1);
	struct err e = {0}, back = {0};
	auto_json json_t *rec = NULL, *odd = NULL, *ok_rec = NULL;

	err_set(&e, -EAGAIN, "memory", "no \xff room");
	e.retry_after_ms = 50;
	e.infra = true;
	rec = record_error(req, &e);
	is_json(rec,
		"{\"error\":{\"code\":\"memory\",\"infra\":true,\"message\":\""
		"no ? room\",\"retry_after_ms\":50},\"id\":4,\"in\":{\"a\":1},"
		"\"ok\":false,\"sandbox\":\"s\"}",
		"a failure");
	is_int(record_to_err(rec, &back), -EREMOTEIO, "and back");
	ok(!strcmp(back.code, "memory") && back.retry_after_ms == 50 &&
		   back.infra && !strcmp(back.msg, "no ? room"),
	   "with all it said");
	odd = json_pack("{s:b, s:{s:s, s:I}}", "ok", 0, "error", "code", "eh",
			"retry_after_ms", (json_int_t)-1);
	is_int(record_to_err(odd, &back), -EREMOTEIO, "an odd one");
	ok(!strcmp(back.code, "internal") && back.retry_after_ms == 0,
	   "is tamed");
	ok_rec = record_ok(req);
	is_int(record_to_err(ok_rec, &back), 0, "success is none");
}

static void test_write(void)
{
	auto_free char *big = malloc(JSON_LINE_MAX);
	auto_json json_t *rec = NULL, *small = json_pack("{s:i}", "a", 1);
	auto_close int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
	struct err e = {0};

	memset(big, 'a', JSON_LINE_MAX - 1);
	big[JSON_LINE_MAX - 1] = '\0';
	rec = json_pack("{s:s}", "a", big);
	is_int(record_write(full, rec, &e), -EMSGSIZE, "a record too long");
	is_int(record_write(full, small, &e), -EPIPE, "nowhere to write");
	is_str(e.code, "stdout_lost", "... has its code");
}

static void test_exit(void)
{
	struct err e = {.code = "memory"}, odd = {.code = "zzz"}, none = {0};

	is_int(exit_of(&e), EXIT_TRY_AGAIN, "the status of a code");
	is_int(exit_of(&odd), EXIT_BUG, "of a word that is none");
	is_int(exit_of(&none), EXIT_BUG, "of none");
}

int main(void)
{
	test_parse();
	test_depth();
	test_bytes();
	test_bytes_form();
	test_lines();
	test_long();
	test_pieces();
	test_pipe();
	test_flags();
	test_requests();
	test_repeat();
	test_take();
	test_pass();
	test_errors();
	test_write();
	test_exit();
	return tap_done();
}
