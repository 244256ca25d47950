/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/opt.h"
#include "broker.h"
#include "net/conf.h"
#include "net/helper.h"
#include "wire/exit.h"

#define FILES	 4096
#define AGAIN_MS 200 /* before another worker is started */
#define SOON_MS	 1000
#define FAILURES 10

static const struct opt opts[] = {
	{"sock", NULL, 0, "FD", "where connections come from"},
	{"ready", NULL, 0, "FD", "told \"ok\", or what is wrong"},
	{"config", NULL, 0, "DIR", "the node's configuration"},
	{"lib", NULL, 0, "DIR", "where the audit goes"},
	{"help", NULL, 'h', NULL, "print this"},
};
enum { OPT_SOCK, OPT_READY, OPT_CONFIG, OPT_LIB, OPT_HELP };

static const char usage[] =
	"dsec-broker --sock FD --ready FD --config DIR --lib DIR";

static int arg_sock = -1, arg_ready = -1;
static const char *arg_config, *arg_lib;

static int take_fd(const char *arg, int *ret, struct err *e)
{
	char *end;
	long n = strtol(arg, &end, 10);

	if (*end || end == arg || n < 0 || n > INT_MAX ||
	    fcntl((int)n, F_SETFD, FD_CLOEXEC) < 0)
		return err_set(e, -EINVAL, "usage", "no descriptor '%s'", arg);
	*ret = (int)n;
	return 0;
}

static int flag(void *help, int row, const char *arg, struct err *e)
{
	switch (row) {
	case OPT_SOCK:
		return take_fd(arg, &arg_sock, e);
	case OPT_READY:
		return take_fd(arg, &arg_ready, e);
	case OPT_CONFIG:
		arg_config = arg;
		return 0;
	case OPT_LIB:
		arg_lib = arg;
		return 0;
	default:
		*(bool *)help = true;
		return 0;
	}
}

static int no_word(void *help, const char *word, struct err *e)
{
	(void)help;
	return err_set(e, -EINVAL, "usage", "'%s': there is nothing to name",
		       word);
}

/* 1: help is all that was asked for. */
static int parse(int argc, char **argv, struct err *e)
{
	struct opt_parser p = {.table = OPT_TABLE(opts),
			       .argc = argc,
			       .argv = argv,
			       .i = 1};
	bool help = false;
	int r = opt_each(&p, flag, no_word, &help, e);

	if (r < 0 || help)
		return r < 0 ? r : 1;
	if (arg_sock < 0 || arg_ready < 0 || !arg_config || !arg_lib)
		return err_set(e, -EINVAL, "usage", "usage: %s", usage);
	return 0;
}

/* --- as root ------------------------------------------------------------- */

/* As much as is wanted, or as there is. */
static void raise_limit(int what, rlim_t want)
{
	struct rlimit lim = {want, want};

	if (setrlimit(what, &lim) == 0 || getrlimit(what, &lim) < 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(what, &lim);
}

static void set_limits(void)
{
	const struct rlimit core = {0};

	(void)setrlimit(RLIMIT_CORE, &core);
	(void)prctl(PR_SET_DUMPABLE, 0);
	raise_limit(RLIMIT_NOFILE, FILES);
	raise_limit(RLIMIT_MEMLOCK, RLIM_INFINITY);
}

static int open_audit(const char *lib, int *ret, struct err *e)
{
	auto_close int dir = -1;
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/audit", lib) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", lib);
	r = fd_mkdir_p(path, 0700, e);
	if (r < 0)
		return r;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	r = openat(dir, "broker.jsonl",
		   O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
		   0600);
	if (r < 0)
		return err_sys(e, errno, "open '%s/broker.jsonl'", path);
	*ret = r;
	return 0;
}

static int load_deny(struct server *s, struct resolver_conf *dns, struct err *e)
{
	struct netconf conf;
	int r = netconf_load(arg_config, &conf, e);

	if (r < 0)
		return r;
	r = netconf_deny(&conf, &s->deny, e);
	*dns = conf.dns;
	netconf_done(&conf);
	return r;
}

static int load(struct server *s, struct broker_conf *conf,
		struct resolver_conf *dns, struct err *e)
{
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/broker.json", arg_config) >=
	    PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", arg_config);
	r = broker_conf_load(path, conf, e);
	if (r < 0)
		return r;
	s->conf = conf;
	s->sock = arg_sock;
	s->sessions = calloc(conf->n + 1, sizeof(SSL_SESSION *));
	if (!s->sessions)
		return err_sys(e, ENOMEM, "sessions");
	r = load_deny(s, dns, e);
	if (r == 0)
		r = tls_new(conf->ca, &s->tls, e);
	return r < 0 ? r : open_audit(arg_lib, &s->audit, e);
}

static int drop(struct err *e)
{
	const gid_t none = BROKER_UID;

	if (chdir("/") < 0 || setgroups(0, NULL) < 0 ||
	    setresgid(none, none, none) < 0 ||
	    setresuid(BROKER_UID, BROKER_UID, BROKER_UID) < 0 ||
	    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_DUMPABLE, 0) < 0)
		return err_sys(e, errno, "give up being root");
	return 0;
}

/* Once, by whoever knows first; the last copy that is closed says the rest. */
static void tell(const char *text)
{
	if (arg_ready < 0)
		return;
	(void)!write(arg_ready, text, strlen(text));
	fd_close(steal_fd(&arg_ready));
}

/* --- without privilege --------------------------------------------------- */

static int work(struct server *s, const struct resolver_conf *dns)
{
	struct err e = {0};
	int r;

	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() == 1)
		return EXIT_SYSTEM;
	/* Locks are not inherited.  All there is may hold a secret; where so
	 * much may not be locked, where they are kept has to do. */
	r = mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
	if (r < 0)
		r = vault_lock(&s->conf->vault, &e);
	if (r == 0)
		r = loop_new(&s->loop, &e);
	if (r == 0)
		r = resolver_new(s->loop, dns, &s->resolver, &e);
	tell(r == 0 ? "ok" : e.msg);
	if (r == 0)
		r = serve(s, &e);
	if (r < 0)
		log_err(&e);
	return r < 0 ? EXIT_SYSTEM : EXIT_OK;
}

/*
 * A worker at a time, until one has ended because nobody needs it, or several
 * have failed as soon as they were started.
 */
static int keep(struct server *s, const struct resolver_conf *dns)
{
	unsigned failures = 0;
	int status = 0;

	while (failures < FAILURES) {
		uint64_t start = clock_ms();
		pid_t pid = fork();

		if (pid == 0)
			_exit(work(s, dns));
		if (pid > 0 && arg_ready >= 0)
			fd_close(steal_fd(&arg_ready));
		while (pid > 0 && waitpid(pid, &status, 0) < 0)
			;
		if (pid > 0 && WIFEXITED(status) &&
		    WEXITSTATUS(status) == EXIT_OK)
			return EXIT_OK;
		failures = clock_ms() - start < SOON_MS ? failures + 1 : 0;
		(void)poll(NULL, 0, AGAIN_MS);
	}
	return EXIT_SYSTEM;
}

int main(int argc, char **argv)
{
	struct resolver_conf dns = {0};
	struct broker_conf conf;
	struct server s = {0};
	struct err e = {0};
	int r;

	log_init("dsec-broker");
	r = parse(argc, argv, &e);
	if (r == 1) {
		opt_help(STDOUT_FILENO, usage, OPT_TABLE(opts));
		return EXIT_OK;
	}
	if (r < 0) {
		log_err(&e);
		return exit_of(&e);
	}
	signal(SIGPIPE, SIG_IGN);
	set_limits();
	if (fcntl(arg_sock, F_SETFL, O_NONBLOCK) < 0)
		return EXIT_SYSTEM;
	r = load(&s, &conf, &dns, &e);
	if (r == 0)
		r = drop(&e);
	if (r < 0) {
		tell(e.msg);
		return exit_of(&e);
	}
	return keep(&s, &dns);
}
