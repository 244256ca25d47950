/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_FRAME_H
#define SERVE_FRAME_H

#include "base/buf.h"
#include "wire/json.h"

/*
 * What comes over a connection of dsec-serve (PROTOCOL.md section 11): lines,
 * and after one of them with "event":"data" as many raw bytes as it announces.
 * The bytes are handed on as they come, never collected.
 *
 * A line that cannot be read is the end: what follows it may be bytes that only
 * look like lines.
 */
#define FRAME_DATA_MAX	 (256 * 1024) /* bytes that a line may announce */
#define FRAME_STREAM_MAX 16	      /* a stream's name, with its NUL */

enum frame_kind {
	FRAME_LINE, /* an object that announces nothing */
	FRAME_DATA, /* some of the bytes that obj announced */
};

struct frame {
	enum frame_kind kind;
	json_t *obj; /* borrowed: until the next call */
	const char *data;
	size_t len;
};

/* All zero is a fresh reader. */
struct frame_reader {
	struct buf line; /* the beginning of a line, from earlier pieces */
	json_t *obj;	 /* of the frame last returned */
	size_t left;	 /* of the bytes it announced */
	size_t weight;	 /* of obj: about how much memory it takes */
};

void frame_reader_done(struct frame_reader *r);

/*
 * frame_next(r, data, len, ret, e):
 * Take from *${data} (*${len} bytes; both go on to what is left) the next
 * frame.  1: *${ret} is one; its data point into *${data}.  0: all was taken,
 * and a line or some announced bytes are not complete.  -errno is final:
 * "too_large" for a line over JSON_LINE_MAX, "bad_record" for what is no
 * object, "bad_value" for an announcement that is malformed.
 */
must_check int frame_next(struct frame_reader *r, const char **data,
			  size_t *len, struct frame *ret, struct err *e);

/* frame_begun(r): bytes kept of a line that is not complete; frame_open(r): is
 * a frame under way? */
static inline size_t frame_begun(const struct frame_reader *r)
{
	return r->line.len;
}

static inline bool frame_open(const struct frame_reader *r)
{
	return r->line.len > 0 || r->left > 0;
}

/*
 * frame_put(b, obj, e): a line to ${b}; "too_large" over JSON_LINE_MAX.
 * frame_head(b, id, stream, len, e): the line that announces ${len} bytes,
 * which the caller adds.  It is as long whatever ${len} is.
 */
must_check int frame_put(struct buf *b, const json_t *obj, struct err *e);
must_check int frame_head(struct buf *b, const json_t *id, const char *stream,
			  size_t len, struct err *e);

/* frame_id_ok(id): an integer, or a string of 1 to 128 bytes. */
bool frame_id_ok(const json_t *id);

#endif
