/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "net/hello.h"

#define EXT_SERVER_NAME 0
#define EXT_ECH		0xfe0d

/* What comes next of the handshake message, records taken away. */
enum state {
	MSG_TYPE,
	MSG_LEN,
	FIXED, /* version and random */
	SESSION_LEN,
	SESSION,
	CIPHERS_LEN,
	CIPHERS,
	METHODS_LEN,
	METHODS,
	EXTS_LEN,
	EXT_TYPE,
	EXT_LEN,
	EXT,
	LIST_LEN,
	NAME_TYPE,
	NAME_LEN,
	NAME,
	DONE,
	REFUSED,
};

/* Bytes of the number that a state reads; 0: it passes over bytes. */
static const uint8_t widths[] = {
	[MSG_TYPE] = 1,	   [MSG_LEN] = 3,     [SESSION_LEN] = 1,
	[CIPHERS_LEN] = 2, [METHODS_LEN] = 1, [EXTS_LEN] = 2,
	[EXT_TYPE] = 2,	   [EXT_LEN] = 2,     [LIST_LEN] = 2,
	[NAME_TYPE] = 1,   [NAME_LEN] = 2,    [REFUSED] = 0,
};

static int refuse(struct hello *h, const char *why)
{
	h->state = REFUSED;
	h->why = why;
	return -EPROTO;
}

/* Go on with a number. */
static int number(struct hello *h, enum state s)
{
	h->state = s;
	h->acc = 0;
	h->left = widths[s];
	return 0;
}

static int after(struct hello *h);

/* Pass over ${n} bytes, which may be none. */
static int pass(struct hello *h, enum state s, uint32_t n)
{
	h->state = s;
	h->left = n;
	return n ? 0 : after(h);
}

static int extensions_end(struct hello *h)
{
	if (!h->name_len)
		return refuse(h, "no server name");
	h->state = DONE;
	return 0;
}

/* The bytes that were passed over are at their end. */
static int after(struct hello *h)
{
	switch (h->state) {
	case FIXED:
		return number(h, SESSION_LEN);
	case SESSION:
		return number(h, CIPHERS_LEN);
	case CIPHERS:
		return number(h, METHODS_LEN);
	case METHODS:
		if (h->body == 0)
			return refuse(h, "no server name");
		return number(h, EXTS_LEN);
	case NAME:
	case EXT:
		return h->exts ? number(h, EXT_TYPE) : extensions_end(h);
	}
	return refuse(h, "malformed");
}

static int take_ext(struct hello *h)
{
	if (h->acc > h->exts)
		return refuse(h, "malformed");
	if (h->type == EXT_ECH)
		h->ech = true;
	if (h->type != EXT_SERVER_NAME)
		return pass(h, EXT, h->acc);
	if (h->name_len)
		return refuse(h, "two server names");
	/* The list's length, the name's kind and length, the name. */
	if (h->acc < 6 || h->acc > 5 + NETNAME_MAX)
		return refuse(h, "the server name is malformed");
	h->name_len = (uint16_t)(h->acc - 5);
	return number(h, LIST_LEN);
}

/* A number is complete. */
static int take(struct hello *h)
{
	uint32_t v = h->acc;

	switch (h->state) {
	case MSG_TYPE:
		return v == 1 ? number(h, MSG_LEN) : refuse(h, "no hello");
	case MSG_LEN:
		if (v > HELLO_MAX)
			return refuse(h, "too long");
		h->body = v;
		return pass(h, FIXED, 34);
	case SESSION_LEN:
		return pass(h, SESSION, v);
	case CIPHERS_LEN:
		return pass(h, CIPHERS, v);
	case METHODS_LEN:
		return pass(h, METHODS, v);
	case EXTS_LEN:
		if (v != h->body || v == 0)
			return refuse(h, "malformed");
		h->exts = v;
		return number(h, EXT_TYPE);
	case EXT_TYPE:
		h->type = (uint16_t)v;
		return number(h, EXT_LEN);
	case EXT_LEN:
		return take_ext(h);
	case LIST_LEN:
		if (v != h->name_len + 3u)
			break;
		return number(h, NAME_TYPE);
	case NAME_TYPE:
		if (v != 0)
			break;
		return number(h, NAME_LEN);
	case NAME_LEN:
		if (v != h->name_len)
			break;
		return pass(h, NAME, v);
	}
	return refuse(h, "the server name is malformed");
}

static int take_name_byte(struct hello *h, uint8_t c)
{
	char canon[NETNAME_MAX + 1];

	h->name[h->name_len - h->left] = (char)c;
	if (h->left > 1)
		return 0;
	if (c == '.' || netname_canon(h->name, h->name_len, canon) < 0)
		return refuse(h, "the server name is malformed");
	snprintf(h->name, sizeof(h->name), "%s", canon);
	return 0;
}

/* A byte of the message. */
static int step(struct hello *h, uint8_t c)
{
	int r = 0;

	if (h->state > MSG_LEN && h->body-- == 0)
		return refuse(h, "malformed");
	if (h->state > EXTS_LEN && h->exts-- == 0)
		return refuse(h, "malformed");
	if (h->state == NAME)
		r = take_name_byte(h, c);
	h->acc = h->acc << 8 | c;
	if (r < 0 || --h->left)
		return r;
	return widths[h->state] ? take(h) : after(h);
}

/* A byte of a record's head: its kind, its version, its length. */
static int step_head(struct hello *h, uint8_t c)
{
	unsigned at = h->head++;

	if ((at == 0 && c != 22) || (at == 1 && c != 3))
		return refuse(h, "no TLS handshake");
	if (at == 3)
		h->record = (uint16_t)(c << 8);
	if (at == 4)
		h->record |= c;
	if (at == 4 && (h->record == 0 || h->record > HELLO_MAX))
		return refuse(h, "malformed");
	return 0;
}

int hello_feed(struct hello *h, const void *data, size_t len)
{
	const uint8_t *p = data, *end = p + len;
	int r = 0;

	if (h->seen == 0)
		number(h, MSG_TYPE);
	while (r == 0 && p < end && h->state < DONE) {
		if (++h->seen > HELLO_MAX)
			return refuse(h, "too long");
		if (h->head < 5) {
			r = step_head(h, *p++);
			continue;
		}
		r = step(h, *p++);
		if (--h->record == 0)
			h->head = 0;
	}
	if (h->state == REFUSED)
		return -EPROTO;
	return h->state == DONE;
}
