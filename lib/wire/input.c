/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "wire/input.h"
#include "wire/jsonl.h"

#define CHUNK 65536

struct input {
	struct loop *loop;
	struct input_from from;
	struct jsonl lines; /* fed: its fd is -1 */
	struct loop_source source;
	struct loop_timer soon; /* calls work() from the loop */
	bool plain; /* a file that epoll will not watch: always readable */
	bool watched, readable, held, ended;
};

static void work_soon(struct input *in)
{
	loop_timer_set(in->loop, &in->soon, clock_ms());
}

/* Taken out, not masked: a hang-up is reported whatever the mask is. */
static void unwatch(struct input *in)
{
	if (in->watched)
		loop_del(in->loop, &in->source);
	in->watched = false;
}

static void end(struct input *in, const struct err *why)
{
	in->ended = true;
	unwatch(in);
	in->from.ops->end(in->from.arg, why);
}

/* One read; it does not wait, because the loop said so. */
static int take_bytes(struct input *in, struct err *e)
{
	auto_free char *chunk = malloc(CHUNK);
	ssize_t n;

	if (!chunk)
		return err_sys(e, ENOMEM, "read records");
	in->readable = false;
	do
		n = read(in->from.fd, chunk, CHUNK);
	while (n < 0 && errno == EINTR);
	if (n < 0 && errno == EAGAIN)
		return 0;
	if (n < 0)
		return err_sys(e, errno, "read records");
	if (n == 0)
		in->lines.eof = true;
	else if (jsonl_feed(&in->lines, chunk, (size_t)n) < 0)
		return err_sys(e, ENOMEM, "read records");
	return 0;
}

/* Not even an object: its id is the number of the line. */
static void give_id(const struct input *in, struct input_line *line)
{
	if (!line->req && json_pack_or(&line->req, NULL, "{s:I}", "id",
				       (json_int_t)in->lines.line) < 0)
		line->req = NULL;
}

static void hand_over(struct input *in, const char *text, size_t len)
{
	struct record_line at = {text, len, in->lines.line};
	struct input_line line = {.kind = RECORD_REQUEST};
	struct err e = {0};
	int r;

	r = record_take(&at, in->from.fields, in->from.nfields,
			in->from.defaults, &line.kind, &line.req, &e);
	if (r < 0) {
		line.bad = &e;
		give_id(in, &line);
	}
	in->from.ops->line(in->from.arg, &line);
}

/*
 * Whole lines that are here: 1 when held, 0 at the end, -EAGAIN when more must
 * be read first.
 */
static int hand_over_all(struct input *in, struct err *e)
{
	struct input_line line;
	char *text;
	size_t len;
	int r;

	while (!in->held) {
		struct err why = {0};

		r = jsonl_next(&in->lines, &text, &len, &why);
		if (r == 1) {
			hand_over(in, text, len);
		} else if (r == -EMSGSIZE) {
			line = (struct input_line){.bad = &why};
			give_id(in, &line);
			in->from.ops->line(in->from.arg, &line);
		} else {
			*e = why;
			return r;
		}
	}
	return 1;
}

static int watch(struct input *in, struct err *e);

static void work(struct input *in)
{
	struct err e = {0};
	int r;

	if (in->ended)
		return;
	r = hand_over_all(in, &e);
	if (r == 1)
		return;
	if (r == 0) {
		end(in, NULL);
		return;
	}
	if (r == -EAGAIN && !in->plain && !in->readable) {
		r = watch(in, &e);
		if (r == 0)
			return;
	}
	if (r == -EAGAIN)
		r = take_bytes(in, &e);
	if (r == 0)
		work_soon(in);
	else
		end(in, &e);
}

static void on_readable(struct loop *l, struct loop_source *s, uint32_t events)
{
	struct input *in = s->arg;

	(void)l;
	(void)events;
	unwatch(in); /* not again before this was read */
	in->readable = true;
	work(in);
}

/* -EAGAIN: it is a file of the kind that is always readable. */
static int watch(struct input *in, struct err *e)
{
	int r;

	if (in->watched)
		return 0;
	r = loop_add(in->loop, &in->source, in->from.fd, EPOLLIN, on_readable,
		     in, e);
	in->watched = r == 0;
	in->plain = r == -EPERM;
	return in->plain ? -EAGAIN : r;
}

static void on_soon(struct loop *l, struct loop_timer *t)
{
	(void)l;
	work(t->arg);
}

int input_new(struct loop *l, const struct input_from *from,
	      struct input **ret_input, struct err *e)
{
	struct input *in = calloc(1, sizeof(*in));

	if (!in)
		return err_sys(e, ENOMEM, "read records");
	in->loop = l;
	in->from = *from;
	in->lines.fd = -1;
	in->soon = (struct loop_timer){.fn = on_soon, .arg = in};
	work_soon(in);
	*ret_input = in;
	return 0;
}

void input_free(struct input *in)
{
	if (!in)
		return;
	unwatch(in);
	loop_timer_set(in->loop, &in->soon, 0);
	jsonl_done(&in->lines);
	free(in);
}

void input_hold(struct input *in, bool on)
{
	in->held = on;
	if (!on && !in->ended)
		work_soon(in);
}

int input_wanted(const char *give, struct err *e)
{
	return isatty(STDIN_FILENO)
		       ? err_set(e, -EINVAL, "usage",
				 "nothing is asked for: give %s, or requests "
				 "on standard input",
				 give)
		       : 0;
}
