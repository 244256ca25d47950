/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>

#include "../tap.h"
#include "base/cleanup.h"
#include "net/hello.h"

/* A ClientHello: its message, then its records. */
struct out {
	uint8_t data[32768];
	size_t len;
};

static void put(struct out *o, const void *data, size_t len)
{
	memcpy(o->data + o->len, data, len);
	o->len += len;
}

static void put16(struct out *o, size_t v)
{
	const uint8_t b[2] = {(uint8_t)(v >> 8), (uint8_t)v};

	put(o, b, 2);
}

static void put_ext(struct out *o, unsigned type, const void *data, size_t len)
{
	put16(o, type);
	put16(o, len);
	put(o, data, len);
}

static void put_sni(struct out *o, const char *name)
{
	size_t n = strlen(name);

	put16(o, 0);
	put16(o, n + 5);
	put16(o, n + 3);
	put(o, "", 1);
	put16(o, n);
	put(o, name, n);
}

enum {
	WITH_ECH = 1,
	TWICE = 2,
	NO_EXTS = 4,
	NO_NAME = 8,
};

/* The message; ${pad}: bytes of one more extension. */
static void message(struct out *o, const char *name, unsigned how, size_t pad)
{
	static const uint8_t zeros[20000];
	struct out e = {.len = 0};
	size_t at;

	o->len = 0;
	put(o, "\1\0\0\0\3\3", 6);
	put(o, zeros, 32);
	put(o, "\4abcd\0\4\x0a\x0a\x13\1\1\0", 5 + 6 + 2);
	put_ext(&e, 0x0a0a, "", 0);
	if (pad)
		put_ext(&e, 51, zeros, pad);
	if (!(how & NO_NAME))
		put_sni(&e, name);
	if (how & TWICE)
		put_sni(&e, name);
	put_ext(&e, 16, "\0\3\2h2", 5);
	if (how & WITH_ECH)
		put_ext(&e, 0xfe0d, zeros, 40);
	if (!(how & NO_EXTS)) {
		put16(o, e.len);
		put(o, e.data, e.len);
	}
	at = o->len - 4;
	o->data[1] = (uint8_t)(at >> 16);
	o->data[2] = (uint8_t)(at >> 8);
	o->data[3] = (uint8_t)at;
}

/* In records of ${piece} bytes. */
static void records(const struct out *m, size_t piece, struct out *ret)
{
	size_t n;

	ret->len = 0;
	for (size_t at = 0; at < m->len; at += n) {
		n = m->len - at < piece ? m->len - at : piece;
		put(ret, "\26\3\1", 3);
		put16(ret, n);
		put(ret, m->data + at, n);
	}
}

/* Fed in pieces of ${piece} bytes. */
static int feed(struct hello *h, const struct out *o, size_t piece)
{
	size_t n;
	int r = 0;

	memset(h, 0, sizeof(*h));
	for (size_t at = 0; r == 0 && at < o->len; at += n) {
		n = o->len - at < piece ? o->len - at : piece;
		r = hello_feed(h, o->data + at, n);
	}
	return r;
}

static int one(const char *name, unsigned how, struct hello *h)
{
	struct out m, o;

	message(&m, name, how, 0);
	records(&m, 16384, &o);
	return feed(h, &o, o.len);
}

static void test_good(void)
{
	static const size_t pieces[] = {1, 7, 100, 16000};
	struct hello h;
	struct out m, o;

	is_int(one("www.example.org", 0, &h), 1, "a hello");
	is_str(h.name, "www.example.org", "its name");
	ok(!h.ech, "without ECH");
	is_int(one("WWW.Example.ORG", 0, &h), 1, "in upper case");
	is_str(h.name, "www.example.org", "the same");
	is_int(one("outer.example", WITH_ECH, &h), 1, "with ECH");
	is_str(h.name, "outer.example", "the outer name");
	ok(h.ech, "and that it has it");
	for (size_t i = 0; i < array_len(pieces); i++) {
		message(&m, "big.example", 0, 12000);
		records(&m, pieces[i] < 100 ? 200 : pieces[i], &o);
		is_int(feed(&h, &o, pieces[i]), 1, "a long one in pieces");
		is_str(h.name, "big.example", "its name");
	}
	message(&m, "tail.example", 0, 0);
	records(&m, 16384, &o);
	put(&o, "early data", 10);
	is_int(feed(&h, &o, o.len), 1, "what follows is not looked at");
}

static void test_bad(void)
{
	static const char *const names[] = {
		"trailing.example.", "192.0.2.1",      "a..b",	  ".a",
		"under score.test",  "b\xc3\xbc.test", "*.test",  "a/b",
		"[2001:db8::1]",     "2001:db8::1",    "-a.test",
	};
	char name[300];
	struct hello h;
	struct out m, o;

	for (size_t i = 0; i < array_len(names); i++)
		ok(one(names[i], 0, &h) == -EPROTO && h.why, "'%s'", names[i]);
	memset(name, 'a', sizeof(name));
	for (size_t i = 60; i < sizeof(name); i += 60)
		name[i] = '.';
	name[254] = '\0';
	is_int(one(name, 0, &h), -EPROTO, "254 bytes");
	name[253] = '\0';
	is_int(one(name, 0, &h), 1, "253 bytes");
	is_int(one("a.test", TWICE, &h), -EPROTO, "two names");
	is_int(one("", NO_NAME, &h), -EPROTO, "none");
	is_str(h.why, "no server name", "is told so");
	is_int(one("", NO_EXTS, &h), -EPROTO, "no extensions");
	is_int(one("", 0, &h), -EPROTO, "an empty one");
	message(&m, "a.test", 0, 17000);
	records(&m, 16384, &o);
	is_int(feed(&h, &o, 1000), -EPROTO, "over 16 KiB");

	message(&m, "a.test", 0, 0);
	records(&m, 16384, &o);
	o.data[0] = 23;
	is_int(feed(&h, &o, o.len), -EPROTO, "another record");
	o.data[0] = 22;
	o.data[5] = 2;
	is_int(feed(&h, &o, o.len), -EPROTO, "another message");
	memcpy(o.data, "GET / HTTP/1.1\r\n", 16);
	is_int(feed(&h, &o, o.len), -EPROTO, "no TLS at all");
	is_int(hello_feed(&h, "x", 1), -EPROTO, "for good");
	records(&m, 16384, &o);
	o.data[3] = o.data[4] = 0;
	is_int(feed(&h, &o, o.len), -EPROTO, "an empty record");
}

/* Whatever length is wrong, it ends, and never with a name. */
static void test_lengths(void)
{
	unsigned bad = 0, short_ = 0;
	struct hello h;
	struct out m, o;
	int r;

	message(&m, "name.example", 0, 0);
	for (size_t n = 0; n < m.len; n++) {
		records(&m, 16384, &o);
		o.len = n + 5;
		if (feed(&h, &o, 3) != 0)
			short_++;
	}
	is_int(short_, 0, "cut anywhere, more is wanted");
	for (size_t at = 1; at < m.len; at++) {
		if (at >= 4 && at < 38)
			continue;
		records(&m, 16384, &o);
		o.data[5 + at]++;
		r = feed(&h, &o, o.len);
		if (r == 1 && strcmp(h.name, "name.example") != 0 &&
		    !strchr(h.name, '.'))
			bad++;
	}
	is_int(bad, 0, "any byte off by one");
}

int main(void)
{
	test_good();
	test_bad();
	test_lengths();
	return tap_done();
}
