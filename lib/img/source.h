/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_SOURCE_H
#define IMG_SOURCE_H

#include <stdbool.h>

#include "img/sha256.h"
#include "wire/tar.h"

/*
 * The bytes of an archive: a file or a part of one, or a pipe, decompressed.
 * What compression there is, its first bytes tell: none, gzip (any number of
 * members), bzip2, xz, lzma, zstd, lz4, compress.  No other program is run for
 * it.  A stream that is cut short or whose check sum is wrong is an error,
 * -EBADMSG, code "bad_archive".
 */
enum source_flags {
	SOURCE_HASH_RAW = 1 << 0, /* SHA-256 of the bytes as they are there */
	SOURCE_HASH_OUT = 1 << 1, /* and of those that source_read() gives */
	SOURCE_RAW = 1 << 2,	  /* decompress nothing */
};

struct source;

/*
 * source_open(fd, off, len, flags, ret, e):
 * ${len} bytes from ${off} of ${fd}, which stays the caller's and is not moved;
 * UINT64_MAX: from where it stands to its end, which may be a pipe's.
 */
int source_open(int fd, uint64_t off, uint64_t len, unsigned flags,
		struct source **ret, struct err *e);
void source_free(struct source *s);
#define auto_source __attribute__((cleanup(source_cleanup)))
static inline void source_cleanup(struct source **s)
{
	source_free(*s);
}

/* A tar_source and a tar_skip of ${arg} = struct source. */
ssize_t source_read(void *arg, void *data, size_t cap, struct err *e);
int64_t source_skip(void *arg, uint64_t n, struct err *e);

/* Does anything have to be decompressed? */
bool source_is_plain(const struct source *s);

/* The bytes read so far, as they are there, and all there are; 0: not known. */
uint64_t source_taken(const struct source *s);
uint64_t source_size(const struct source *s);

/* source_watch(s, fn, arg): ${fn} gets the bytes taken so far with each read,
 * up to the last; not 0 ends it with that.  NULL: nobody any more. */
typedef int source_watch_fn(void *arg, uint64_t taken, struct err *e);
void source_watch(struct source *s, source_watch_fn *fn, void *arg);

/* source_end(s, e): read what is left, so that the whole stream was checked and
 * the digests are complete. */
int source_end(struct source *s, struct err *e);

/* After source_end(), of a digest that was asked for; ends it. */
void source_digest_raw(struct source *s, struct digest *ret);
void source_digest_out(struct source *s, struct digest *ret);

#endif
