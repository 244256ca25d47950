/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "box/net.h"
#include "net/broker.h"
#include "serve.h"
#include "serve_priv.h"
#include "sys/cgroup.h"
#include "sys/confine.h"
#include "wire/exit.h"

#define LOG_MAX (1024 * 1024)
#define LOCK_MS 3000 /* for one that is just ending */

void note(const char *fmt, ...)
{
	char text[1024];
	struct stat st;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode) &&
	    st.st_size > LOG_MAX && ftruncate(STDERR_FILENO, 0) == 0)
		log_info("the log was full and begins anew");
	log_info("%s", text);
}

bool same_netns(int a, int b)
{
	uint64_t one = netns_cookie(a);

	return one != 0 && one == netns_cookie(b);
}

/* --- as root ------------------------------------------------------------- */

struct setup {
	struct tree tree;
	struct netconf conf;
	char dir[PATH_MAX];
	int lock, listener, log, broker;
	struct transit_socks transit;
};

static void setup_close(struct setup *s)
{
	const int fds[] = {s->lock, s->listener, s->log, s->broker};

	for (size_t i = 0; i < array_len(fds); i++)
		if (fds[i] >= 0)
			fd_close(fds[i]);
}

static int take_lock(struct setup *s, struct err *e)
{
	uint64_t until = clock_ms() + LOCK_MS;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/lock", s->dir);
	if (r < 0)
		return r;
	s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (s->lock < 0)
		return err_sys(e, errno, "open '%s'", path);
	while (flock(s->lock, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return err_sys(e, errno, "lock '%s'", path);
		if (clock_ms() > until)
			return err_set(e, -EBUSY, "busy",
				       "another helper serves '%s'",
				       s->tree.run);
		poll(NULL, 0, 20);
	}
	return 0;
}

static int listen_ctl(struct setup *s, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/ctl.sock", s->dir);
	if (r < 0)
		return r;
	if (unlink(path) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", path);
	s->listener = fd_unix_listen(path, e);
	return s->listener < 0 ? s->listener : 0;
}

static int open_log(struct setup *s, struct err *e)
{
	char path[PATH_MAX];
	struct stat st;
	int r;

	r = tree_path(path, e, "%s/log", s->dir);
	if (r < 0)
		return r;
	s->log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (s->log < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (fstat(s->log, &st) == 0 && st.st_size > LOG_MAX &&
	    ftruncate(s->log, 0) < 0)
		return err_sys(e, errno, "truncate '%s'", path);
	return 0;
}

/* As many as can be had: a sandbox's sockets are two for DNS and one per port,
 * a connection is two. */
static void set_limit(unsigned files)
{
	struct rlimit lim = {files, files};

	if (setrlimit(RLIMIT_NOFILE, &lim) == 0 ||
	    getrlimit(RLIMIT_NOFILE, &lim) < 0)
		return;
	lim.rlim_cur = lim.rlim_max;
	(void)setrlimit(RLIMIT_NOFILE, &lim);
}

/* Out of the group of whoever started us, which may be killed with all in it.
 * Without it we serve as well. */
static void join_supervisors(const struct setup *s)
{
	struct cgroup_root *root = NULL;
	struct cgroup_join join;
	struct err e = {0};
	int r;

	r = cgroup_open(s->tree.cgroup, &root, &e);
	if (r == 0) {
		r = cgroup_supervisor_prepare(root, &join, &e);
		if (r == 0) {
			r = cgroup_leaf_join(&join);
			if (r < 0)
				err_sys(&e, -r, "join the supervisors");
			cgroup_join_done(&join);
		}
		cgroup_close(root);
	}
	if (r < 0)
		note("stays in its starter's cgroup: %s", e.msg);
}

/* What is there of it is served; without it sandboxes of names are. */
static void open_transit(struct setup *s)
{
	auto_close int netns = -1;
	struct err e = {0};
	int r;

	netns = transit_open(s->tree.run, &e);
	if (netns == -ENOENT)
		return;
	r = netns < 0 ? netns : transit_socks_make(netns, &s->transit, &e);
	if (r < 0)
		note("no routed sandboxes: %s", e.msg);
}

static int prepare(struct setup *s, struct err *e)
{
	int r;

	r = tree_init(&s->tree, e);
	if (r == 0)
		r = tree_path(s->dir, e, "%s/net", s->tree.run);
	if (r == 0)
		r = fd_mkdir_p(s->dir, 0700, e);
	if (r == 0)
		r = netconf_load(s->tree.config, &s->conf, e);
	if (r == 0)
		r = take_lock(s, e);
	if (r == 0)
		r = open_log(s, e);
	if (r == 0)
		r = listen_ctl(s, e);
	if (r < 0)
		return r;
	set_limit(s->conf.open_files);
	open_transit(s);
	return 0;
}

/* Without it all but its endpoints is served. */
static void start_broker(struct setup *s)
{
	const struct broker_start start = {s->tree.config, s->tree.lib, s->log};
	struct err e = {0};
	pid_t pid;

	if (broker_start(&start, &s->broker, &pid, &e) < 0)
		note("no credential broker: %s", e.msg);
}

static int keep(struct setup *s, bool background, struct err *e)
{
	struct keeper_start start = {
		.listener = s->listener,
		.lock = s->lock,
		.broker = s->broker,
		.totals = -1,
		.conf = &s->conf,
	};
	int null = -1, r;

	if (chdir("/") < 0)
		return err_sys(e, errno, "go to /");
	if (background) {
		null = open("/dev/null", O_RDWR | O_CLOEXEC);
		if (null < 0 || dup2(null, 0) < 0 || dup2(null, 1) < 0 ||
		    dup2(s->log, 2) < 0)
			return err_sys(e, errno, "standard descriptors");
		fd_close(null);
	}
	start.transit = s->transit;
	s->transit = (struct transit_socks){-1, -1, -1, -1, -1, -1};
	r = keeper_run(&start, e);
	note("ends");
	return r;
}

/*
 * Who starts one in the background attaches what lives; nobody does for one
 * that systemd starts again.  By a child, as root, of the keeper that we
 * become.
 */
static void attach_all(struct setup *s)
{
	pid_t parent = getpid(), pid = fork();
	struct err e = {0};

	if (pid < 0)
		note("no sandbox is attached again: fork: %s", strerror(errno));
	if (pid != 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(0);
	/* Ours is not to listen, nor to hold the lock. */
	fd_close(s->lock);
	fd_close(s->listener);
	transit_socks_done(&s->transit);
	if (net_mend(&s->tree, NULL, &e) < 0)
		note("%s", e.msg);
	_exit(0);
}

/* The parent ends when the child has become what it will be. */
static int in_background(struct setup *s, struct err *e)
{
	int ready[2], r;
	char c;

	if (pipe2(ready, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	r = fork();
	if (r < 0) {
		r = err_sys(e, errno, "fork");
	} else if (r > 0) {
		fd_close(ready[1]);
		r = read(ready[0], &c, 1) == 1
			    ? 0
			    : err_set(e, -ECHILD, "system", "it ended early");
		fd_close(ready[0]);
		return r;
	} else {
		setsid();
		join_supervisors(s);
		start_broker(s);
		r = confine_user(HELPER_UID, HELPER_UID, e);
		if (r == 0 && write(ready[1], "x", 1) != 1)
			r = err_sys(e, errno, "tell that it serves");
		fd_close(ready[0]);
		fd_close(ready[1]);
		if (r == 0)
			r = keep(s, true, e);
		if (r < 0)
			log_err(e);
		_exit(r < 0 ? exit_of(e) : 0);
	}
	fd_close(ready[0]);
	fd_close(ready[1]);
	return r;
}

int serve(bool background)
{
	struct setup s = {
		.lock = -1,
		.listener = -1,
		.log = -1,
		.broker = -1,
		.transit = {-1, -1, -1, -1, -1, -1},
	};
	struct err e = {0};
	int r;

	if (geteuid() != 0)
		r = err_set(&e, -EPERM, "not_root",
			    "the network helper is started as root");
	else
		r = prepare(&s, &e);
	if (r == 0 && background)
		r = in_background(&s, &e);
	else if (r == 0) {
		start_broker(&s);
		attach_all(&s);
		r = confine_user(HELPER_UID, HELPER_UID, &e);
		if (r == 0)
			r = keep(&s, false, &e);
	}
	netconf_done(&s.conf);
	transit_socks_done(&s.transit);
	setup_close(&s);
	if (r < 0)
		log_err(&e);
	return r < 0 ? exit_of(&e) : EXIT_OK;
}
