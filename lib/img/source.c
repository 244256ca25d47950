/* SPDX-License-Identifier: Apache-2.0 */
#include <archive.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/cleanup.h"
#include "img/source.h"

#define BUF_SIZE (256 * 1024)
#define HEAD	 512 /* bytes that tell what it is */

/*
 * gzip is zlib's here: libarchive does not look at its check sums.  The other
 * formats are checked by the libraries that libarchive calls.
 */
enum kind { PLAIN, GZIP, OTHER };

struct source {
	int fd;
	unsigned flags;
	bool seekable, eof, ended;
	enum kind kind;
	uint64_t off, left; /* where in the file, and how much of it is ours */
	uint64_t taken;
	char *buf; /* of raw bytes: those at pos are not used yet */
	size_t pos, have;
	struct sha256 *raw, *out;
	struct archive *a;
	struct err why;		/* of a failure below libarchive */
	source_watch_fn *watch; /* or NULL */
	void *watch_arg;
	z_stream z;
	bool z_open, z_done; /* between two members */
};

static int bad(struct source *s, const char *what, struct err *e)
{
	return err_set(e, -EBADMSG, "bad_archive",
		       "%s (at offset %llu of the compressed bytes)", what,
		       (unsigned long long)s->taken);
}

/* One read of the file itself. */
static ssize_t raw_read(struct source *s, void *data, size_t cap, struct err *e)
{
	ssize_t n;

	if (cap > s->left)
		cap = (size_t)s->left;
	if (cap == 0 || s->eof)
		return 0;
	do
		n = s->seekable ? pread(s->fd, data, cap, (off_t)s->off)
				: read(s->fd, data, cap);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return err_sys(e, errno, "read the archive");
	if (n == 0) {
		s->eof = true;
		/* A part of a file has to be there. */
		if (s->left < (uint64_t)INT64_MAX)
			return bad(s, "it is cut short", e);
	}
	s->off += (uint64_t)n;
	s->left -= (uint64_t)n;
	s->taken += (uint64_t)n;
	if (s->raw)
		sha256_add(s->raw, data, (size_t)n);
	return n;
}

/* Make buf hold something: 1, 0 at the end. */
static int refill(struct source *s, struct err *e)
{
	ssize_t n;

	if (s->have > 0)
		return 1;
	n = raw_read(s, s->buf, BUF_SIZE, e);
	if (n < 0)
		return (int)n;
	s->pos = 0;
	s->have = (size_t)n;
	return n > 0;
}

/* Raw bytes, those in buf first. */
static ssize_t plain_read(struct source *s, void *data, size_t cap,
			  struct err *e)
{
	size_t n = s->have < cap ? s->have : cap;

	if (n == 0)
		return raw_read(s, data, cap, e);
	memcpy(data, s->buf + s->pos, n);
	s->pos += n;
	s->have -= n;
	return (ssize_t)n;
}

/* --- gzip ------------------------------------------------------------------
 */

/*
 * Between members: is there another?  Zeros may follow, which fill a tape's
 * record, and nothing else.
 */
static int next_member(struct source *s, struct err *e)
{
	int r;

	while ((r = refill(s, e)) > 0 && s->buf[s->pos] == '\0') {
		s->pos++;
		s->have--;
	}
	if (r <= 0)
		return r;
	if ((unsigned char)s->buf[s->pos] != 0x1f)
		return bad(s, "what follows the gzip data is none", e);
	if (inflateReset(&s->z) != Z_OK)
		return err_sys(e, ENOMEM, "decompress");
	s->z_done = false;
	return 1;
}

static ssize_t inflate_some(struct source *s, void *data, size_t cap,
			    struct err *e)
{
	int r, rc;

	s->z.next_out = data;
	s->z.avail_out = (unsigned)cap;
	while (s->z.avail_out == cap) {
		if (s->z_done) {
			r = next_member(s, e);
			if (r <= 0)
				return r;
		}
		r = refill(s, e);
		if (r < 0)
			return r;
		if (r == 0)
			return bad(s, "the gzip data is cut short", e);
		s->z.next_in = (unsigned char *)s->buf + s->pos;
		s->z.avail_in = (unsigned)s->have;
		rc = inflate(&s->z, Z_NO_FLUSH);
		s->pos += s->have - s->z.avail_in;
		s->have = s->z.avail_in;
		s->z_done = rc == Z_STREAM_END;
		if (rc == Z_MEM_ERROR)
			return err_sys(e, ENOMEM, "decompress");
		if (rc != Z_OK && rc != Z_STREAM_END)
			return bad(s, s->z.msg ? s->z.msg : "damaged gzip data",
				   e);
	}
	return (ssize_t)(cap - s->z.avail_out);
}

static ssize_t gzip_read(struct source *s, void *data, size_t cap,
			 struct err *e)
{
	if (cap > BUF_SIZE)
		cap = BUF_SIZE;
	return inflate_some(s, data, cap, e);
}

static int gzip_open(struct source *s, struct err *e)
{
	/* 16: gzip alone, with its check sum. */
	if (inflateInit2(&s->z, 16 + MAX_WBITS) != Z_OK)
		return err_sys(e, ENOMEM, "decompress");
	s->z_open = true;
	return 0;
}

/* --- libarchive ------------------------------------------------------------
 */

static la_ssize_t from_archive(struct archive *a, void *arg, const void **ret)
{
	struct source *s = arg;
	int r;

	r = refill(s, &s->why);
	if (r < 0) {
		archive_set_error(a, -r, "%s", s->why.msg);
		return ARCHIVE_FATAL;
	}
	*ret = s->buf + s->pos;
	s->pos += s->have;
	r = (int)s->have;
	s->have = 0;
	return r;
}

static int other_error(struct source *s, struct err *e)
{
	const char *text = archive_error_string(s->a);

	if (s->why.r < 0) {
		if (e)
			*e = s->why;
		return s->why.r;
	}
	if (archive_errno(s->a) == ENOMEM)
		return err_sys(e, ENOMEM, "decompress");
	return bad(s, text ? text : "the compressed data is damaged", e);
}

/* No filter that would start a program. */
static int other_open(struct source *s, struct err *e)
{
	struct archive_entry *entry;
	int r;

	s->a = archive_read_new();
	if (!s->a)
		return err_sys(e, ENOMEM, "decompress");
	archive_read_support_filter_bzip2(s->a);
	archive_read_support_filter_xz(s->a);
	archive_read_support_filter_lzma(s->a);
	archive_read_support_filter_zstd(s->a);
	archive_read_support_filter_lz4(s->a);
	archive_read_support_filter_compress(s->a);
	archive_read_support_format_raw(s->a);
	archive_read_support_format_empty(s->a);
	r = archive_read_open(s->a, s, NULL, from_archive, NULL);
	if (r == ARCHIVE_OK || r == ARCHIVE_WARN)
		r = archive_read_next_header(s->a, &entry);
	if (r == ARCHIVE_EOF)
		s->ended = true;
	return r == ARCHIVE_FATAL || r == ARCHIVE_FAILED ? other_error(s, e)
							 : 0;
}

static ssize_t other_read(struct source *s, void *data, size_t cap,
			  struct err *e)
{
	la_ssize_t n;

	if (s->ended)
		return 0;
	do
		n = archive_read_data(s->a, data, cap);
	while (n == ARCHIVE_RETRY);
	if (n < 0)
		return other_error(s, e);
	s->ended = n == 0;
	return n;
}

/* --- all -------------------------------------------------------------------
 */

static bool is_tar(const char *head, size_t n)
{
	return n >= HEAD && !memcmp(head + 257, "ustar", 5);
}

static enum kind kind_of(const struct source *s)
{
	static const struct {
		const char *magic;
		size_t len;
	} other[] = {
		{"BZh", 3},
		{"\xfd"
		 "7zXZ\0",
		 6},
		{"\x5d\0\0", 3},
		{"\x28\xb5\x2f\xfd", 4},
		{"\x04\x22\x4d\x18", 4},
		{"\x02\x21\x4c\x18", 4},
		{"\x1f\x9d", 2},
	};
	const char *p = s->buf;

	/* A name may look like anything. */
	if (is_tar(p, s->have))
		return PLAIN;
	if (s->have >= 2 && !memcmp(p, "\x1f\x8b", 2))
		return GZIP;
	/* Frames that zstd and lz4 pass over have one of 16 numbers. */
	if (s->have >= 4 && (p[0] & 0xf0) == 0x50 &&
	    !memcmp(p + 1, "\x2a\x4d\x18", 3))
		return OTHER;
	for (size_t i = 0; i < array_len(other); i++)
		if (s->have >= other[i].len &&
		    !memcmp(p, other[i].magic, other[i].len))
			return OTHER;
	return PLAIN;
}

/* The first bytes, also of a pipe that gives few at a time. */
static int peek(struct source *s, struct err *e)
{
	ssize_t n;

	while (s->have < HEAD) {
		n = raw_read(s, s->buf + s->have, BUF_SIZE - s->have, e);
		if (n < 0)
			return (int)n;
		if (n == 0)
			break;
		s->have += (size_t)n;
	}
	return 0;
}

static int start(struct source *s, struct err *e)
{
	int r;

	s->buf = malloc(BUF_SIZE);
	if (s->flags & SOURCE_HASH_RAW)
		s->raw = sha256_new();
	if (s->flags & SOURCE_HASH_OUT)
		s->out = sha256_new();
	if (!s->buf || (s->flags & SOURCE_HASH_RAW && !s->raw) ||
	    (s->flags & SOURCE_HASH_OUT && !s->out))
		return err_sys(e, ENOMEM, "read an archive");
	if (s->flags & SOURCE_RAW)
		return 0;
	r = peek(s, e);
	if (r < 0)
		return r;
	s->kind = kind_of(s);
	if (s->kind == GZIP)
		return gzip_open(s, e);
	return s->kind == OTHER ? other_open(s, e) : 0;
}

int source_open(int fd, uint64_t off, uint64_t len, unsigned flags,
		struct source **ret, struct err *e)
{
	struct source *s = calloc(1, sizeof(*s));
	off_t at;
	int r;

	if (!s)
		return err_sys(e, ENOMEM, "read an archive");
	s->fd = fd;
	s->flags = flags;
	s->off = off;
	s->left = len;
	at = lseek(fd, 0, SEEK_CUR);
	s->seekable = at >= 0;
	if (len == UINT64_MAX)
		s->off = s->seekable ? (uint64_t)at : 0;
	r = start(s, e);
	if (r < 0) {
		source_free(s);
		return r;
	}
	*ret = s;
	return 0;
}

void source_free(struct source *s)
{
	if (!s)
		return;
	if (s->a)
		archive_read_free(s->a);
	if (s->z_open)
		inflateEnd(&s->z);
	sha256_free(s->raw);
	sha256_free(s->out);
	free(s->buf);
	free(s);
}

ssize_t source_read(void *arg, void *data, size_t cap, struct err *e)
{
	struct source *s = arg;
	ssize_t n;
	int r;

	r = s->watch ? s->watch(s->watch_arg, s->taken, e) : 0;
	if (r < 0)
		return r;
	switch (s->kind) {
	case GZIP:
		n = gzip_read(s, data, cap, e);
		break;
	case OTHER:
		n = other_read(s, data, cap, e);
		break;
	default:
		n = plain_read(s, data, cap, e);
	}
	if (n > 0 && s->out)
		sha256_add(s->out, data, (size_t)n);
	return n;
}

/* Only where nobody wants to have seen the bytes, and they are a file's. */
int64_t source_skip(void *arg, uint64_t n, struct err *e)
{
	struct source *s = arg;
	uint64_t some = s->have < n ? s->have : n;
	off_t end;

	if (s->kind != PLAIN || !s->seekable || s->raw || s->out)
		return 0;
	s->pos += (size_t)some;
	s->have -= (size_t)some;
	n -= some;
	end = n ? lseek(s->fd, 0, SEEK_END) : 0;
	if (end < 0)
		return err_sys(e, errno, "seek in the archive");
	/* No further than its end, where a read tells that it is cut short. */
	if (n > s->left)
		n = s->left;
	if (n > 0 && (uint64_t)end < s->off + n)
		n = (uint64_t)end > s->off ? (uint64_t)end - s->off : 0;
	s->off += n;
	s->left -= n;
	s->taken += n;
	return (int64_t)(some + n);
}

void source_watch(struct source *s, source_watch_fn *fn, void *arg)
{
	s->watch = fn;
	s->watch_arg = arg;
}

bool source_is_plain(const struct source *s)
{
	return s->kind == PLAIN;
}

uint64_t source_taken(const struct source *s)
{
	return s->taken;
}

uint64_t source_size(const struct source *s)
{
	struct stat st;

	if (s->left < (uint64_t)INT64_MAX)
		return s->taken + s->left;
	if (fstat(s->fd, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	return (uint64_t)st.st_size;
}

int source_end(struct source *s, struct err *e)
{
	auto_free char *data = malloc(BUF_SIZE);
	ssize_t n;

	if (!data)
		return err_sys(e, ENOMEM, "read an archive");
	do
		n = source_read(s, data, BUF_SIZE, e);
	while (n > 0);
	if (n < 0)
		return (int)n;
	/* What a decompressor left behind the end of its data. */
	do
		n = plain_read(s, data, BUF_SIZE, e);
	while (n > 0);
	return (int)n;
}

void source_digest_raw(struct source *s, struct digest *ret)
{
	sha256_end(s->raw, ret);
}

void source_digest_out(struct source *s, struct digest *ret)
{
	sha256_end(s->out, ret);
}
