/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/backoff.h"
#include "base/buf.h"
#include "base/clock.h"
#include "serve/coproc.h"
#include "serve/frame.h"
#include "serve/spawn.h"
#include "wire/jsonl.h"
#include "wire/record.h"

#define WINDOW_MAX 4096
#define TRIES	   3	/* a request that ends it so often is at fault */
#define GRACE_MS   3000 /* beyond a deadline that the program should keep */
#define END_MS	   5000 /* to end when its input did */
#define AHEAD	   (1024 * 1024) /* of lines that its pipe does not take yet */
#define REST_MS	   100 /* where a pipe is ready, and cannot be written to */

enum state {
	WAITING, /* in the queue */
	GIVEN,	 /* in a slot */
};

struct coproc_call {
	struct coproc_call *next, **pprev; /* of the queue */
	struct coproc *of;
	enum state state;
	unsigned slot, flags, tries;
	json_t *req;		      /* a copy; its id is that of its slot */
	const struct coproc_ops *ops; /* NULL: dropped */
	void *arg;
	uint64_t at_ms; /* deadline; 0: none */
	struct loop_timer deadline;
	bool begun; /* a record came: it cannot be asked again */
};

struct coproc {
	struct coproc_conf conf;
	const char *name;
	struct spawned p;
	struct loop_source src_pid, src_to, src_from;
	struct jsonl in;
	struct buf out;
	uint64_t since_ms, seq;
	struct backoff backoff;
	struct loop_timer again, idle;
	struct coproc_call **slots;
	unsigned running, waiting, restarts;
	uint64_t asked, lost;
	struct coproc_call *queue, **queue_end;
	bool ending;  /* its input was closed: it may end */
	bool working; /* on what it said: frees wait */
};

static void note(const struct coproc *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

static void note(const struct coproc *c, const char *fmt, ...)
{
	char text[256];
	va_list ap;
	int n;

	if (!c->conf.note)
		return;
	n = snprintf(text, sizeof(text), "%s: ", c->name);
	va_start(ap, fmt);
	vsnprintf(text + n, sizeof(text) - (size_t)n, fmt, ap);
	va_end(ap);
	c->conf.note(text);
}

/* --- calls --------------------------------------------------------------- */

static void queue_put(struct coproc_call *k)
{
	struct coproc *c = k->of;

	k->state = WAITING;
	k->next = NULL;
	k->pprev = c->queue_end;
	*c->queue_end = k;
	c->queue_end = &k->next;
	c->waiting++;
}

static void queue_take(struct coproc_call *k)
{
	struct coproc *c = k->of;

	*k->pprev = k->next;
	if (k->next)
		k->next->pprev = k->pprev;
	else
		c->queue_end = k->pprev;
	c->waiting--;
}

static void call_free(struct coproc_call *k)
{
	loop_timer_set(k->of->conf.loop, &k->deadline, 0);
	json_decref(k->req);
	free(k);
}

/* Out of the queue or its slot. */
static void call_end(struct coproc_call *k)
{
	if (k->state == WAITING) {
		queue_take(k);
	} else {
		k->of->slots[k->slot] = NULL;
		k->of->running--;
	}
	call_free(k);
}

static void call_fail(struct coproc_call *k, const struct err *why)
{
	const struct coproc_ops *ops = k->ops;
	void *arg = k->arg;

	call_end(k);
	if (ops)
		ops->failed(arg, why);
}

static void start_idle(struct coproc *c)
{
	bool idle = c->p.pid && c->conf.idle_ms && !c->running && !c->waiting;

	if (c->ending)
		return;
	loop_timer_set(c->conf.loop, &c->idle,
		       idle ? clock_ms() + c->conf.idle_ms : 0);
}

static void give(struct coproc *c);

static void on_deadline(struct loop *l, struct loop_timer *t)
{
	struct coproc_call *k = t->arg;
	struct coproc *c = k->of;
	const struct coproc_ops *ops = k->ops;
	struct err e = {0};

	(void)l;
	err_set(&e, -ETIMEDOUT, "deadline", "the request was not done in time");
	if (k->state == WAITING) {
		call_fail(k, &e);
		return;
	}
	/* It keeps its slot until the program is done with it. */
	k->ops = NULL;
	note(c, "kept no deadline");
	if (ops)
		ops->failed(k->arg, &e);
}

/* --- its life ------------------------------------------------------------ */

static void close_input(struct coproc *c)
{
	if (c->p.to < 0)
		return;
	loop_del(c->conf.loop, &c->src_to);
	fd_close(steal_fd(&c->p.to));
	buf_done(&c->out);
}

static void forget(struct coproc *c)
{
	close_input(c);
	loop_del(c->conf.loop, &c->src_from);
	loop_del(c->conf.loop, &c->src_pid);
	spawn_done(&c->p);
	jsonl_done(&c->in);
	c->in = (struct jsonl){.fd = -1};
}

static bool ask_again(const struct coproc_call *k)
{
	return (k->flags & COPROC_AGAIN) && !k->begun && k->ops &&
	       k->tries < TRIES;
}

static void queue_put_first(struct coproc_call *k)
{
	struct coproc *c = k->of;

	k->state = WAITING;
	k->next = c->queue;
	k->pprev = &c->queue;
	if (k->next)
		k->next->pprev = &k->next;
	else
		c->queue_end = &k->next;
	c->queue = k;
	c->waiting++;
}

static int youngest_first(const void *a, const void *b)
{
	const struct coproc_call *const *x = a, *const *y = b;
	int64_t xid = json_int((*x)->req, "id", 0);
	int64_t yid = json_int((*y)->req, "id", 0);

	return xid < yid ? 1 : xid > yid ? -1 : 0;
}

/* What can be asked again is, in the order it came, before what waits. */
static void repeat(struct coproc *c)
{
	struct coproc_call *list[WINDOW_MAX];
	unsigned n = 0;

	for (unsigned i = 0; i < c->conf.window; i++)
		if (c->slots[i] && ask_again(c->slots[i]))
			list[n++] = c->slots[i];
	if (n == 0)
		return;
	qsort(list, n, sizeof(struct coproc_call *), youngest_first);
	for (unsigned i = 0; i < n; i++) {
		c->slots[list[i]->slot] = NULL;
		c->running--;
		queue_put_first(list[i]);
	}
}

/* What it had: again, or lost. */
static void settle(struct coproc *c, unsigned delay)
{
	struct err e = {0};

	repeat(c);
	err_set(&e, -EPIPE, "helper_lost", "%s ended before it answered",
		c->name);
	e.retry_after_ms = delay;
	e.infra = true;
	for (unsigned i = 0; i < c->conf.window; i++) {
		if (!c->slots[i])
			continue;
		c->lost++;
		call_fail(c->slots[i], &e);
	}
}

static void gone(struct coproc *c)
{
	uint64_t lived = clock_ms() - c->since_ms;
	bool asked = c->running > 0;
	int pid = (int)c->p.pid, status;
	unsigned delay;

	kill(c->p.pid, SIGKILL);
	status = spawn_wait(&c->p);
	if (!c->ending || asked) {
		note(c, "%d is gone after %llu ms (status %d)", pid,
		     (unsigned long long)lived, status);
		c->restarts++;
		delay = backoff_next(&c->backoff, lived);
	} else {
		delay = 1;
	}
	forget(c);
	c->ending = false;
	loop_timer_set(c->conf.loop, &c->idle, 0);
	loop_timer_set(c->conf.loop, &c->again, clock_ms() + delay);
	settle(c, delay);
}

/* Anything that is not a record of ours ends it. */
static void on_record(struct coproc *c, json_t *rec)
{
	int64_t id = json_int(rec, "id", -1);
	unsigned slot = (unsigned)(id % WINDOW_MAX);
	struct coproc_call *k;
	const struct coproc_ops *ops;

	if (id < 0 || slot >= c->conf.window)
		return; /* of a cancel, or of nobody */
	k = c->slots[slot];
	if (!k || json_int(k->req, "id", -2) != id)
		return;
	if (json_is_boolean(json_object_get(rec, "ok")))
		k->begun = true;
	ops = k->ops;
	if (!ops) {
		if (k->begun)
			call_end(k);
		return;
	}
	if (ops->record(k->arg, rec) && c->slots[slot] == k)
		call_end(k);
}

static int take_lines(struct coproc *c)
{
	struct err e = {0};
	size_t len;
	char *text;
	int r;

	while ((r = jsonl_next(&c->in, &text, &len, &e)) == 1) {
		auto_json json_t *rec = NULL;

		r = json_parse(text, len, &rec, &e);
		if (r < 0)
			break;
		on_record(c, rec);
	}
	if (r < 0 && r != -EAGAIN)
		note(c, "%s", e.msg);
	return r;
}

static void on_from(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct coproc *c = s->arg;
	int r;

	(void)l;
	(void)events;
	c->working = true;
	r = take_lines(c);
	c->working = false;
	if (r != -EAGAIN)
		gone(c);
	else
		give(c);
}

static void on_pid(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct coproc *c = s->arg;

	(void)l;
	(void)events;
	c->working = true;
	(void)take_lines(c);
	c->working = false;
	gone(c);
}

static void on_to(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct coproc *c = s->arg;

	(void)l;
	(void)events;
	give(c);
}

static int watch(struct coproc *c, struct err *e)
{
	struct loop *l = c->conf.loop;
	int r;

	if (c->p.pidfd < 0)
		return err_set(e, -EMFILE, "no_fds", "watch %s", c->name);
	r = loop_add(l, &c->src_from, c->p.from, EPOLLIN, on_from, c, e);
	if (r == 0)
		r = loop_add(l, &c->src_pid, c->p.pidfd, EPOLLIN, on_pid, c, e);
	if (r == 0)
		r = loop_add(l, &c->src_to, c->p.to, 0, on_to, c, e);
	return r;
}

static int spawn(struct coproc *c, struct err *e)
{
	int r = spawn_filter(c->conf.argv, &c->p, e);

	if (r < 0)
		return r;
	c->in = (struct jsonl){.fd = c->p.from};
	c->since_ms = clock_ms();
	r = watch(c, e);
	if (r < 0) {
		kill(c->p.pid, SIGKILL);
		(void)spawn_wait(&c->p);
		forget(c);
	}
	return r;
}

static void on_idle(struct loop *l, struct loop_timer *t)
{
	struct coproc *c = t->arg;

	if (c->ending) {
		note(c, "does not end with its input");
		kill(c->p.pid, SIGKILL);
		return;
	}
	c->ending = true;
	close_input(c);
	loop_timer_set(l, t, clock_ms() + END_MS);
}

static void on_again(struct loop *l, struct loop_timer *t)
{
	(void)l;
	give(t->arg);
}

/* --- giving -------------------------------------------------------------- */

static int flush(struct coproc *c)
{
	size_t done = 0;
	ssize_t n = 0;

	while (done < c->out.len) {
		n = write(c->p.to, c->out.data + done, c->out.len - done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			n = -errno;
			break;
		}
		done += (size_t)n;
	}
	if (done == c->out.len && c->out.cap > AHEAD)
		buf_done(&c->out);
	else
		buf_drop(&c->out, done);
	if (n < 0 && n != -EAGAIN) { /* it would be told so at once */
		loop_timer_set(c->conf.loop, &c->again, clock_ms() + REST_MS);
		return loop_mod(c->conf.loop, &c->src_to, 0, NULL);
	}
	return loop_mod(c->conf.loop, &c->src_to, c->out.len ? EPOLLOUT : 0,
			NULL);
}

static unsigned free_slot(struct coproc *c)
{
	unsigned i = (unsigned)(c->seq % c->conf.window);

	while (c->slots[i])
		i = (i + 1) % c->conf.window;
	return i;
}

static int give_one(struct coproc *c, struct coproc_call *k, struct err *e)
{
	uint64_t now = clock_ms(), left, id;
	unsigned slot = free_slot(c);
	int r;

	if (k->at_ms) {
		left = k->at_ms > now ? k->at_ms - now : 1;
		json_object_set_new(k->req, "deadline_ms",
				    json_integer((json_int_t)left));
		loop_timer_set(c->conf.loop, &k->deadline, k->at_ms + GRACE_MS);
	}
	id = ++c->seq * WINDOW_MAX + slot;
	json_object_set_new(k->req, "id", json_integer((json_int_t)id));
	r = frame_put(&c->out, k->req, e);
	if (r < 0)
		return r;
	queue_take(k);
	k->state = GIVEN;
	k->slot = slot;
	k->tries++;
	c->slots[slot] = k;
	c->running++;
	return 0;
}

static void fail_first(struct coproc *c, const struct err *why)
{
	if (c->queue)
		call_fail(c->queue, why);
}

static bool ready(struct coproc *c)
{
	struct err e = {0};

	if (c->p.pid && !c->ending)
		return true;
	if (c->p.pid || c->again.at_ms)
		return false; /* it will be, soon */
	if (spawn(c, &e) == 0)
		return true;
	note(c, "%s", e.msg);
	e.retry_after_ms = BACKOFF_MAX;
	fail_first(c, &e);
	loop_timer_set(c->conf.loop, &c->again, clock_ms() + BACKOFF_MAX);
	return false;
}

static void give(struct coproc *c)
{
	struct err e = {0};

	if (c->working)
		return;
	if (c->queue && ready(c)) {
		while (c->queue && c->running < c->conf.window &&
		       c->out.len < AHEAD) {
			if (give_one(c, c->queue, &e) < 0)
				fail_first(c, &e);
		}
	}
	if (c->p.to >= 0)
		(void)flush(c); /* that it is gone shows elsewhere */
	start_idle(c);
}

int coproc_ask(struct coproc *c, const json_t *req, unsigned flags,
	       const struct coproc_ops *ops, void *arg,
	       struct coproc_call **ret, struct err *e)
{
	int64_t ms = json_int(req, "deadline_ms", 0);
	struct coproc_call *k;

	if (c->waiting >= c->conf.queue_max) {
		err_set(e, -EBUSY, "busy", "%u requests wait for %s",
			c->waiting, c->name);
		if (e)
			e->retry_after_ms = 500;
		return -EBUSY;
	}
	k = calloc(1, sizeof(*k));
	if (!k)
		return err_sys(e, ENOMEM, "request");
	k->of = c;
	k->req = json_copy((json_t *)(uintptr_t)req);
	if (!k->req) {
		free(k);
		return err_sys(e, ENOMEM, "request");
	}
	k->flags = flags;
	k->ops = ops;
	k->arg = arg;
	k->deadline = (struct loop_timer){.fn = on_deadline, .arg = k};
	if (ms > 0) {
		k->at_ms = clock_ms() + (uint64_t)ms;
		loop_timer_set(c->conf.loop, &k->deadline, k->at_ms);
	}
	queue_put(k);
	c->asked++;
	/* By way of the loop: nothing is called from here. */
	if (!c->p.pid && !c->again.at_ms)
		loop_timer_set(c->conf.loop, &c->again, clock_ms());
	else
		give(c);
	*ret = k;
	return 0;
}

int coproc_tell(struct coproc *c, const json_t *line)
{
	int r;

	if (!c->p.pid || c->ending || c->p.to < 0 || c->out.len > AHEAD)
		return -EAGAIN;
	r = frame_put(&c->out, line, NULL);
	if (r == 0)
		(void)flush(c);
	return r;
}

int coproc_cancel(struct coproc_call *k)
{
	struct coproc *c = k->of;
	auto_json json_t *line = NULL;
	struct err e = {0};

	if (k->state == WAITING) {
		err_set(&e, -ECANCELED, "cancelled",
			"the request was cancelled");
		call_fail(k, &e);
		return 1;
	}
	if (!c->conf.cancels || c->p.to < 0 ||
	    json_pack_or(&line, NULL, "{si sO}", "id", -1, "cancel",
			 json_object_get(k->req, "id")) < 0 ||
	    frame_put(&c->out, line, NULL) < 0)
		return 0;
	(void)flush(c);
	return 1;
}

void coproc_drop(struct coproc_call *k)
{
	if (k->state == WAITING)
		call_end(k);
	else
		k->ops = NULL;
}

/* --- the whole ----------------------------------------------------------- */

int coproc_new(const struct coproc_conf *conf, struct coproc **ret,
	       struct err *e)
{
	struct coproc *c = calloc(1, sizeof(*c));

	assert(conf->window > 0 && conf->window <= WINDOW_MAX);
	if (c)
		c->slots = calloc(conf->window, sizeof(struct coproc_call *));
	if (!c || !c->slots) {
		free(c);
		return err_sys(e, ENOMEM, "start %s", conf->argv[0]);
	}
	c->conf = *conf;
	c->name = strrchr(conf->argv[0], '/');
	c->name = c->name ? c->name + 1 : conf->argv[0];
	c->p = (struct spawned){0, -1, -1, -1};
	c->in.fd = -1;
	c->queue_end = &c->queue;
	c->again = (struct loop_timer){.fn = on_again, .arg = c};
	c->idle = (struct loop_timer){.fn = on_idle, .arg = c};
	*ret = c;
	return 0;
}

void coproc_free(struct coproc *c)
{
	struct err e = {0};

	if (!c)
		return;
	err_set(&e, -EPIPE, "helper_lost", "the daemon ends");
	e.infra = true;
	for (unsigned i = 0; i < c->conf.window; i++)
		if (c->slots[i])
			call_fail(c->slots[i], &e);
	while (c->queue)
		call_fail(c->queue, &e);
	loop_timer_set(c->conf.loop, &c->again, 0);
	loop_timer_set(c->conf.loop, &c->idle, 0);
	if (c->p.pid)
		forget(c);
	free(c->slots);
	free(c);
}

void coproc_stats(const struct coproc *c, struct coproc_stats *ret)
{
	*ret = (struct coproc_stats){.pid = c->p.pid,
				     .running = c->running,
				     .waiting = c->waiting,
				     .restarts = c->restarts,
				     .asked = c->asked,
				     .lost = c->lost};
}
