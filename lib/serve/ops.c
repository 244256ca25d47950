/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/ops.h"

#define CONNS_MAX   16
#define REQUEST_MAX 4096
#define PATIENCE_MS 5000

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
	struct ops_conn conns[CONNS_MAX];
};

static void on_listen(struct loop *l, struct loop_source *s, uint32_t events);

static void watch(struct ops *o)
{
	if (!o->listening)
		o->listening = loop_add(o->loop, &o->source, o->fd, EPOLLIN,
					on_listen, o, NULL) == 0;
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

/* --- answers ---------------------------------------------------------------
 */

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

/* --- connections -----------------------------------------------------------
 */

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
	while (recv(c->fd, c->in, REQUEST_MAX, MSG_DONTWAIT) > 0)
		;
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
		/* They wait until somebody is done. */
		loop_del(l, &o->source);
		o->listening = false;
		return;
	}
	fd = accept4(o->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
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

/* --- the listener ----------------------------------------------------------
 */

static int not_loopback(const char *address, struct err *e)
{
	return err_set(e, -EINVAL, "configuration",
		       "metrics '%s': not 127.x.y.z:PORT or [::1]:PORT",
		       address);
}

/* Into ${a}; its length, or -errno. */
static int parse(const char *address, struct sockaddr_storage *a, struct err *e)
{
	struct sockaddr_in *in = (struct sockaddr_in *)a;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)a;
	const char *colon = strrchr(address, ':');
	char host[64], *end;
	unsigned long port;
	size_t n = colon ? (size_t)(colon - address) : sizeof(host);

	if (n >= sizeof(host) || colon[1] < '0' || colon[1] > '9')
		return not_loopback(address, e);
	memcpy(host, address, n);
	host[n] = '\0';
	port = strtoul(colon + 1, &end, 10);
	if (*end || port > 65535)
		return not_loopback(address, e);
	memset(a, 0, sizeof(*a));
	if (!strcmp(host, "[::1]")) {
		in6->sin6_family = AF_INET6;
		in6->sin6_addr = in6addr_loopback;
		in6->sin6_port = htons((uint16_t)port);
		return sizeof(*in6);
	}
	in->sin_family = AF_INET;
	in->sin_port = htons((uint16_t)port);
	if (inet_pton(AF_INET, host, &in->sin_addr) != 1 ||
	    ntohl(in->sin_addr.s_addr) >> 24 != 127)
		return not_loopback(address, e);
	return sizeof(*in);
}

static int listen_on(struct ops *o, struct err *e)
{
	struct sockaddr_storage a;
	socklen_t len;
	int r, one = 1;

	r = parse(o->conf.address, &a, e);
	if (r < 0)
		return r;
	len = (socklen_t)r;
	o->fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
		       0);
	if (o->fd < 0)
		return err_sys(e, errno, "metrics '%s'", o->conf.address);
	setsockopt(o->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	/* So that one process can take over from another. */
	setsockopt(o->fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	if (bind(o->fd, (struct sockaddr *)&a, len) < 0 ||
	    listen(o->fd, 64) < 0 ||
	    getsockname(o->fd, (struct sockaddr *)&a, &len) < 0)
		return err_sys(e, errno, "listen on '%s'", o->conf.address);
	/* The port is at the same place in both. */
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
	if (o->fd >= 0)
		fd_close(o->fd);
	free(o);
}

unsigned ops_port(const struct ops *o)
{
	return o->port;
}
