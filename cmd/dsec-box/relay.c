/* SPDX-License-Identifier: Apache-2.0 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
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
#include "wire/field.h"

#define CONNECT_MS 3000 /* for one address; they are all this machine's */
#define SPEAK_MS   500	/* for the first bytes of a client that was refused */
#define HANGUP_MS  1000
#define STABLE	   "198.18.0.2" /* what every sandbox with a network has */

static void on_connected(struct loop *l, struct loop_source *s,
			 uint32_t events);

/* --- being made and going ------------------------------------------------ */

struct relay *relay_new(struct box *b, uint16_t port)
{
	struct relay *r;

	if (b->nrelays >= RELAY_MAX)
		return NULL;
	r = calloc(1, sizeof(*r));
	if (!r)
		return NULL;
	r->box = b;
	r->port = port;
	r->fd[0] = r->fd[1] = -1;
	for (int i = 0; i < 2; i++)
		r->way[i].pipe[0] = r->way[i].pipe[1] = -1;
	r->next = b->relays;
	b->relays = r;
	b->nrelays++;
	b->relays_total++;
	return r;
}

static void drop(struct relay *r, int side)
{
	loop_del(r->box->loop, &r->src[side]);
	if (r->fd[side] >= 0)
		fd_close(steal_fd(&r->fd[side]));
}

void relay_free(struct relay *r)
{
	struct box *b = r->box;
	struct relay **p = &b->relays;

	while (*p != r)
		p = &(*p)->next;
	*p = r->next;
	b->nrelays--;
	loop_timer_set(b->loop, &r->timer, 0);
	for (int i = 0; i < 2; i++) {
		drop(r, i);
		for (int k = 0; k < 2; k++)
			if (r->way[i].pipe[k] >= 0)
				fd_close(r->way[i].pipe[k]);
	}
	free(r);
	life_quiet(b);
}

void relay_reset(struct relay *r)
{
	const struct linger now = {.l_onoff = 1};
	struct err gone;

	for (int i = 0; i < 2; i++)
		if (r->fd[i] >= 0)
			setsockopt(r->fd[i], SOL_SOCKET, SO_LINGER, &now,
				   sizeof(now));
	err_set(&gone, -ECONNRESET, "stopped", "the connection was cut");
	if (r->asks)
		ask_fail(r->asks, &gone);
	relay_free(r);
}

int relay_set(struct relay *r, int side, uint32_t events, loop_fn *fn,
	      struct err *e)
{
	struct loop_source *s = &r->src[side];

	if (events == 0 || r->fd[side] < 0) {
		loop_del(r->box->loop, s);
		return 0;
	}
	if (s->fn && s->fn != fn)
		loop_del(r->box->loop, s);
	if (s->fn)
		return loop_mod(r->box->loop, s, events, e);
	return loop_add(r->box->loop, s, r->fd[side], events, fn, r, e);
}

static void set_timer(struct relay *r, unsigned ms, loop_timer_fn *fn)
{
	r->timer.fn = fn;
	r->timer.arg = r;
	loop_timer_set(r->box->loop, &r->timer, ms ? clock_ms() + ms : 0);
}

static void on_late(struct loop *l, struct loop_timer *t)
{
	(void)l;
	relay_reset(t->arg);
}

/* --- a refusal ----------------------------------------------------------- */

/* A method and a space, as every request of HTTP/1 (and HTTP/2's preface)
 * begins. */
static bool is_http(const char *data, size_t len)
{
	size_t n = 0;

	while (n < len && data[n] >= 'A' && data[n] <= 'Z')
		n++;
	return n >= 3 && n < len && data[n] == ' ';
}

static void on_answered(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay *r = s->arg;
	char buf[4096];
	ssize_t n;

	(void)l;
	(void)events;
	n = recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT);
	if (n == 0 || (n < 0 && errno != EAGAIN))
		relay_free(r);
}

static void answer_502(struct relay *r, const char *why)
{
	char text[1024], body[512];
	int n, len;

	len = snprintf(body, sizeof(body), "%s\n", why);
	if (len >= (int)sizeof(body))
		len = sizeof(body) - 1;
	n = snprintf(text, sizeof(text),
		     "HTTP/1.1 502 Bad Gateway\r\n"
		     "Content-Type: text/plain; charset=utf-8\r\n"
		     "Content-Length: %d\r\n"
		     "Retry-After: 1\r\n"
		     "Connection: close\r\n\r\n%.*s",
		     len, len, body);
	send(r->fd[0], text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
	shutdown(r->fd[0], SHUT_WR);
	r->state = RELAY_ANSWERED;
	/* What he still sends would make a reset of our closing. */
	if (relay_set(r, 0, EPOLLIN, on_answered, NULL) < 0)
		relay_reset(r);
	else
		set_timer(r, HANGUP_MS, on_late);
}

void relay_no(struct relay *r, const char *why)
{
	char data[16];
	ssize_t n;

	n = recv(r->fd[0], data, sizeof(data), MSG_PEEK | MSG_DONTWAIT);
	if (n > 0 && is_http(data, (size_t)n))
		answer_502(r, why);
	else
		relay_reset(r);
}

static void on_spoken(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay *r = s->arg;
	char why[256];

	(void)l;
	(void)events;
	snprintf(why, sizeof(why),
		 "nothing listens on port %u in sandbox %s yet: start the "
		 "service there, on 127.0.0.1, ::1 or any address, and try "
		 "again",
		 r->port, r->box->id);
	relay_no(r, why);
}

static void refused(struct relay *r)
{
	struct err why;

	if (r->fd[0] < 0) {
		err_set(&why, -ECONNREFUSED, "not_found",
			"nothing listens on port %u in the sandbox", r->port);
		if (r->asks)
			ask_fail(r->asks, &why);
		relay_free(r);
		return;
	}
	r->state = RELAY_REFUSED;
	if (relay_set(r, 0, EPOLLIN, on_spoken, NULL) < 0)
		relay_reset(r);
	else
		set_timer(r, SPEAK_MS, on_late);
}

/* --- the inner end ------------------------------------------------------- */

/* A socket of the sandbox's network; its descriptor is on our side alone. */
static int inner_socket(struct box *b, int family)
{
	auto_close int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
	int fd;

	if (own < 0 || setns(b->init_fd, CLONE_NEWNET) < 0)
		return -errno;
	fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		fd = -errno;
	if (setns(own, CLONE_NEWNET) < 0)
		abort(); /* nothing that follows would be where it should */
	return fd;
}

static const struct {
	int family;
	const char *address;
} candidates[] = {
	{AF_INET, "127.0.0.1"},
	{AF_INET6, "::1"},
	{AF_INET, STABLE},
};

static int connect_to(int fd, unsigned i, uint16_t port)
{
	struct sockaddr_in v4 = {.sin_family = AF_INET,
				 .sin_port = htons(port)};
	struct sockaddr_in6 v6 = {.sin6_family = AF_INET6,
				  .sin6_port = htons(port)};
	int r;

	if (candidates[i].family == AF_INET) {
		inet_pton(AF_INET, candidates[i].address, &v4.sin_addr);
		r = connect(fd, (struct sockaddr *)&v4, sizeof(v4));
	} else {
		inet_pton(AF_INET6, candidates[i].address, &v6.sin6_addr);
		r = connect(fd, (struct sockaddr *)&v6, sizeof(v6));
	}
	return r < 0 && errno != EINPROGRESS ? -errno : 0;
}

static void on_next(struct loop *l, struct loop_timer *t);

/* From r->candidate on. */
static void try_next(struct relay *r)
{
	struct box *b = r->box;
	int fd, n;

	drop(r, 1);
	for (; r->candidate < array_len(candidates); r->candidate++) {
		fd = inner_socket(b, candidates[r->candidate].family);
		if (fd == -EAFNOSUPPORT)
			continue;
		if (fd < 0) {
			relay_reset(r);
			return;
		}
		r->fd[1] = fd;
		if (connect_to(fd, r->candidate, r->port) == 0) {
			n = relay_set(r, 1, EPOLLOUT, on_connected, NULL);
			if (n < 0)
				relay_reset(r);
			else
				set_timer(r, CONNECT_MS, on_next);
			return;
		}
		drop(r, 1);
	}
	refused(r);
}

static void on_next(struct loop *l, struct loop_timer *t)
{
	struct relay *r = t->arg;

	(void)l;
	r->candidate++;
	try_next(r);
}

void relay_start(struct relay *r)
{
	r->state = RELAY_CONNECTS;
	r->candidate = 0;
	try_next(r);
}

/* It is the asker's own: we know nothing of it any more, but that he is there.
 */
static void hand_over(struct relay *r)
{
	struct ask *a = r->asks;
	struct box *b = r->box;
	int fd = steal_fd(&r->fd[1]);
	json_t *rec;

	loop_del(b->loop, &r->src[1]);
	rec = json_pack("{s:s, s:[s], s:i, s:s}", "event", "connected", "fds",
			"socket", "port", (int)r->port, "address",
			candidates[r->candidate].address);
	ask_wait(a, &b->connected);
	a->relayed = true;
	relay_free(r);
	ask_event(a, rec, &fd, 1);
}

static void on_connected(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct relay *r = s->arg;
	socklen_t len = sizeof(int);
	int err = 0;

	(void)l;
	(void)events;
	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	if (err) {
		r->candidate++;
		try_next(r);
		return;
	}
	set_timer(r, 0, NULL);
	if (r->asks)
		hand_over(r);
	else if (r->fd[0] < 0 || relay_open(r, NULL) < 0)
		relay_reset(r);
}

/* After a re-exec; what was connecting does so anew. */
void relay_reload(struct relay *r)
{
	if (r->state == RELAY_CONNECTS && r->box->state == BOX_RUNNING)
		relay_start(r);
	else if (r->state == RELAY_REFUSED)
		refused(r);
	else
		relay_reset(r);
}

/* --- for the others ------------------------------------------------------ */

int relay_op_connect(struct ask *a, json_t *req, struct err *e)
{
	struct box *b = a->box;
	struct relay *r;
	int n;

	n = pause_awake_for(a, req, "port", e);
	if (n != 0)
		return n;
	r = relay_new(b, (uint16_t)json_int(req, "port", 0));
	if (!r) {
		n = err_set(e, -EBUSY, "busy",
			    "the sandbox has %u relayed connections",
			    b->nrelays);
		if (e)
			e->retry_after_ms = 100;
		return n;
	}
	ask_wait(a, &r->asks);
	relay_start(r);
	return 1;
}

bool relay_active(const struct box *b)
{
	return b->nrelays > 0 || b->connected;
}

/* Each as it was at first: what they do may end them. */
static void for_each(struct box *b, void (*fn)(struct relay *r, void *arg),
		     void *arg)
{
	struct relay *next;

	for (struct relay *r = b->relays; r; r = next) {
		next = r->next;
		fn(r, arg);
	}
}

static void go_on(struct relay *r, void *arg)
{
	(void)arg;
	if (r->state == RELAY_WAITS)
		relay_start(r);
}

static bool has_waiting(const struct box *b)
{
	for (const struct relay *r = b->relays; r; r = r->next)
		if (r->state == RELAY_WAITS)
			return true;
	return false;
}

void relay_awake(struct box *b)
{
	struct err e = {0};
	int r;

	if (!has_waiting(b))
		return;
	r = pause_wake(b, &e);
	if (r == 0)
		for_each(b, go_on, NULL);
	else if (r < 0)
		relay_refuse(b, &e);
}

static void give_up(struct relay *r, void *arg)
{
	const struct err *why = arg;
	char text[ERR_MSG_MAX + 64];

	if (r->state != RELAY_WAITS)
		return;
	snprintf(text, sizeof(text), "sandbox %s does not come back: %s",
		 r->box->id, why->msg);
	relay_no(r, text);
}

void relay_refuse(struct box *b, const struct err *why)
{
	for_each(b, give_up, (void *)(uintptr_t)why);
}

static void cut(struct relay *r, void *arg)
{
	const bool *all = arg;

	if (*all || r->state != RELAY_WAITS)
		relay_reset(r);
}

void relay_cut(struct box *b)
{
	bool all = false;

	for_each(b, cut, &all);
}

void relay_end(struct box *b)
{
	bool all = true;
	struct err e;

	for_each(b, cut, &all);
	life_stopped(b, &e);
	while (b->connected)
		ask_fail(b->connected, &e);
	for (unsigned i = 0; i < b->nports; i++) {
		struct relay_port *p = &b->ports[i];

		loop_timer_set(b->loop, &p->retry, 0);
		loop_del(b->loop, &p->src);
		if (p->fd >= 0)
			fd_close(steal_fd(&p->fd));
	}
	free(steal_ptr(b->ports));
	b->nports = 0;
}
