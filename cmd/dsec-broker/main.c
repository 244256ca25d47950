/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
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
#include "sys/confine.h"
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

/* What broker.json and net.json say, and what is made of it. */
struct loaded {
	struct server s;
	struct broker_conf conf;
	struct resolver_conf dns;
};

static void loaded_free(struct loaded *l)
{
	if (!l)
		return;
	netdeny_free(l->s.deny);
	SSL_CTX_free(l->s.tls);
	free(l->s.sessions);
	broker_conf_done(&l->conf);
	free(l);
}

static int load_deny(struct loaded *l, struct err *e)
{
	struct netconf conf;
	int r = netconf_load(arg_config, &conf, e);

	if (r < 0)
		return r;
	r = netconf_deny(&conf, &l->s.deny, e);
	l->dns = conf.dns;
	netconf_done(&conf);
	return r;
}

static int load_all(struct loaded *l, struct err *e)
{
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/broker.json", arg_config) >=
	    PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", arg_config);
	r = broker_conf_load(path, &l->conf, e);
	if (r < 0)
		return r;
	l->s.conf = &l->conf;
	l->s.sock = arg_sock;
	l->s.stay = -1;
	l->s.sessions = calloc(l->conf.n + 1, sizeof(SSL_SESSION *));
	if (!l->s.sessions)
		return err_sys(e, ENOMEM, "sessions");
	r = load_deny(l, e);
	return r < 0 ? r : tls_new(l->conf.ca, &l->s.tls, e);
}

static int load(int audit, struct loaded **ret, struct err *e)
{
	struct loaded *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return err_sys(e, ENOMEM, "configuration");
	r = load_all(l, e);
	l->s.audit = audit;
	if (r < 0)
		loaded_free(l);
	else
		*ret = l;
	return r;
}

/*
 * What it takes to read root's files again and to make a worker that is nobody.
 * This process hears of sandboxes nothing: it waits for signals.
 */
static int shed(struct err *e)
{
	int r;

	if (chdir("/") < 0)
		return err_sys(e, errno, "'/'");
	r = confine_caps(1U << CAP_DAC_READ_SEARCH | 1U << CAP_SETGID |
				 1U << CAP_SETUID,
			 e);
	return r < 0 ? r : confine_state(e);
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

static int prepare(struct loaded *l, pid_t parent, struct err *e)
{
	int r = confine_user(BROKER_UID, BROKER_UID, e);

	/* Another uid makes it forget this: so now. */
	if (r == 0 &&
	    (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
		r = err_sys(e, ESRCH, "who started it has gone");
	/* Locks are not inherited.  All there is may hold a secret; where so
	 * much may not be locked, where they are kept has to do. */
	if (r == 0 && mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) < 0)
		r = vault_lock(&l->conf.vault, e);
	if (r == 0)
		r = loop_new(&l->s.loop, e);
	if (r == 0)
		r = resolver_new(l->s.loop, &l->dns, &l->s.resolver, e);
	return r < 0 ? r : confine_internet(e);
}

static int work(struct loaded *l, pid_t parent)
{
	struct err e = {0};
	int r = prepare(l, parent, &e);

	tell(r == 0 ? "ok" : e.msg);
	if (r == 0)
		r = serve(&l->s, &e);
	if (r < 0)
		log_err(&e);
	return r < 0 ? EXIT_SYSTEM : EXIT_OK;
}

/* --- the workers --------------------------------------------------------- */

struct keeper {
	struct loaded *now;
	pid_t worker; /* 0: none; those that are leaving are nobody's */
	int stay;     /* while it is open ${worker} takes connections */
	uint64_t start_ms;
	unsigned failures;
};

static void start(struct keeper *k)
{
	pid_t me = getpid();
	int pair[2];

	k->start_ms = clock_ms();
	if (pipe2(pair, O_CLOEXEC) < 0)
		return;
	k->worker = fork();
	if (k->worker == 0) {
		fd_close(pair[1]);
		k->now->s.stay = pair[0];
		_exit(work(k->now, me));
	}
	fd_close(pair[0]);
	k->stay = pair[1];
	if (k->worker < 0) {
		fd_close(steal_fd(&k->stay));
		k->worker = 0;
	}
	if (k->worker && arg_ready >= 0)
		fd_close(steal_fd(&arg_ready));
}

static void let_go(struct keeper *k)
{
	if (k->stay >= 0)
		fd_close(steal_fd(&k->stay));
	k->worker = 0;
}

/* One that cannot be read changes nothing. */
static void reload(struct keeper *k)
{
	struct loaded *next = NULL;
	struct err e = {0};

	if (load(k->now->s.audit, &next, &e) < 0) {
		log_error("broker.json is as it was: %s", e.msg);
		return;
	}
	let_go(k);
	loaded_free(k->now);
	k->now = next;
	log_info("broker.json was read anew");
}

/* True: the worker has ended because nobody needs it. */
static bool reap(struct keeper *k)
{
	bool over = false;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != k->worker)
			continue;
		let_go(k);
		over = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_OK;
		k->failures = clock_ms() - k->start_ms < SOON_MS
				      ? k->failures + 1
				      : 0;
		if (!over)
			(void)poll(NULL, 0, AGAIN_MS);
	}
	return over;
}

/*
 * A worker at a time, until one has ended because nobody needs it, or several
 * have failed as soon as they were started.  SIGHUP: another one, with what the
 * files say now, beside which the old one ends what it has begun.
 */
static int keep(struct loaded *l, const sigset_t *signals)
{
	const struct timespec again = {.tv_nsec = AGAIN_MS * 1000000L};
	struct keeper k = {.now = l, .stay = -1};
	int sig;

	while (k.failures < FAILURES) {
		if (!k.worker)
			start(&k);
		if (k.worker) {
			sig = sigwaitinfo(signals, NULL);
		} else {
			k.failures++;
			sig = sigtimedwait(signals, NULL, &again);
		}
		if (sig == SIGHUP)
			reload(&k);
		else if (sig == SIGCHLD && reap(&k))
			return EXIT_OK;
	}
	return EXIT_SYSTEM;
}

static int begin(struct loaded **ret, struct err *e)
{
	static char config[PATH_MAX];
	int audit = -1, r;

	if (!realpath(arg_config, config))
		return err_sys(e, errno, "'%s'", arg_config);
	arg_config = config; /* there will be another directory */
	r = open_audit(arg_lib, &audit, e);
	if (r == 0)
		r = load(audit, ret, e);
	return r < 0 ? r : shed(e);
}

int main(int argc, char **argv)
{
	struct loaded *l = NULL;
	struct err e = {0};
	sigset_t signals;
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
	sigemptyset(&signals);
	sigaddset(&signals, SIGHUP);
	sigaddset(&signals, SIGCHLD);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	set_limits();
	if (fcntl(arg_sock, F_SETFL, O_NONBLOCK) < 0)
		return EXIT_SYSTEM;
	r = begin(&l, &e);
	if (r < 0) {
		tell(e.msg);
		return exit_of(&e);
	}
	return keep(l, &signals);
}
