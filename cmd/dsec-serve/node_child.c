/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "node.h"
#include "node_starter.h"
#include "serve.h"

#define TAKE_MS 10000 /* for a process to take its orders */
#define LINK_MS 1000  /* between two ways that break at once */

static const char *const names[ROLES] = {"keeper", "worker"};
static const char *const verbs[ROLES] = {"node-keeper", "node-worker"};

static struct child *current(const struct starter *s, enum role role)
{
	struct child *c = s->children;

	while (c && (c->role != role || c->retiring || c->dead))
		c = c->next;
	return c;
}

/* One that takes nothing is none: it is killed, and that is seen. */
static void give_up(struct child *c, const char *why)
{
	log_info("%s %d takes nothing: %s", names[c->role], (int)c->pid, why);
	kill(c->pid, SIGKILL);
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	(void)l;
	give_up(t->arg, "its orders wait");
}

/* What it does not take yet waits, and nobody with it. */
static int flush(struct child *c, struct err *e)
{
	struct loop *l = c->starter->loop;
	int r = chan_flush(&c->chan, e);
	bool waits = c->chan.out.len > 0;

	if (r < 0)
		return r;
	if (!waits || !c->late.at_ms)
		loop_timer_set(l, &c->late, waits ? clock_ms() + TAKE_MS : 0);
	return loop_mod(l, &c->src, waits ? EPOLLIN | EPOLLOUT : EPOLLIN, e);
}

/* ${fds} are taken over. */
static void order(struct child *c, const json_t *line, int *fds, size_t nfds)
{
	struct err e = {0};

	if (chan_put_fds(&c->chan, line, fds, nfds, &e) < 0 || flush(c, &e) < 0)
		give_up(c, e.msg);
}

bool children_busy(const struct starter *s)
{
	for (const struct child *c = s->children; c; c = c->next)
		if (c->chan.out.len > 0)
			return true;
	return false;
}

static void go_on(struct starter *s)
{
	if (s->upgrades && !children_busy(s))
		upgrade(s);
}

/* --- what they are told -------------------------------------------------- */

static void tell_clients(struct child *c)
{
	auto_json json_t *line = NULL;
	const json_t *list = c->starter->conf.clients;

	if (json_pack_or(&line, NULL, "{ss}", "op", "clients") < 0)
		return;
	if (list)
		json_object_set(line, "clients", (json_t *)(uintptr_t)list);
	order(c, line, NULL, 0);
}

static void tell_tls(struct child *c)
{
	const struct tls_pem *pem = &c->starter->pem;
	auto_json json_t *line = NULL;

	if (json_pack_or(&line, NULL, "{ss ss ss ss ss*}", "op", "tls", "ca",
			 pem->ca, "cert", pem->cert, "key", pem->key, "crl",
			 pem->crl) == 0)
		order(c, line, NULL, 0);
}

static json_t *limits_of(const struct starter *s)
{
	const struct server_limits *l = &s->conf.server_limits;
	const struct conn_limits *n = &s->conf.conn_limits;

	return json_pack("{si si si si si si si si si}", "clients",
			 (int)l->clients, "shaking", (int)l->shaking,
			 "requests", (int)l->requests, "calls", (int)l->calls,
			 "handshake_ms", (int)n->handshake_ms, "line_ms",
			 (int)n->line_ms, "ping_ms", (int)n->ping_ms, "idle_ms",
			 (int)n->idle_ms, "stall_ms", (int)n->stall_ms);
}

static void close_fds(const int *fds, size_t n)
{
	while (n > 0)
		fd_close(fds[--n]);
}

static int copy_fds(const int *from, int *to, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		to[i] = fcntl(from[i], F_DUPFD_CLOEXEC, 3);
		if (to[i] < 0) {
			close_fds(to, i);
			return -EMFILE;
		}
	}
	return 0;
}

static void tell_start(struct child *c)
{
	struct starter *s = c->starter;
	auto_json json_t *line = NULL;
	json_t *list = json_array();
	int fds[SERVECONF_LISTEN_MAX];
	char name[32];

	if (copy_fds(s->listeners, fds, s->nlisteners) < 0) {
		json_decref(list);
		give_up(c, "no descriptors are left");
		return;
	}
	for (size_t i = 0; i < s->nlisteners; i++) {
		snprintf(name, sizeof(name), "listen.%zu", i);
		json_array_append_new(list, json_string(name));
	}
	if (json_pack_or(&line, NULL, "{ss ss ss* sI sI ss so* so}", "op",
			 "start", "name", s->conf.name, "metrics",
			 s->conf.node.metrics, "uid", (json_int_t)s->uid, "gid",
			 (json_int_t)s->gid, "root", s->root, "limits",
			 limits_of(s), "fds", list) < 0)
		close_fds(fds, s->nlisteners);
	else
		order(c, line, fds, s->nlisteners);
}

/* The two ends of a way between them. */
static void link_them(struct child *keeper, struct child *worker)
{
	auto_json json_t *line = NULL;
	int s[2];

	if (!keeper || !worker)
		return;
	worker->linked_ms = clock_ms();
	loop_timer_set(worker->starter->loop, &worker->alone, 0);
	if (json_pack_or(&line, NULL, "{ss s[s]}", "op", "channel", "fds",
			 "channel") < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0,
		       s) < 0) {
		log_info("no way between keeper and worker");
		return;
	}
	order(keeper, line, &s[0], 1);
	order(worker, line, &s[1], 1);
}

static void tell_all(struct child *c)
{
	tell_clients(c);
	if (c->role == ROLE_WORKER) {
		tell_tls(c);
		tell_start(c);
		link_them(current(c->starter, ROLE_KEEPER), c);
		return;
	}
	/* Those that retire too have what it must answer. */
	for (struct child *w = c->starter->children; w; w = w->next)
		if (w->role == ROLE_WORKER && !w->dead)
			link_them(c, w);
}

void children_reload(struct starter *s)
{
	for (struct child *c = s->children; c; c = c->next) {
		if (c->dead)
			continue;
		tell_clients(c);
		if (c->role == ROLE_WORKER)
			tell_tls(c);
	}
}

void children_reopen(struct starter *s)
{
	struct child *c = current(s, ROLE_KEEPER);
	auto_json json_t *line = NULL;

	if (c && json_pack_or(&line, NULL, "{ss}", "op", "reopen") == 0)
		order(c, line, NULL, 0);
}

/* --- what they say ------------------------------------------------------- */

/* Whoever started us waits for this. */
static void on_ready(struct starter *s, const json_t *line)
{
	char text[SERVER_ADDR_MAX + 16];

	log_info("serves on %s", json_str(line, "address"));
	snprintf(text, sizeof(text), "ready %.*s", SERVER_ADDR_MAX,
		 json_str(line, "address"));
	serve_ready(s->ready, text);
	s->ready = -1;
}

static void on_alone(struct loop *l, struct loop_timer *t)
{
	struct child *c = t->arg;

	(void)l;
	link_them(current(c->starter, ROLE_KEEPER), c);
}

static void on_said(struct child *c, const char *event, const json_t *line)
{
	if (!strcmp(event, "ready"))
		on_ready(c->starter, line);
	/* A keeper that has ended is replaced, and its successor linked; but
	 * there may be one still. */
	if (!strcmp(event, "alone") && c->role == ROLE_WORKER)
		loop_timer_set(c->starter->loop, &c->alone,
			       c->linked_ms + LINK_MS);
}

static void on_child(struct loop *l, struct loop_source *src, uint32_t events)
{
	struct child *c = src->arg;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = -EAGAIN;

	if ((events & EPOLLOUT) && flush(c, &e) < 0)
		r = -EPIPE;
	else if (events & ~(uint32_t)EPOLLOUT)
		r = chan_read(&c->chan, &e);
	while (chan_lines(&c->chan, &m, &r, &e))
		on_said(c, json_str(m.obj, "event"), m.obj);
	if (r != -EAGAIN) {
		/* It hung up: its end is to come. */
		loop_del(l, src);
		kill(c->pid, SIGKILL);
	}
	go_on(c->starter);
}

/* --- their life ---------------------------------------------------------- */

static _Noreturn void become(const struct starter *s, enum role role, int sock)
{
	sock = fcntl(sock, F_DUPFD, ROLE_FD + 1);
	if (sock < 0 || dup2(sock, ROLE_FD) < 0)
		_exit(71);
	syscall(SYS_close_range, ROLE_FD + 1, ~0U, 0);
	sig_reset();
	execl(s->exe, "dsec-serve", verbs[role], NULL);
	_exit(71);
}

static struct child *child_new(struct starter *s, enum role role, int fd,
			       struct err *e)
{
	struct child *c = calloc(1, sizeof(*c));

	if (!c || loop_add(s->loop, &c->src, fd, EPOLLIN, on_child, c, e) < 0) {
		free(c);
		return NULL;
	}
	c->starter = s;
	c->late = (struct loop_timer){.fn = on_late, .arg = c};
	c->alone = (struct loop_timer){.fn = on_alone, .arg = c};
	c->role = role;
	c->chan.fd = fd;
	c->since_ms = clock_ms();
	c->next = s->children;
	s->children = c;
	return c;
}

int child_adopt(struct starter *s, const struct child *like, struct err *e)
{
	struct child *c = child_new(s, like->role, like->chan.fd, e);

	if (!c)
		return err_sys(e, ENOMEM, "adopt a process");
	(void)fcntl(like->chan.fd, F_SETFD, FD_CLOEXEC);
	c->pid = like->pid;
	c->retiring = like->retiring;
	return 0;
}

static void on_again(struct loop *l, struct loop_timer *t)
{
	struct starter *s = t->arg;

	(void)l;
	for (int role = 0; role < ROLES; role++)
		if (t == &s->again[role].timer)
			child_start(s, (enum role)role);
}

static int spawn(struct starter *s, enum role role, struct child **ret,
		 struct err *e)
{
	int pair[2], r;
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(e, errno, "socket pair");
	pid = fork();
	if (pid == 0)
		become(s, role, pair[1]);
	r = pid < 0 ? err_sys(e, errno, "fork") : 0;
	fd_close(pair[1]);
	if (r == 0) {
		*ret = child_new(s, role, pair[0], e);
		if (*ret) {
			(*ret)->pid = pid;
			return 0;
		}
		kill(pid, SIGKILL);
		r = -ENOMEM;
	}
	fd_close(pair[0]);
	return r;
}

void child_start(struct starter *s, enum role role)
{
	struct loop_timer *t = &s->again[role].timer;
	struct child *c = NULL;
	struct err e = {0};

	t->fn = on_again;
	t->arg = s;
	if (s->stopping || current(s, role))
		return;
	if (spawn(s, role, &c, &e) < 0) {
		log_info("no %s: %s", names[role], e.msg);
		loop_timer_set(s->loop, t, clock_ms() + BACKOFF_MAX);
		return;
	}
	log_info("%s %d", names[role], (int)c->pid);
	tell_all(c);
}

void child_retire(struct child *c)
{
	auto_json json_t *line = NULL;

	if (c->dead || c->retiring)
		return;
	c->retiring = true;
	if (json_pack_or(&line, NULL, "{ss}", "op", "retire") == 0)
		order(c, line, NULL, 0);
}

static void child_free(struct child *c)
{
	loop_del(c->starter->loop, &c->src);
	loop_timer_set(c->starter->loop, &c->late, 0);
	loop_timer_set(c->starter->loop, &c->alone, 0);
	chan_done(&c->chan);
	fd_close(c->chan.fd);
	free(c);
}

static void gone(struct child *c, int status)
{
	struct starter *s = c->starter;
	uint64_t lived = clock_ms() - c->since_ms;
	struct loop_timer *t = &s->again[c->role].timer;

	if (c->retiring || s->stopping) {
		log_info("%s %d has ended", names[c->role], (int)c->pid);
		return;
	}
	log_info("%s %d is gone after %llu ms (%s %d)", names[c->role],
		 (int)c->pid, (unsigned long long)lived,
		 WIFSIGNALED(status) ? "signal" : "status",
		 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	t->fn = on_again;
	t->arg = s;
	loop_timer_set(s->loop, t,
		       clock_ms() +
			       backoff_next(&s->again[c->role].backoff, lived));
}

void children_reap(struct starter *s)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (struct child **p = &s->children, *c; (c = *p);
		     p = &c->next) {
			if (c->pid != pid)
				continue;
			*p = c->next;
			c->dead = true;
			gone(c, status);
			child_free(c);
			break;
		}
	if (s->stopping && !s->children)
		loop_stop(s->loop, 0);
	go_on(s);
}

void children_kill(struct starter *s)
{
	struct child *c;

	while ((c = s->children)) {
		s->children = c->next;
		kill(c->pid, SIGKILL);
		(void)waitpid(c->pid, NULL, 0);
		child_free(c);
	}
}
