/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "box/spec.h"
#include "client.h"
#include "wire/input.h"

#define YEAR_MS 31536000000
#define ROWS	64
#define WORDS	"words and flags (-h lists them)"

/* The flags of the programs that are asked for one thing most; what they do not
 * have, lines on stdin can say. */
/* clang-format off */
static const struct field of_run[] = {
	{{"detach", NULL, 'd', NULL, "do not wait for the command"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"node-label", NULL, 0, "K=V", "a label that the node must have; repeats"}, "node_labels", FIELD_MAP, 0, 0, NULL},
};
static const struct field of_exec[] = {
	{{"cmd", NULL, 0, "COMMAND", "a shell command, in place of -- ARGV"}, "command", FIELD_CMD, 0, 0, NULL},
	{{"attach", NULL, 'a', "EXEC", "raw: all output of that command, and its status"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"op", NULL, 0, "OP", "the operation (exec)"}, "op", FIELD_STR, 1, 32, NULL},
	{{"env", NULL, 'e', "K=V", "an environment variable; repeats"}, "env", FIELD_MAP, 0, 0, NULL},
	{{"cwd", NULL, 'w', "DIR", "working directory"}, "cwd", FIELD_STR, 1, 4095, NULL},
	{{"user", NULL, 'u', "USER[:GROUP]", "who the command runs as"}, "user", FIELD_STR, 1, 256, NULL},
	{{"timeout", NULL, 0, "TIME", "kill all of the command after so long"}, "timeout_ms", FIELD_MS, 1, YEAR_MS, NULL},
	{{"session", NULL, 's', "ID", "run it in that session's shell"}, "session", FIELD_STR, 1, 64, NULL},
	{{"step", NULL, 0, "N", "number of a step, run once only"}, "step", FIELD_INT, 0, 0, NULL},
	{{"exec", NULL, 0, "EXEC", "a command's name, as e3"}, "exec", FIELD_STR, 1, 64, NULL},
	{{"signal", NULL, 0, "SIGNAL", "name or number of a signal"}, "signal", FIELD_STR, 1, 16, NULL},
	{{"path", NULL, 0, "PATH", "a file of the sandbox"}, "path", FIELD_BYTES, 1, 5460, NULL},
	{{"data", NULL, 0, "TEXT", "bytes to write"}, "data", FIELD_BYTES, 0, JSON_LINE_MAX, NULL},
	{{"interactive", NULL, 'i', NULL, "pass our standard input on"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"record", NULL, 0, NULL, "a record even with -- ARGV"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"detach", NULL, 'd', NULL, "answer at once, with the command's name"}, "detach", FIELD_BOOL, 0, 0, NULL},
};
static const struct field of_pause[] = {
	{{"resume", NULL, 0, NULL, "let them run on"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"stop", NULL, 0, NULL, "end them"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"level", NULL, 0, "LEVEL", "freeze, reclaim or disk"}, "level", FIELD_STR, 1, 16, NULL},
	{{"grace", NULL, 'g', "TIME", "stop: from the first signal to the last"}, "grace_ms", FIELD_MS, 0, 3600000, NULL},
};
static const struct field of_ps[] = {
	{{"all", NULL, 'a', NULL, "also those that ended"}, "all", FIELD_BOOL, 0, 0, NULL},
	{{"stats", NULL, 's', NULL, "with what they use"}, "stats", FIELD_BOOL, 0, 0, NULL},
	{{"wait", NULL, 0, NULL, "until they have ended"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"watch", NULL, 0, NULL, "an event for every change, until killed"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"json", NULL, 0, NULL, "records (the default unless on a terminal)"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"table", NULL, 0, NULL, "a table for people"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"limit", NULL, 0, "N", "so many at the most"}, "limit", FIELD_INT, 1, 1000000, NULL},
	{{"after", NULL, 0, "SANDBOX", "from behind that one"}, "after", FIELD_STR, 1, 64, NULL},
};
static const struct field of_fork[] = {
	{{"list", NULL, 0, NULL, "the snapshots"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"inspect", NULL, 0, "NAME", "one snapshot"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"remove", NULL, 0, "NAME", "remove a snapshot"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"count", NULL, 'c', "N", "how many copies (1; with --snapshot 0)"}, "count", FIELD_INT, 0, 1000000, NULL},
	{{"from", NULL, 0, "NAME", "copies of a snapshot instead of a sandbox"}, "from", FIELD_STR, 1, 330, NULL},
	{{"snapshot", NULL, 0, "NAME", "keep what the copies are made from, as NAME"}, "snapshot", FIELD_STR, 1, 330, NULL},
	{{"replace", NULL, 0, NULL, "in place of the snapshot that has the name"}, "replace", FIELD_BOOL, 0, 0, NULL},
	{{"fs-only", NULL, 0, NULL, "files alone: each copy starts anew"}, "fs_only", FIELD_BOOL, 0, 0, NULL},
	{{"name", NULL, 'n', "NAME", "the copies are NAME-0, NAME-1.."}, "name", FIELD_NAME, 1, 60, NULL},
	{{"task", NULL, 't', "NAME", "task the copies belong to"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"label", NULL, 'l', "K=V", "a label, beside the source's; repeats"}, "labels", FIELD_MAP, 0, 0, NULL},
	{{"project", NULL, 0, "PATH", "where snapshots are looked up"}, "project", FIELD_STR, 1, 256, NULL},
};
static const struct field selectors[] = {
	{{"task", NULL, 't', "NAME", "the sandboxes of a task"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"project", NULL, 0, "PATH", "those of a project and all below it"}, "project", FIELD_STR, 1, 256, NULL},
	{{"label", NULL, 'l', "K=V", "those with a label; repeats"}, "labels", FIELD_MAP, 0, 0, NULL},
};
static const struct field general[] = {
	{{"key", NULL, 0, "KEY", "idempotency key"}, "key", FIELD_STR, 1, 128, NULL},
	{{"deadline", NULL, 0, "TIME", "give up after so long"}, "deadline_ms", FIELD_MS, 1, YEAR_MS, NULL},
	{{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
};
/* clang-format on */

/* What is taken of a program in words.  The others, and all their fields, are
 * asked for by lines. */
static const struct form {
	const char *name, *as, *usage;
	const char *key; /* of a word; NULL: it takes none */
	const struct field *rows;
	size_t nrows;
	bool selects, lines; /* lines: of stdin, where no word says what */
} forms[] = {
	{"run", "run",
	 "run [FLAGS] [-d | --name NAME | -- COMMAND | < REQUESTS]\n"
	 "dsec-run on the node that the control chooses.  The answer is a "
	 "record, with a\ncommand (unless -d) when it ended.  There is no --rm: "
	 "exec has output as it comes.",
	 NULL, of_run, array_len(of_run), false, true},
	{"exec", "exec",
	 "exec [FLAGS] SANDBOX -- COMMAND\n"
	 "       dsec --server HOST:PORT exec SANDBOX --attach EXEC\n"
	 "       dsec --server HOST:PORT exec [FLAGS] [SANDBOX]... [< RECORDS]\n"
	 "dsec-exec, without terminals (-t) and --cp.",
	 "sandbox", of_exec, array_len(of_exec), false, true},
	{"pause", "pause",
	 "pause [FLAGS] [SANDBOX... | selector flags | < RECORDS]\n"
	 "dsec-pause; a selector is asked of all nodes.",
	 "sandbox", of_pause, array_len(of_pause), true, true},
	{"ps", "ps",
	 "ps [FLAGS] [SANDBOX... | selector flags]\n"
	 "dsec-ps of all nodes, in pages with --limit.",
	 "sandbox", of_ps, array_len(of_ps), true, false},
	{"fork", "fork",
	 "fork [FLAGS] [SANDBOX... | --from NAME | < RECORDS]\n"
	 "dsec-fork, where the sandbox or the snapshot is.",
	 "sandbox", of_fork, array_len(of_fork), false, true},
	{"nodes", "nodes", "nodes\nThe nodes that a control knows.", NULL, NULL,
	 0, false, false},
	{"report", "report",
	 "report [NODE]...\nWhat a node has, promises and holds.", "node", NULL,
	 0, false, false},
	{"drain", "drain",
	 "drain [NODE... | < REQUESTS]\nIt gets no new sandboxes.  A node "
	 "itself is asked by the line {}.",
	 "node", NULL, 0, false, true},
	{"undrain", "drain",
	 "undrain [NODE... | < REQUESTS]\nIt gets new sandboxes again.", "node",
	 NULL, 0, false, true},
};

struct words {
	const struct form *form;
	struct field rows[ROWS];
	size_t n;
	const char *attach;
	bool command; /* there is -- ARGV */
	bool detach, record, interactive, json;
	struct wanted *w;
};

static void add(struct words *t, const struct field *rows, size_t n)
{
	memcpy(t->rows + t->n, rows, n * sizeof(*rows));
	t->n += n;
}

static void add_rows(struct words *t)
{
	const struct form *f = t->form;

	for (size_t i = 0; f->rows == of_run && i < spec_fields_len; i++)
		if (spec_fields[i].opt.name)
			add(t, &spec_fields[i], 1);
	if (f->rows)
		add(t, f->rows, f->nrows);
	if (f->selects)
		add(t, selectors, array_len(selectors));
	add(t, general, array_len(general));
}

static int set(json_t *req, const char *key, const char *text, struct err *e)
{
	json_t *v = json_string(text);

	if (!v)
		return err_set(e, -EINVAL, "usage", "'%s' is not UTF-8", text);
	return json_object_set_new(req, key, v) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

/* A flag that is no field.  1: help. */
static int own_flag(struct words *t, const char *name, const char *arg,
		    struct err *e)
{
	int r = 0;

	if (!strcmp(name, "detach"))
		t->detach = true;
	else if (!strcmp(name, "record"))
		t->record = true;
	else if (!strcmp(name, "interactive"))
		t->interactive = true;
	else if (!strcmp(name, "attach"))
		t->attach = arg;
	else if (!strcmp(name, "json"))
		t->json = true;
	else if (!strcmp(name, "table"))
		t->w->table = true;
	else if (!strcmp(name, "help"))
		return 1;
	else { /* an operation, on a snapshot perhaps */
		r = set(t->w->fields, "op", name, e);
		if (r == 0 && arg)
			r = set(t->w->fields, "snapshot", arg, e);
	}
	return r;
}

static int word(struct words *t, const char *text, struct err *e)
{
	json_t *v;

	if (!t->form->key)
		return err_set(e, -EINVAL, "usage", "'%s': %s", text,
			       t->form->rows ? "a command comes after --"
					     : "it takes no words");
	v = json_string(text);
	if (!v)
		return err_set(e, -EINVAL, "usage", "'%s' is not UTF-8", text);
	return json_array_append_new(t->w->words, v) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

static int take_command(json_t *req, char **argv, struct err *e)
{
	json_t *cmd = json_array();

	for (; cmd && *argv; argv++)
		if (json_array_append_new(cmd, json_string(*argv)) < 0) {
			json_decref(cmd);
			return err_set(e, -EINVAL, "usage", "'%s' is not UTF-8",
				       *argv);
		}
	return json_object_set_new(req, "command", cmd) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

/* --- what the words together mean ----------------------------------------- */

static bool says_what(const struct words *t)
{
	const struct wanted *w = t->w;

	if (!strcmp(w->program, "run"))
		return t->detach || json_object_get(w->fields, "command") ||
		       json_object_get(w->fields, "name");
	if (json_array_size(w->words) > 0)
		return true;
	for (size_t i = 0; t->form->selects && i < array_len(selectors); i++)
		if (json_object_get(w->fields, selectors[i].key))
			return true;
	return json_object_get(w->fields, "from") ||
	       (!strcmp(w->program, "fork") && *json_str(w->fields, "op"));
}

static int settle_raw(struct words *t, struct err *e)
{
	struct wanted *w = t->w;
	json_t *f = w->fields;
	size_t n = json_array_size(w->words);

	w->raw = t->attach || (t->command && n > 0 && !t->record &&
			       !json_object_get(f, "detach"));
	if (t->attach && (t->command || json_object_get(f, "op")))
		return err_set(e, -EINVAL, "usage",
			       "--attach goes with no command and no --op");
	if (!w->raw)
		return 0;
	if (n != 1)
		return err_set(e, -EINVAL, "usage", "one SANDBOX, and then %s",
			       t->attach ? "--attach EXEC" : "-- COMMAND");
	json_object_set_new(f, "attach", json_true());
	w->input = t->interactive && !t->attach;
	if (w->input)
		json_object_set_new(f, "stdin", json_string("pipe"));
	if (!t->attach)
		return 0;
	/* Everything, from the first byte. */
	json_object_set_new(f, "stdout_offset", json_integer(0));
	json_object_set_new(f, "stderr_offset", json_integer(0));
	return set(f, "op", "attach", e) < 0 ? -EINVAL
					     : set(f, "exec", t->attach, e);
}

static int settle(struct words *t, struct err *e)
{
	struct wanted *w = t->w;
	bool waits = !strcmp(json_str(w->fields, "op"), "wait") &&
		     !strcmp(w->program, "ps");

	if (!strcmp(w->program, "ps") && !json_object_get(w->fields, "op"))
		w->table |= !t->json && isatty(STDOUT_FILENO);
	else
		w->table = false;
	if (!strcmp(w->program, "run") && !t->detach &&
	    json_object_get(w->fields, "command"))
		json_object_set_new(w->fields, "wait", json_true());
	if (!strcmp(t->form->name, "undrain"))
		json_object_set_new(w->fields, "on", json_false());
	w->lines = !says_what(t) && (t->form->lines || waits);
	if (w->lines && input_wanted(WORDS, e) < 0)
		return -EINVAL;
	return settle_raw(t, e);
}

static int argc_of(char **argv)
{
	int n = 0;

	while (argv[n])
		n++;
	return n;
}

static int flag_or_word(struct words *t, int r, int row, const char *arg,
			struct err *e)
{
	const struct field *f = &t->rows[row];

	if (r == OPT_WORD)
		return word(t, arg, e);
	if (r < 0)
		return r;
	return f->key ? field_of_flag(f, arg, t->w->fields, e)
		      : own_flag(t, f->opt.name, arg, e);
}

static int parse(struct words *t, char **argv, struct err *e)
{
	struct opt_parser p = {.table = {t->rows, t->n, sizeof(t->rows[0])},
			       .argc = argc_of(argv),
			       .argv = argv,
			       .i = 1};
	const char *arg = NULL;
	int row = 0, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		r = flag_or_word(t, r, row, arg, e);
		if (r == 1) {
			dprintf(STDOUT_FILENO,
				"usage: dsec --server HOST:PORT ");
			opt_help(STDOUT_FILENO, t->form->usage, p.table);
		}
		if (r != 0)
			return r;
	}
	t->command = argv[p.i] != NULL;
	r = t->command ? take_command(t->w->fields, argv + p.i, e) : 0;
	return r < 0 ? r : settle(t, e);
}

static const struct form *form_of(const char *name)
{
	for (size_t i = 0; i < array_len(forms); i++)
		if (!strcmp(forms[i].name, name))
			return &forms[i];
	return NULL;
}

/* Any that we know nothing of may be one that the server does. */
static int by_lines(char **argv, struct wanted *ret, struct err *e)
{
	static const char text[] =
		"requests are lines of standard input, such as "
		"{\"sandbox\":\"a\"} with the fields of PROTOCOL.md";

	ret->lines = true;
	if (!argv[1] && !isatty(STDIN_FILENO))
		return 0;
	if (!argv[1] || (strcmp(argv[1], "-h") && strcmp(argv[1], "--help")))
		return err_set(e, -EINVAL, "usage", "%s: its %s", argv[0],
			       text);
	dprintf(STDOUT_FILENO,
		"usage: dsec --server HOST:PORT %s < REQUESTS\n"
		"Its %s.\n",
		argv[0], text);
	return 1;
}

int wanted_parse(char **argv, struct wanted *ret, struct err *e)
{
	struct words t = {.w = ret, .form = form_of(argv[0])};

	*ret = (struct wanted){.program = t.form ? t.form->as : argv[0]};
	ret->fields = json_pack("{s:s}", "program", ret->program);
	ret->words = json_array();
	if (!ret->fields || !ret->words)
		return err_sys(e, ENOMEM, "request");
	if (!t.form)
		return by_lines(argv, ret, e);
	ret->key = t.form->key;
	add_rows(&t);
	return parse(&t, argv, e);
}
