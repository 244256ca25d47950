/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/version.h"
#include "net.h"
#include "serve.h"

#define JOBS	 8
#define JOBS_MAX 256

enum {
	ROW_DENY_ALL,
	ROW_SHOW,
	ROW_DENIED,
	ROW_FOLLOW,
	ROW_CONNECT,
	ROW_COMPILE,
	ROW_SERVICES,
	ROW_UPLINK,
	ROW_SERVE,
	ROW_BACKGROUND,
	ROW_UPGRADE,
	ROW_ADOPT,
	ROW_JOBS,
	ROW_HELP,
	ROW_VERSION
};

/* clang-format off */
const struct field net_fields[] = {
	[ROW_DENY_ALL] = {{"deny-all", NULL, 0, NULL, "let it reach nothing"}, "deny_all", FIELD_BOOL, 0, 0, NULL},
	[ROW_SHOW] = {{"show", NULL, 0, NULL, "every rule that holds, also those nobody wrote"}, "show", FIELD_BOOL, 0, 0, NULL},
	[ROW_DENIED] = {{"denied", NULL, 0, NULL, "what it tried and was refused"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_FOLLOW] = {{"follow", NULL, 'f', NULL, "with --denied: go on as it happens"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_CONNECT] = {{"connect", NULL, 0, "PORT", "relay stdin and stdout to a port of it"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_COMPILE] = {{"compile", NULL, 0, NULL, "rules on stdin, the compiled policy on stdout; no sandbox"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_SERVICES] = {{"services", NULL, 0, NULL, "the semantic names of this node and what they stand for"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_UPLINK] = {{"uplink", NULL, 0, "WHAT", "of routed sandboxes: up, down or show"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_SERVE] = {{"serve", NULL, 0, NULL, "be the node's DNS and proxy helper"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_BACKGROUND] = {{"background", NULL, 0, NULL, "with --serve: return when it serves"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_UPGRADE] = {{"upgrade", NULL, 0, NULL, "with --serve: let this program take over from the one that serves"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_ADOPT] = {{"adopt", NULL, 0, "FD", NULL}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_JOBS] = {{"jobs", NULL, 'j', "N", "sandboxes worked on at once (8)"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_HELP] = {{"help", NULL, 'h', NULL, "this text"}, NULL, FIELD_NONE, 0, 0, NULL},
	[ROW_VERSION] = {{"version", NULL, 0, NULL, "the version"}, NULL, FIELD_NONE, 0, 0, NULL},
	{{"phase", NULL, 0, "NAME", "switch to a phase that was given at launch"}, "phase", FIELD_NAME, 1, 64, NULL},
	{{"replace", NULL, 0, "JSON", "these network rules in place of those in force"}, "replace", FIELD_OBJ, 0, 0, NULL},
	{{"merge", NULL, 0, "JSON", "add these to the rules in force"}, "merge", FIELD_OBJ, 0, 0, NULL},
	{{"explain", NULL, 0, "TO", "NAME:PORT or ADDRESS:PORT, /udp: which rule decides, and a try from inside"}, "explain", FIELD_STR, 1, 300, NULL},
	{{"task", NULL, 't', "NAME", "the sandboxes of a task"}, "task", FIELD_NAME, 1, 128, NULL},
	{{"project", NULL, 0, "PATH", "those of a project and all below it"}, "project", FIELD_STR, 1, 256, NULL},
	{{"label", NULL, 'l', "K=V", "those with a label; repeats: with all of them"}, "labels", FIELD_MAP, 0, 0, NULL},
	{{"deadline", NULL, 0, "TIME", "give up on a sandbox after so long"}, "deadline_ms", FIELD_MS, 1, 0, NULL},
	{{"key", NULL, 0, "KEY", "idempotency key"}, "key", FIELD_STR, 1, 128, NULL},
	{.key = "sandbox", .type = FIELD_STR, .min = 1, .max = 64},
	{.key = "denied", .type = FIELD_BOOL},
	{.key = "cancel", .type = FIELD_ID},
};
/* clang-format on */
const size_t net_fields_len = array_len(net_fields);

static const char usage[] =
	"usage: dsec-net [flags] SANDBOX... | SELECTOR [< requests]\n"
	"       dsec-net SANDBOX --denied [--follow]\n"
	"       dsec-net SANDBOX --connect PORT\n"
	"       dsec-net --compile < rules\n"
	"       dsec-net --services | --uplink WHAT | --serve\n"
	"           [--background | --upgrade]\n";

static int arg_mode = -1; /* a row that is a whole program */
static bool arg_follow, arg_background, arg_upgrade;
static int arg_adopt = -1;
static const char *arg_value; /* of arg_mode */
static unsigned arg_jobs = JOBS;

static int set_mode(int row, const char *value, struct err *e)
{
	if (arg_mode >= 0 && arg_mode != row)
		return err_set(e, -EINVAL, "usage",
			       "--%s and --%s: one of them",
			       net_fields[arg_mode].opt.name,
			       net_fields[row].opt.name);
	arg_mode = row;
	arg_value = value;
	return 0;
}

static int flag(void *to, int row, const char *arg, struct err *e)
{
	struct app *app = to;
	unsigned long n;
	char *end;

	switch (row) {
	case ROW_DENIED:
	case ROW_CONNECT:
	case ROW_COMPILE:
	case ROW_SERVICES:
	case ROW_UPLINK:
	case ROW_SERVE:
		return set_mode(row, arg, e);
	case ROW_FOLLOW:
		arg_follow = true;
		return 0;
	case ROW_BACKGROUND:
		arg_background = true;
		return 0;
	case ROW_UPGRADE:
		arg_upgrade = true;
		return 0;
	case ROW_ADOPT:
		arg_adopt = (int)strtol(arg, NULL, 10);
		return 0;
	case ROW_JOBS:
		n = strtoul(arg, &end, 10);
		if (*end || *arg < '0' || *arg > '9' || n < 1 || n > JOBS_MAX)
			return err_set(e, -EINVAL, "usage",
				       "--jobs %s: not 1 to %d", arg, JOBS_MAX);
		arg_jobs = (unsigned)n;
		return 0;
	case ROW_HELP:
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(net_fields));
		exit(EXIT_OK);
	case ROW_VERSION:
		puts("dsec-net " DSEC_VERSION);
		exit(EXIT_OK);
	default:
		return field_of_flag(&net_fields[row], arg, app->defaults, e);
	}
}

/* Words become requests of their own, numbered like lines. */
static int add_word(void *to, const char *word, struct err *e)
{
	json_t *words = ((struct app *)to)->words;
	json_t *req = json_pack("{s:i, s:s}", "id",
				(int)json_array_size(words) + 1, "sandbox",
				word);

	if (!req)
		return err_set(e, -EINVAL, "usage",
			       "a sandbox's name is not UTF-8");
	return json_array_append_new(words, req);
}

static int parse(int argc, char **argv, struct app *app, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(net_fields),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};

	return opt_each(&p, flag, add_word, app, e);
}

static int one_word(const json_t *words, const char **ret, struct err *e)
{
	if (json_array_size(words) != 1)
		return err_set(e, -EINVAL, "usage", "--%s takes one sandbox",
			       net_fields[arg_mode].opt.name);
	*ret = json_str(json_array_get(words, 0), "sandbox");
	return 0;
}

static int run_mode(const struct tree *t, const json_t *words, struct err *e)
{
	const char *sandbox;
	int r;

	switch (arg_mode) {
	case ROW_COMPILE:
		return mode_compile(t, e);
	case ROW_SERVICES:
		return mode_services(t, e);
	case ROW_UPLINK:
		return mode_uplink(t, arg_value, e);
	case ROW_CONNECT:
		r = one_word(words, &sandbox, e);
		return r < 0 ? r : mode_connect(t, sandbox, arg_value, e);
	default:
		if (json_array_size(words) == 0)
			return err_set(e, -EINVAL, "usage",
				       "--denied: of which sandbox?");
		return mode_denied(t, words, arg_follow, e);
	}
}

/* What a mode or a flag of one has no use for. */
static int check_args(const json_t *defaults, struct err *e)
{
	if (arg_follow && arg_mode != ROW_DENIED)
		return err_set(e, -EINVAL, "usage",
			       "--follow goes with --denied");
	if (arg_background && arg_mode != ROW_SERVE)
		return err_set(e, -EINVAL, "usage",
			       "--background goes with --serve");
	if ((arg_upgrade || arg_adopt >= 0) && arg_mode != ROW_SERVE)
		return err_set(e, -EINVAL, "usage",
			       "--upgrade goes with --serve");
	if (arg_mode >= 0 && json_object_size(defaults) > 0)
		return err_set(e, -EINVAL, "usage",
			       "--%s goes with no other operation",
			       net_fields[arg_mode].opt.name);
	return 0;
}

int main(int argc, char **argv)
{
	auto_json json_t *words = json_array(), *defaults = json_object();
	struct app app = {.defaults = defaults, .words = words};
	struct err e = {0};
	int r;

	log_init("dsec-net");
	signal(SIGPIPE, SIG_IGN);
	r = parse(argc, argv, &app, &e);
	if (r == 0)
		r = check_args(defaults, &e);
	if (r == 0 && arg_mode == ROW_SERVE)
		return arg_adopt >= 0 ? serve_adopt(arg_adopt)
		       : arg_upgrade  ? serve_upgrade()
				      : serve(arg_background);
	if (r == 0)
		r = tree_init(&app.tree, &e);
	app.workers_max = arg_jobs;
	if (r == 0)
		r = arg_mode >= 0 ? run_mode(&app.tree, words, &e)
				  : requests_run(&app, &e);
	if (r < 0) {
		log_err(&e);
		return exit_of(&e);
	}
	return r > 0 ? r : (int)app.status;
}
