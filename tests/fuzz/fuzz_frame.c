/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of a connection: in one piece and in pieces of the first byte's length
 * they are the same, and what is announced is what comes. */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "fuzz.h"
#include "serve/frame.h"

struct sum {
	unsigned lines;
	uint64_t bytes, hash, announced;
	int r;
};

static void mix(struct sum *s, const char *data, size_t len)
{
	for (size_t i = 0; i < len; i++)
		s->hash = (s->hash ^ (unsigned char)data[i]) * 1099511628211u;
}

static void take(struct sum *s, const struct frame *f)
{
	auto_free char *text = NULL;

	assert(json_is_object(f->obj));
	if (f->kind == FRAME_DATA) {
		assert(f->len > 0 &&
		       frame_id_ok(json_object_get(f->obj, "id")));
		assert(strlen(json_str(f->obj, "stream")) < FRAME_STREAM_MAX);
		s->bytes += f->len;
		mix(s, f->data, f->len);
		return;
	}
	assert(strcmp(json_str(f->obj, "event"), "data"));
	text = json_dumps(f->obj, JSON_COMPACT);
	assert(text);
	mix(s, text, strlen(text));
	s->lines++;
}

static struct sum read_in(const char *data, size_t size, size_t piece)
{
	struct frame_reader r = {0};
	struct sum s = {.hash = 1};
	struct frame f;

	for (size_t at = 0; s.r >= 0 && at < size; at += piece) {
		size_t len = size - at < piece ? size - at : piece;
		const char *p = data + at;

		while ((s.r = frame_next(&r, &p, &len, &f, NULL)) > 0)
			take(&s, &f);
		assert(s.r < 0 || len == 0);
		assert(frame_begun(&r) <= JSON_LINE_MAX);
	}
	frame_reader_done(&r);
	return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sum whole, parts;

	if (size < 2)
		return 0;
	whole = read_in((const char *)data + 1, size - 1, size);
	parts = read_in((const char *)data + 1, size - 1, data[0] + 1u);
	assert(whole.r == parts.r && whole.lines == parts.lines);
	assert(whole.bytes == parts.bytes || whole.r < 0);
	assert(whole.hash == parts.hash);
	return 0;
}
