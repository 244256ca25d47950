/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/sig.h"
#include "serve_keeper.h"
#include "wire/record.h"

#define CLIENTS_MAX 512
#define OUT_MAX	    (8 * 1024 * 1024) /* of answers that a client lets lie */

static const char *const transit_fds[] = TRANSIT_FDS;

/* --- clients ------------------------------------------------------------- */

static void client_close(struct client *c)
{
	struct keeper *k = c->keeper;

	if (c->dead)
		return;
	c->dead = true;
	loop_del(k->loop, &c->src);
	chan_done(&c->chan);
	fd_close(c->chan.fd);
}

/* Once nothing of the round can be using them. */
void keeper_bury(struct keeper *k)
{
	for (struct client **p = &k->clients; *p;) {
		struct client *c = *p;

		if (!c->dead) {
			p = &c->next;
			continue;
		}
		for (struct asked *a = k->asked; a; a = a->next)
			if (a->client == c)
				a->client = NULL;
		*p = c->next;
		k->nclients--;
		free(c);
	}
}

static void client_flush(struct client *c)
{
	if (chan_flush(&c->chan, NULL) < 0 || c->chan.out.len > OUT_MAX ||
	    loop_mod(c->keeper->loop, &c->src,
		     c->chan.out.len ? EPOLLIN | EPOLLOUT : EPOLLIN, NULL) < 0)
		client_close(c);
}

void client_answer(struct client *c, json_t *rec)
{
	if (c->dead) {
		json_decref(rec);
		return;
	}
	if (!rec || chan_put(&c->chan, rec, NULL) < 0)
		client_close(c); /* he sees that there is no answer */
	else
		client_flush(c);
	json_decref(rec);
}

void client_error(struct client *c, const json_t *req, const struct err *e)
{
	client_answer(c, record_error(req, e));
}

/* --- requests ------------------------------------------------------------ */

static int need(const json_t *o, const char *key, json_type type, struct err *e)
{
	const json_t *v = json_object_get(o, key);

	if (v && json_typeof(v) == type &&
	    (type != JSON_STRING ||
	     (*json_string_value(v) && json_string_length(v) <= HELPER_ID_MAX)))
		return 0;
	return err_set(e, -EINVAL, "bad_value", "'%s' is missing or wrong",
		       key);
}

static bool fd_name_ok(const char *name)
{
	size_t n = name ? strlen(name) : 0;

	return n > 0 && n < sizeof(((struct held_fd *)0)->name);
}

static int check_fds(const struct chan_msg *m, struct err *e)
{
	json_t *names = json_object_get(m->obj, "fds");

	for (size_t i = 0; i < m->nfds; i++)
		if (!fd_name_ok(json_string_value(json_array_get(names, i))))
			return err_set(e, -EINVAL, "bad_value", "'fds[%zu]'",
				       i);
	return 0;
}

static int check(const struct chan_msg *m, struct err *e)
{
	const char *op = json_str(m->obj, "op");
	int r = check_fds(m, e);

	if (r < 0)
		return r;
	if (!strcmp(op, "attach") || !strcmp(op, "policy")) {
		r = need(m->obj, "sandbox", JSON_STRING, e);
		if (r == 0)
			r = need(m->obj, "policy", JSON_OBJECT, e);
		if (r == 0)
			r = need(m->obj, "hash", JSON_STRING, e);
		if (r == 0 && *op == 'a')
			r = need(m->obj, "strength", JSON_STRING, e);
		return r;
	}
	if (!strcmp(op, "detach") || !strcmp(op, "ports"))
		return need(m->obj, "sandbox", JSON_STRING, e);
	if (!strcmp(op, "stats") || !strcmp(op, "list") ||
	    !strcmp(op, "ping") || !strcmp(op, "transit") ||
	    !strcmp(op, "sweep"))
		return 0;
	if (!strcmp(op, "handover"))
		return need(m->obj, "config", JSON_OBJECT, e);
	return err_set(e, -EINVAL, "bad_value", "op '%.32s' is none", op);
}

/* A routed one is of use only where its link ends. */
static int check_transit(const struct keeper *k, const json_t *req,
			 struct err *e)
{
	uint64_t needs = (uint64_t)json_int(req, "transit", 0);

	if (!needs || needs == netns_cookie(k->transit[0]))
		return 0;
	return err_set(e, -ESTALE, "transit_unknown",
		       "the helper has no, or another, transit namespace");
}

/* Ours are copies: the worker gets what came. */
static int keep_transit(struct keeper *k, const struct chan_msg *m,
			struct err *e)
{
	json_t *names = json_object_get(m->obj, "fds");

	for (size_t i = 0; i < m->nfds; i++) {
		const char *name = json_string_value(json_array_get(names, i));
		size_t n;
		int fd;

		for (n = 0; n < array_len(transit_fds); n++)
			if (!strcmp(name, transit_fds[n]))
				break;
		if (n == array_len(transit_fds))
			return err_set(e, -EINVAL, "bad_value",
				       "descriptor '%s'", name);
		fd = fcntl(m->fds[i], F_DUPFD_CLOEXEC, 3);
		if (fd < 0)
			return err_sys(e, errno, "keep a descriptor");
		if (k->transit[n] >= 0)
			fd_close(k->transit[n]);
		k->transit[n] = fd;
	}
	return 0;
}

static void on_request(struct client *c, struct chan_msg *m)
{
	struct keeper *k = c->keeper;
	struct err e = {0};
	int r = check(m, &e);

	if (r == 0 && !strcmp(json_str(m->obj, "op"), "attach"))
		r = check_transit(k, m->obj, &e);
	if (r == 0 && !strcmp(json_str(m->obj, "op"), "transit"))
		r = keep_transit(k, m, &e);
	if (r == 0 && !strcmp(json_str(m->obj, "op"), "handover"))
		r = handover(c, m, &e);
	if (r < 0)
		client_error(c, m->obj, &e);
	else
		worker_ask(k, c, m);
}

static void on_client(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct client *c = s->arg;
	struct keeper *k = c->keeper;
	auto_chan_msg struct chan_msg m = {0};
	struct err e = {0};
	int r = 1;

	(void)l;
	if (events & EPOLLOUT)
		client_flush(c);
	if (!c->dead && (events & ~(uint32_t)EPOLLOUT))
		r = chan_read(&c->chan, &e);
	while (!c->dead && chan_lines(&c->chan, &m, &r, &e))
		on_request(c, &m);
	if (r < 0 && r != -EAGAIN && !c->dead)
		client_error(c, NULL, &e);
	if (r != -EAGAIN && r <= 0)
		client_close(c);
	keeper_bury(k);
}

/* Root and nobody else, whoever may have opened the socket for him. */
static bool is_root(int fd)
{
	struct ucred who;
	socklen_t len = sizeof(who);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 &&
	       who.uid == 0;
}

struct client *client_new(struct keeper *k, int fd)
{
	struct client *c = calloc(1, sizeof(*c));

	if (!c ||
	    loop_add(k->loop, &c->src, fd, EPOLLIN, on_client, c, NULL) < 0) {
		free(c);
		fd_close(fd);
		return NULL;
	}
	c->keeper = k;
	c->chan.fd = fd;
	c->next = k->clients;
	k->clients = c;
	k->nclients++;
	return c;
}

static void on_listener(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct keeper *k = s->arg;
	int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	(void)l;
	(void)events;
	if (fd < 0)
		return;
	if (is_root(fd) && k->nclients < CLIENTS_MAX)
		(void)client_new(k, fd);
	else
		fd_close(fd);
}

/* --- the whole ----------------------------------------------------------- */

static void on_signal(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct keeper *k = s->arg;
	struct signalfd_siginfo info;

	(void)events;
	while (read(s->fd, &info, sizeof(info)) == sizeof(info)) {
		if (info.ssi_signo == SIGCHLD) {
			worker_reap(k);
			continue;
		}
		note("ends by %s", sig_name((int)info.ssi_signo));
		loop_stop(l, 0);
	}
}

static int watch(struct keeper *k, int listener, int *ret_signals,
		 struct err *e)
{
	const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD};
	int r = sig_block(signals, array_len(signals), e);

	if (r < 0)
		return r;
	*ret_signals = r;
	r = loop_add(k->loop, &k->signals, r, EPOLLIN, on_signal, k, e);
	if (r == 0)
		r = loop_add(k->loop, &k->listener, listener, EPOLLIN,
			     on_listener, k, e);
	return r;
}

static void take_transit(struct keeper *k, struct transit_socks *s)
{
	int *const from[] = {&s->nft,	  &s->log, &s->dns_udp,
			     &s->dns_tcp, &s->sni, &s->broker};

	for (size_t i = 0; i < array_len(from); i++)
		k->transit[i] = steal_fd(from[i]);
}

int keeper_run(struct keeper_start *start, struct err *e)
{
	struct keeper k = {
		.conf = start->conf,
		.listener_fd = start->listener,
		.lock = start->lock,
		.broker = start->broker,
		.totals_fd = start->totals,
		.worker = {.fd = -1},
	};
	auto_close int signals = -1;
	int r;

	take_transit(&k, &start->transit);
	k.asked_end = &k.asked;
	r = loop_new(&k.loop, e);
	if (r < 0)
		return r;
	r = totals_map(&k.totals_fd, &k.totals, e);
	if (r == 0)
		r = watch(&k, start->listener, &signals, e);
	if (r == 0 && start->state)
		r = adopt(&k, start->state, e);
	if (r == 0) {
		worker_start(&k);
		r = loop_run(k.loop, e);
	}
	worker_stop(&k);
	for (struct client *c = k.clients; c; c = c->next)
		client_close(c);
	keeper_bury(&k);
	held_done(&k.held);
	for (size_t i = 0; i < array_len(k.transit); i++)
		if (k.transit[i] >= 0)
			fd_close(k.transit[i]);
	loop_free(k.loop);
	return r;
}
