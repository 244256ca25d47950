/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_EXEC_TRANSFER_H
#define DSEC_EXEC_TRANSFER_H

#include "remote.h"

/*
 * Files and trees between host and sandbox, as tar streams.  Names are exact:
 * what is copied is called ${to} afterwards; a directory goes into one that is
 * there already.
 */
struct transfer {
	struct file_call *c;
	uint64_t entries, bytes, refused_count;
	json_t *refused; /* path, code, message of each, up to a bound */
	size_t told_bytes;
	bool quiet; /* no progress for people */
	bool tidy;  /* out: a signal first removes what is half done here */
	uint64_t began_ms, shown_ms;
};

/* What of a stream from a sandbox is extracted at most. */
#define TRANSFER_ENTRIES_MAX 2000000
#define TRANSFER_BYTES_MAX   ((uint64_t)1 << 40)

void transfer_done(struct transfer *t);

/*
 * transfer_in(t, from, to, e), transfer_out(t, from, to, e):
 * From the host into the sandbox, and out of it.  Parents are made inside, not
 * on the host.  Code "refused_entries" when some were refused or left out: the
 * rest is there.
 */
int transfer_in(struct transfer *t, const char *from, const char *to,
		struct err *e);
int transfer_out(struct transfer *t, const char *from, const char *to,
		 struct err *e);

/*
 * transfer_tar_in(t, fd, to, e), transfer_tar_out(t, from, name, fd, e):
 * The same with a tar stream on ${fd}: extracted below the directory ${to}, or
 * made of ${from}, which it calls ${name}.
 */
int transfer_tar_in(struct transfer *t, int fd, const char *to, struct err *e);
int transfer_tar_out(struct transfer *t, const char *from, const char *name,
		     int fd, struct err *e);

/*
 * transfer_stat(t, path, follow, ret_type, e):
 * What ${path} is inside: "file", "directory" and so on, a literal.
 */
int transfer_stat(struct transfer *t, const char *path, bool follow,
		  const char **ret_type, struct err *e);

/* transfer_report(t, rec): set entries, bytes, refused, refused_count. */
int transfer_report(const struct transfer *t, json_t *rec);

#endif
