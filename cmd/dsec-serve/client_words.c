/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "box/spec.h"
#include "client.h"
#include "wire/field.h"

#define YEAR_MS 31536000000
#define ROWS	64

/* The flags of the programs that are asked for one thing most; what they do not
 * have, lines on stdin can say. */
/* clang-format off */
static const struct field of_run[] = {
	{{"detach", NULL, 'd', NULL, "do not wait for the command"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"node-label", NULL, 0, "K=V", "a label that the node must have; repeats"}, "node_labels", FIELD_MAP, 0, 0, NULL},
};
static const struct field of_exec[] = {
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
	{{"limit", NULL, 0, "N", "so many at the most"}, "limit", FIELD_INT, 1, 1000000, NULL},
	{{"after", NULL, 0, "SANDBOX", "from behind that one"}, "after", FIELD_STR, 1, 64, NULL},
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

struct words {
	struct field rows[ROWS];
	size_t n;
	bool sandbox; /* a word names it */
	bool detach, record, interactive;
	struct wanted *w;
};

static void add(struct words *t, const struct field *rows, size_t n)
{
	memcpy(t->rows + t->n, rows, n * sizeof(*rows));
	t->n += n;
}

static void choose(struct words *t, const char *program)
{
	if (!strcmp(program, "run")) {
		for (size_t i = 0; i < spec_fields_len; i++)
			if (spec_fields[i].opt.name)
				add(t, &spec_fields[i], 1);
		add(t, of_run, array_len(of_run));
	} else if (!strcmp(program, "exec")) {
		t->sandbox = true;
		add(t, of_exec, array_len(of_exec));
	} else if (!strcmp(program, "pause")) {
		t->sandbox = true;
		add(t, of_pause, array_len(of_pause));
		add(t, selectors, array_len(selectors));
	} else if (!strcmp(program, "ps")) {
		t->sandbox = true;
		add(t, of_ps, array_len(of_ps));
		add(t, selectors, array_len(selectors));
	}
	add(t, general, array_len(general));
}

static int flag(struct words *t, const struct field *f, const char *arg,
		struct err *e)
{
	json_t *req = t->w->req;
	const char *name = f->opt.name;

	if (f->key)
		return field_of_flag(f, arg, req, e);
	if (!strcmp(name, "detach"))
		t->detach = true;
	else if (!strcmp(name, "record"))
		t->record = true;
	else if (!strcmp(name, "interactive"))
		t->interactive = true;
	else if (!strcmp(name, "help"))
		return 1;
	else
		json_object_set_new(req, "op", json_string(name));
	return 0;
}

static int word(struct words *t, const char *text, struct err *e)
{
	if (!t->sandbox || json_object_get(t->w->req, "sandbox"))
		return err_set(e, -EINVAL, "usage",
			       "'%s': a command comes after --", text);
	return json_object_set_new(t->w->req, "sandbox", json_string(text)) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

static int take_command(json_t *req, char **argv, struct err *e)
{
	json_t *cmd = json_array();

	for (; cmd && *argv; argv++)
		if (json_array_append_new(cmd, json_string(*argv)) < 0)
			return err_set(e, -EINVAL, "usage", "'%s' is not UTF-8",
				       *argv);
	json_object_set_new(req, "command", cmd);
	return 0;
}

/* What the flags together mean. */
static void settle(struct words *t, bool command)
{
	struct wanted *w = t->w;

	if (!strcmp(w->program, "run") && command && !t->detach)
		json_object_set_new(w->req, "wait", json_true());
	w->raw = !strcmp(w->program, "exec") && command && !t->record &&
		 !json_object_get(w->req, "detach");
	w->input = w->raw && t->interactive;
	if (w->raw)
		json_object_set_new(w->req, "attach", json_true());
	if (w->input)
		json_object_set_new(w->req, "stdin", json_string("pipe"));
}

static int argc_of(char **argv)
{
	int n = 0;

	while (argv[n])
		n++;
	return n;
}

static int parse(struct words *t, char **argv, struct err *e)
{
	struct opt_parser p = {.table = {t->rows, t->n, sizeof(t->rows[0])},
			       .argc = argc_of(argv),
			       .argv = argv,
			       .i = 1};
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_WORD)
			r = word(t, arg, e);
		else if (r >= 0)
			r = flag(t, &t->rows[row], arg, e);
		if (r == 1) {
			opt_help(STDOUT_FILENO,
				 "usage: dsec --server HOST:PORT PROGRAM "
				 "[FLAGS] [SANDBOX] [-- COMMAND]\n"
				 "Without any, requests are lines on stdin.\n",
				 p.table);
			return 1;
		}
		if (r < 0)
			return r;
	}
	if (argv[p.i] && (r = take_command(t->w->req, argv + p.i, e)) < 0)
		return r;
	settle(t, argv[p.i] != NULL);
	return 0;
}

int wanted_parse(char **argv, struct wanted *ret, struct err *e)
{
	struct words t = {.w = ret};
	int r;

	*ret = (struct wanted){.program = argv[0]};
	if (!argv[1] && strcmp(argv[0], "ps") && strcmp(argv[0], "nodes"))
		return 0; /* lines of stdin */
	ret->req = json_pack("{s:i, s:s}", "id", 1, "program", argv[0]);
	if (!ret->req)
		return err_sys(e, ENOMEM, "request");
	choose(&t, argv[0]);
	r = parse(&t, argv, e);
	return r;
}
