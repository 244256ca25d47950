/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/denied.h"
#include "wire/json.h"

struct denied {
	struct loop *loop;
	int fd;		      /* -1: none, or it is full or broken */
	unsigned tokens;      /* thousandths of a line */
	uint64_t at_ms;	      /* when they were counted */
	uint64_t own, *total; /* where it is counted */
	uint64_t unsaid;
	off_t size;
	struct loop_timer later; /* tells what is unsaid when all is quiet */
	enum netpol_proto proto; /* of the last that was not written */
	const char *why;
};

static bool may_write(struct denied *d)
{
	uint64_t now = clock_ms(), most = 1000 * DENIED_BURST, more = most;

	if (d->at_ms)
		more = (now - d->at_ms) * DENIED_PER_S >>
		       d->size * DENIED_STEPS / DENIED_MAX;
	/* A part of a thousandth counts when it has become a whole one. */
	if (more > 0) {
		d->at_ms = now;
		more += d->tokens;
		d->tokens = (unsigned)(more < most ? more : most);
	}
	if (d->tokens < 1000)
		return false;
	d->tokens -= 1000;
	return true;
}

static json_t *line_of(const struct denied_event *ev, uint64_t n)
{
	char addr[NETADDR_TEXT];
	json_t *o = json_object();
	int r;

	r = json_object_set_new(o, "at_ms",
				json_integer((json_int_t)clock_wall_ms()));
	if (ev->name)
		r |= json_object_set_new(o, "name", json_string(ev->name));
	if (ev->addr)
		r |= json_object_set_new(o, "addr",
					 json_string(
						 netaddr_text(ev->addr, addr)));
	if (ev->port)
		r |= json_object_set_new(o, "port", json_integer(ev->port));
	r |= json_object_set_new(o, "proto",
				 json_string(netpol_proto_word(ev->proto)));
	r |= json_object_set_new(o, "why", json_string(ev->why));
	if (n > 0)
		r |= json_object_set_new(o, "n", json_integer((json_int_t)n));
	if (r == 0)
		return o;
	json_decref(o);
	return NULL;
}

/* A disk that is full is no reason to stop: it is counted. */
static bool put(struct denied *d, const struct denied_event *ev, uint64_t n)
{
	auto_json json_t *o = line_of(ev, n);
	auto_free char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
	size_t len = text ? strlen(text) : 0;

	if (!text || d->size + (off_t)len + 1 > DENIED_MAX)
		return false;
	text[len++] = '\n'; /* in place of the NUL */
	if (write(d->fd, text, len) != (ssize_t)len)
		return false;
	d->size += (off_t)len;
	return true;
}

static void on_later(struct loop *l, struct loop_timer *t)
{
	struct denied *d = t->arg;
	const struct denied_event ev = {.proto = d->proto, .why = d->why};

	if (d->unsaid == 0 || d->fd < 0)
		return;
	if (!may_write(d)) {
		loop_timer_set(l, t, clock_ms() + 1000);
		return;
	}
	if (put(d, &ev, d->unsaid - 1))
		d->unsaid = 0;
}

void denied_add(struct denied *d, const struct denied_event *ev)
{
	if (!ev->counted)
		*d->total += 1 + ev->more;
	if (d->fd >= 0 && d->size < DENIED_MAX && may_write(d) &&
	    put(d, ev, d->unsaid + ev->more)) {
		d->unsaid = 0;
		return;
	}
	d->unsaid += 1 + ev->more;
	d->proto = ev->proto;
	d->why = ev->why;
	if (d->fd >= 0 && d->size < DENIED_MAX && !d->later.at_ms)
		loop_timer_set(d->loop, &d->later, clock_ms() + 1000);
}

void denied_file(struct denied *d, int fd)
{
	struct stat st;

	if (d->fd >= 0)
		fd_close(d->fd);
	d->fd = fd;
	d->size = fd >= 0 && fstat(fd, &st) == 0 ? st.st_size : 0;
}

int denied_new(struct loop *l, int fd, struct denied **ret, struct err *e)
{
	struct denied *d = calloc(1, sizeof(*d));

	if (!d)
		return err_sys(e, ENOMEM, "denied attempts");
	d->loop = l;
	d->fd = -1;
	d->total = &d->own;
	d->later = (struct loop_timer){.fn = on_later, .arg = d};
	denied_file(d, fd);
	*ret = d;
	return 0;
}

void denied_free(struct denied *d)
{
	if (!d)
		return;
	loop_timer_set(d->loop, &d->later, 0);
	if (d->fd >= 0)
		fd_close(d->fd);
	free(d);
}

void denied_total(struct denied *d, uint64_t *at)
{
	d->total = at;
}

uint64_t denied_count(const struct denied *d)
{
	return *d->total;
}
