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
#include <sys/socket.h>
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

static int open_dir(const char *lib, struct err *e)
{
	char path[PATH_MAX];
	int r;

	if (snprintf(path, sizeof(path), "%s/audit", lib) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "'%s'", lib);
	r = fd_mkdir_p(path, 0700, e);
	if (r < 0)
		return r;
	r = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return r < 0 ? err_sys(e, errno, "open '%s'", path) : r;
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
	l->s.keeper = -1;
	l->s.sessions = calloc(l->conf.n + 1, sizeof(SSL_SESSION *));
	if (!l->s.sessions)
		return err_sys(e, ENOMEM, "sessions");
	r = load_deny(l, e);
	return r < 0 ? r : tls_new(l->conf.ca, &l->s.tls, e);
}

static int load(struct loaded **ret, struct err *e)
{
	struct loaded *l = calloc(1, sizeof(*l));
	int r;

	if (!l)
		return err_sys(e, ENOMEM, "configuration");
	r = load_all(l, e);
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

static int prepare(struct loaded *l, int audit, pid_t parent, struct err *e)
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
	if (r == 0)
		r = broker_audit_new(l->s.loop, audit, audit_state, &l->s.audit,
				     e);
	return r < 0 ? r : confine_internet(e);
}

static int work(struct loaded *l, int audit, pid_t parent)
{
	struct err e = {0};
	int r = prepare(l, audit, parent, &e);

	tell(r == 0 ? "ok" : e.msg);
	if (r == 0)
		r = serve(&l->s, &e);
	if (r < 0)
		log_err(&e);
	broker_audit_free(l->s.audit);
	return r < 0 ? EXIT_SYSTEM : EXIT_OK;
}

/* --- the workers --------------------------------------------------------- */

struct worker {
	struct worker *next;
	pid_t pid;
	int sock; /* for orders */
};

struct keeper {
	struct loaded *now;
	int dir, audit;
	struct worker *workers;
	struct worker *serving; /* NULL: none; the others are leaving */
	uint64_t start_ms;
	unsigned failures;
};

/* What a worker has no business with. */
static void close_kept(struct keeper *k)
{
	fd_close(k->dir);
	for (struct worker *w = k->workers; w; w = w->next)
		fd_close(w->sock);
}

static pid_t fork_worker(struct keeper *k, const int *pair)
{
	const pid_t me = getpid();
	const pid_t pid = fork();

	if (pid)
		return pid;
	close_kept(k);
	fd_close(pair[1]);
	k->now->s.keeper = pair[0];
	_exit(work(k->now, k->audit, me));
}

static void start(struct keeper *k)
{
	struct worker *w = calloc(1, sizeof(*w));
	int pair[2];

	k->start_ms = clock_ms();
	if (!w ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
		       0, pair) < 0) {
		free(w);
		return;
	}
	w->pid = fork_worker(k, pair);
	fd_close(pair[0]);
	if (w->pid < 0) {
		fd_close(pair[1]);
		free(w);
		return;
	}
	w->sock = pair[1];
	w->next = k->workers;
	k->workers = k->serving = w;
	if (arg_ready >= 0)
		fd_close(steal_fd(&arg_ready));
}

static void order(const struct worker *w, char what, int fd)
{
	const ssize_t n = fd_send(w->sock, &what, 1, &fd, fd >= 0,
				  MSG_DONTWAIT);

	/* One that has ended needs no orders. */
	if (n < 0 && n != -EPIPE && n != -ECONNRESET)
		log_error("worker %d was not told: %s", (int)w->pid,
			  strerror((int)-n));
}

/* It may have been moved away: whoever writes goes on in the one of its name.
 */
static void reopen(struct keeper *k)
{
	struct err e = {0};
	int fd = broker_audit_open(k->dir, &e);

	if (fd < 0) {
		log_error("the audit goes on where it was: %s", e.msg);
		return;
	}
	for (const struct worker *w = k->workers; w; w = w->next)
		order(w, ORDER_AUDIT, fd);
	fd_close(k->audit);
	k->audit = fd;
}

/* One that cannot be read changes nothing. */
static void reload(struct keeper *k)
{
	struct loaded *next = NULL;
	struct err e = {0};

	if (load(&next, &e) < 0) {
		log_error("broker.json is as it was: %s", e.msg);
		return;
	}
	if (k->serving)
		order(k->serving, ORDER_LEAVE, -1);
	k->serving = NULL;
	loaded_free(k->now);
	k->now = next;
	log_info("broker.json was read anew");
}

static void forget(struct keeper *k, pid_t pid)
{
	struct worker **at = &k->workers, *w;

	while (*at && (*at)->pid != pid)
		at = &(*at)->next;
	w = *at;
	if (!w)
		return;
	*at = w->next;
	if (w == k->serving)
		k->serving = NULL;
	fd_close(w->sock);
	free(w);
}

/* True: the worker has ended because nobody needs it. */
static bool reap(struct keeper *k)
{
	bool over = false, served;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		served = k->serving && k->serving->pid == pid;
		forget(k, pid);
		if (!served)
			continue;
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
 * files say now, beside which the old one ends what it has begun; all of them
 * write to the audit that is there now.
 */
static int keep(struct keeper *k, const sigset_t *signals)
{
	const struct timespec again = {.tv_nsec = AGAIN_MS * 1000000L};
	int sig;

	while (k->failures < FAILURES) {
		if (!k->serving)
			start(k);
		if (k->serving) {
			sig = sigwaitinfo(signals, NULL);
		} else {
			k->failures++;
			sig = sigtimedwait(signals, NULL, &again);
		}
		if (sig == SIGHUP) {
			reopen(k);
			reload(k);
		} else if (sig == SIGCHLD && reap(k)) {
			return EXIT_OK;
		}
	}
	return EXIT_SYSTEM;
}

static int begin(struct keeper *k, struct err *e)
{
	static char config[PATH_MAX];
	int r;

	if (!realpath(arg_config, config))
		return err_sys(e, errno, "'%s'", arg_config);
	arg_config = config; /* there will be another directory */
	k->dir = open_dir(arg_lib, e);
	if (k->dir < 0)
		return k->dir;
	k->audit = broker_audit_open(k->dir, e);
	if (k->audit < 0)
		return k->audit;
	r = load(&k->now, e);
	return r < 0 ? r : shed(e);
}

int main(int argc, char **argv)
{
	struct keeper k = {.dir = -1, .audit = -1};
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
	r = begin(&k, &e);
	if (r < 0) {
		tell(e.msg);
		return exit_of(&e);
	}
	return keep(&k, &signals);
}
