/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "serve/relay_priv.h"
#include "wire/field.h"

#define YEAR_MS 31536000000

/* clang-format off */
static const struct field fields[] = {
	{.key = "program", .type = FIELD_STR},
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "op", .type = FIELD_STR, .min = 1, .max = 32},
	{.key = "command", .type = FIELD_CMD},
	{.key = "env", .type = FIELD_MAP},
	{.key = "cwd", .type = FIELD_STR, .min = 1, .max = 4095},
	{.key = "user", .type = FIELD_STR, .min = 1, .max = 256},
	{.key = "timeout_ms", .type = FIELD_MS, .min = 1, .max = YEAR_MS},
	{.key = "grace_ms", .type = FIELD_MS, .min = 0, .max = YEAR_MS},
	{.key = "stdin", .type = FIELD_STR, .min = 1, .max = 4},
	{.key = "tty", .type = FIELD_BOOL},
	{.key = "rows", .type = FIELD_INT, .min = 1, .max = 65535},
	{.key = "cols", .type = FIELD_INT, .min = 1, .max = 65535},
	{.key = "session", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "step", .type = FIELD_INT},
	{.key = "detach", .type = FIELD_BOOL},
	{.key = "leave", .type = FIELD_BOOL},
	{.key = "lossy", .type = FIELD_BOOL},
	{.key = "attach", .type = FIELD_BOOL},
	{.key = "inline_kb", .type = FIELD_INT, .min = 0, .max = 512},
	{.key = "exec", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "stdout_offset", .type = FIELD_INT, .min = 0, .max = INT64_MAX},
	{.key = "stderr_offset", .type = FIELD_INT, .min = 0, .max = INT64_MAX},
	{.key = "port", .type = FIELD_INT, .min = 1, .max = 65535},
	{.key = "path", .type = FIELD_BYTES, .min = 1, .max = 5460},
	{.key = "name", .type = FIELD_BYTES, .min = 1, .max = 5460},
	{.key = "mode", .type = FIELD_STR, .min = 1, .max = 5},
	{.key = "parents", .type = FIELD_BOOL},
	{.key = "offset", .type = FIELD_INT, .min = 0, .max = INT64_MAX},
	{.key = "limit", .type = FIELD_INT, .min = 1, .max = INT64_MAX},
	{.key = "size", .type = FIELD_INT, .min = 0, .max = INT64_MAX},
};

/* Words with a space on each side.  pass: the supervisor gets them as well. */
static const struct op {
	const char *name;
	enum relay_op op;
	const char *need, *pass, *ours;
	const char *helper; /* of files: its name for it */
} ops[] = {
	{"exec", RELAY_EXEC, " command ",
	 " command env cwd user timeout_ms grace_ms stdin tty rows cols session step detach leave lossy key ",
	 " attach inline_kb ", NULL},
	{"attach", RELAY_ATTACH, " exec ", " exec lossy ",
	 " attach inline_kb stdout_offset stderr_offset ", NULL},
	{"wait", RELAY_WAIT, " exec ", " exec ", " timeout_ms ", NULL},
	{"connect", RELAY_CONNECT, " port ", " port ", " ", NULL},
	{"read", RELAY_FILE, " path attach ", " user ",
	 " path path_b64 offset limit attach ", "read"},
	{"write", RELAY_FILE, " path size attach ", " user ",
	 " path path_b64 size mode parents attach ", "write"},
	{"get", RELAY_FILE, " path ", " user ",
	 " path path_b64 name name_b64 attach ", "tar-out"},
	{"put", RELAY_FILE, " path ", " user ",
	 " path path_b64 name name_b64 attach ", "tar-in"},
};
/* clang-format on */

static const char general[] =
	" program sandbox op id deadline_ms in as within req ";

static bool has_word(const char *list, const char *word)
{
	char padded[80];
	int n = snprintf(padded, sizeof(padded), " %s ", word);

	return n < (int)sizeof(padded) && !strchr(word, ' ') &&
	       strstr(list, padded);
}

static bool is_true(const json_t *o, const char *key)
{
	return json_is_true(json_object_get(o, key));
}

static const struct op *op_of(const json_t *req)
{
	const char *program = json_str(req, "program");
	const char *name = json_str(req, "op");

	if (!*name && !strcmp(program, "exec"))
		name = "exec";
	if (strcmp(program, "exec") && strcmp(program, "file"))
		return NULL;
	for (size_t i = 0; i < array_len(ops); i++)
		if (!strcmp(ops[i].name, name))
			return &ops[i];
	return NULL;
}

bool relay_takes(const json_t *req)
{
	const struct op *op = op_of(req);

	if (!op)
		return false;
	/* Short contents are records. */
	return op->op != RELAY_FILE || strchr(op->helper, '-') ||
	       is_true(req, "attach");
}

static int check_words(const struct op *op, const json_t *req, struct err *e)
{
	const char *key;
	json_t *v;

	json_object_foreach((json_t *)(uintptr_t)req, key, v) {
		if (has_word(op->pass, key) || has_word(op->ours, key) ||
		    has_word(general, key))
			continue;
		return err_set(e, -EBADMSG, "unknown_field",
			       "'%.64s' is no field of the operation '%s'", key,
			       op->name);
	}
	return 0;
}

static int need_words(const struct op *op, const json_t *req, struct err *e)
{
	char word[32], b64[40];
	size_t n;

	for (const char *p = op->need + 1; *p; p += n + 1) {
		n = strcspn(p, " ");
		snprintf(word, sizeof(word), "%.*s", (int)n, p);
		snprintf(b64, sizeof(b64), "%s_b64", word);
		if (!json_object_get(req, word) && !json_object_get(req, b64))
			return err_set(e, -EBADMSG, "missing_field",
				       "'%s' is missing", word);
	}
	return 0;
}

/* --- a file's ------------------------------------------------------------ */

static int add_arg(json_t *args, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static int add_arg(json_t *args, const char *fmt, ...)
{
	auto_free char *text = NULL;
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vasprintf(&text, fmt, ap);
	va_end(ap);
	if (n < 0) {
		text = NULL;
		return -1;
	}
	return json_array_append_new(args, json_string(text));
}

/* Text or base64, as it came: the helper reads both. */
static int add_path(const struct relay *r, json_t *args, const char *key)
{
	char b64[16];

	snprintf(b64, sizeof(b64), "%s_b64", key);
	if (json_object_get(r->req, b64))
		return add_arg(args, "%s=%s", b64, json_str(r->req, b64));
	if (json_object_get(r->req, key))
		return add_arg(args, "%s=%s", key, json_str(r->req, key));
	return 0;
}

static int add_int(const struct relay *r, json_t *args, const char *key)
{
	const json_t *v = json_object_get(r->req, key);

	return v ? add_arg(args, "%s=%lld", key,
			   (long long)json_integer_value(v))
		 : 0;
}

static int file_args(struct relay *r, const struct op *op, struct err *e)
{
	const char *mode = json_str(r->req, "mode");
	bool in = !strcmp(op->helper, "tar-in");
	json_t *args;
	int bad;

	if (mode[strspn(mode, "01234567")])
		return err_set(e, -EBADMSG, "bad_value",
			       "'mode' is '%.16s': octal digits, as 0644",
			       mode);
	args = json_pack("[s]", op->helper);
	bad = !args || json_object_set_new(r->line, "args", args) < 0;
	bad = bad || add_path(r, args, "path") || add_path(r, args, "name") ||
	      add_int(r, args, "offset") || add_int(r, args, "limit") ||
	      add_int(r, args, "size");
	if (!bad && *mode)
		bad = add_arg(args, "mode=%s", mode);
	if (!bad && (in || is_true(r->req, "parents")))
		bad = add_arg(args, "parents=1");
	if (!bad && !strcmp(op->helper, "tar-out") &&
	    !json_object_get(r->req, "name") &&
	    !json_object_get(r->req, "name_b64"))
		bad = add_arg(args, "name=.");
	bad = bad || json_object_set_new(r->line, "op", json_string("file"));
	return bad ? err_sys(e, ENOMEM, "request") : 0;
}

/* --- the whole ----------------------------------------------------------- */

static int pass_words(struct relay *r, const struct op *op, struct err *e)
{
	const char *key;
	json_t *v;

	r->line = json_object();
	if (!r->line)
		return err_sys(e, ENOMEM, "request");
	json_object_foreach(r->req, key, v)
		if (has_word(op->pass, key) &&
		    json_object_set(r->line, key, v) < 0)
			return err_sys(e, ENOMEM, "request");
	if (json_object_set_new(r->line, "op", json_string(op->name)) < 0 ||
	    json_object_set_new(r->line, "id", json_integer(1)) < 0)
		return err_sys(e, ENOMEM, "request");
	return 0;
}

/* true, or some of the streams. */
static int take_attach(struct relay *r, struct err *e)
{
	json_t *v = json_object_get(r->req, "attach"), *one;
	const char *name;
	size_t i;

	if (!json_is_array(v))
		return 0;
	json_array_foreach(v, i, one) {
		name = json_string_value(one);
		if (!name || !has_word(" stdout stderr stdin tty ", name))
			return err_set(e, -EBADMSG, "bad_value",
				       "'attach[%zu]' is no stream", i);
	}
	r->want = json_incref(v);
	return json_object_set_new(r->req, "attach",
				   json_boolean(json_array_size(v) > 0)) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

/* What of its output is attached. */
static json_t *outputs_of(const struct relay *r, bool tty)
{
	json_t *list = json_array(), *one;
	size_t i;

	if (!r->want) {
		json_array_append_new(list, json_string("stdout"));
		if (!tty)
			json_array_append_new(list, json_string("stderr"));
		return list;
	}
	json_array_foreach(r->want, i, one) {
		const char *name = json_string_value(one);

		if (!strcmp(name, "tty"))
			name = "stdout";
		if (strcmp(name, "stdin"))
			json_array_append_new(list, json_string(name));
	}
	return list;
}

static int command_line(struct relay *r, struct err *e)
{
	bool pipe = !strcmp(json_str(r->req, "stdin"), "pipe");
	bool tty = is_true(r->req, "tty");
	const char *in = json_str(r->req, "stdin");
	int bad = 0;

	if (*in && strcmp(in, "pipe") && strcmp(in, "null"))
		return err_set(e, -EBADMSG, "bad_value",
			       "'stdin' is '%.8s': null or pipe", in);
	if (r->streams && is_true(r->req, "detach"))
		return err_set(e, -EBADMSG, "bad_value",
			       "'attach' and 'detach' exclude each other");
	if (r->streams)
		bad = json_object_set_new(r->line, "attach",
					  outputs_of(r, tty));
	/* Its input comes by other requests: the supervisor holds it. */
	else if (pipe && r->op == RELAY_EXEC)
		bad = json_object_set_new(r->line, "detach", json_true());
	return bad ? err_sys(e, ENOMEM, "request") : 0;
}

int relay_check(struct relay *r, struct err *e)
{
	const struct op *op = op_of(r->req);
	int rc;

	if (!op)
		return err_set(e, -EBADMSG, "bad_value", "no such operation");
	rc = check_words(op, r->req, e);
	if (rc == 0)
		rc = take_attach(r, e);
	if (rc == 0)
		rc = field_check(fields, array_len(fields), r->req, e);
	if (rc == 0)
		rc = need_words(op, r->req, e);
	if (rc < 0)
		return rc;
	r->op = op->op;
	r->streams = is_true(r->req, "attach") || op->op == RELAY_FILE ||
		     op->op == RELAY_CONNECT;
	rc = pass_words(r, op, e);
	if (rc == 0 && op->op == RELAY_FILE)
		rc = file_args(r, op, e);
	if (rc == 0 && (op->op == RELAY_EXEC || op->op == RELAY_ATTACH))
		rc = command_line(r, e);
	return rc;
}
