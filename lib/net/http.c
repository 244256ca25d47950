/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <strings.h>

#include "net/http.h"

static int refuse(struct http_head *h, int error, const char *why)
{
	h->error = error;
	h->why = why;
	return -EBADMSG;
}

static bool is_token(unsigned char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
	       (c >= 'A' && c <= 'Z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

bool http_token(const char *text)
{
	size_t n = 0;

	while (is_token((unsigned char)text[n]))
		n++;
	return n && !text[n];
}

bool http_is(struct http_str s, const char *text)
{
	return s.len == strlen(text) && !strncasecmp(s.at, text, s.len);
}

/*
 * The line at *${at}, without its CRLF: 1; 0: it is not there whole; -1: an LF
 * without CR or a CR without LF.
 */
static int next_line(const char *data, size_t len, size_t *at,
		     struct http_str *ret)
{
	const char *p = data + *at, *end = data + len;

	for (; p < end; p++) {
		if (*p == '\n')
			return -1;
		if (*p != '\r')
			continue;
		if (p + 1 == end)
			return 0;
		if (p[1] != '\n')
			return -1;
		ret->at = data + *at;
		ret->len = (size_t)(p - ret->at);
		*at = (size_t)(p - data) + 2;
		return 1;
	}
	return 0;
}

static struct http_str trim(struct http_str s)
{
	while (s.len && (*s.at == ' ' || *s.at == '\t')) {
		s.at++;
		s.len--;
	}
	while (s.len && (s.at[s.len - 1] == ' ' || s.at[s.len - 1] == '\t'))
		s.len--;
	return s;
}

/* The next element of a list with commas; false: there is none. */
static bool next_word(struct http_str *list, struct http_str *ret)
{
	const char *comma;

	if (list->len == 0)
		return false;
	comma = memchr(list->at, ',', list->len);
	ret->at = list->at;
	ret->len = comma ? (size_t)(comma - list->at) : list->len;
	list->at += ret->len + (comma != NULL);
	list->len -= ret->len + (comma != NULL);
	*ret = trim(*ret);
	return true;
}

static int take_field_line(struct http_head *h, struct http_str line)
{
	struct http_field *f = &h->fields[h->nfields];
	size_t n = 0;

	if (h->nfields == HTTP_FIELDS_MAX)
		return refuse(h, 431, "too many header fields");
	while (n < line.len && is_token((unsigned char)line.at[n]))
		n++;
	if (n == 0 || n == line.len || line.at[n] != ':')
		return refuse(h, 400, "a malformed header field");
	f->name = (struct http_str){line.at, n};
	f->value = trim((struct http_str){line.at + n + 1, line.len - n - 1});
	for (size_t i = 0; i < f->value.len; i++) {
		unsigned char c = (unsigned char)f->value.at[i];

		if ((c < ' ' && c != '\t') || c == 127)
			return refuse(h, 400, "a control byte in a field");
	}
	h->nfields++;
	return 0;
}

static int take_length(struct http_head *h, struct http_str v)
{
	uint64_t n = 0;

	if (h->body != HTTP_NO_BODY)
		return refuse(h, 400, "the length is said twice");
	if (v.len == 0 || v.len > 18)
		return refuse(h, 400, "a malformed length");
	for (size_t i = 0; i < v.len; i++) {
		if (v.at[i] < '0' || v.at[i] > '9')
			return refuse(h, 400, "a malformed length");
		n = n * 10 + (uint64_t)(v.at[i] - '0');
	}
	h->body = HTTP_LENGTH;
	h->length = n;
	return 0;
}

static int take_encoding(struct http_head *h, struct http_str v)
{
	if (h->body != HTTP_NO_BODY)
		return refuse(h, 400, "the length is said twice");
	if (!http_is(v, "chunked"))
		return refuse(h, 501, "a transfer coding that is not known");
	h->body = HTTP_CHUNKED;
	return 0;
}

static int take_connection(struct http_head *h, struct http_str v, bool *up)
{
	struct http_str word;

	while (next_word(&v, &word)) {
		if (http_is(word, "close"))
			h->close = true;
		if (http_is(word, "upgrade"))
			*up = true;
	}
	return 0;
}

/* The fields that say what the message is. */
static int take_meaning(struct http_head *h, bool request)
{
	bool up = false, websocket = false;
	int r = 0;

	for (size_t i = 0; r == 0 && i < h->nfields; i++) {
		const struct http_field *f = &h->fields[i];

		if (http_is(f->name, "content-length"))
			r = take_length(h, f->value);
		else if (http_is(f->name, "transfer-encoding"))
			r = take_encoding(h, f->value);
		else if (http_is(f->name, "connection"))
			r = take_connection(h, f->value, &up);
		else if (http_is(f->name, "upgrade"))
			websocket = http_is(f->value, "websocket");
		else if (http_is(f->name, "content-encoding"))
			h->encoded |= !http_is(f->value, "identity");
		else if (request && http_is(f->name, "expect")) {
			if (!http_is(f->value, "100-continue"))
				r = refuse(h, 417, "an unknown expectation");
			h->expect = true;
		} else if (request && http_is(f->name, "host")) {
			if (h->host.at)
				r = refuse(h, 400, "two hosts");
			h->host = f->value;
		}
	}
	h->upgrade = up && websocket;
	return r;
}

/* All lines but the first, which is in *${first}. */
static int take_head(const char *data, size_t len, struct http_head *h,
		     struct http_str *first)
{
	struct http_str line;
	size_t at = 0;
	bool begun = false;
	int r;

	memset(h, 0, offsetof(struct http_head, fields));
	h->error = 0;
	h->why = NULL;
	if (len > HTTP_HEAD_MAX)
		len = HTTP_HEAD_MAX;
	for (;;) {
		r = next_line(data, len, &at, &line);
		if (r < 0)
			return refuse(h, 400, "a line without CRLF");
		if (r == 0 && len == HTTP_HEAD_MAX)
			return refuse(h, 431, "the head is too long");
		if (r == 0)
			return 0;
		if (begun && line.len == 0)
			break;
		if (!begun)
			*first = line;
		else if (take_field_line(h, line) < 0)
			return -EBADMSG;
		begun = true;
	}
	h->len = at;
	return 1;
}

static bool take_word(struct http_str *line, char end, struct http_str *ret)
{
	const char *p = memchr(line->at, end, line->len);

	if (!p)
		return false;
	ret->at = line->at;
	ret->len = (size_t)(p - line->at);
	line->at = p + 1;
	line->len -= ret->len + 1;
	return ret->len > 0;
}

static int take_request_line(struct http_head *h, struct http_str line)
{
	if (!take_word(&line, ' ', &h->method) || h->method.len > 16 ||
	    !take_word(&line, ' ', &h->target))
		return refuse(h, 400, "a malformed request line");
	for (size_t i = 0; i < h->method.len; i++)
		if (h->method.at[i] < 'A' || h->method.at[i] > 'Z')
			return refuse(h, 400, "a malformed method");
	for (size_t i = 0; i < h->target.len; i++) {
		unsigned char c = (unsigned char)h->target.at[i];

		if (c <= ' ' || c >= 127 || c == '#' || c == '\\')
			return refuse(h, 400, "a malformed target");
	}
	if (*h->target.at != '/')
		return refuse(h, 400, "a target that is no path");
	if (line.len == 8 && !memcmp(line.at, "HTTP/1.1", 8))
		return 0;
	if (line.len == 8 && !memcmp(line.at, "HTTP/", 5))
		return refuse(h, 505, "not HTTP/1.1");
	return refuse(h, 400, "a malformed request line");
}

int http_request(const char *data, size_t len, struct http_head *ret)
{
	struct http_str line = {0};
	int r = take_head(data, len, ret, &line);

	if (r <= 0)
		return r;
	if (take_request_line(ret, line) < 0 || take_meaning(ret, true) < 0)
		return -EBADMSG;
	if (!ret->host.at)
		return refuse(ret, 400, "no host");
	if (ret->upgrade && ret->body != HTTP_NO_BODY)
		return refuse(ret, 400, "an upgrade with a body");
	return 1;
}

static int take_status_line(struct http_head *h, struct http_str line)
{
	const char *p = line.at;

	if (line.len < 12 || memcmp(p, "HTTP/1.", 7) != 0 ||
	    (p[7] != '0' && p[7] != '1') || p[8] != ' ' ||
	    (line.len > 12 && p[12] != ' '))
		return refuse(h, 502, "a malformed status line");
	h->old = p[7] == '0';
	h->status = 0;
	for (int i = 9; i < 12; i++) {
		if (p[i] < '0' || p[i] > '9')
			return refuse(h, 502, "a malformed status line");
		h->status = h->status * 10 + (p[i] - '0');
	}
	if (h->status < 100 || h->status > 599)
		return refuse(h, 502, "a malformed status line");
	return 0;
}

int http_answer(const char *data, size_t len, bool head, struct http_head *ret)
{
	struct http_str line = {0};
	int r = take_head(data, len, ret, &line);

	if (r == 1 &&
	    (take_status_line(ret, line) < 0 || take_meaning(ret, false) < 0))
		r = -EBADMSG;
	if (r < 0)
		ret->error = 502;
	if (r != 1)
		return r;
	if (ret->old && ret->body == HTTP_CHUNKED)
		return refuse(ret, 502, "chunks in HTTP/1.0");
	if (head || ret->status < 200 || ret->status == 204 ||
	    ret->status == 304)
		ret->body = HTTP_NO_BODY;
	else if (ret->body == HTTP_NO_BODY)
		ret->body = HTTP_TO_END;
	return 1;
}

bool http_drops(const struct http_head *h, const struct http_field *f)
{
	static const char *const names[] = {
		"connection", "keep-alive",	"te",
		"trailer",    "upgrade",	"transfer-encoding",
		"expect",     "content-length", "host",
	};
	struct http_str list, word;

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
		if (http_is(f->name, names[i]))
			return true;
	if (f->name.len >= 6 && !strncasecmp(f->name.at, "proxy-", 6))
		return true;
	for (size_t i = 0; i < h->nfields; i++) {
		if (!http_is(h->fields[i].name, "connection"))
			continue;
		list = h->fields[i].value;
		while (next_word(&list, &word))
			if (word.len == f->name.len &&
			    !strncasecmp(word.at, f->name.at, word.len))
				return true;
	}
	return false;
}
