/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "serve/conn_priv.h"
#include "wire/record.h"

#define SCRATCH	  (4 * TLS_RECORD_MAX)
#define READS	  4		/* scratches full, before others have a turn */
#define KEEP_CAP  (16 * 1024)	/* of a buffer that is empty */
#define MOVE	  (64 * 1024)	/* sent bytes, before the rest moves down */
#define SMALL	  (1024 * 1024) /* may always be kept */
#define LONG_LINE (64 * 1024)	/* begins to count */
#define CLOSE_MS  5000
#define GONE_MS	  90000 /* the peer's kernel acknowledges nothing */

/* --- the environment ------------------------------------------------------ */

static void or_default(unsigned *ms, unsigned dflt)
{
	if (!*ms)
		*ms = dflt;
}

int conn_env_init(struct conn_env *env, struct loop *loop, struct tls *tls,
		  struct err *e)
{
	struct conn_limits *l = &env->limits;

	*env = (struct conn_env){.loop = loop, .tls = tls, .limits = *l};
	or_default(&l->handshake_ms, 10000);
	or_default(&l->line_ms, 30000);
	or_default(&l->ping_ms, 30000);
	or_default(&l->idle_ms, 90000);
	or_default(&l->stall_ms, 60000);
	l->out_max = l->out_max ? l->out_max : 16u << 20;
	l->held_max = l->held_max ? l->held_max : 256u << 20;
	env->scratch = malloc(SCRATCH);
	return env->scratch ? 0 : err_sys(e, ENOMEM, "connections");
}

void conn_env_done(struct conn_env *env)
{
	free(env->scratch);
	env->scratch = NULL;
}

/* --- timers --------------------------------------------------------------- */

void conn_soon(struct conn *c)
{
	if (!c->soon.at_ms)
		loop_timer_set(c->env->loop, &c->soon, clock_ms());
}

/* Who asks reads always: were both to wait until the other has read, they
 * would for ever. */
static bool is_reading(const struct conn *c)
{
	return c->state == CONN_OPEN && !c->eof &&
	       (!c->server || conn_out_len(c) < OUT_HOLD);
}

static void earlier(uint64_t *at, uint64_t other)
{
	if (other && (!*at || other < *at))
		*at = other;
}

/* When something is due if nothing happens before. */
static uint64_t due(const struct conn *c)
{
	const struct conn_limits *l = &c->env->limits;
	uint64_t at = c->close_ms;

	if (conn_out_len(c) > 0)
		earlier(&at, c->out_ms + l->stall_ms);
	if (!is_reading(c))
		return at;
	if (c->line_ms)
		earlier(&at, c->line_ms + l->line_ms);
	earlier(&at, c->in_ms + (c->pinged ? l->idle_ms : l->ping_ms));
	return at;
}

/* Most deadlines only move on: those are found out when the timer goes off. */
static void schedule(struct conn *c)
{
	uint64_t at = c->state == CONN_DEAD ? 0 : due(c);

	if (at && (!c->tick.at_ms || at < c->tick.at_ms))
		loop_timer_set(c->env->loop, &c->tick, at);
}

/* --- the end -------------------------------------------------------------- */

static void die(struct conn *c, const struct err *why)
{
	if (c->state == CONN_DEAD)
		return;
	/* Of one that is closing the reason is known. */
	if (why && c->why.r == 0)
		c->why = *why;
	c->state = CONN_DEAD;
	conn_soon(c);
}

void conn_cut(struct conn *c, const struct err *why)
{
	die(c, why);
}

void conn_finish(struct conn *c, const struct err *why)
{
	if (c->state >= CONN_CLOSE)
		return;
	if (c->state == CONN_SHAKE) {
		die(c, why);
		return;
	}
	if (why)
		c->why = *why;
	c->state = CONN_CLOSE;
	c->close_ms = clock_ms() + CLOSE_MS;
	schedule(c);
	conn_soon(c);
}

void conn_reject(struct conn *c, const json_t *id, const struct err *why)
{
	auto_json json_t *req = json_object();
	auto_json json_t *rec = NULL;

	if (req && id)
		json_object_set(req, "id", (json_t *)(uintptr_t)id);
	rec = record_error(req, why);
	if (rec && conn_live(c))
		(void)conn_put(c, rec, NULL);
	conn_finish(c, why);
}

static void account(struct conn *c, size_t now)
{
	c->env->held += now - c->counted;
	c->counted = now;
}

static void finish(struct conn *c)
{
	struct conn_env *env = c->env;

	env->shaking -= !conn_peer(c);
	env->n--;
	env->stats.cut += c->why.r != 0;
	account(c, 0);
	loop_timer_set(env->loop, &c->soon, 0);
	loop_timer_set(env->loop, &c->tick, 0);
	streams_drop(c);
	c->ops->gone(c->arg, c, &c->why);
	tls_stream_free(c->tls);
	frame_reader_done(&c->reader);
	buf_done(&c->out);
	free(c);
}

/* --- out ------------------------------------------------------------------ */

static void too_slow(struct conn *c)
{
	struct err e = {0};

	err_set(&e, -ENOBUFS, "busy",
		"the peer does not take what is sent to it");
	die(c, &e);
}

int conn_added(struct conn *c, struct err *e)
{
	const struct conn_limits *l = &c->env->limits;
	size_t n = conn_out_len(c);

	if (!c->out_ms)
		c->out_ms = clock_ms();
	account(c, frame_begun(&c->reader) + n);
	if (n > l->out_max || (n > SMALL && c->env->held > l->held_max))
		too_slow(c);
	if (c->state == CONN_DEAD)
		return err_set(e, -EPIPE, "io", "the connection is gone");
	conn_soon(c);
	return 0;
}

int conn_put(struct conn *c, const json_t *obj, struct err *e)
{
	int r;

	if (!conn_live(c))
		return err_set(e, -EPIPE, "io", "the connection is gone");
	r = frame_put(&c->out, obj, e);
	if (r == -ENOMEM)
		too_slow(c);
	return r < 0 ? r : conn_added(c, e);
}

static void sent_all(struct conn *c)
{
	c->out.len = c->out_at = 0;
	if (c->out.cap > KEEP_CAP && c->nstreams == 0)
		buf_done(&c->out);
}

static void flush(struct conn *c)
{
	size_t before = conn_out_len(c);
	struct err e = {0};
	ssize_t n = 0;

	while (c->out_at < c->out.len) {
		n = tls_stream_write(c->tls, c->out.data + c->out_at,
				     c->out.len - c->out_at, &e);
		if (n < 0)
			break;
		c->out_at += (size_t)n;
	}
	if (n < 0 && n != -EAGAIN) {
		die(c, &e);
		return;
	}
	if (before > conn_out_len(c))
		c->out_ms = c->out_at < c->out.len ? clock_ms() : 0;
	c->env->stats.out_bytes += before - conn_out_len(c);
	if (c->out_at == c->out.len) {
		sent_all(c);
	} else if (c->out_at > MOVE) {
		buf_drop(&c->out, c->out_at);
		c->out_at = 0;
	}
}

/* --- in ------------------------------------------------------------------- */

static void count_line(struct conn *c)
{
	struct err e = {0};
	size_t begun = frame_begun(&c->reader);

	if (!frame_open(&c->reader))
		c->line_ms = 0;
	else if (!c->line_ms)
		c->line_ms = c->in_ms;
	account(c, begun + conn_out_len(c));
	if (begun <= LONG_LINE || c->env->held <= c->env->limits.held_max)
		return;
	err_set(&e, -ENOBUFS, "busy", "too many long lines at once");
	e.retry_after_ms = 1000;
	conn_reject(c, NULL, &e);
}

/* Pings are answered here, and that answers to ours came is enough. */
static void on_line(struct conn *c, json_t *obj)
{
	auto_json json_t *rec = NULL;
	const json_t *id = json_object_get(obj, "id");

	if (json_is_true(json_object_get(obj, "ok")) && !id)
		return;
	if (strcmp(json_str(obj, "program"), "ping")) {
		c->ops->line(c->arg, c, obj);
		return;
	}
	rec = record_ok(obj);
	(void)conn_put(c, rec, NULL);
}

/* All frames there are, while it is open; ${data} goes on to the rest. */
static void parse(struct conn *c, const char **data, size_t *len)
{
	struct err e = {0};
	struct frame f;
	int r = 1;

	while (c->state == CONN_OPEN && *len > 0) {
		r = frame_next(&c->reader, data, len, &f, &e);
		if (r <= 0)
			break;
		/* What comes in time, piece by piece, is not late. */
		if (f.kind == FRAME_DATA || !frame_open(&c->reader))
			c->line_ms = 0;
		r = streams_take(c, &f, &e);
		if (r == 0)
			on_line(c, f.obj);
		if (r < 0)
			break;
	}
	if (r < 0)
		conn_reject(c, json_object_get(c->reader.obj, "id"), &e);
	else
		count_line(c);
}

/* Fill the scratch: all that a record holds fits, so nothing stays behind. */
static size_t fill(struct conn *c, bool *ret_more)
{
	size_t len = 0;
	struct err e = {0};
	ssize_t n = 1;

	while (SCRATCH - len >= TLS_RECORD_MAX) {
		n = tls_stream_read(c->tls, c->env->scratch + len,
				    SCRATCH - len, &e);
		if (n <= 0)
			break;
		len += (size_t)n;
	}
	*ret_more = n > 0;
	c->eof = n == 0;
	if (n < 0 && n != -EAGAIN)
		die(c, &e);
	if (len > 0) {
		c->in_ms = clock_ms();
		c->pinged = false;
		c->env->stats.in_bytes += len;
	}
	return len;
}

/* Bytes that nobody reads would have the kernel reset the connection, and the
 * last record be lost with it. */
static void drop_in(struct conn *c)
{
	struct err e = {0};
	ssize_t n = 1;

	for (unsigned i = 0; i < READS * READS && n > 0; i++)
		n = tls_stream_read(c->tls, c->env->scratch, SCRATCH, &e);
	if (n == 0 || (n < 0 && n != -EAGAIN))
		die(c, NULL);
}

static void linger(struct conn *c)
{
	c->lingers = true;
	if (tls_stream_end(c->tls) < 0)
		die(c, NULL);
}

static void take_in(struct conn *c)
{
	bool more = true;

	for (unsigned i = 0; i < READS && more && is_reading(c); i++) {
		size_t len = fill(c, &more);
		const char *data = c->env->scratch;
		enum conn_state was = c->state;

		/* What came before it broke off still counts. */
		if (was == CONN_DEAD)
			c->state = CONN_OPEN;
		parse(c, &data, &len);
		if (was == CONN_DEAD)
			c->state = CONN_DEAD;
	}
}

/* --- events --------------------------------------------------------------- */

static void told_end(struct conn *c)
{
	struct err e = {0};

	if (!c->eof || c->eof_told || c->state != CONN_OPEN)
		return;
	c->eof_told = true;
	if (frame_open(&c->reader)) {
		err_set(&e, -ECONNRESET, "io",
			"the peer ended in the middle of a line");
		die(c, &e);
	} else if (c->ops->end) {
		c->ops->end(c->arg, c);
	}
}

static void settle(struct conn *c)
{
	bool empty = conn_out_len(c) == 0;

	if (empty && c->state == CONN_OPEN && c->eof_told && c->busy == 0)
		die(c, NULL);
	if (empty && c->state == CONN_CLOSE && !c->lingers) {
		if (c->why.r < 0 && !c->eof)
			linger(c);
		else
			die(c, NULL);
	}
	account(c, frame_begun(&c->reader) + conn_out_len(c));
	if (c->state == CONN_DEAD) {
		conn_soon(c);
		return;
	}
	tls_stream_watch(c->tls, is_reading(c) || c->lingers, !empty);
	schedule(c);
}

static void run(struct conn *c)
{
	told_end(c);
	if (c->state == CONN_SHAKE || c->state == CONN_DEAD)
		return;
	flush(c);
	if (c->hungry && conn_live(c)) {
		streams_feed(c);
		flush(c);
	}
	if (c->state != CONN_DEAD)
		settle(c);
}

static void on_soon(struct loop *l, struct loop_timer *t)
{
	struct conn *c = t->arg;

	(void)l;
	if (c->state != CONN_DEAD)
		run(c);
	if (c->state == CONN_DEAD)
		finish(c);
}

static void ping(struct conn *c)
{
	auto_json json_t *line = json_pack("{s:s}", "program", "ping");

	c->pinged = true;
	(void)conn_put(c, line, NULL);
}

static void too_late(struct conn *c, const char *what)
{
	struct err e = {0};

	err_set(&e, -ETIMEDOUT, "timeout", "%s", what);
	if (c->line_ms && conn_live(c))
		conn_reject(c, NULL, &e);
	else
		die(c, &e);
}

static void on_tick(struct loop *l, struct loop_timer *t)
{
	struct conn *c = t->arg;
	const struct conn_limits *lim = &c->env->limits;
	uint64_t now = clock_ms();

	(void)l;
	if (c->close_ms && now >= c->close_ms) {
		die(c, NULL);
	} else if (conn_out_len(c) > 0 && now >= c->out_ms + lim->stall_ms) {
		too_slow(c);
	} else if (is_reading(c)) {
		if (c->line_ms && now >= c->line_ms + lim->line_ms)
			too_late(c, "a line was begun and not ended");
		else if (now >= c->in_ms + lim->idle_ms && c->busy == 0)
			too_late(c, "the peer is silent");
		else if (now >= c->in_ms + lim->ping_ms && !c->pinged)
			ping(c);
		else if (now >= c->in_ms + lim->idle_ms) {
			/* The kernel would know if the peer were gone. */
			c->in_ms = now;
			c->pinged = false;
		}
	}
	/* Memory of a burst is given back. */
	if (c->out.len == 0 && c->out.cap > 0)
		buf_done(&c->out);
	schedule(c);
}

static void on_up(void *arg)
{
	struct conn *c = arg;

	c->env->shaking--;
	if (c->state == CONN_DEAD)
		return; /* it was cut, which is yet to be told */
	c->state = CONN_OPEN;
	c->in_ms = clock_ms();
	c->out_ms = conn_out_len(c) > 0 ? c->in_ms : 0;
	c->ops->up(c->arg, c);
	conn_soon(c);
}

static void on_io(void *arg)
{
	struct conn *c = arg;

	if (c->state == CONN_OPEN)
		take_in(c);
	else if (c->lingers)
		drop_in(c);
	if (c->state != CONN_DEAD)
		conn_soon(c);
}

static void on_lost(void *arg, const struct err *why)
{
	struct conn *c = arg;

	c->env->stats.refused += c->state == CONN_SHAKE;
	die(c, why);
}

static const struct tls_stream_ops tls_ops = {on_up, on_io, on_lost};

/* --- a connection --------------------------------------------------------- */

/* Not of TCP: fine. */
static void watch_peer(int fd)
{
	const int on = 1, idle_s = 30, each_s = 15, gone_ms = GONE_MS;

	(void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s,
			 sizeof(idle_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &each_s,
			 sizeof(each_s));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &gone_ms,
			 sizeof(gone_ms));
}

int conn_open(struct conn_env *env, const struct conn_conf *conf, int *fd,
	      struct conn **ret, struct err *e)
{
	struct conn *c = calloc(1, sizeof(*c));
	struct tls_stream_conf tls = {
		.tls = env->tls,
		.loop = env->loop,
		.flags = conf->server ? TLS_STREAM_SERVER : 0,
		.handshake_ms = env->limits.handshake_ms,
		.peer = conf->peer,
		.host = conf->host,
		.ops = &tls_ops,
		.arg = c,
	};
	int r;

	if (!c) {
		fd_close(steal_fd(fd));
		return err_sys(e, ENOMEM, "connection");
	}
	c->env = env;
	c->ops = conf->ops;
	c->arg = conf->arg;
	c->server = conf->server;
	c->soon = (struct loop_timer){.fn = on_soon, .arg = c};
	c->tick = (struct loop_timer){.fn = on_tick, .arg = c};
	watch_peer(*fd);
	r = tls_stream_new(&tls, fd, &c->tls, e);
	if (r < 0) {
		free(c);
		return r;
	}
	env->n++;
	env->shaking++;
	env->stats.opened++;
	*ret = c;
	return 0;
}

void conn_set_busy(struct conn *c, unsigned n)
{
	c->busy = n;
	if (n == 0 && c->eof)
		conn_soon(c);
}

const struct tls_ident *conn_peer(const struct conn *c)
{
	return tls_stream_peer(c->tls);
}

uint64_t conn_heard_ms(const struct conn *c)
{
	return c->in_ms;
}

size_t conn_weight(const struct conn *c)
{
	return c->reader.weight;
}

size_t conn_unsent(const struct conn *c)
{
	return conn_out_len(c);
}
