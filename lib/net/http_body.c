/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "net/http.h"

#define EXTENSION_MAX 256

/* Where in a chunked body the next byte is. */
enum {
	SIZE,
	EXTENSION,
	SIZE_LF,
	DATA,
	DATA_CR,
	DATA_LF,
	TRAILER, /* at the beginning of a line */
	TRAILER_LINE,
	TRAILER_LF,
	END_LF,
};

void http_reader_init(struct http_reader *r, const struct http_head *h)
{
	*r = (struct http_reader){.body = h->body, .left = h->length};
	if (h->body == HTTP_NO_BODY || (h->body == HTTP_LENGTH && !r->left))
		r->done = true;
	if (h->body == HTTP_CHUNKED)
		r->left = 0;
}

static int hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static int size_byte(struct http_reader *r, char c)
{
	int v = hex(c);

	if (v >= 0) {
		r->left = r->left << 4 | (unsigned)v;
		/* 60 bits are enough for anybody, and do not overflow. */
		return ++r->digits > 15 ? -EBADMSG : 0;
	}
	if (r->digits == 0 || (c != '\r' && c != ';'))
		return -EBADMSG;
	r->state = c == ';' ? EXTENSION : SIZE_LF;
	r->skipped = 0;
	return 0;
}

/* A byte of what is passed over; a line of it ends with CRLF. */
static int skip_byte(struct http_reader *r, char c, unsigned max, int lf)
{
	if (c == '\r')
		r->state = (uint8_t)lf;
	else if (((unsigned char)c < ' ' && c != '\t') || c == 127 ||
		 ++r->skipped > max)
		return -EBADMSG;
	return 0;
}

static int expect(struct http_reader *r, char c, char want, int next)
{
	if (c != want)
		return -EBADMSG;
	r->state = (uint8_t)next;
	return 0;
}

/* A byte that is none of the body's own. */
static int frame_byte(struct http_reader *r, char c)
{
	switch (r->state) {
	case SIZE:
		return size_byte(r, c);
	case EXTENSION:
		return skip_byte(r, c, EXTENSION_MAX, SIZE_LF);
	case SIZE_LF:
		r->skipped = 0;
		r->digits = 0;
		return expect(r, c, '\n', r->left ? DATA : TRAILER);
	case DATA_CR:
		return expect(r, c, '\r', DATA_LF);
	case DATA_LF:
		return expect(r, c, '\n', SIZE);
	case TRAILER:
		if (c == '\r') {
			r->state = END_LF;
			return 0;
		}
		r->state = TRAILER_LINE;
		return skip_byte(r, c, HTTP_TRAILER_MAX, TRAILER_LF);
	case TRAILER_LINE:
		return skip_byte(r, c, HTTP_TRAILER_MAX, TRAILER_LF);
	case TRAILER_LF:
		return expect(r, c, '\n', TRAILER);
	case END_LF:
		r->done = true;
		return expect(r, c, '\n', END_LF);
	}
	return -EBADMSG;
}

static ssize_t take_run(struct http_reader *r, const char *data, size_t len,
			struct http_str *ret)
{
	size_t n = len < r->left ? len : (size_t)r->left;

	*ret = (struct http_str){data, n};
	r->left -= n;
	return (ssize_t)n;
}

ssize_t http_read(struct http_reader *r, const char *data, size_t len,
		  struct http_str *ret)
{
	size_t used = 0;
	ssize_t n;

	*ret = (struct http_str){data, 0};
	if (r->done || len == 0)
		return 0;
	if (r->body == HTTP_TO_END) {
		ret->len = len;
		return (ssize_t)len;
	}
	if (r->body == HTTP_LENGTH) {
		n = take_run(r, data, len, ret);
		r->done = r->left == 0;
		return n;
	}
	while (used < len && r->state != DATA && !r->done)
		if (frame_byte(r, data[used++]) < 0)
			return -EBADMSG;
	if (r->state != DATA)
		return (ssize_t)used;
	n = take_run(r, data + used, len - used, ret);
	if (r->left == 0)
		r->state = DATA_CR;
	return (ssize_t)used + n;
}
