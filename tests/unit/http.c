/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "../tap.h"
#include "net/http.h"

static int request(const char *text, struct http_head *h)
{
	return http_request(text, strlen(text), h);
}

#define GET  "GET /a/b?c=1 HTTP/1.1\r\n"
#define HOST "Host: x\r\n"

static void test_request(void)
{
	static const char text[] = GET HOST "X-One:  two \t\r\n\r\nrest";
	struct http_head h;

	is_int(request(text, &h), 1, "a request");
	ok(h.method.len == 3 && h.target.len == 8, "method and target");
	ok(http_is(h.fields[1].value, "two"), "a value is trimmed");
	is_int((long long)h.len, (long long)strlen(text) - 4, "its length");
	is_int(h.body, HTTP_NO_BODY, "no body");
	for (size_t n = 0; n < h.len; n++)
		if (http_request(text, n, &h) != 0)
			ok(false, "cut at %zu", n);
	is_int(request("POST / HTTP/1.1\r\n" HOST "Content-Length: 12\r\n\r\n",
		       &h),
	       1, "with a length");
	ok(h.body == HTTP_LENGTH && h.length == 12, "of 12");
	is_int(request("POST / HTTP/1.1\r\n" HOST
		       "transfer-encoding: Chunked\r\nConnection: a, Close\r\n"
		       "Expect: 100-continue\r\n\r\n",
		       &h),
	       1, "in chunks");
	ok(h.body == HTTP_CHUNKED && h.close && h.expect, "all understood");
	is_int(request(GET HOST "Connection: keep-alive, Upgrade\r\n"
				"Upgrade: websocket\r\n\r\n",
		       &h),
	       1, "a WebSocket");
	ok(h.upgrade, "is one");
}

static const struct {
	const char *text;
	int error;
} refused[] = {
	{"GET / HTTP/1.1\n" HOST "\r\n", 400},
	{GET "Host: x\n\r\n", 400},
	{GET HOST "X: a\rb\r\n\r\n", 400},
	{GET HOST " folded: 1\r\n\r\n", 400},
	{GET HOST "X: 1\r\n\tfolded\r\n\r\n", 400},
	{GET HOST "X : 1\r\n\r\n", 400},
	{GET HOST ": 1\r\n\r\n", 400},
	{GET HOST "X\r\n\r\n", 400},
	{GET HOST "X: \1\r\n\r\n", 400},
	{GET "\r\n", 400},
	{GET HOST HOST "\r\n", 400},
	{"\r\n" GET HOST "\r\n", 400},
	{GET HOST "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
	{GET HOST "Content-Length: 1, 1\r\n\r\n", 400},
	{GET HOST "Content-Length: +1\r\n\r\n", 400},
	{GET HOST "Content-Length: 0x1\r\n\r\n", 400},
	{GET HOST "Content-Length:\r\n\r\n", 400},
	{GET HOST "Content-Length: 9999999999999999999\r\n\r\n", 400},
	{GET HOST "Content-Length: 1\r\n"
		  "Transfer-Encoding: chunked\r\n\r\n",
	 400},
	{GET HOST "Transfer-Encoding: chunked\r\n"
		  "Content-Length: 1\r\n\r\n",
	 400},
	{GET HOST "Transfer-Encoding: chunked\r\n"
		  "Transfer-Encoding: chunked\r\n\r\n",
	 400},
	{GET HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
	{GET HOST "Transfer-Encoding: xchunked\r\n\r\n", 501},
	{GET HOST "Transfer-Encoding: identity\r\n\r\n", 501},
	{GET HOST "Expect: 200-ok\r\n\r\n", 417},
	{"GET / HTTP/1.0\r\n" HOST "\r\n", 505},
	{"GET / HTTP/2.0\r\n" HOST "\r\n", 505},
	{"GET / HTTP/1.1 \r\n" HOST "\r\n", 400},
	{"GET  / HTTP/1.1\r\n" HOST "\r\n", 400},
	{"GET http://x/ HTTP/1.1\r\n" HOST "\r\n", 400},
	{"GET * HTTP/1.1\r\n" HOST "\r\n", 400},
	{"GET /#a HTTP/1.1\r\n" HOST "\r\n", 400},
	{"GET /\\a HTTP/1.1\r\n" HOST "\r\n", 400},
	{"get / HTTP/1.1\r\n" HOST "\r\n", 400},
	{"GET /\r\n" HOST "\r\n", 400},
};

static void test_refused(void)
{
	char *big = malloc(HTTP_HEAD_MAX + 100);
	struct http_head h;
	size_t n;

	for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++) {
		int r = request(refused[i].text, &h);

		ok(r == -EBADMSG && h.error == refused[i].error && h.why,
		   "refused %zu: %s (%d)", i, r < 0 ? h.why : "", h.error);
	}
	n = (size_t)sprintf(big, GET HOST "X: ");
	memset(big + n, 'a', HTTP_HEAD_MAX + 99 - n);
	is_int(http_request(big, HTTP_HEAD_MAX - 1, &h), 0, "long");
	is_int(http_request(big, HTTP_HEAD_MAX, &h), -EBADMSG, "too long");
	is_int(h.error, 431, "with its own status");
	n = (size_t)sprintf(big, GET);
	for (int i = 0; i <= HTTP_FIELDS_MAX; i++)
		n += (size_t)sprintf(big + n, "X: 1\r\n");
	is_int(http_request(big, n, &h), -EBADMSG, "too many fields");
	free(big);
}

static int answer(const char *text, bool head, struct http_head *h)
{
	return http_answer(text, strlen(text), head, h);
}

static void test_answer(void)
{
	struct http_head h;

	is_int(answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false,
		      &h),
	       1, "an answer");
	ok(h.status == 200 && h.body == HTTP_LENGTH, "with its length");
	is_int(answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, &h),
	       1, "of HEAD");
	is_int(h.body, HTTP_NO_BODY, "without a body");
	is_int(answer("HTTP/1.1 200\r\n\r\n", false, &h), 1, "no reason");
	is_int(h.body, HTTP_TO_END, "to the end");
	is_int(answer("HTTP/1.1 204 \r\n\r\n", false, &h), 1, "no content");
	is_int(h.body, HTTP_NO_BODY, "none");
	is_int(answer("HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n",
		      false, &h),
	       1, "an old one");
	ok(h.encoded && h.old, "encoded");
	is_int(answer("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
		      false, &h),
	       -EBADMSG, "chunks in an old one");
	is_int(answer("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n"
		      "Transfer-Encoding: chunked\r\n\r\n",
		      false, &h),
	       -EBADMSG, "two lengths");
	is_int(answer("HTTP/1.1 2000 OK\r\n\r\n", false, &h), -EBADMSG,
	       "four digits");
	is_int(answer("ICY 200 OK\r\n\r\n", false, &h), -EBADMSG, "no HTTP");
	is_int(h.error, 502, "is a bad gateway");
}

static bool drops(const char *text, const char *name)
{
	struct http_head h;
	char copy[512];

	snprintf(copy, sizeof(copy), GET HOST "%s: 1\r\n%s\r\n", name, text);
	if (request(copy, &h) != 1)
		return false;
	return http_drops(&h, &h.fields[1]);
}

static void test_drops(void)
{
	ok(drops("", "TE") && drops("", "Keep-Alive") &&
		   drops("", "Proxy-Authorization"),
	   "fields of one connection");
	ok(drops("Connection: X-Mine, close\r\n", "x-mine"), "what it names");
	ok(!drops("Connection: X-Mine\r\n", "X-Min"), "nothing else");
}

/* A chunked body in pieces of ${piece}: its bytes into ${out}; -1: refused;
 * -2: not at its end. */
static int dechunk(const char *text, size_t piece, char *out)
{
	struct http_head h = {.body = HTTP_CHUNKED};
	size_t len = strlen(text), at = 0, n = 0, part;
	struct http_reader r;
	struct http_str run;
	ssize_t used;

	http_reader_init(&r, &h);
	while (at < len && !r.done) {
		part = len - at < piece ? len - at : piece;
		used = http_read(&r, text + at, part, &run);
		if (used < 0)
			return -1;
		memcpy(out + n, run.at, run.len);
		n += run.len;
		at += (size_t)used;
	}
	out[n] = '\0';
	return r.done ? (int)(len - at) : -2;
}

static void test_chunks(void)
{
	static const char good[] =
		"5\r\nhello\r\n1;x=\"y\"\r\n \r\n05\r\nworld\r\n0\r\n"
		"Trailer: 1\r\n\r\nnext";
	static const char *const bad[] = {
		"\r\n",
		"x\r\n",
		"5 \r\nhello\r\n",
		"5\nhello\r\n0\r\n\r\n",
		"5\r\nhello0\r\n\r\n",
		"5\r\nhello\n0\r\n\r\n",
		"0\r\n\n",
		"0\r\nA: 1\n\r\n",
		"-1\r\n",
		"0x5\r\nhello\r\n",
		"5;a\nb\r\nhello\r\n",
		"fffffffffffffffff\r\n",
	};
	char out[256];

	for (size_t piece = 1; piece < 40; piece++)
		if (dechunk(good, piece, out) != 4 ||
		    strcmp(out, "hello world") != 0)
			ok(false, "pieces of %zu: '%s'", piece, out);
	is_int(dechunk(good, 1000, out), 4, "chunks, and what follows is left");
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		is_int(dechunk(bad[i], 3, out), -1, "bad chunks");
	is_int(dechunk("5\r\nhello\r\n0\r\n", 7, out), -2, "not at the end");
}

int main(void)
{
	test_request();
	test_refused();
	test_answer();
	test_drops();
	test_chunks();
	return tap_done();
}
