/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/once.h"
#include "serve/spawn.h"
#include "wire/jsonl.h"

#define RETRY_MS 100

struct once {
	struct loop *loop;
	const struct once_ops *ops;
	void *arg;
	struct spawned p;
	struct jsonl in;
	struct loop_source src;
	struct loop_timer again;
	bool busy, freed; /* in a callback; and freed there */
	bool held;
};

static void done(struct once *o)
{
	loop_del(o->loop, &o->src);
	loop_timer_set(o->loop, &o->again, 0);
	jsonl_done(&o->in);
	spawn_done(&o->p);
	free(o);
}

void once_free(struct once *o)
{
	if (!o)
		return;
	if (o->busy) {
		o->freed = true;
		return;
	}
	if (o->p.pid > 0) {
		kill(o->p.pid, SIGKILL);
		(void)spawn_wait(&o->p);
	}
	done(o);
}

static void end(struct once *o, int r)
{
	int status;

	/* At its end it has said all; or it says what makes no sense. */
	if (r != 0)
		kill(o->p.pid, SIGKILL);
	status = spawn_wait(&o->p);
	o->ops->end(o->arg, r == 0 ? status : -1);
	done(o);
}

static void take(struct once *o)
{
	size_t len;
	char *text;
	int r = -EAGAIN;

	while (!o->held && (r = jsonl_next(&o->in, &text, &len, NULL)) == 1) {
		auto_json json_t *rec = NULL;

		r = json_parse(text, len, &rec, NULL);
		if (r < 0)
			break;
		o->busy = true;
		o->ops->record(o->arg, rec);
		o->busy = false;
		if (o->freed) {
			once_free(o);
			return;
		}
	}
	if (!o->held && r != -EAGAIN)
		end(o, r);
}

static void on_out(struct loop *l, struct loop_source *s, uint32_t events)
{
	(void)l;
	(void)events;
	take(s->arg);
}

/* Lines that were read already make no event. */
static void on_again(struct loop *l, struct loop_timer *t)
{
	struct once *o = t->arg;

	if (!o->src.fn &&
	    loop_add(l, &o->src, o->p.from, EPOLLIN, on_out, o, NULL) < 0)
		loop_timer_set(l, t, clock_ms() + RETRY_MS);
	else
		take(o);
}

void once_hold(struct once *o, bool on)
{
	if (o->held == on)
		return;
	o->held = on;
	/* Not only its events: that it ended would be told over and over. */
	if (on)
		loop_del(o->loop, &o->src);
	loop_timer_set(o->loop, &o->again, on ? 0 : clock_ms());
}

int once_new(struct loop *l, const char *const *argv,
	     const struct once_ops *ops, void *arg, struct once **ret,
	     struct err *e)
{
	struct once *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return err_sys(e, ENOMEM, "start %s", argv[0]);
	o->loop = l;
	o->ops = ops;
	o->arg = arg;
	o->again = (struct loop_timer){.fn = on_again, .arg = o};
	r = spawn_filter(argv, &o->p, e);
	if (r == 0) {
		fd_close(steal_fd(&o->p.to)); /* it is asked nothing */
		o->in.fd = o->p.from;
		r = loop_add(l, &o->src, o->p.from, EPOLLIN, on_out, o, e);
	}
	if (r < 0) {
		if (o->p.pid > 0) {
			kill(o->p.pid, SIGKILL);
			(void)spawn_wait(&o->p);
		}
		spawn_done(&o->p);
		free(o);
		return r;
	}
	*ret = o;
	return 0;
}
