/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "wire/jsonl.h"

void jsonl_done(struct jsonl *j)
{
	buf_done(&j->buf);
}

/* What lines have used goes when more is read, not line by line: a buffer full
 * of short lines would be moved as often as it has lines. */
static void forget_used(struct jsonl *j)
{
	if (j->used)
		buf_drop(&j->buf, j->used);
	j->used = 0;
}

int jsonl_feed(struct jsonl *j, const void *data, size_t len)
{
	forget_used(j);
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

/* A whole line in the buffer, into *${ret_at}: its length, or -1.  ${seen}
 * bytes were looked at before. */
static ssize_t find_line(struct jsonl *j, size_t seen, size_t *ret_at)
{
	size_t left = j->buf.len - j->used;
	char *at, *nl;

	if (left == 0)
		return -1;
	at = j->buf.data + j->used;
	nl = memchr(at + seen, '\n', left - seen);
	if (!nl && !j->eof)
		return -1;
	*ret_at = j->used;
	if (nl) {
		*nl = '\0';
		j->used += (size_t)(nl - at) + 1;
		return nl - at;
	}
	j->used = j->buf.len;
	return (ssize_t)left;
}

static int too_long(struct jsonl *j, struct err *e)
{
	return err_set(e, -EMSGSIZE, "too_large", "line %llu is over %d bytes",
		       (unsigned long long)j->line, JSON_LINE_MAX);
}

int jsonl_next(struct jsonl *j, char **ret_text, size_t *ret_len, struct err *e)
{
	size_t seen = 0, at = 0;
	ssize_t len;
	int r;

	for (;;) {
		len = find_line(j, seen, &at);
		if (len < 0 && j->buf.len - j->used > JSON_LINE_MAX) {
			j->line += !j->skipping;
			r = j->skipping ? 0 : too_long(j, e);
			j->skipping = true;
			j->used = j->buf.len;
			seen = 0;
			if (r < 0)
				return r;
			continue;
		}
		if (len < 0) {
			if (j->eof)
				return 0;
			forget_used(j);
			seen = j->buf.len;
			r = fill(j, e);
			if (r < 0)
				return r;
			continue;
		}
		seen = 0;
		if (j->skipping) {
			j->skipping = false;
			continue;
		}
		j->line++;
		if (len > JSON_LINE_MAX)
			return too_long(j, e);
		if (strspn(j->buf.data + at, " \t\r") == (size_t)len)
			continue;
		*ret_text = j->buf.data + at;
		*ret_len = (size_t)len;
		return 1;
	}
}
