/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "net/broker_scan.h"

int vault_lock(const struct vault *v, struct err *e)
{
	if (mlock(v->mem, v->size) < 0)
		return err_sys(e, errno, "lock the memory of secrets");
	return 0;
}

int vault_init(struct vault *v, size_t size, struct err *e)
{
	void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int r;

	if (mem == MAP_FAILED)
		return err_sys(e, errno, "memory for secrets");
	*v = (struct vault){mem, size, 0};
	r = vault_lock(v, e);
	if (r == 0 && madvise(mem, size, MADV_DONTDUMP) < 0)
		r = err_sys(e, errno, "memory for secrets");
	if (r < 0)
		vault_done(v);
	return r;
}

void vault_done(struct vault *v)
{
	if (!v->mem)
		return;
	explicit_bzero(v->mem, v->size);
	munmap(v->mem, v->size);
	*v = (struct vault){0};
}

void *vault_get(struct vault *v, size_t n)
{
	void *p = v->mem + v->used;

	n = (n + 15) & ~(size_t)15;
	if (n > v->size - v->used)
		return NULL;
	v->used += n;
	return p;
}

static int no_room(struct err *e)
{
	return err_set(e, -EINVAL, "configuration", "too many secrets");
}

/* The table of the Knuth-Morris-Pratt search. */
static int add_pattern(struct scan *s, uint8_t *text, size_t len,
		       struct vault *v, struct err *e)
{
	uint16_t *back = vault_get(v, len * sizeof(*back));
	uint16_t k = 0;

	for (size_t i = 0; i < s->n; i++)
		if (s->p[i].len == len && !memcmp(s->p[i].text, text, len))
			return 0;
	if (!back || s->n == SCAN_PATTERNS)
		return no_room(e);
	for (size_t i = 1; i < len; i++) {
		while (k && text[i] != text[k])
			k = back[k - 1];
		if (text[i] == text[k])
			k++;
		back[i] = k;
	}
	s->p[s->n++] = (struct scan_pattern){text, back, (uint16_t)len};
	s->first[text[0]] = true;
	return 0;
}

static void base64(const uint8_t *in, size_t len, const char *last, char *out)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
				      "abcdefghijklmnopqrstuvwxyz0123456789";
	unsigned bits = 0, have = 0;

	for (size_t i = 0; i < len; i++) {
		bits = (bits << 8 | in[i]) & 0xffff;
		for (have += 8; have >= 6; have -= 6) {
			unsigned c = bits >> (have - 6) & 63;

			*out++ = c < 62 ? letters[c] : last[c - 62];
		}
	}
}

/*
 * The letters that are the secret's alone when ${before} bytes stand before it:
 * those that it shares with what stands before or behind are left out.
 */
static int add_base64(struct scan *s, const uint8_t *secret, size_t len,
		      unsigned before, const char *last, struct vault *v,
		      struct err *e)
{
	size_t from = (before * 8 + 5) / 6, to = (before + len) * 8 / 6;
	uint8_t *in = vault_get(v, len + before);
	uint8_t *out = vault_get(v, to + 2);

	if (!in || !out)
		return no_room(e);
	memcpy(in + before, secret, len);
	base64(in, len + before, last, (char *)out);
	return add_pattern(s, out + from, to - from, v, e);
}

static int add_hex(struct scan *s, const uint8_t *secret, size_t len,
		   const char *digits, struct vault *v, struct err *e)
{
	uint8_t *out = vault_get(v, 2 * len);

	if (!out)
		return no_room(e);
	for (size_t i = 0; i < len; i++) {
		out[2 * i] = (uint8_t)digits[secret[i] >> 4];
		out[2 * i + 1] = (uint8_t)digits[secret[i] & 15];
	}
	return add_pattern(s, out, 2 * len, v, e);
}

static bool is_plain(uint8_t c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
	       (c >= 'A' && c <= 'Z') || (c && strchr("-._~", c));
}

static int add_percent(struct scan *s, const uint8_t *secret, size_t len,
		       const char *digits, struct vault *v, struct err *e)
{
	uint8_t *out = vault_get(v, 3 * len);
	size_t n = 0;

	if (!out)
		return no_room(e);
	for (size_t i = 0; i < len; i++) {
		if (is_plain(secret[i])) {
			out[n++] = secret[i];
			continue;
		}
		out[n++] = '%';
		out[n++] = (uint8_t)digits[secret[i] >> 4];
		out[n++] = (uint8_t)digits[secret[i] & 15];
	}
	return add_pattern(s, out, n, v, e);
}

static int add_json(struct scan *s, const uint8_t *secret, size_t len,
		    const char *escaped, struct vault *v, struct err *e)
{
	uint8_t *out = vault_get(v, 2 * len);
	size_t n = 0;

	if (!out)
		return no_room(e);
	for (size_t i = 0; i < len; i++) {
		if (secret[i] && strchr(escaped, secret[i]))
			out[n++] = '\\';
		out[n++] = secret[i];
	}
	return add_pattern(s, out, n, v, e);
}

int scan_add(struct scan *s, const void *secret, size_t len, struct vault *v,
	     struct err *e)
{
	static const char lower[] = "0123456789abcdef";
	static const char upper[] = "0123456789ABCDEF";
	uint8_t *own = vault_get(v, len);
	int r = 0;

	if (len < SCAN_SECRET_MIN || len > SCAN_SECRET_MAX)
		return err_set(e, -EINVAL, "configuration",
			       "a secret has %d to %d bytes", SCAN_SECRET_MIN,
			       SCAN_SECRET_MAX);
	if (!own)
		return no_room(e);
	memcpy(own, secret, len);
	r = add_pattern(s, own, len, v, e);
	for (unsigned k = 0; r == 0 && k < 3; k++) {
		r = add_base64(s, own, len, k, "+/", v, e);
		if (r == 0)
			r = add_base64(s, own, len, k, "-_", v, e);
	}
	if (r == 0)
		r = add_hex(s, own, len, lower, v, e);
	if (r == 0)
		r = add_hex(s, own, len, upper, v, e);
	if (r == 0)
		r = add_percent(s, own, len, lower, v, e);
	if (r == 0)
		r = add_percent(s, own, len, upper, v, e);
	if (r == 0)
		r = add_json(s, own, len, "\"\\", v, e);
	return r < 0 ? r : add_json(s, own, len, "\"\\/", v, e);
}

/* One byte for one pattern: true where it ends. */
static bool step(const struct scan_pattern *p, uint16_t *at, uint8_t c)
{
	uint16_t k = *at;

	while (k && p->text[k] != c)
		k = p->back[k - 1];
	if (p->text[k] == c)
		k++;
	*at = k;
	return k == p->len;
}

int scan_feed(const struct scan *s, struct scan_state *st, const void *data,
	      size_t len)
{
	const uint8_t *p = data, *end = p + len;
	unsigned most = 0;

	for (; p < end; p++) {
		if (!st->any && !s->first[*p])
			continue;
		st->any = false;
		for (size_t i = 0; i < s->n; i++) {
			if (step(&s->p[i], &st->at[i], *p))
				return -1;
			st->any |= st->at[i] > 0;
		}
	}
	for (size_t i = 0; st->any && i < s->n; i++)
		if (st->at[i] > most)
			most = st->at[i];
	return most >= SCAN_HOLD_FROM ? (int)most : 0;
}
