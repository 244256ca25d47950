/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "broker.h"
#include "wire/json.h"

#define ROUNDS	   64 /* before others have their turn */
#define READ_MIN   4096
#define HEAD_MS	   15000  /* for a head, once it has begun */
#define IDLE_MS	   60000  /* between two requests */
#define CONNECT_MS 15000  /* to the upstream, with name and handshake */
#define ANSWER_MS  900000 /* without a byte either way */
#define TUNNEL_MS  7200000
#define LINGER_MS  2000

static void set_state(struct conn *c, enum conn_state state)
{
	c->state = state;
	c->since_ms = clock_ms();
}

static void conn_free(struct conn *c)
{
	struct server *s = c->s;

	if (c->state == CONN_EXCHANGE)
		audit_write(c, "aborted", "the client hung up");
	else if (c->state == CONN_TUNNEL)
		audit_write(c, "ok", NULL);
	upstream_free(c->up);
	loop_timer_set(s->loop, &c->timer, 0);
	loop_del(s->loop, &c->src);
	fd_close(c->who.fd);
	*c->pprev = c->next;
	if (c->next)
		c->next->pprev = c->pprev;
	if (--s->nconns == 0 && s->leaving)
		loop_stop(s->loop, 0);
	explicit_bzero(c, sizeof(*c));
	free(c);
}

static void end_exchange(struct conn *c)
{
	upstream_free(c->up);
	c->up = NULL;
	c->ep = NULL;
	explicit_bzero(c->held, sizeof(c->held));
	c->nheld = 0;
	set_state(c, c->close ? CONN_LINGER : CONN_HEAD);
}

void conn_done(struct conn *c)
{
	audit_write(c, "ok", NULL);
	end_exchange(c);
}

/* An answer of ours, for people and programs. */
static void say(struct conn *c, int status, const char *code, const char *why)
{
	char body[512], head[256];

	snprintf(body, sizeof(body),
		 "{\"error\":{\"code\":\"broker_%s\",\"message\":\"%s\"}}\n",
		 code, why);
	snprintf(head, sizeof(head),
		 "HTTP/1.1 %d Broker\r\nContent-Type: application/json\r\n"
		 "Content-Length: %zu\r\nConnection: close\r\n\r\n",
		 status, strlen(body));
	space_pack(&c->out);
	if (!space_text(&c->out, head) ||
	    (!c->head && !space_text(&c->out, body)))
		c->dead = true;
}

void conn_fail(struct conn *c, int status, const char *outcome, const char *why)
{
	if (c->answered)
		c->dead = true; /* in the middle of it: who reads must see */
	else
		c->use.status = status;
	audit_write(c, outcome, why);
	if (!c->answered)
		say(c, status, outcome, why);
	c->close = true;
	end_exchange(c);
}

/* --- the sandbox's side -------------------------------------------------- */

static bool client_read(struct conn *c)
{
	ssize_t n;

	if (c->state == CONN_LINGER)
		c->in.at = c->in.len = 0;
	if (space_left(&c->in) < READ_MIN)
		space_pack(&c->in);
	if (c->eof || c->dead || space_left(&c->in) == 0)
		return false;
	n = recv(c->who.fd, c->in.data + c->in.len, space_left(&c->in),
		 MSG_DONTWAIT);
	if (n < 0) {
		c->dead |= errno != EAGAIN && errno != EINTR;
		return false;
	}
	c->eof = n == 0;
	c->in.len += (size_t)n;
	return true;
}

static bool client_write(struct conn *c)
{
	ssize_t n;

	if (!space_has(&c->out) || c->dead)
		return false;
	n = send(c->who.fd, c->out.data + c->out.at, space_has(&c->out),
		 MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0) {
		c->dead |= errno != EAGAIN && errno != EINTR;
		return false;
	}
	space_used(&c->out, (size_t)n);
	return true;
}

/* Nothing more will be said; what it still sends would only be in the way. */
static void linger(struct conn *c)
{
	if (c->state != CONN_LINGER || space_has(&c->out))
		return;
	if (c->eof)
		c->dead = true;
	else
		(void)shutdown(c->who.fd, SHUT_WR);
}

/* --- time ---------------------------------------------------------------- */

static uint64_t deadline(const struct conn *c)
{
	switch (c->state) {
	case CONN_HEAD:
		return c->since_ms + (space_has(&c->in) ? HEAD_MS : IDLE_MS);
	case CONN_EXCHANGE:
		if (c->up && c->up->state != UP_OPEN)
			return c->since_ms + CONNECT_MS;
		return c->moved_ms + ANSWER_MS;
	case CONN_TUNNEL:
		return c->moved_ms + TUNNEL_MS;
	case CONN_LINGER:
		break;
	}
	return (space_has(&c->out) ? c->moved_ms : c->since_ms) + LINGER_MS;
}

static void on_timer(struct loop *l, struct loop_timer *t)
{
	struct conn *c = t->arg;

	(void)l;
	if (!c->again && clock_ms() >= deadline(c)) {
		if (c->state == CONN_EXCHANGE)
			conn_fail(c, 504, "failed", "the upstream is too slow");
		else
			c->dead = true;
	}
	conn_run(c);
}

static void set_timer(struct conn *c)
{
	uint64_t at = c->again ? clock_ms() : deadline(c);

	if (!c->timer.at_ms || c->timer.at_ms > at || c->again)
		loop_timer_set(c->s->loop, &c->timer, at);
}

/* --- all of it ----------------------------------------------------------- */

static void watch(struct conn *c)
{
	uint32_t events = 0;

	if (!c->eof && space_has(&c->in) < SPACE)
		events |= EPOLLIN;
	if (space_has(&c->out))
		events |= EPOLLOUT;
	if (loop_mod(c->s->loop, &c->src, events, NULL) < 0)
		c->dead = true;
	if (c->up)
		upstream_watch(c->up);
}

static bool round_of(struct conn *c)
{
	bool moved = client_read(c);

	moved |= request_take(c);
	moved |= request_body(c);
	if (c->up && !c->dead)
		moved |= upstream_io(c->up);
	moved |= answer_take(c);
	moved |= client_write(c);
	return moved;
}

void conn_run(struct conn *c)
{
	unsigned rounds = 0;

	c->again = true;
	while (!c->dead && c->again && rounds++ < ROUNDS) {
		c->again = round_of(c);
		if (c->again)
			c->moved_ms = clock_ms();
	}
	linger(c);
	if (!c->dead)
		watch(c);
	if (c->dead)
		conn_free(c);
	else
		set_timer(c);
}

static void on_client(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct conn *c = s->arg;

	(void)l;
	/* Gone altogether: nobody is there for whom it would be finished. */
	if (events & EPOLLERR ||
	    (events & EPOLLHUP && (c->eof || c->state == CONN_EXCHANGE)))
		c->dead = true;
	conn_run(c);
}

void conn_new(struct server *s, const struct broker_conn *who)
{
	struct conn *c = calloc(1, sizeof(*c));

	if (!c) {
		fd_close(who->fd);
		return;
	}
	c->s = s;
	c->who = *who;
	c->timer = (struct loop_timer){.fn = on_timer, .arg = c};
	c->moved_ms = clock_ms();
	set_state(c, CONN_HEAD);
	if (loop_add(s->loop, &c->src, who->fd, EPOLLIN, on_client, c, NULL) <
	    0) {
		fd_close(who->fd);
		free(c);
		return;
	}
	c->next = s->conns;
	c->pprev = &s->conns;
	if (c->next)
		c->next->pprev = &c->next;
	s->conns = c;
	s->nconns++;
	set_timer(c);
}

void conns_leave(struct server *s)
{
	struct conn *c, *next;

	for (c = s->conns; c; c = next) {
		next = c->next;
		c->close = true;
		if (c->state == CONN_HEAD && !space_has(&c->in))
			set_state(c, CONN_LINGER);
		conn_run(c);
	}
}
