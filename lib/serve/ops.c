/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/ops.h"
#include "serve/server.h"

#define CONNS_MAX   16
#define REQUEST_MAX 4096
#define PATIENCE_MS 5000
#define REST_MS	    100 /* out of descriptors */
#define DRAIN_MAX   16	/* reads of what nobody wants to know */

struct ops_conn {
	struct ops *ops;
	int fd; /* -1: free */
	struct loop_source source;
	struct loop_timer timer;
	char in[REQUEST_MAX + 1];
	size_t len;
	struct buf out;
	size_t sent;
};

struct ops {
	struct loop *loop;
	struct ops_conf conf;
	int fd;
	unsigned port;
	bool listening; /* the source is there */
	struct loop_source source;
	struct loop_timer rest; /* before more are accepted */
	struct ops_conn conns[CONNS_MAX];
};

static void on_listen(struct loop *l, struct loop_source *s, uint32_t events);

static void watch(struct ops *o)
{
	if (!o->listening)
		o->listening = loop_add(o->loop, &o->source, o->fd, EPOLLIN,
					on_listen, o, NULL) == 0;
}

/* They wait until somebody is done. */
static void unwatch(struct ops *o)
{
	loop_del(o->loop, &o->source);
	o->listening = false;
}

static void on_rested(struct loop *l, struct loop_timer *t)
{
	(void)l;
	watch(t->arg);
}

static void hang_up(struct ops_conn *c)
{
	struct ops *o = c->ops;

	loop_del(o->loop, &c->source);
	loop_timer_set(o->loop, &c->timer, 0);
	fd_close(steal_fd(&c->fd));
	buf_done(&c->out);
	watch(o);
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	(void)l;
	hang_up(t->arg);
}

/* --- answers -------------------------------------------------------------- */

static int answer(struct ops_conn *c, const char *status, const char *type,
		  const struct buf *body)
{
	int r;

	r = buf_addf(&c->out,
		     "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu"
		     "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
		     status, type, body->len);
	return r < 0 || !body->len ? r
				   : buf_add(&c->out, body->data, body->len);
}

static int answer_text(struct ops_conn *c, const char *status, const char *text)
{
	struct buf body = {0};
	int r;

	r = buf_addf(&body, "%s\n", text);
	if (r == 0)
		r = answer(c, status, "text/plain; charset=utf-8", &body);
	buf_done(&body);
	return r;
}

static int answer_metrics(struct ops_conn *c)
{
	const struct ops_conf *conf = &c->ops->conf;
	struct buf body = {0};
	int r;

	if (conf->refresh)
		conf->refresh(conf->arg);
	r = metrics_text(conf->metrics, &body);
	if (r == 0)
		r = answer(c, "200 OK",
			   "text/plain; version=0.0.4; charset=utf-8", &body);
	buf_done(&body);
	return r;
}

/* "GET /metrics HTTP/1.1": what comes after a '?' says nothing to us. */
static bool is_get(const char *in, const char *path)
{
	size_t n = strlen(path);

	return !strncmp(in, "GET ", 4) && !strncmp(in + 4, path, n) &&
	       (in[4 + n] == ' ' || in[4 + n] == '?');
}

static int respond(struct ops_conn *c)
{
	const struct ops_conf *conf = &c->ops->conf;
	const char *why;

	if (strncmp(c->in, "GET ", 4))
		return answer_text(c, "405 Method Not Allowed", "only GET");
	if (conf->metrics && is_get(c->in, "/metrics"))
		return answer_metrics(c);
	if (is_get(c->in, "/healthz"))
		return answer_text(c, "200 OK", "ok");
	if (!is_get(c->in, "/readyz"))
		return answer_text(c, "404 Not Found",
				   "there are /metrics, /healthz, /readyz");
	why = conf->unready ? conf->unready(conf->arg) : NULL;
	return why ? answer_text(c, "503 Service Unavailable", why)
		   : answer_text(c, "200 OK", "ok");
}

/* --- connections ---------------------------------------------------------- */

static void send_some(struct ops_conn *c)
{
	ssize_t n;

	while (c->sent < c->out.len) {
		n = send(c->fd, c->out.data + c->sent, c->out.len - c->sent,
			 MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			return;
		if (n < 0)
			break;
		c->sent += (size_t)n;
	}
	/* What the client may still have sent must not become a reset that
	 * overtakes the answer. */
	shutdown(c->fd, SHUT_WR);
	for (unsigned i = 0; i < DRAIN_MAX; i++)
		if (recv(c->fd, c->in, REQUEST_MAX, MSG_DONTWAIT) <= 0)
			break;
	hang_up(c);
}

static void on_conn(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct ops_conn *c = s->arg;
	ssize_t n;

	(void)l;
	(void)events;
	if (c->out.len) {
		send_some(c);
		return;
	}
	n = read(c->fd, c->in + c->len, REQUEST_MAX - c->len);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return;
	if (n <= 0) {
		hang_up(c);
		return;
	}
	c->len += (size_t)n;
	c->in[c->len] = '\0';
	if (strlen(c->in) < c->len) {
		hang_up(c); /* a NUL is no HTTP */
		return;
	}
	if (!strstr(c->in, "\r\n\r\n") && !strstr(c->in, "\n\n") &&
	    c->len < REQUEST_MAX)
		return;
	if (respond(c) < 0 ||
	    loop_mod(c->ops->loop, &c->source, EPOLLOUT, NULL) < 0)
		hang_up(c);
}

static struct ops_conn *free_conn(struct ops *o)
{
	for (size_t i = 0; i < CONNS_MAX; i++)
		if (o->conns[i].fd < 0)
			return &o->conns[i];
	return NULL;
}

static void on_listen(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct ops *o = s->arg;
	struct ops_conn *c = free_conn(o);
	int fd;

	(void)events;
	if (!c) {
		unwatch(o);
		return;
	}
	fd = accept4(o->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS ||
		       errno == ENOMEM)) {
		unwatch(o);
		loop_timer_set(l, &o->rest, clock_ms() + REST_MS);
	}
	if (fd < 0)
		return;
	c->fd = fd;
	c->len = c->sent = 0;
	if (loop_add(l, &c->source, fd, EPOLLIN, on_conn, c, NULL) < 0) {
		fd_close(steal_fd(&c->fd));
		return;
	}
	loop_timer_set(l, &c->timer, clock_ms() + PATIENCE_MS);
}

/* --- the listener --------------------------------------------------------- */

/* Metrics tell much, and who is there is not asked: this machine alone. */
bool ops_is_loopback(const char *address)
{
	return (!strncmp(address, "127.", 4) &&
		address[strspn(address, "0123456789.")] == ':') ||
	       !strncmp(address, "[::1]:", 6);
}

static int listen_on(struct ops *o, struct err *e)
{
	const char *address = o->conf.address;
	struct sockaddr_storage a;
	socklen_t len = sizeof(a);
	int r;

	if (!ops_is_loopback(address))
		return err_set(e, -EINVAL, "configuration",
			       "metrics '%.64s': not 127.x.y.z:PORT or "
			       "[::1]:PORT",
			       address);
	r = server_bind(address, SERVER_SHARED, &o->fd, e);
	if (r < 0)
		return err_wrap(e, r, "metrics");
	if (getsockname(o->fd, (struct sockaddr *)&a, &len) < 0)
		return err_sys(e, errno, "metrics '%s'", address);
	/* The port is at the same place in both families. */
	o->port = ntohs(((struct sockaddr_in *)&a)->sin_port);
	return loop_add(o->loop, &o->source, o->fd, EPOLLIN, on_listen, o, e);
}

int ops_open(struct loop *l, const struct ops_conf *c, struct ops **ret,
	     struct err *e)
{
	struct ops *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return err_sys(e, ENOMEM, "metrics");
	o->loop = l;
	o->conf = *c;
	o->fd = -1;
	o->rest = (struct loop_timer){.fn = on_rested, .arg = o};
	for (size_t i = 0; i < CONNS_MAX; i++) {
		o->conns[i].ops = o;
		o->conns[i].fd = -1;
		o->conns[i].timer = (struct loop_timer){.fn = on_late,
							.arg = &o->conns[i]};
	}
	r = listen_on(o, e);
	o->conf.address = NULL; /* the caller's */
	o->listening = r == 0;
	if (r < 0)
		ops_close(o);
	else
		*ret = o;
	return r;
}

void ops_close(struct ops *o)
{
	if (!o)
		return;
	for (size_t i = 0; i < CONNS_MAX; i++)
		if (o->conns[i].fd >= 0)
			hang_up(&o->conns[i]);
	if (o->listening)
		loop_del(o->loop, &o->source);
	loop_timer_set(o->loop, &o->rest, 0);
	if (o->fd >= 0)
		fd_close(o->fd);
	free(o);
}

unsigned ops_port(const struct ops *o)
{
	return o->port;
}
