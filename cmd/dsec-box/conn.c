/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "conn.h"
#include "exec.h"
#include "life.h"
#include "ops.h"
#include "pause.h"
#include "repeat.h"
#include "wire/record.h"

#define READ_CHUNK	4096
#define ASKS_MAX	256
#define ACCEPT_RETRY_MS 100
#define OUT_MAX_SIZE	(8 * 1024 * 1024)

/* A line on its way out, with the descriptors that ride on its first byte. */
struct conn_out {
	struct conn_out *next;
	size_t len, done, nfds;
	int fds[FD_PASS_MAX];
	char text[];
};

static void out_free(struct conn_out *o)
{
	for (size_t i = 0; i < o->nfds; i++)
		fd_close(o->fds[i]);
	free(o);
}

static void out_pop(struct conn *c)
{
	struct conn_out *o = c->out;

	c->out = o->next;
	if (!c->out)
		c->out_end = &c->out;
	c->out_bytes -= o->len;
	out_free(o);
}

void ask_unwait(struct ask *a)
{
	if (!a->wait_pprev)
		return;
	*a->wait_pprev = a->wait_next;
	if (a->wait_next)
		a->wait_next->wait_pprev = a->wait_pprev;
	a->wait_pprev = NULL;
	a->wait_next = NULL;
}

static void ask_drop(struct ask *a)
{
	ask_unwait(a);
	loop_timer_set(a->box->loop, &a->deadline, 0);
	*a->pprev = a->next;
	if (a->next)
		a->next->pprev = a->pprev;
	a->conn->nasks--;
	json_decref(a->echo);
	json_decref(a->req);
	free(a->key);
	pause_deserted(a->box);
	if (a->relayed)
		life_quiet(a->box);
	free(a);
}

/* Closed connections and their asks go when no callback can be using them any
 * more. */
static void reap(struct loop *l, struct loop_timer *t)
{
	struct box *b = t->arg;

	(void)l;
	for (struct conn **p = &b->conns; *p;) {
		struct conn *c = *p;

		if (!c->dead) {
			p = &c->next;
			continue;
		}
		while (c->asks) {
			exec_deserted(c->asks);
			ask_drop(c->asks);
		}
		*p = c->next;
		free(c);
	}
}

/* No more of it; it and its asks go after this callback. */
static void conn_close(struct conn *c)
{
	struct box *b = c->box;
	int fd = c->src.fd;

	if (c->dead)
		return;
	c->dead = true;
	b->nconns--;
	while (c->out)
		out_pop(c);
	loop_del(b->loop, &c->src);
	fd_close(fd);
	jsonl_done(&c->in);
	b->reap_timer.fn = reap;
	b->reap_timer.arg = b;
	loop_timer_set(b->loop, &b->reap_timer, clock_ms());
}

void conn_close_all(struct box *b)
{
	for (struct conn *c = b->conns; c; c = c->next)
		conn_close(c);
	reap(b->loop, &(struct loop_timer){.arg = b});
	loop_timer_set(b->loop, &b->reap_timer, 0);
}

bool conn_pending(const struct box *b)
{
	for (const struct conn *c = b->conns; c; c = c->next)
		if (!c->dead && c->out)
			return true;
	return false;
}

/* Send what can be sent; -EAGAIN when the peer must take some first. */
static int flush(struct conn *c)
{
	while (c->out) {
		struct conn_out *o = c->out;
		ssize_t n = fd_send(c->src.fd, o->text + o->done,
				    o->len - o->done, o->fds,
				    o->done == 0 ? o->nfds : 0, MSG_DONTWAIT);

		if (n < 0)
			return (int)n;
		o->done += (size_t)n;
		if (o->done == o->len)
			out_pop(c);
	}
	return 0;
}

/*
 * Nothing can be sent.  Not closed here: whoever sends may be using an ask of
 * it still.  The hang-up that this makes brings on_conn().
 */
static void break_off(struct conn *c)
{
	while (c->out)
		out_pop(c);
	c->broken = true;
	shutdown(c->src.fd, SHUT_RDWR);
}

static void push_out(struct conn *c)
{
	int r = flush(c);

	if ((r < 0 && r != -EAGAIN) ||
	    loop_mod(c->box->loop, &c->src,
		     c->out ? EPOLLIN | EPOLLOUT : EPOLLIN, NULL) < 0)
		break_off(c);
}

/* Queue a line; a peer that takes nothing loses its connection. */
static void send_record(struct conn *c, const json_t *rec, int *fds, size_t n)
{
	auto_free char *text = rec ? json_dumps(rec, JSON_COMPACT) : NULL;
	size_t len = text ? strlen(text) : 0;
	struct conn_out *o = NULL;

	if (text && len <= JSON_LINE_MAX && c->out_bytes + len < OUT_MAX_SIZE &&
	    !c->dead && !c->broken)
		o = malloc(sizeof(*o) + len + 1);
	if (!o) {
		for (size_t i = 0; i < n; i++)
			fd_close(fds[i]);
		if (!c->dead)
			break_off(c);
		return;
	}
	*o = (struct conn_out){.len = len + 1, .nfds = n};
	memcpy(o->text, text, len);
	o->text[len] = '\n';
	if (n > 0)
		memcpy(o->fds, fds, n * sizeof(int));
	*c->out_end = o;
	c->out_end = &o->next;
	c->out_bytes += o->len;
	if (c->out == o)
		push_out(c);
}

json_t *conn_save_out(const struct conn *c)
{
	json_t *list = json_array();

	for (const struct conn_out *o = c->out; o; o = o->next) {
		json_t *fds = json_array();
		json_t *j = json_pack("{s:o, s:I}", "fds", fds, "done",
				      (json_int_t)o->done);

		for (size_t i = 0; i < o->nfds; i++)
			json_array_append_new(fds, json_integer(o->fds[i]));
		json_set_b64(j, "text", o->text, o->len);
		json_array_append_new(list, j);
	}
	return list;
}

static int load_out(struct conn *c, const json_t *j)
{
	const json_t *fds = json_object_get(j, "fds");
	auto_free char *text = NULL;
	struct conn_out *o;
	size_t len;

	if (json_get_bytes(j, "text", &text, &len, NULL) <= 0 ||
	    json_array_size(fds) > FD_PASS_MAX)
		return -EBADMSG;
	o = malloc(sizeof(*o) + len);
	if (!o)
		return -ENOMEM;
	*o = (struct conn_out){
		.len = len,
		.done = (size_t)json_int(j, "done", 0),
		.nfds = json_array_size(fds),
	};
	memcpy(o->text, text, len);
	for (size_t i = 0; i < o->nfds; i++) {
		o->fds[i] = (int)json_integer_value(json_array_get(fds, i));
		fcntl(o->fds[i], F_SETFD, FD_CLOEXEC);
	}
	*c->out_end = o;
	c->out_end = &o->next;
	c->out_bytes += len;
	return 0;
}

int conn_load_out(struct conn *c, const json_t *j)
{
	size_t i;
	json_t *v;
	int r;

	json_array_foreach(j, i, v) {
		r = load_out(c, v);
		if (r < 0)
			return r;
	}
	if (c->out)
		push_out(c);
	return 0;
}

void ask_wait(struct ask *a, struct ask **list)
{
	ask_unwait(a);
	a->wait_next = *list;
	a->wait_pprev = list;
	if (*list)
		(*list)->wait_pprev = &a->wait_next;
	*list = a;
}

int ask_new(struct conn *c, const json_t *req, struct ask **ret, struct err *e)
{
	struct ask *a;

	if (c->nasks >= ASKS_MAX)
		return err_set(e, -EBUSY, "busy",
			       "%d requests of this connection are waiting",
			       ASKS_MAX);
	a = calloc(1, sizeof(*a));
	if (a)
		a->echo = record_ok(req);
	if (!a || !a->echo) {
		free(a);
		return err_sys(e, ENOMEM, "request");
	}
	json_object_del(a->echo, "ok");
	a->box = c->box;
	a->conn = c;
	a->next = c->asks;
	a->pprev = &c->asks;
	if (c->asks)
		c->asks->pprev = &a->next;
	c->asks = a;
	c->nasks++;
	*ret = a;
	return 0;
}

void ask_event(struct ask *a, json_t *rec, int *fds, size_t n)
{
	auto_json json_t *out = json_deep_copy(a->echo);

	if (out)
		json_object_update(out, rec);
	json_decref(rec);
	send_record(a->conn, out, fds, n);
}

void ask_answer(struct ask *a, json_t *rec)
{
	auto_json json_t *out = record_ok(a->echo);
	struct conn *c = a->conn;

	if (out && rec) {
		const char *key;
		json_t *v;

		json_object_foreach(rec, key, v)
			if (strcmp(key, "id") && strcmp(key, "sandbox"))
				json_object_set(out, key, v);
	}
	if (out && a->repeated)
		json_object_set_new(out, "repeated", json_true());
	if (a->key && out)
		repeat_keep(a->box, -1, a->key, a->key_hash, out, NULL);
	json_decref(rec);
	ask_drop(a);
	send_record(c, out, NULL, 0);
}

void ask_fail(struct ask *a, const struct err *why)
{
	auto_json json_t *out = record_error(a->echo, why);
	struct conn *c = a->conn;

	ask_drop(a);
	send_record(c, out, NULL, 0);
}

/* A line that never became an ask. */
static void refuse(struct conn *c, const json_t *req, const struct err *why)
{
	auto_json json_t *out = record_error(req, why);

	send_record(c, out, NULL, 0);
}

static void take_line(struct conn *c, const char *text, size_t len)
{
	auto_json json_t *req = NULL;
	struct err e = {0};
	struct ask *a;

	if (json_parse(text, len, &req, &e) < 0) {
		refuse(c, NULL, &e);
		return;
	}
	if (!json_object_get(req, "id"))
		json_object_set_new(req, "id",
				    json_integer((json_int_t)c->in.line));
	if (ask_new(c, req, &a, &e) < 0) {
		refuse(c, req, &e);
		return;
	}
	box_busy(c->box);
	ops_take(a, req);
}

static void take_lines(struct conn *c)
{
	struct err e;
	size_t len;
	char *text;
	int r;

	while (!c->dead) {
		r = jsonl_next(&c->in, &text, &len, &e);
		if (r == 1)
			take_line(c, text, len);
		else if (r == -EMSGSIZE)
			refuse(c, NULL, &e);
		else
			break;
	}
}

static void on_conn(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct conn *c = s->arg;
	char buf[READ_CHUNK];
	size_t nfds = 0;
	ssize_t n;

	(void)l;
	if (events & EPOLLOUT)
		push_out(c);
	if (c->dead || !(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
		return;
	n = fd_recv(c->src.fd, buf, sizeof(buf), NULL, &nfds, NULL);
	if (n == -EAGAIN)
		return;
	if (n <= 0 || jsonl_feed(&c->in, buf, (size_t)n) < 0) {
		conn_close(c);
		return;
	}
	take_lines(c);
}

int conn_adopt(struct box *b, int *fd, struct conn **ret, struct err *e)
{
	struct conn *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return err_sys(e, ENOMEM, "connection");
	c->box = b;
	c->id = ++b->next_conn;
	c->in.fd = -1;
	c->out_end = &c->out;
	r = loop_add(b->loop, &c->src, *fd, EPOLLIN, on_conn, c, e);
	if (r < 0) {
		free(c);
		return r;
	}
	steal_fd(fd);
	c->next = b->conns;
	b->conns = c;
	b->nconns++;
	if (ret)
		*ret = c;
	return 0;
}

/* The owner's uid and nobody else. */
static bool is_owner(int fd)
{
	struct ucred cred;
	socklen_t len = sizeof(cred);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) == 0 &&
	       cred.uid == geteuid();
}

static void on_accept_again(struct loop *l, struct loop_timer *t)
{
	(void)l;
	if (conn_listen(t->arg, NULL) < 0)
		loop_timer_set(l, t, clock_ms() + ACCEPT_RETRY_MS);
}

/* No descriptor for one: the caller waits in the queue, and we do not spin. */
static void accept_later(struct box *b)
{
	loop_del(b->loop, &b->listen_src);
	b->accept_timer.fn = on_accept_again;
	b->accept_timer.arg = b;
	loop_timer_set(b->loop, &b->accept_timer, clock_ms() + ACCEPT_RETRY_MS);
}

static void on_listen(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct box *b = s->arg;
	auto_close int fd = -1;

	(void)l;
	(void)events;
	fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
		       errno == ENOBUFS))
		accept_later(b);
	if (fd < 0 || !is_owner(fd))
		return;
	if (b->nconns >= BOX_CONNS_MAX) {
		static const char busy[] =
			"{\"ok\":false,\"error\":{\"code\":\"busy\","
			"\"message\":\"too many connections\","
			"\"retry_after_ms\":100,\"infra\":false}}\n";

		send(fd, busy, sizeof(busy) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
		return;
	}
	conn_adopt(b, &fd, NULL, NULL);
}

int conn_listen(struct box *b, struct err *e)
{
	return loop_add(b->loop, &b->listen_src, b->listen_fd, EPOLLIN,
			on_listen, b, e);
}
