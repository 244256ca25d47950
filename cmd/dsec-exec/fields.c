/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/sig.h"
#include "exec.h"

#define YEAR_MS 31536000000

/* clang-format off */
/* name, alias, letter, metavar, help | key, type, min, max, later */
const struct field exec_fields[] = {
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "cancel", .type = FIELD_ID},
	{{"op", NULL, 0, "OP", "the operation (exec)"}, "op", FIELD_STR, 1, 32, NULL},
	{{"cmd", NULL, 0, "COMMAND", "a shell command, in place of -- ARGV"}, "command", FIELD_CMD, 0, 0, NULL},
	{{"env", NULL, 'e', "K=V", "an environment variable; repeats"}, "env", FIELD_MAP, 0, 0, NULL},
	{{"cwd", NULL, 'w', "DIR", "working directory"}, "cwd", FIELD_STR, 1, 4095, NULL},
	{{"user", NULL, 'u', "USER[:GROUP]", "who the command runs as"}, "user", FIELD_STR, 1, 256, NULL},
	{{"timeout", NULL, 0, "TIME", "kill all of the command after so long"}, "timeout_ms", FIELD_MS, 1, YEAR_MS, NULL},
	{{"grace", NULL, 0, "TIME", "between SIGTERM and SIGKILL at a timeout"}, "grace_ms", FIELD_MS, 0, YEAR_MS, NULL},
	{{"stdin", NULL, 0, "null|pipe", "standard input of the command (null)"}, "stdin", FIELD_STR, 1, 4, NULL},
	{{"tty", NULL, 't', NULL, "give the command a terminal"}, "tty", FIELD_BOOL, 0, 0, NULL},
	{{"rows", NULL, 0, "N", "size of the terminal"}, "rows", FIELD_INT, 1, 65535, NULL},
	{{"cols", NULL, 0, "N", "size of the terminal"}, "cols", FIELD_INT, 1, 65535, NULL},
	{{"session", NULL, 's', "ID", "run it in that session's shell"}, "session", FIELD_STR, 1, 64, NULL},
	{{"step", NULL, 0, "N", "number of a step, run once only"}, "step", FIELD_INT, 0, 0, NULL},
	{{"detach", NULL, 'd', NULL, "answer at once, with the command's name"}, "detach", FIELD_BOOL, 0, 0, NULL},
	{{"leave", NULL, 0, NULL, "let processes it leaves behind live"}, "leave", FIELD_BOOL, 0, 0, NULL},
	{{"inline_kb", "inline", 0, "KIB", "output in the record (64)"}, "inline_kb", FIELD_INT, 0, 512, NULL},
	{{"exec", NULL, 0, "EXEC", "a command's name, as e3"}, "exec", FIELD_STR, 1, 64, NULL},
	{{"stream", NULL, 0, "NAME", "stdout or stderr (stdout)"}, "stream", FIELD_STR, 1, 6, NULL},
	{{"offset", NULL, 0, "BYTES", "where to begin"}, "offset", FIELD_INT, 0, 0, NULL},
	{{"limit", NULL, 0, "N", "how much at most"}, "limit", FIELD_INT, 1, 0, NULL},
	{{"signal", NULL, 0, "SIGNAL", "name or number of a signal"}, "signal", FIELD_STR, 1, 16, NULL},
	{{"data", NULL, 0, "TEXT", "bytes to write"}, "data", FIELD_BYTES, 0, JSON_LINE_MAX, NULL},
	{{"close", NULL, 0, NULL, "close the command's standard input"}, "close", FIELD_BOOL, 0, 0, NULL},
	{{"shell", NULL, 0, "PATH", "the session's shell (/bin/sh)"}, "shell", FIELD_STR, 1, 4095, NULL},
	{{"path", NULL, 0, "PATH", "a file of the sandbox"}, "path", FIELD_BYTES, 1, 5460, NULL},
	{{"to", NULL, 0, "PATH", "its new name"}, "to", FIELD_BYTES, 1, 5460, NULL},
	{{"mode", NULL, 0, "OCTAL", "permissions (0644, directories 0755)"}, "mode", FIELD_STR, 1, 5, NULL},
	{{"parents", NULL, 0, NULL, "make missing directories"}, "parents", FIELD_BOOL, 0, 0, NULL},
	{{"depth", NULL, 0, "N", "how deep to list (1)"}, "depth", FIELD_INT, 1, 4096, NULL},
	{{"recursive", NULL, 'r', NULL, "with all that is below"}, "recursive", FIELD_BOOL, 0, 0, NULL},
	{{"source", NULL, 0, "PATH", "a file or tree of the host"}, "source", FIELD_STR, 1, 4095, NULL},
	{{"target", NULL, 0, "PATH", "a place on the host"}, "target", FIELD_STR, 1, 4095, NULL},
	{{"key", NULL, 0, "KEY", "idempotency key"}, "key", FIELD_STR, 1, 128, NULL},
	{{"deadline", NULL, 0, "TIME", "give up after so long"}, "deadline_ms", FIELD_MS, 1, YEAR_MS, NULL},
	{{"interactive", NULL, 'i', NULL, "pass our standard input on"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"attach", NULL, 'a', "EXEC", "raw: all output of that command, and its status"}, NULL, FIELD_STR, 0, 0, NULL},
	{{"record", NULL, 0, NULL, "a record even with -- ARGV"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"cp", NULL, 0, NULL, "copy: FROM TO, one of them SANDBOX:/PATH"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"jobs", NULL, 'j', "N", "requests worked on at once (64)"}, NULL, FIELD_INT, 1, 65536, NULL},
	{{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"version", NULL, 0, NULL, "the version"}, NULL, FIELD_NONE, 0, 0, NULL},
};

struct op {
	const char *name;
	const char *fields; /* it takes; words with a space on each side */
	const char *need;   /* it must have; the same */
};

static const struct op ops[] = {
	{"exec", " command env cwd user timeout_ms grace_ms stdin tty rows cols session step detach leave inline_kb ", " command "},
	{"attach", " exec inline_kb ", " exec "},
	{"wait", " exec timeout_ms ", " exec "},
	{"output", " exec stream offset limit ", " exec "},
	{"signal", " exec signal ", " exec signal "},
	{"input", " exec data data_b64 close ", " exec "},
	{"resize", " exec rows cols ", " exec rows cols "},
	{"list-execs", " ", " "},
	{"session", " shell env cwd user ", " "},
	{"close-session", " session ", " session "},
	{"read", " user path path_b64 offset limit ", " path "},
	{"write", " user path path_b64 data data_b64 mode parents ", " path "},
	{"list", " user path path_b64 depth limit ", " path "},
	{"stat", " user path path_b64 ", " path "},
	{"mkdir", " user path path_b64 mode parents ", " path "},
	{"move", " user path path_b64 to to_b64 ", " path to "},
	{"remove", " user path path_b64 recursive ", " path "},
	{"watch", " user path path_b64 recursive timeout_ms ", " path "},
	{"put", " user path path_b64 source ", " path source "},
	{"get", " user path path_b64 target ", " path target "},
};
/* clang-format on */
const size_t exec_fields_len = array_len(exec_fields);

static const char general[] = " sandbox op id key deadline_ms in ";
/* What of a request is not the supervisor's business. */
static const char ours[] = " sandbox id deadline_ms in inline_kb ";

static bool has_word(const char *list, const char *word)
{
	char padded[80];
	int n = snprintf(padded, sizeof(padded), " %s ", word);

	return n < (int)sizeof(padded) && !strchr(word, ' ') &&
	       strstr(list, padded);
}

static const struct op *find_op(const char *name)
{
	for (size_t i = 0; i < array_len(ops); i++)
		if (!strcmp(ops[i].name, name))
			return &ops[i];
	return NULL;
}

static int need_words(const char *need, const json_t *req, struct err *e)
{
	char word[32], b64[40];
	size_t n;
	int r = 0;

	for (need += 1; *need && r == 0; need += n + 1) {
		n = strcspn(need, " ");
		memcpy(word, need, n);
		word[n] = '\0';
		snprintf(b64, sizeof(b64), "%s_b64", word);
		if (!json_object_get(req, b64))
			r = field_need(req, word, e);
	}
	return r;
}

static int check_words(const struct op *op, json_t *req, struct err *e)
{
	const char *key;
	json_t *v;

	json_object_foreach(req, key, v) {
		if (has_word(op->fields, key) || has_word(general, key))
			continue;
		return err_set(e, -EBADMSG, "unknown_field",
			       "'%s' is no field of the operation '%s'", key,
			       op->name);
	}
	return need_words(op->need, req, e);
}

static int one_of(const json_t *req, const char *key, const char *list,
		  struct err *e)
{
	const char *v = json_str(req, key);

	if (!*v || has_word(list, v))
		return 0;
	return err_set(e, -EBADMSG, "bad_value",
		       "'%s' is '%s': must be one of%s", key, v, list);
}

void op_fit(json_t *req, json_t *defaults)
{
	const char *name = json_str(req, "op"), *key;
	const struct op *op = find_op(*name ? name : "exec");
	json_t *v;

	json_object_foreach(defaults, key, v)
		if (op && !has_word(op->fields, key) &&
		    !has_word(general, key) &&
		    json_equal(json_object_get(req, key), v))
			json_object_del(req, key);
}

int op_check(json_t *req, struct err *e)
{
	const struct op *op;
	const char *sig;
	int r;

	if (!json_object_get(req, "op"))
		json_object_set_new(req, "op", json_string("exec"));
	op = find_op(json_str(req, "op"));
	if (!op)
		return err_set(e, -EBADMSG, "bad_value",
			       "'op' is '%s': no such operation",
			       json_str(req, "op"));
	r = field_need(req, "sandbox", e);
	if (r == 0)
		r = check_words(op, req, e);
	if (r == 0)
		r = one_of(req, "stdin", " null pipe ", e);
	if (r == 0)
		r = one_of(req, "stream", " stdout stderr ", e);
	if (r < 0)
		return r;
	sig = json_str(req, "signal");
	if (*sig && sig_by_name(sig) < 0)
		return err_set(e, -EBADMSG, "bad_value",
			       "'signal' is '%s': no such signal", sig);
	return 0;
}

int op_request(json_t *req, json_t **ret, struct err *e)
{
	auto_json json_t *line = json_object();
	const char *key;
	json_t *v;

	if (!line)
		return err_sys(e, ENOMEM, "request");
	json_object_foreach(req, key, v) {
		if (has_word(ours, key))
			continue;
		if (json_object_set(line, key, v) < 0)
			return err_sys(e, ENOMEM, "request");
	}
	*ret = steal_ptr(line);
	return 0;
}
