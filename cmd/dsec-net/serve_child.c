/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/sig.h"
#include "serve_keeper.h"
#include "wire/record.h"

#define SEND_S 10
#define TRIES  3

static const char *const transit_fds[] = TRANSIT_FDS;

/* --- what it is asked ---------------------------------------------------- */

static void asked_free(struct asked *a)
{
	chan_msg_done(&a->msg);
	free(a);
}

static struct asked *asked_pop(struct keeper *k)
{
	struct asked *a = k->asked;

	if (!a)
		return NULL;
	k->asked = a->next;
	if (!k->asked)
		k->asked_end = &k->asked;
	return a;
}

static void asked_push(struct keeper *k, struct asked *a)
{
	a->next = NULL;
	*k->asked_end = a;
	k->asked_end = &a->next;
}

static void refuse(struct asked *a, const char *why)
{
	struct err e = {0};

	err_set(&e, -EIO, "helper_lost", "%s", why);
	if (a->client && !a->client->dead)
		client_error(a->client, a->msg.obj, &e);
	asked_free(a);
}

/* A worker that takes nothing is none. */
static void send_asked(struct keeper *k, const struct asked *a)
{
	struct err e = {0};

	if (k->pid == 0)
		return; /* it will be sent to the next one */
	if (chan_send(&k->worker, a->msg.obj, a->msg.fds, a->msg.nfds, &e) <
	    0) {
		note("worker %d takes nothing: %s", (int)k->pid, e.msg);
		kill(k->pid, SIGKILL);
	}
}

void worker_ask(struct keeper *k, struct client *c, struct chan_msg *m)
{
	struct asked *a = calloc(1, sizeof(*a));

	if (!a) {
		struct err e = {0};

		err_sys(&e, ENOMEM, "request");
		client_error(c, m->obj, &e);
		chan_msg_done(m);
		return;
	}
	a->client = c;
	a->msg = *m;
	*m = (struct chan_msg){0};
	asked_push(k, a);
	send_asked(k, a);
}

/* --- its answers --------------------------------------------------------- */

static void add_helper(const struct keeper *k, json_t *rec)
{
	json_t *o;

	if (json_pack_or(&o, NULL, "{si si si si}", "pid", (int)getpid(),
			 "worker", (int)k->pid, "restarts", (int)k->restarts,
			 "sandboxes", (int)k->held.n) == 0)
		(void)json_object_set_new(rec, "helper", o);
}

/* What an answer means to us; the record that goes to who asked. */
static json_t *settle(struct keeper *k, struct asked *a, json_t *rec)
{
	const char *op = json_str(a->msg.obj, "op");
	const char *id = json_str(a->msg.obj, "sandbox");
	const struct held *h = held_find(&k->held, id);
	struct err e = {0};

	if (!json_is_true(json_object_get(rec, "ok")))
		return json_incref(rec);
	if (!strcmp(op, "list"))
		return held_list(&k->held);
	if (!strcmp(op, "ports") && h)
		return held_ports(h);
	if (!strcmp(op, "ports"))
		err_set(&e, -ENOENT, "sandbox_unknown",
			"the network helper does not know '%s'", id);
	else if (!strcmp(op, "attach"))
		held_put(&k->held, &a->msg, &e);
	else if (!strcmp(op, "policy"))
		held_policy(&k->held, &a->msg, &e);
	else if (!strcmp(op, "detach") && h &&
		 held_detaches(a->msg.obj, json_int(h->line, "netns", 0)))
		held_drop(&k->held, id);
	else if (!strcmp(op, "stats") && !*id)
		add_helper(k, rec);
	else if (!strcmp(op, "ping") && k->transit[0] >= 0)
		json_object_set_new(rec, "transit",
				    json_integer((json_int_t)netns_cookie(
					    k->transit[0])));
	return e.r < 0 ? record_error(a->msg.obj, &e) : json_incref(rec);
}

static void on_answer(struct keeper *k, json_t *rec)
{
	struct asked *a = asked_pop(k);
	json_t *out;

	if (!a) {
		note("worker %d answers without being asked", (int)k->pid);
		kill(k->pid, SIGKILL);
		return;
	}
	if (a->replay) {
		if (!json_is_true(json_object_get(rec, "ok")))
			note("replay: %s",
			     json_str(json_object_get(rec, "error"),
				      "message"));
		asked_free(a);
		return;
	}
	out = settle(k, a, rec);
	if (a->client && !a->client->dead)
		client_answer(a->client, out);
	else
		json_decref(out);
	asked_free(a);
}

static void lost(struct keeper *k, bool reaped);

static void on_worker(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct keeper *k = s->arg;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = chan_read(&k->worker, &e);

	(void)l;
	(void)events;
	while (chan_lines(&k->worker, &m, &r, &e))
		on_answer(k, m.obj);
	if (r < 0 && r != -EAGAIN)
		note("worker %d: %s", (int)k->pid, e.msg);
	if (r != -EAGAIN)
		lost(k, false);
	keeper_bury(k);
}

/* --- its life ------------------------------------------------------------ */

static void forget(struct keeper *k)
{
	loop_del(k->loop, &k->worker_src);
	chan_done(&k->worker);
	fd_close(k->worker.fd);
	k->worker.fd = -1;
	k->pid = 0;
}

/* What was asked stays asked, but not what kills one worker after another. */
static void lost(struct keeper *k, bool reaped)
{
	struct asked *a, *old = k->asked, *next;
	uint64_t lived = clock_ms() - k->since_ms;
	bool blamed = old && !old->replay; /* it was at this one */

	note("worker %d is gone after %llu ms", (int)k->pid,
	     (unsigned long long)lived);
	if (!reaped) {
		kill(k->pid, SIGKILL);
		waitpid(k->pid, NULL, 0);
	}
	forget(k);
	k->asked = NULL;
	k->asked_end = &k->asked;
	for (a = old; a; a = next) {
		next = a->next;
		if (a->replay)
			asked_free(a);
		else if (blamed && a == old && ++a->tries >= TRIES)
			refuse(a, "it ends the network helper's worker");
		else
			asked_push(k, a);
	}
	k->restarts++;
	loop_timer_set(k->loop, &k->again,
		       clock_ms() + backoff_next(&k->backoff, lived));
}

void worker_reap(struct keeper *k)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		if (pid == k->pid)
			lost(k, true);
	keeper_bury(k);
}

static int replay(struct keeper *k, const struct held *h, struct err *e)
{
	struct asked *a = calloc(1, sizeof(*a));

	if (!a)
		return err_sys(e, ENOMEM, "replay");
	a->replay = true;
	asked_push(k, a);
	return held_send(h, &k->worker, e);
}

static int send_transit(struct keeper *k, struct err *e)
{
	auto_json json_t *line = NULL;
	struct asked *a;
	int fds[array_len(transit_fds)], r;
	json_t *names;
	size_t n = 0;

	r = json_pack_or(&line, e, "{ss s[]}", "op", "transit", "fds");
	if (r < 0)
		return r;
	names = json_object_get(line, "fds");
	for (size_t i = 0; i < array_len(transit_fds); i++) {
		if (k->transit[i] < 0)
			continue;
		fds[n++] = k->transit[i];
		json_array_append_new(names, json_string(transit_fds[i]));
	}
	if (n == 0)
		return 0;
	a = calloc(1, sizeof(*a));
	if (!a)
		return err_sys(e, ENOMEM, "replay");
	a->replay = true;
	asked_push(k, a);
	return chan_send(&k->worker, line, fds, n, e);
}

/* First what was, then what was asked and not answered. */
static void tell_all(struct keeper *k)
{
	struct asked *old = k->asked, *next;
	struct err e = {0};
	int r;

	k->asked = NULL;
	k->asked_end = &k->asked;
	r = send_transit(k, &e);
	for (size_t i = 0; r == 0 && i < HELD_BUCKETS; i++)
		for (struct held *h = k->held.buckets[i]; r == 0 && h;
		     h = h->next)
			r = replay(k, h, &e);
	for (; old; old = next) {
		next = old->next;
		asked_push(k, old);
		if (r == 0)
			send_asked(k, old);
	}
	if (r < 0) {
		note("replay to worker %d: %s", (int)k->pid, e.msg);
		kill(k->pid, SIGKILL);
	}
}

/* The two at their places, and nothing else behind them. */
static int place(int sock, int broker)
{
	unsigned last = broker < 0 ? WORKER_FD : BROKER_FD;

	sock = fcntl(sock, F_DUPFD, BROKER_FD + 1);
	if (broker >= 0)
		broker = fcntl(broker, F_DUPFD, BROKER_FD + 1);
	if (dup2(sock, WORKER_FD) < 0 ||
	    (last == BROKER_FD && dup2(broker, BROKER_FD) < 0))
		return -errno;
	return close_range(last + 1, ~0U, 0);
}

static _Noreturn void become_worker(struct keeper *k, int sock, pid_t keeper)
{
	int broker = k->broker < 0 ? -1 : BROKER_FD;
	sigset_t none;

	if (place(sock, k->broker) < 0)
		_exit(71);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != keeper)
		_exit(0);
	_exit(worker_run(WORKER_FD, broker, k->conf, k->totals));
}

static int spawn(struct keeper *k, struct err *e)
{
	const struct timeval wait = {.tv_sec = SEND_S};
	pid_t keeper = getpid();
	int s[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) < 0)
		return err_sys(e, errno, "socket pair");
	(void)setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	k->pid = fork();
	if (k->pid == 0)
		become_worker(k, s[1], keeper);
	fd_close(s[1]);
	if (k->pid < 0) {
		r = err_sys(e, errno, "fork");
		k->pid = 0;
		fd_close(s[0]);
		return r;
	}
	r = loop_add(k->loop, &k->worker_src, s[0], EPOLLIN, on_worker, k, e);
	k->worker = (struct chan){.fd = s[0]};
	k->since_ms = clock_ms();
	if (r < 0) {
		kill(k->pid, SIGKILL);
		waitpid(k->pid, NULL, 0);
		forget(k);
	}
	return r;
}

static void on_again(struct loop *l, struct loop_timer *t)
{
	(void)l;
	worker_start(t->arg);
}

void worker_start(struct keeper *k)
{
	struct err e = {0};

	k->again.fn = on_again;
	k->again.arg = k;
	if (spawn(k, &e) == 0) {
		note("worker %d serves", (int)k->pid);
		tell_all(k);
		return;
	}
	note("no worker: %s", e.msg);
	loop_timer_set(k->loop, &k->again, clock_ms() + BACKOFF_MAX);
}

void worker_stop(struct keeper *k)
{
	struct asked *a;

	loop_timer_set(k->loop, &k->again, 0);
	while ((a = asked_pop(k)))
		refuse(a, "the network helper ends");
	if (k->pid == 0)
		return;
	kill(k->pid, SIGKILL);
	waitpid(k->pid, NULL, 0);
	forget(k);
}
