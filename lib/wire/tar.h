/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_TAR_H
#define WIRE_TAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"

/*
 * The tar format, read and written as a stream in constant memory.  Reads
 * ustar, pax, GNU long names, base-256 numbers and the four GNU sparse forms;
 * writes pax with sparse form 1.0.  Names are bytes: nothing is converted, so
 * a static program needs no locale and loads no converter from the file
 * system it happens to stand in.
 */

enum tar_type {
	TAR_FILE,
	TAR_DIR,
	TAR_SYMLINK,
	TAR_HARDLINK,
	TAR_FIFO,
	TAR_CHAR,
	TAR_BLOCK,
	TAR_OTHER,
};

/* A run of bytes that a sparse file really has; the rest reads as zeros. */
struct tar_run {
	uint64_t off, len;
};

struct tar_xattr {
	const char *name; /* "user.x" */
	const void *value;
	size_t len;
};

/*
 * Reading takes all of SCHILY.xattr.*, and SCHILY.acl.access and .default as
 * the attributes system.posix_acl_access and _default that the kernel would
 * show, which an ACL that says no more than the mode is not.
 */
#define TAR_XATTRS_MAX 64
#define TAR_RUNS_MAX   (256 * 1024)
#define TAR_HEADER_MAX (1024 * 1024) /* of a pax header, a long name */

struct tar_entry {
	enum tar_type type;
	const char *path; /* never NULL; may be anything but contain NUL */
	const char *link; /* target of a link, else "" */
	uint64_t size;	  /* of a TAR_FILE, holes included */
	mode_t mode;	  /* 07777 */
	int64_t uid, gid;
	dev_t rdev; /* of a TAR_CHAR or TAR_BLOCK */
	struct timespec mtime;
	const struct tar_run *runs; /* in order, apart; with sparse alone */
	size_t nruns;
	bool sparse;
	struct tar_xattr xattrs[TAR_XATTRS_MAX];
	size_t nxattrs;
	/* reading only */
	const char *bad;     /* why this entry cannot be used, or NULL */
	const char *bad_acl; /* why its ACL cannot be used, or NULL */
	char kind;	     /* the type as the header has it */
	uint64_t offset;     /* of its first header in the archive */
};

/*
 * Where the bytes come from: at most ${cap} into ${data}; the count, 0 at the
 * end, or -errno with ${e} set.
 */
typedef ssize_t tar_source(void *arg, void *data, size_t cap, struct err *e);

/*
 * Pass over ${n} bytes without reading them, where the source can: how many it
 * passed over (0: none, read them), or -errno with ${e} set.
 */
typedef int64_t tar_skip(void *arg, uint64_t n, struct err *e);

struct tar_reader {
	tar_source *source;
	void *arg;
	tar_skip *skip; /* may be NULL; set after tar_reader_init() */
	/* the rest is the reader's own */
	struct tar_entry entry;
	struct buf path, link, pax, global, runs;
	struct buf acl[2]; /* access, default */
	char *buf;
	size_t pos, have;
	uint64_t offset; /* of the next byte, for messages */
	uint64_t left;	 /* bytes of this entry not read, without padding */
	unsigned pad;
	size_t run; /* the one being read, and how much of it is done */
	uint64_t run_done;
	uint64_t at; /* offset in the file, where it has no runs */
	bool eof, ended;
	bool failed; /* the archive, not an entry: nothing more will come */
};

/* tar_reader_init(r, source, arg, e), tar_reader_done(r). */
int tar_reader_init(struct tar_reader *r, tar_source *source, void *arg,
		    struct err *e);
void tar_reader_done(struct tar_reader *r);

/*
 * tar_next(r, ret_entry, e):
 * The next entry, valid until the next call; what was not read of the last
 * one's data is skipped.  1: an entry; 0: the end; -EBADMSG, code
 * "bad_value", with the offset: damaged or cut short beyond repair.
 */
int tar_next(struct tar_reader *r, const struct tar_entry **ret_entry,
	     struct err *e);

/*
 * tar_data(r, ret_data, ret_len, ret_off, e):
 * Some bytes of the entry's data and their offset in the file; they are valid
 * until the next call.  1: bytes; 0: no more.
 */
int tar_data(struct tar_reader *r, const void **ret_data, size_t *ret_len,
	     uint64_t *ret_off, struct err *e);

/* Where the bytes go: all of them, or -errno with ${e} set. */
typedef int tar_sink(void *arg, const void *data, size_t len, struct err *e);

struct tar_writer {
	tar_sink *sink;
	void *arg;
	/* the rest is the writer's own */
	struct buf out;
	uint64_t left; /* data the entry still waits for */
	unsigned pad;
};

void tar_writer_done(struct tar_writer *w);

/*
 * tar_write_entry(w, entry, e):
 * Start an entry.  A TAR_FILE is followed by tar_write_data() with exactly its
 * size, or, when sparse, the bytes of its runs.
 */
int tar_write_entry(struct tar_writer *w, const struct tar_entry *entry,
		    struct err *e);
int tar_write_data(struct tar_writer *w, const void *data, size_t len,
		   struct err *e);

/* tar_write_zeros(w, len, e): ${len} bytes of data that are zero. */
int tar_write_zeros(struct tar_writer *w, uint64_t len, struct err *e);

/* tar_write_end(w, e): the end of the archive; everything is written out. */
int tar_write_end(struct tar_writer *w, struct err *e);

#endif
