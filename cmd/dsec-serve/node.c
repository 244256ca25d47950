/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "node.h"
#include "node_starter.h"
#include "serve.h"

#define TICK_MS 1000
#define STOP_MS 10000 /* for requests under way, at the end */

/* --- the configuration --------------------------------------------------- */

static int load(struct starter *s, struct serveconf *conf, struct tls_pem *pem,
		struct err *e)
{
	struct tls_files files;
	int r = serveconf_load(s->dirfd, conf, e);

	if (r < 0)
		return r;
	if (conf->node.nlisten == 0)
		r = err_set(e, -EINVAL, "configuration",
			    "serve.json has no 'node' with 'listen'");
	files = serveconf_files(conf, &conf->node);
	if (r == 0)
		r = tls_pem_read(s->dirfd, &files, pem, e);
	if (r < 0)
		serveconf_done(conf);
	return r;
}

int starter_load(struct starter *s, struct err *e)
{
	struct serveconf conf = {0};
	struct tls_pem pem = {0};
	uid_t uid;
	gid_t gid;
	int r;

	if (s->dirfd < 0) {
		s->dirfd = open(s->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (s->dirfd < 0)
			return err_sys(e, errno, "open '%s'", s->dir);
	}
	r = load(s, &conf, &pem, e);
	if (r == 0)
		r = role_user(conf.user, &uid, &gid, e);
	if (r < 0) { /* all of it, or nothing changes */
		tls_pem_done(&pem);
		serveconf_done(&conf);
		return r;
	}
	serveconf_done(&s->conf);
	tls_pem_done(&s->pem);
	s->conf = conf;
	s->pem = pem;
	s->uid = uid;
	s->gid = gid;
	s->stamp = serveconf_stamp(s->dirfd, &s->conf, &s->conf.node);
	r = s->loop ? 0 : loop_new(&s->loop, e);
	if (r == 0)
		r = tree_init(&s->tree, e);
	if (r == 0)
		r = tree_path(s->root, e, "%s/serve/empty", s->tree.run);
	return r;
}

static void reload(struct starter *s)
{
	struct err e = {0};

	if (starter_load(s, &e) < 0) {
		log_info("serve.json is left as it was: %s", e.msg);
		/* Not again for the same; but for what the machine lacked. */
		s->stamp = e.infra ? 0
				   : serveconf_stamp(s->dirfd, &s->conf,
						     &s->conf.node);
		return;
	}
	log_info("reads its configuration and certificates anew");
	children_reload(s);
}

/* --- signals and time ---------------------------------------------------- */

static void on_stop(struct loop *l, struct loop_timer *t)
{
	(void)t;
	loop_stop(l, 0);
}

/* What is under way may be answered; nobody new is let in. */
static void stop(struct starter *s)
{
	if (s->stopping) {
		loop_stop(s->loop, 0);
		return;
	}
	s->stopping = true;
	for (struct child *c = s->children; c; c = c->next)
		child_retire(c);
	s->stop = (struct loop_timer){.fn = on_stop};
	loop_timer_set(s->loop, &s->stop, clock_ms() + STOP_MS);
	children_reap(s);
}

static void on_signal(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct starter *s = src->arg;
	struct signalfd_siginfo info;

	(void)l;
	(void)events;
	while (read(src->fd, &info, sizeof(info)) == sizeof(info)) {
		switch (info.ssi_signo) {
		case SIGCHLD:
			children_reap(s);
			break;
		case SIGHUP:
			children_reopen(s);
			reload(s);
			break;
		case SIGUSR2:
			upgrade(s);
			break;
		default:
			log_info("ends by %s", sig_name((int)info.ssi_signo));
			stop(s);
		}
	}
}

static void on_tick(struct loop *l, struct loop_timer *t)
{
	struct starter *s = t->arg;

	if (serveconf_stamp(s->dirfd, &s->conf, &s->conf.node) != s->stamp)
		reload(s);
	loop_timer_set(l, t, clock_ms() + TICK_MS);
}

int starter_run(struct starter *s, struct err *e)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD,
				      SIGUSR2};
	int fd = sig_block(signals, array_len(signals), e), r;

	if (fd < 0)
		return fd;
	r = loop_add(s->loop, &s->signals, fd, EPOLLIN, on_signal, s, e);
	if (r == 0) {
		s->tick = (struct loop_timer){.fn = on_tick, .arg = s};
		loop_timer_set(s->loop, &s->tick, clock_ms() + TICK_MS);
		children_reap(s); /* those that ended before we watched */
		child_start(s, ROLE_KEEPER);
		child_start(s, ROLE_WORKER);
		r = loop_run(s->loop, e);
	}
	loop_del(s->loop, &s->signals);
	fd_close(fd);
	return r;
}

/* --- the beginning ------------------------------------------------------- */

int lock_write(struct starter *s, struct err *e)
{
	char text[128];
	int n = snprintf(text, sizeof(text),
			 "{\"pid\":%d,\"generation\":%lld,\"refused\":%u}\n",
			 (int)getpid(), (long long)s->generation, s->refused);

	if (pwrite(s->lock, text, (size_t)n, 0) != n ||
	    ftruncate(s->lock, n) < 0)
		return err_sys(e, errno, "write the lock");
	return 0;
}

static int take_lock(struct starter *s, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = fd_mkdir_p(s->root, 0755, e);
	if (r == 0)
		r = tree_path(path, e, "%s/serve/node.lock", s->tree.run);
	if (r < 0)
		return r;
	s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (s->lock < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (flock(s->lock, LOCK_EX | LOCK_NB) < 0)
		return err_set(e, -EBUSY, "busy",
			       "another node daemon serves '%s'", s->tree.run);
	return lock_write(s, e);
}

/* The path, not the file: an upgrade is what has its name then. */
static int find_exe(struct starter *s, struct err *e)
{
	ssize_t n = readlink("/proc/self/exe", s->exe, sizeof(s->exe) - 1);

	if (n < 0)
		return err_sys(e, errno, "find our own program");
	s->exe[n] = '\0';
	return 0;
}

static int listen_all(struct starter *s, struct err *e)
{
	int r = 0;

	for (size_t i = 0; i < s->conf.node.nlisten && r == 0; i++) {
		r = server_bind(s->conf.node.listen[i], 0,
				&s->listeners[s->nlisteners], e);
		if (r == 0)
			s->nlisteners++;
	}
	return r;
}

static int prepare(struct starter *s, const char *dir, struct err *e)
{
	int r;

	if (geteuid() != 0)
		return err_set(e, -EPERM, "not_root",
			       "the node daemon is started as root");
	if (!realpath(dir, s->dir))
		return err_sys(e, errno, "find '%s'", dir);
	r = find_exe(s, e);
	if (r == 0)
		r = starter_load(s, e);
	if (r == 0)
		r = tree_make(&s->tree, e);
	if (r == 0)
		r = take_lock(s, e);
	if (r == 0)
		r = listen_all(s, e);
	return r;
}

void starter_done(struct starter *s)
{
	children_kill(s);
	serveconf_done(&s->conf);
	tls_pem_done(&s->pem);
	for (size_t i = 0; i < s->nlisteners; i++)
		fd_close(s->listeners[i]);
	if (s->dirfd >= 0)
		fd_close(s->dirfd);
	if (s->lock >= 0)
		fd_close(s->lock);
	loop_free(s->loop);
}

int verb_node(const struct args *a, struct err *e)
{
	struct starter s = {.dirfd = -1, .lock = -1, .ready = a->ready_fd};
	int r;

	if (a->adopt_fd >= 0)
		return node_adopt(a->adopt_fd, e);
	if (a->upgrade)
		return node_upgrade(a->words[0], e);
	r = prepare(&s, a->words[0], e);
	if (r == 0)
		r = starter_run(&s, e);
	starter_done(&s);
	return r;
}
