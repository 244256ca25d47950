/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/opt.h"
#include "base/version.h"
#include "serve.h"
#include "wire/exit.h"

enum {
	ROW_NAME,
	ROW_HOST,
	ROW_USER,
	ROW_DAYS,
	ROW_OUT,
	ROW_NODE,
	ROW_CONTROL,
	ROW_CLIENT,
	ROW_ALL,
	ROW_UPGRADE,
	ROW_READY,
	ROW_ADOPT,
	ROW_SERVER,
	ROW_DIR,
	ROW_CERT,
	ROW_KEY,
	ROW_CA,
	ROW_PEER,
	ROW_HELP,
	ROW_VERSION
};

/* clang-format off */
static const struct opt opts[] = {
	[ROW_NAME] = {"name", NULL, 0, "NAME", "init: of this machine (its host name)"},
	[ROW_HOST] = {"host", NULL, 0, "HOST", "init, issue: a name or address that clients will connect to; repeats"},
	[ROW_USER] = {"user", NULL, 0, "USER", "init: who control runs as, and so owns its key"},
	[ROW_DAYS] = {"days", NULL, 0, "N", "init, issue, renew: how long certificates are good (90)"},
	[ROW_OUT] = {"out", NULL, 0, "PREFIX", "issue: write PREFIX.pem and PREFIX.key (DIR/NAME)"},
	[ROW_NODE] = {"node", NULL, 0, "NAME", "issue: for a node"},
	[ROW_CONTROL] = {"control", NULL, 0, "NAME", "issue: for a control"},
	[ROW_CLIENT] = {"client", NULL, 0, "NAME", "issue: for a client"},
	[ROW_ALL] = {"all", NULL, 0, NULL, "renew: also those that are good for long"},
	[ROW_UPGRADE] = {"upgrade", NULL, 0, NULL, "node: have the one that serves DIR execute this program"},
	[ROW_READY] = {"ready-fd", NULL, 0, "FD", "node, control: write a line there when it serves"},
	[ROW_ADOPT] = {"adopt", NULL, 0, "FD", NULL},
	[ROW_SERVER] = {"server", NULL, 0, "HOST:PORT", "client: of a control or node ($DSEC_SERVER)"},
	[ROW_DIR] = {"config", NULL, 0, "FILE", "client: addresses, certificate, key and ca ($DSEC_CLIENT)"},
	[ROW_CERT] = {"cert", NULL, 0, "FILE", "client: another certificate"},
	[ROW_KEY] = {"key", NULL, 0, "FILE", "client: and its key"},
	[ROW_CA] = {"ca", NULL, 0, "FILE", "client: another authority"},
	[ROW_PEER] = {"peer", NULL, 0, "URI", "client: who must answer, such as dsec://control/c1 (whoever HOST is)"},
	[ROW_HELP] = {"help", NULL, 'h', NULL, "this text"},
	[ROW_VERSION] = {"version", NULL, 0, NULL, "the version"},
};
/* clang-format on */

static const char usage[] =
	"usage: dsec-serve init DIR [--name NAME] [--host HOST]... [--user USER]\n"
	"       dsec-serve issue DIR --node|--control|--client NAME [--host HOST]...\n"
	"       dsec-serve renew DIR [--all]\n"
	"       dsec-serve revoke DIR CERTIFICATE|URI...\n"
	"       dsec-serve node DIR [--ready-fd FD | --upgrade]\n"
	"       dsec-serve control DIR [--ready-fd FD]\n"
	"       dsec-serve check DIR [node|control]\n"
	"       dsec-serve audit verify FILE...\n"
	"       dsec-serve client --server HOST:PORT PROGRAM [ARGUMENT]...\n"
	"The programs behind TLS: certificates, daemons, and a client.\n";

static const struct verb {
	const char *name;
	int (*fn)(const struct args *a, struct err *e);
	size_t words_min, words_max;
} verbs[] = {
	{"init", verb_init, 1, 1},
	{"issue", verb_issue, 1, 1},
	{"renew", verb_renew, 1, 1},
	{"revoke", verb_revoke, 2, ARG_WORDS_MAX},
	{"node", verb_node, 1, 1},
	{"control", verb_control, 1, 1},
	{"check", verb_check, 1, 2},
	{"audit", verb_audit, 2, ARG_WORDS_MAX},
	{"client", verb_client, 0, 0},
	/* What a node's daemon executes itself for. */
	{"node-keeper", verb_keeper, 0, 0},
	{"node-worker", verb_worker, 0, 0},
};

void serve_ready(int fd, const char *text)
{
	if (fd < 0)
		return;
	(void)!dprintf(fd, "%s\n", text);
	fd_close(fd);
}

static int number(const char *arg, long min, long max, const char *what,
		  long *ret, struct err *e)
{
	char *end;
	long n = strtol(arg, &end, 10);

	if (*end || *arg < '0' || *arg > '9' || n < min || n > max)
		return err_set(e, -EINVAL, "usage", "--%s %s: not %ld to %ld",
			       what, arg, min, max);
	*ret = n;
	return 0;
}

static int take_fd(const char *arg, const char *what, int *ret, struct err *e)
{
	long n;
	int r = number(arg, 0, INT_MAX, what, &n, e);

	if (r == 0)
		*ret = (int)n;
	return r;
}

static int add_host(struct args *a, const char *host, struct err *e)
{
	if (a->nhosts == ARG_HOSTS_MAX)
		return err_set(e, -EINVAL, "usage", "%d hosts at most",
			       ARG_HOSTS_MAX);
	a->hosts[a->nhosts++] = host;
	return 0;
}

/* Where a flag's word goes, for those that are just one. */
static const char **text_of(struct args *a, int row)
{
	switch (row) {
	case ROW_NAME:
		return &a->name;
	case ROW_USER:
		return &a->user;
	case ROW_OUT:
		return &a->out;
	case ROW_NODE:
		return &a->node;
	case ROW_CONTROL:
		return &a->control;
	case ROW_CLIENT:
		return &a->client;
	case ROW_SERVER:
		return &a->server;
	case ROW_DIR:
		return &a->dir;
	case ROW_CERT:
		return &a->cert;
	case ROW_KEY:
		return &a->key;
	case ROW_CA:
		return &a->ca;
	case ROW_PEER:
		return &a->peer;
	default:
		return NULL;
	}
}

static int flag(struct args *a, int row, const char *arg, struct err *e)
{
	const char **text = text_of(a, row);
	long n;
	int r;

	if (text) {
		*text = arg;
		return 0;
	}
	switch (row) {
	case ROW_HOST:
		return add_host(a, arg, e);
	case ROW_DAYS:
		r = number(arg, 0, 3650, "days", &n, e);
		a->days = r < 0 ? -1 : (int)n;
		return r;
	case ROW_ALL:
		a->all = true;
		return 0;
	case ROW_UPGRADE:
		a->upgrade = true;
		return 0;
	case ROW_READY:
		return take_fd(arg, "ready-fd", &a->ready_fd, e);
	case ROW_ADOPT:
		return take_fd(arg, "adopt", &a->adopt_fd, e);
	case ROW_VERSION:
		puts("dsec-serve " DSEC_VERSION);
		exit(EXIT_OK);
	default:
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(opts));
		exit(EXIT_OK);
	}
}

static const struct verb *find_verb(const char *word)
{
	for (size_t i = 0; i < array_len(verbs); i++)
		if (!strcmp(verbs[i].name, word))
			return &verbs[i];
	return NULL;
}

/* A word: the verb, then what it is about.  1: the rest is the client's
 * program. */
static int word(struct args *a, const struct verb **v, const char *text,
		struct err *e)
{
	if (!*v) {
		*v = find_verb(text);
		return *v ? 0
			  : err_set(e, -EINVAL, "usage",
				    "no verb '%.32s': dsec-serve --help lists "
				    "them",
				    text);
	}
	if ((*v)->fn == verb_client)
		return 1;
	if (a->nwords == ARG_WORDS_MAX)
		return err_set(e, -EINVAL, "usage", "too many words");
	a->words[a->nwords++] = text;
	return 0;
}

static int parse(int argc, char **argv, struct args *a, const struct verb **ret,
		 struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(opts),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	const struct verb *v = NULL;
	const char *arg;
	int row, r;

	while ((r = opt_next(&p, &row, &arg, e)) != OPT_END) {
		if (r == OPT_WORD)
			r = word(a, &v, arg, e);
		else if (r >= 0)
			r = flag(a, row, arg, e);
		if (r == 1)
			p.i--; /* at the word */
		if (r != 0)
			break;
	}
	if (r < 0 && r != OPT_END)
		return r;
	a->rest = argv + p.i;
	if (!v) {
		opt_help(STDERR_FILENO, usage, OPT_TABLE(opts));
		exit(EXIT_USAGE_ERROR);
	}
	if (a->nwords < v->words_min || a->nwords > v->words_max)
		return err_set(e, -EINVAL, "usage",
			       "%s: dsec-serve --help tells what it needs",
			       v->name);
	*ret = v;
	return 0;
}

int main(int argc, char **argv)
{
	struct args a = {.days = -1, .ready_fd = -1, .adopt_fd = -1};
	const struct verb *v = NULL;
	struct err e = {0};
	int r;

	log_init("dsec-serve");
	signal(SIGPIPE, SIG_IGN);
	r = parse(argc, argv, &a, &v, &e);
	if (r == 0)
		r = v->fn(&a, &e);
	if (r >= 0)
		return r;
	log_err(&e);
	return exit_of(&e);
}
