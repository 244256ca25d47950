/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "wire/jsonl.h"

void jsonl_done(struct jsonl *j)
{
	buf_done(&j->buf);
}

int jsonl_feed(struct jsonl *j, const void *data, size_t len)
{
	if (j->used) {
		buf_drop(&j->buf, j->used);
		j->used = 0;
	}
	return buf_add(&j->buf, data, len);
}

static int fill(struct jsonl *j, struct err *e)
{
	ssize_t n;

	if (j->fd < 0)
		return err_sys(e, EAGAIN, "read records");
	if (buf_reserve(&j->buf, 64 * 1024) < 0)
		return err_sys(e, ENOMEM, "read records");
	do
		n = read(j->fd, j->buf.data + j->buf.len,
			 j->buf.cap - j->buf.len - 1);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "read records");
	j->buf.len += (size_t)n;
	j->buf.data[j->buf.len] = '\0';
	j->eof = n == 0;
	return 0;
}

/* A whole line in the buffer: its length, or -1. */
static ssize_t find_line(struct jsonl *j, size_t from)
{
	char *nl;

	if (j->buf.len == 0)
		return -1;
	nl = memchr(j->buf.data + from, '\n', j->buf.len - from);
	if (nl) {
		*nl = '\0';
		j->used = (size_t)(nl - j->buf.data) + 1;
		return nl - j->buf.data;
	}
	if (!j->eof)
		return -1;
	j->used = j->buf.len;
	return (ssize_t)j->buf.len;
}

static int too_long(struct jsonl *j, struct err *e)
{
	return err_set(e, -EMSGSIZE, "too_large", "line %llu is over %d bytes",
		       (unsigned long long)j->line, JSON_LINE_MAX);
}

int jsonl_next(struct jsonl *j, char **ret_text, size_t *ret_len, struct err *e)
{
	size_t seen = 0;
	ssize_t len;
	int r;

	for (;;) {
		if (j->used) {
			buf_drop(&j->buf, j->used);
			j->used = 0;
			seen = 0;
		}
		len = find_line(j, seen);
		if (len < 0 && j->buf.len > JSON_LINE_MAX) {
			j->line += !j->skipping;
			r = j->skipping ? 0 : too_long(j, e);
			j->skipping = true;
			j->used = j->buf.len;
			if (r < 0)
				return r;
			continue;
		}
		if (len < 0) {
			if (j->eof)
				return 0;
			seen = j->buf.len;
			r = fill(j, e);
			if (r < 0)
				return r;
			continue;
		}
		if (j->skipping) {
			j->skipping = false;
			continue;
		}
		j->line++;
		if (len > JSON_LINE_MAX)
			return too_long(j, e);
		if (strspn(j->buf.data, " \t\r") == (size_t)len)
			continue;
		*ret_text = j->buf.data;
		*ret_len = (size_t)len;
		return 1;
	}
}
