/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life.h"
#include "pause.h"
#include "relay.h"
#include "reexec_priv.h"

#define RETRY_MS 100   /* where there was no descriptor for one */
#define AGAIN_MS 10000 /* where somebody else has our port */
#define IDLE_S	 60    /* then a silent client is asked whether he is there */
#define PROBE_S	 15
#define PROBES	 4

static void on_accept(struct loop *l, struct loop_source *s, uint32_t events);

static int watch(struct relay_port *p, struct err *e)
{
	return loop_add(p->box->loop, &p->src, p->fd, EPOLLIN, on_accept, p, e);
}

static void on_retry(struct loop *l, struct loop_timer *t)
{
	struct relay_port *p = t->arg;

	if (p->fd < 0)
		p->fd = publish_listen(&p->at, NULL);
	if (p->fd < 0)
		loop_timer_set(l, t, clock_ms() + AGAIN_MS);
	else if (watch(p, NULL) < 0)
		loop_timer_set(l, t, clock_ms() + RETRY_MS);
}

static void retry(struct relay_port *p, unsigned ms)
{
	loop_del(p->box->loop, &p->src);
	p->retry.fn = on_retry;
	p->retry.arg = p;
	loop_timer_set(p->box->loop, &p->retry, clock_ms() + ms);
}

static void hang_up(int fd)
{
	const struct linger now = {.l_onoff = 1};

	setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	fd_close(fd);
}

/* A client that vanished without a word is noticed some day. */
static void keep_alive(int fd)
{
	const int on = 1, idle = IDLE_S, probe = PROBE_S, n = PROBES;

	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe, sizeof(probe));
	setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &n, sizeof(n));
}

static void on_accept(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay_port *p = s->arg;
	struct box *b = p->box;
	struct err e = {0};
	struct relay *r;
	int fd, n;

	(void)l;
	(void)events;
	fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
		       errno == ENOBUFS))
		retry(p, RETRY_MS);
	if (fd < 0)
		return;
	r = relay_new(b, p->at.inner);
	if (!r) {
		b->relays_refused++;
		hang_up(fd);
		return;
	}
	r->fd[0] = fd;
	keep_alive(fd);
	n = pause_wake(b, &e);
	if (n == 0)
		relay_start(r);
	else if (n < 0)
		relay_no(r, e.msg);
}

static int make_room(struct box *b, size_t n, struct err *e)
{
	if (n == 0)
		return 0;
	if (n > PUBLISH_MAX)
		return err_set(e, -EBADMSG, "internal", "too many ports");
	b->ports = calloc(n, sizeof(*b->ports));
	if (!b->ports)
		return err_sys(e, ENOMEM, "ports");
	for (size_t i = 0; i < n; i++) {
		b->ports[i].box = b;
		b->ports[i].fd = -1;
	}
	b->nports = (unsigned)n;
	return 0;
}

static int read_ports(struct box *b, const json_t *list, struct err *e)
{
	int r = make_room(b, json_array_size(list), e);

	for (unsigned i = 0; r == 0 && i < b->nports; i++)
		if (publish_of(json_array_get(list, i), &b->ports[i].at) < 0)
			r = err_set(e, -EBADMSG, "internal",
				    "what is published does not read");
	return r;
}

static int from_spec(struct box *b, struct err *e)
{
	auto_json json_t *spec = NULL;
	int r;

	r = box_spec(b, &spec, e);
	return r < 0 ? r : read_ports(b, json_object_get(spec, "published"), e);
}

int relay_begin(struct box *b, int first, unsigned n, struct err *e)
{
	int r;

	if (n == 0)
		return 0;
	r = from_spec(b, e);
	if (r == 0 && b->nports != n)
		r = err_set(e, -EINVAL, "internal",
			    "%u ports are published, and there are %u sockets",
			    b->nports, n);
	for (unsigned i = 0; r == 0 && i < n; i++) {
		b->ports[i].fd = first + (int)i;
		fcntl(b->ports[i].fd, F_SETFD, FD_CLOEXEC);
		r = watch(&b->ports[i], e);
	}
	return r;
}

int relay_again(struct box *b, struct err *e)
{
	int r = from_spec(b, e);

	for (unsigned i = 0; r == 0 && i < b->nports; i++)
		retry(&b->ports[i], 1);
	return r;
}

/* --- over a re-exec ------------------------------------------------------ */

static json_t *save_way(const struct relay_way *w)
{
	json_t *j = json_pack("{s:I, s:b, s:b}", "held", (json_int_t)w->held,
			      "eof", w->eof, "done", w->done);

	if (j && w->pipe[0] >= 0)
		json_object_set_new(j, "fds",
				    json_pack("[ii]", w->pipe[0], w->pipe[1]));
	return j;
}

static json_t *save_relay(const struct relay *r)
{
	json_t *fds = json_array();

	for (int i = 0; i < 2; i++)
		json_array_append_new(fds, json_integer(r->fd[i]));
	return json_pack("{s:i, s:i, s:i, s:o, s:[oo], s:o}", "state",
			 (int)r->state, "port", (int)r->port, "candidate",
			 (int)r->candidate, "fds", fds, "ways",
			 save_way(&r->way[0]), save_way(&r->way[1]), "asks",
			 reexec_save_asks(r->asks));
}

json_t *relay_save(const struct box *b)
{
	json_t *ports = json_array(), *relays = json_array(), *j;

	for (unsigned i = 0; i < b->nports; i++) {
		j = publish_json(&b->ports[i].at);
		if (j && b->ports[i].fd >= 0)
			json_object_set_new(j, "fd",
					    json_integer(b->ports[i].fd));
		json_array_append_new(ports, j);
	}
	for (const struct relay *r = b->relays; r; r = r->next)
		json_array_append_new(relays, save_relay(r));
	return json_pack("{s:o, s:o, s:o, s:I, s:I}", "ports", ports, "relays",
			 relays, "connected", reexec_save_asks(b->connected),
			 "total", (json_int_t)b->relays_total, "refused",
			 (json_int_t)b->relays_refused);
}

static int take_fd(const json_t *list, size_t i)
{
	const json_t *v = json_array_get(list, i);
	int fd = v ? (int)json_integer_value(v) : -1;

	if (fd >= 0)
		fcntl(fd, F_SETFD, FD_CLOEXEC);
	return fd;
}

static void load_way(struct relay_way *w, const json_t *j)
{
	const json_t *fds = json_object_get(j, "fds");

	w->pipe[0] = take_fd(fds, 0);
	w->pipe[1] = take_fd(fds, 1);
	w->held = (size_t)json_int(j, "held", 0);
	w->eof = json_flag(j, "eof");
	w->done = json_flag(j, "done");
}

static int load_relay(struct box *b, const json_t *j, struct err *e)
{
	const json_t *ways = json_object_get(j, "ways"),
		     *fds = json_object_get(j, "fds");
	struct relay *r = relay_new(b, (uint16_t)json_int(j, "port", 0));

	if (!r)
		return err_sys(e, ENOMEM, "connection");
	for (size_t i = 0; i < 2; i++) {
		r->fd[i] = take_fd(fds, i);
		load_way(&r->way[i], json_array_get(ways, i));
	}
	reexec_load_asks(b, json_object_get(j, "asks"), &r->asks);
	r->state = (enum relay_state)json_int(j, "state", 0);
	if (r->state == RELAY_OPEN)
		return relay_resume(r, e);
	/* Who asked for it may have gone meanwhile. */
	if (r->state != RELAY_WAITS || r->fd[0] < 0)
		relay_reload(r);
	return 0;
}

int relay_load(struct box *b, const json_t *j, struct err *e)
{
	const json_t *ports = json_object_get(j, "ports"),
		     *relays = json_object_get(j, "relays");
	int r = read_ports(b, ports, e);

	for (unsigned i = 0; r == 0 && i < b->nports; i++) {
		struct relay_port *p = &b->ports[i];

		p->fd = (int)json_int(json_array_get(ports, i), "fd", -1);
		if (p->fd < 0) {
			retry(p, 1);
			continue;
		}
		fcntl(p->fd, F_SETFD, FD_CLOEXEC);
		r = watch(p, e);
	}
	reexec_load_asks(b, json_object_get(j, "connected"), &b->connected);
	for (struct ask *a = b->connected; a; a = a->wait_next)
		a->relayed = true;
	for (size_t i = 0; r == 0 && i < json_array_size(relays); i++)
		r = load_relay(b, json_array_get(relays, i), e);
	b->relays_total = (uint64_t)json_int(j, "total", 0);
	b->relays_refused = (uint64_t)json_int(j, "refused", 0);
	return r;
}
