/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the broker reads, by the first byte: 'q' a request with its body, 'a' an
 * answer.  A head is the same whether more follows it or not, and a body is in
 * whatever pieces it comes.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "net/http.h"

static uint64_t body(const struct http_head *h, const char *data, size_t len,
		     size_t piece, bool *ret_done)
{
	struct http_reader r;
	struct http_str run;
	uint64_t sum = 0;
	size_t at = 0, n;
	ssize_t used;

	http_reader_init(&r, h);
	while (at < len && !r.done) {
		n = len - at < piece ? len - at : piece;
		used = http_read(&r, data + at, n, &run);
		if (used < 0) {
			*ret_done = false;
			return sum * 31 + 1;
		}
		assert(used > 0 && (size_t)used <= n);
		assert(!run.len || (run.at >= data + at &&
				    run.at + run.len <= data + at + used));
		for (size_t i = 0; i < run.len; i++)
			sum = sum * 31 + (unsigned char)run.at[i];
		at += (size_t)used;
	}
	*ret_done = r.done;
	return sum;
}

static void check_head(const struct http_head *h, const char *data)
{
	assert(h->len >= 4 && h->len <= HTTP_HEAD_MAX);
	assert(!memcmp(data + h->len - 4, "\r\n\r\n", 4));
	for (size_t i = 0; i < h->nfields; i++) {
		const struct http_field *f = &h->fields[i];

		assert(f->name.len && !memchr(f->name.at, ' ', f->name.len));
		assert(!memchr(f->value.at, '\n', f->value.len));
		assert(!memchr(f->value.at, '\r', f->value.len));
		assert(!memchr(f->value.at, '\0', f->value.len));
		(void)http_drops(h, f);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data + 1;
	static struct http_head h, again;
	bool q, one, other;
	size_t len;
	int r;

	if (size < 1 || (data[0] != 'q' && data[0] != 'a'))
		return 0;
	q = data[0] == 'q';
	len = size - 1;
	r = q ? http_request(text, len, &h) : http_answer(text, len, false, &h);
	assert(r == 0 || r == 1 || (r == -EBADMSG && h.error && h.why));
	if (r != 1)
		return 0;
	check_head(&h, text);
	assert(h.len <= len);
	assert(!q || h.body != HTTP_TO_END);
	r = q ? http_request(text, h.len, &again)
	      : http_answer(text, h.len, false, &again);
	assert(r == 1 && again.len == h.len && again.body == h.body);
	assert(body(&h, text + h.len, len - h.len, len + 1, &one) ==
	       body(&h, text + h.len, len - h.len, 3, &other));
	assert(one == other);
	return 0;
}
