/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "serve/frame.h"

#define ID_MAX	   128
#define VALUE_COST 64

void frame_reader_done(struct frame_reader *r)
{
	buf_done(&r->line);
	json_decref(r->obj);
	*r = (struct frame_reader){0};
}

bool frame_id_ok(const json_t *id)
{
	size_t len = json_string_length(id);

	return json_is_integer(id) ||
	       (json_is_string(id) && len > 0 && len <= ID_MAX);
}

/* Is it an announcement, and one that can be kept to? */
static int announced(const json_t *obj, size_t *ret, struct err *e)
{
	const json_t *stream = json_object_get(obj, "stream");
	int64_t n = json_int(obj, "bytes", 0);
	size_t name = json_string_length(stream);

	*ret = 0;
	if (strcmp(json_str(obj, "event"), "data"))
		return 0;
	if (n < 1 || n > FRAME_DATA_MAX)
		return err_set(e, -EBADMSG, "bad_value",
			       "'bytes' of an event 'data': 1 to %d",
			       FRAME_DATA_MAX);
	if (name < 1 || name >= FRAME_STREAM_MAX ||
	    !frame_id_ok(json_object_get(obj, "id")))
		return err_set(e, -EBADMSG, "bad_value",
			       "an event 'data' needs 'id' and 'stream'");
	*ret = (size_t)n;
	return 0;
}

static int too_long(struct err *e)
{
	return err_set(e, -EMSGSIZE, "too_large", "a line is over %d bytes",
		       JSON_LINE_MAX);
}

static bool is_blank(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
			return false;
	return true;
}

/* A value of a list or object takes more than the two bytes it may be. */
static size_t weigh(const char *text, size_t len)
{
	size_t n = 0;

	for (size_t i = 0; i < len; i++)
		n += text[i] == ',' || text[i] == '[' || text[i] == '{';
	return len + n * VALUE_COST;
}

/* 1: a line that says something. */
static int take_line(struct frame_reader *r, const char *text, size_t len,
		     struct frame *ret, struct err *e)
{
	int n;

	if (len > JSON_LINE_MAX)
		return too_long(e);
	if (is_blank(text, len))
		return 0;
	json_decref(r->obj);
	r->obj = NULL;
	r->weight = weigh(text, len);
	n = json_parse(text, len, &r->obj, e);
	if (n == 0)
		n = announced(r->obj, &r->left, e);
	if (n < 0)
		return n;
	*ret = (struct frame){.kind = FRAME_LINE, .obj = r->obj};
	return 1;
}

static void take_bytes(struct frame_reader *r, const char **data, size_t *len,
		       struct frame *ret)
{
	size_t n = *len < r->left ? *len : r->left;

	*ret = (struct frame){FRAME_DATA, r->obj, *data, n};
	r->left -= n;
	*data += n;
	*len -= n;
}

/* The rest of a line that began in an earlier piece. */
static int join_line(struct frame_reader *r, const char *text, size_t len,
		     struct frame *ret, struct err *e)
{
	int n;

	if (buf_add(&r->line, text, len) < 0)
		return err_sys(e, ENOMEM, "read a line");
	n = take_line(r, r->line.data, r->line.len, ret, e);
	/* Most lines are short: a long one leaves no memory behind. */
	buf_done(&r->line);
	return n;
}

static int keep_line(struct frame_reader *r, const char *text, size_t len,
		     struct err *e)
{
	if (r->line.len + len > JSON_LINE_MAX)
		return too_long(e);
	return buf_add(&r->line, text, len) < 0
		       ? err_sys(e, ENOMEM, "read a line")
		       : 0;
}

int frame_next(struct frame_reader *r, const char **data, size_t *len,
	       struct frame *ret, struct err *e)
{
	const char *nl, *text;
	size_t n;
	int got;

	while (*len > 0) {
		if (r->left > 0) {
			take_bytes(r, data, len, ret);
			return 1;
		}
		text = *data;
		nl = memchr(text, '\n', *len);
		n = nl ? (size_t)(nl - text) : *len;
		*data += n + (nl != NULL);
		*len -= n + (nl != NULL);
		if (!nl)
			return keep_line(r, text, n, e);
		got = r->line.len > 0 ? join_line(r, text, n, ret, e)
				      : take_line(r, text, n, ret, e);
		/* An announcement is told of with its bytes. */
		if (got < 0 || (got > 0 && r->left == 0))
			return got;
	}
	return 0;
}

int frame_put(struct buf *b, const json_t *obj, struct err *e)
{
	size_t was = b->len;
	auto_free char *text = NULL;
	size_t len;

	text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
	if (!text)
		return err_sys(e, ENOMEM, "write a line");
	len = strlen(text);
	if (len > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "a record of %zu bytes", len);
	text[len] = '\n'; /* in place of the NUL */
	if (buf_add(b, text, len + 1) < 0) {
		b->len = was;
		return err_sys(e, ENOMEM, "write a line");
	}
	return 0;
}

static int put_id(struct buf *b, const json_t *id)
{
	auto_free char *text = NULL;

	if (json_is_integer(id))
		return buf_addf(b, "%lld", (long long)json_integer_value(id));
	text = json_dumps(id, JSON_ENCODE_ANY | JSON_COMPACT);
	return text ? buf_add(b, text, strlen(text)) : -ENOMEM;
}

int frame_head(struct buf *b, const json_t *id, const char *stream, size_t len,
	       struct err *e)
{
	size_t was = b->len;
	int r = buf_addf(b, "{\"id\":");

	if (r == 0)
		r = put_id(b, id);
	if (r == 0)
		r = buf_addf(b,
			     ",\"event\":\"data\",\"stream\":\"%s\","
			     "\"bytes\":%-6zu}\n",
			     stream, len);
	if (r < 0) {
		b->len = was;
		return err_sys(e, ENOMEM, "write a line");
	}
	return 0;
}
