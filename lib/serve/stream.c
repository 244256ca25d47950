/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "serve/conn_priv.h"

#define CREDIT_STEP (STREAM_WINDOW / 4) /* that a line is worth */
#define ROOM_LEAST  (16 * 1024)

/* --- the table ------------------------------------------------------------ */

static size_t bucket_of(const json_t *id, const char *name)
{
	const char *s = json_string_value(id);
	json_int_t n = json_integer_value(id);
	uint64_t h = s ? hash_fnv(s, strlen(s)) : hash_fnv(&n, sizeof(n));

	h = hash_fnv_more(h, name, 1);
	return (h ^ h >> 32) % STREAM_TABLE;
}

static struct stream *find(const struct conn *c, const json_t *id,
			   const char *name, enum stream_way way)
{
	struct stream *s;

	if (!c->streams)
		return NULL;
	for (s = c->streams[bucket_of(id, name)]; s; s = s->next)
		if (s->way == way && !strcmp(s->name, name) &&
		    json_equal(s->id, id))
			return s;
	return NULL;
}

static void enqueue(struct stream *s)
{
	struct conn *c = s->c;

	if (s->qpprev)
		return;
	if (!c->hungry)
		c->hungry_end = &c->hungry;
	s->qnext = NULL;
	s->qpprev = c->hungry_end;
	*c->hungry_end = s;
	c->hungry_end = &s->qnext;
}

static void dequeue(struct stream *s)
{
	if (!s->qpprev)
		return;
	*s->qpprev = s->qnext;
	if (s->qnext)
		s->qnext->qpprev = s->qpprev;
	else
		s->c->hungry_end = s->qpprev;
	s->qnext = NULL;
	s->qpprev = NULL;
}

int stream_new(struct stream *s, struct conn *c, const json_t *id,
	       const char *name, struct err *e)
{
	struct stream **list;

	assert(strlen(name) < FRAME_STREAM_MAX && s->ops && s->way);
	if (!c->streams)
		c->streams = calloc(STREAM_TABLE, sizeof(struct stream *));
	if (!c->streams)
		return err_sys(e, ENOMEM, "stream");
	if (find(c, id, name, s->way))
		return err_set(e, -EEXIST, "bad_value",
			       "the id is in use: its stream '%s' has not "
			       "ended",
			       name);
	*s = (struct stream){.c = c,
			     .way = s->way,
			     .ops = s->ops,
			     .arg = s->arg};
	s->id = json_deep_copy(id);
	if (!s->id)
		return err_sys(e, ENOMEM, "stream");
	snprintf(s->name, sizeof(s->name), "%s", name);
	list = &c->streams[bucket_of(id, name)];
	s->next = *list;
	if (s->next)
		s->next->pprev = &s->next;
	*list = s;
	s->pprev = list;
	c->nstreams++;
	return 0;
}

static void loosen(struct stream *s)
{
	dequeue(s);
	*s->pprev = s->next;
	if (s->next)
		s->next->pprev = s->pprev;
	s->c->nstreams--;
	s->c = NULL;
}

void stream_done(struct stream *s)
{
	if (s->c)
		loosen(s);
	json_decref(s->id);
	*s = (struct stream){.way = s->way, .ops = s->ops, .arg = s->arg};
}

void streams_drop(struct conn *c)
{
	for (size_t i = 0; c->streams && i < STREAM_TABLE; i++)
		while (c->streams[i])
			loosen(c->streams[i]);
	free(c->streams);
	c->streams = NULL;
}

/* --- sending -------------------------------------------------------------- */

static size_t window_of(const struct stream *s)
{
	size_t n = s->open < STREAM_WINDOW ? STREAM_WINDOW - s->open : 0;

	/* Not a frame for every few bytes. */
	return n < ROOM_LEAST ? 0 : n;
}

size_t stream_room(struct stream *s)
{
	size_t n;

	if (!s->c || !conn_live(s->c) || s->ended)
		return 0;
	n = window_of(s);
	if (n > 0 && conn_out_len(s->c) < OUT_FULL)
		return n < STREAM_CHUNK ? n : STREAM_CHUNK;
	s->hungry = true;
	if (n > 0)
		enqueue(s);
	return 0;
}

void streams_feed(struct conn *c)
{
	struct stream *s;

	while (c->hungry && conn_live(c) && conn_out_len(c) < OUT_FULL) {
		s = c->hungry;
		dequeue(s);
		s->hungry = false;
		s->ops->room(s->arg, s);
	}
}

static int may_send(const struct stream *s, struct err *e)
{
	assert(s->way == STREAM_OUT && !s->ended);
	return s->c && conn_live(s->c)
		       ? 0
		       : err_set(e, -EPIPE, "io", "the connection is gone");
}

static int sent(struct stream *s, size_t len, struct err *e)
{
	s->open += len;
	s->moved += len;
	return conn_added(s->c, e);
}

int stream_send(struct stream *s, const void *data, size_t len, struct err *e)
{
	size_t was;
	int r = may_send(s, e);

	if (r < 0 || len == 0)
		return r;
	assert(len <= STREAM_CHUNK);
	was = s->c->out.len;
	r = frame_head(&s->c->out, s->id, s->name, len, e);
	if (r < 0)
		return r;
	if (buf_add(&s->c->out, data, len) < 0) {
		s->c->out.len = was;
		return err_sys(e, ENOMEM, "send");
	}
	return sent(s, len, e);
}

ssize_t stream_fill(struct stream *s, int fd, struct err *e)
{
	size_t room = stream_room(s), was, head;
	struct buf *out;
	char first;
	ssize_t n;
	int r;

	if (room == 0)
		return err_set(e, -ENOBUFS, "busy", "no room");
	/* Straight to where it is sent from, behind a head as long as the one
	 * that it gets. */
	out = &s->c->out;
	was = out->len;
	r = frame_head(out, s->id, s->name, room, e);
	if (r < 0)
		return r;
	head = out->len - was;
	if (buf_reserve(out, room) < 0) {
		out->len = was;
		return err_sys(e, ENOMEM, "send");
	}
	do
		n = read(fd, out->data + out->len, room);
	while (n < 0 && errno == EINTR);
	r = errno;
	out->len = was;
	if (n <= 0)
		return n == 0 ? 0 : err_sys(e, r, "read what is to be sent");
	/* The head ends where the bytes begin, and a buffer ends with a NUL. */
	first = out->data[was + head];
	r = frame_head(out, s->id, s->name, (size_t)n, e);
	if (r < 0)
		return r;
	assert(out->len == was + head);
	out->data[was + head] = first;
	out->len += (size_t)n;
	r = sent(s, (size_t)n, e);
	return r < 0 ? r : n;
}

static int say(struct stream *s, const char *event, size_t bytes, struct err *e)
{
	auto_json json_t *line = NULL;
	int r = json_pack_or(&line, e, "{s:O, s:s, s:s}", "id", s->id, "event",
			     event, "stream", s->name);

	if (r == 0 && bytes > 0)
		json_object_set_new(line, "bytes",
				    json_integer((json_int_t)bytes));
	return r < 0 ? r : conn_put(s->c, line, e);
}

int stream_eof(struct stream *s, struct err *e)
{
	int r = may_send(s, e);

	if (r < 0)
		return r;
	s->ended = true;
	dequeue(s);
	return say(s, "eof", 0, e);
}

/* --- receiving ------------------------------------------------------------ */

void stream_taken(struct stream *s, size_t n)
{
	assert(s->way == STREAM_IN);
	if (!s->c)
		return;
	s->taken += n;
	assert(s->taken <= s->open);
	if (s->taken < CREDIT_STEP || s->ended || !conn_live(s->c))
		return;
	n = s->taken;
	s->open -= n;
	s->taken = 0;
	(void)say(s, "credit", n, NULL);
}

static int take_data(struct conn *c, const struct frame *f, const json_t *id,
		     const char *name, struct err *e)
{
	struct stream *s = find(c, id, name, STREAM_IN);

	/* It may have ended here while these were on their way. */
	if (!s)
		return 1;
	if (s->ended)
		return err_set(e, -EBADMSG, "bad_record",
			       "bytes of '%s' after its end", name);
	if (f->len > STREAM_WINDOW - s->open)
		return err_set(e, -EBADMSG, "bad_record",
			       "more bytes of '%s' than there was credit for",
			       name);
	s->open += f->len;
	s->moved += f->len;
	s->ops->data(s->arg, s, f->data, f->len);
	return 1;
}

static int take_eof(struct conn *c, const json_t *id, const char *name)
{
	struct stream *s = find(c, id, name, STREAM_IN);

	if (!s || s->ended)
		return 1;
	s->ended = true;
	s->ops->eof(s->arg, s);
	return 1;
}

static int take_credit(struct conn *c, const json_t *obj, const json_t *id,
		       const char *name, struct err *e)
{
	struct stream *s = find(c, id, name, STREAM_OUT);
	int64_t n = json_int(obj, "bytes", 0);

	if (!s)
		return 1;
	if (n < 1 || (uint64_t)n > s->open)
		return err_set(e, -EBADMSG, "bad_record",
			       "credit of '%s' for bytes that were not sent",
			       name);
	s->open -= (size_t)n;
	if (s->hungry && window_of(s) > 0) {
		enqueue(s);
		conn_soon(c);
	}
	return 1;
}

int streams_take(struct conn *c, const struct frame *f, struct err *e)
{
	const json_t *id = json_object_get(f->obj, "id");
	const char *name = json_str(f->obj, "stream");
	const char *event = json_str(f->obj, "event");
	bool eof = !strcmp(event, "eof");

	if (f->kind == FRAME_DATA)
		return take_data(c, f, id, name, e);
	if (!eof && strcmp(event, "credit"))
		return 0;
	if (!frame_id_ok(id) || !*name || strlen(name) >= FRAME_STREAM_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "an event '%s' needs 'id' and 'stream'", event);
	return eof ? take_eof(c, id, name)
		   : take_credit(c, f->obj, id, name, e);
}
