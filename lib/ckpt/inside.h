/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_INSIDE_H
#define CKPT_INSIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "sys/cgroup.h"
#include "wire/json.h"

/*
 * A look at all processes of a frozen sandbox, from outside: who they are, what
 * of the host they hold, and what keeps them from being checkpointed.  Nothing
 * is touched.  Everything read here was named by strangers; what gets into a
 * message or a record is made plain first.
 */
struct inside_proc {
	pid_t pid, inner; /* on the node; in the sandbox */
	char leaf[24];	  /* "init", "e0" */
	char comm[16];	  /* plain ASCII */
	unsigned threads;
	bool stopped, zombie;
};

struct inside_ask {
	const struct cgroup_root *cgroups;
	const char *id;
	pid_t init;	     /* its pid 1, on the node */
	const json_t *spec;  /* complete */
	const json_t *fds;   /* the supervisor's table "fds", or NULL */
	bool running;	     /* not frozen: a first look, without ${fds} */
	const json_t *known; /* watches of an earlier look, or NULL */
};

struct inside {
	struct inside_proc *procs; /* pid 1 first */
	size_t n;
	json_t *leaves, *stopped; /* as the manifest has them */
	json_t *externals; /* as the manifest has them; see ckpt/ckpt.h */
	json_t *warnings;  /* strings: what will not be as it was */
	json_t *watches;   /* what inotify watches on the root: see below */
	int *pipes;	   /* a reader of each external pipe, in order */
	size_t npipes;
};

#define auto_inside __attribute__((cleanup(inside_done)))

/*
 * inside_survey(ask, ret, e):
 * "not_checkpointable" names the pid inside, the command's name and the
 * reason; of several processes the first.  Free with inside_done().
 */
must_check int inside_survey(const struct inside_ask *ask, struct inside *ret,
			     struct err *e);
void inside_done(struct inside *in);

/*
 * inside_pending(in, dirfd, e):
 * Copy what stands in external pipes to files of ${dirfd}, named in externals,
 * and close the readers.  The pipes keep it; nobody may read from them
 * meanwhile.
 */
must_check int inside_pending(struct inside *in, int dirfd, struct err *e);

/* The largest unlinked file that is taken along. */
#define INSIDE_GHOST_MAX (1ULL << 30)

/*
 * The overlay knows watched files by handles that it does not open again.  So
 * they are looked for: {"248 00fb..":"srv/w"}, type and bytes of the handle and
 * the path, in the order in which the engine will ask.  inside_watches() writes
 * them to ${name} of ${dirfd} as the engine's shim reads them, a line each.
 */
must_check int inside_watches(const struct inside *in, int dirfd,
			      const char *name, struct err *e);

/*
 * inside_plain(dst, size, text, len): ${text} in printable ASCII, what is not
 * as '?'; NUL-terminated.
 */
void inside_plain(char *dst, size_t size, const char *text, size_t len);

#endif
