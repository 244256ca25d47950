/* SPDX-License-Identifier: Apache-2.0 */
#ifndef NET_HTTP_H
#define NET_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

/*
 * HTTP/1.1 heads and bodies between a sandbox and an upstream that hold
 * different views of what is one message and what is two.  So there is one
 * reading of everything or none: lines end with CRLF, no folded lines, no space
 * before a colon, one Content-Length or one "chunked" and never both, no
 * control bytes.  What is passed on is written anew from what was understood.
 *
 * Nothing is allocated by parsing: strings point into the caller's bytes.
 */

#define HTTP_HEAD_MAX	 32768 /* bytes of a head */
#define HTTP_FIELDS_MAX	 100
#define HTTP_TRAILER_MAX 8192

struct http_str {
	const char *at;
	size_t len;
};

struct http_field {
	struct http_str name, value; /* value without the space around it */
};

enum http_body {
	HTTP_NO_BODY,
	HTTP_LENGTH, /* length bytes */
	HTTP_CHUNKED,
	HTTP_TO_END, /* of the connection; answers alone */
};

struct http_head {
	size_t len; /* bytes, the empty line included */
	struct http_str method, target, host; /* of a request */
	int status;			      /* of an answer */
	bool old;			      /* an answer of HTTP/1.0 */
	enum http_body body;
	uint64_t length;
	bool close;   /* Connection: close */
	bool upgrade; /* Connection: upgrade, and Upgrade: websocket */
	bool expect;  /* Expect: 100-continue */
	bool encoded; /* a Content-Encoding other than identity */
	size_t nfields;
	struct http_field fields[HTTP_FIELDS_MAX];
	/* refused: what to answer, and why, a literal */
	int error;
	const char *why;
};

/*
 * http_request(data, len, ret), http_answer(data, len, head, ret):
 * The head at the beginning of ${data}; ${head}: it answers HEAD.  1: in
 * *${ret}; 0: more is needed; -EBADMSG: refused, see ret->error (of an answer:
 * 502).
 */
int http_request(const char *data, size_t len, struct http_head *ret);
int http_answer(const char *data, size_t len, bool head, struct http_head *ret);

/* http_is(s, text): is it ${text}, in any case? */
bool http_is(struct http_str s, const char *text);

/* http_token(text): is it a method or a field's name? */
bool http_token(const char *text);

/*
 * http_drops(h, f): is field ${f} of ${h} for this connection alone: those that
 * frame the message, Connection and what it names, and the like?
 */
bool http_drops(const struct http_head *h, const struct http_field *f);

/* The body of a message, as its bytes come. */
struct http_reader {
	enum http_body body;
	uint64_t left;
	uint8_t state, digits;
	uint16_t skipped; /* of an extension, a trailer */
	bool done;
};

void http_reader_init(struct http_reader *r, const struct http_head *h);

/*
 * http_read(r, data, len, ret): how many bytes of ${data} were used, which may
 * be 0 if ${len} is; a run of the body's own bytes among them is in *${ret}
 * (len 0: none).  Call it again with the rest until it uses none or r->done.
 * -EBADMSG: malformed.
 */
ssize_t http_read(struct http_reader *r, const char *data, size_t len,
		  struct http_str *ret);

#endif
