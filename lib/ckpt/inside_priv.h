/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_INSIDE_PRIV_H
#define CKPT_INSIDE_PRIV_H

#include <stdint.h>

#include "ckpt/inside.h"

#define INSIDE_NS 8

/* What is known while looking. */
struct survey {
	const struct inside_ask *ask;
	struct inside *in;
	int proc;		/* /proc */
	int root;		/* the sandbox's; -1: not opened yet */
	char ns[INSIDE_NS][40]; /* pid 1's namespaces, as links read */
	uint64_t *mounts;	/* pid 1's mounts, ids in order */
	size_t nmounts;
	unsigned root_major, root_minor; /* of the root's file system */

	const struct inside_proc *at; /* whose turn it is */
	int at_dir, at_pidfd;	      /* its /proc/PID; -1: not opened yet */

	/* Sets, keyed by what the links read ("socket:[123]"). */
	json_t *seen;	  /* of what is looked at once: inode -> true */
	json_t *ours;	  /* pipes of the supervisor -> true, or "report" */
	json_t *unix_sks; /* inode -> place of its process in procs */
	json_t *slaves;	  /* index of a terminal -> "tty[..]" */
	json_t *masters;  /* index -> true: with the supervisor, inside */
};

/* refuse(s, fmt, ...): "not_checkpointable" because of the one whose turn it
 * is. */
int inside_refuse(const struct survey *s, struct err *e, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* inside_warn(s, e, fmt, ...): a warning about it. */
int inside_warn(const struct survey *s, struct err *e, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* inside_seen(s, key): true when it was before; -ENOMEM too counts as not. */
bool inside_seen(struct survey *s, const char *key);

/* inside_tasks.c: the threads of the one whose turn it is, all frozen. */
int inside_tasks(struct survey *s, struct err *e);

/* inside_mounts.c: pid 1's, and what of them is the host's. */
int inside_mounts(struct survey *s, struct err *e);
bool inside_has_mount(const struct survey *s, uint64_t id);

/* inside_fds.c: all that the one whose turn it is has open. */
int inside_fds(struct survey *s, struct err *e);

/* inside_fds.c: a warning where ${what} of a descriptor is ${uid}, as an id of
 * the host, and not root: the engine gives what it makes anew to root. */
int inside_owner(struct survey *s, int num, unsigned uid, const char *what,
		 struct err *e);

/* inside_fds.c: after all: pipes and terminals as externals. */
int inside_streams(struct survey *s, struct err *e);

/* inside_sock.c: one socket, by descriptor; and, after all, whom they talk to.
 */
int inside_socket(struct survey *s, int num, const char *link, struct err *e);
int inside_unix_peers(struct survey *s, struct err *e);

/* inside_watch.c: those of an inotify descriptor, by its fdinfo; and, after
 * all, their names. */
int inside_add_watches(struct survey *s, const char *text, struct err *e);
int inside_find_watches(struct survey *s, struct err *e);

/* inside_open(s, path, flags): a path of the sandbox's, opened as inside: no
 * link leads out of it; -errno. */
int inside_open(struct survey *s, const char *path, int flags);

/* inside_getfd(s, num): the descriptor ${num} of the one whose turn it is, as
 * one of ours; -errno. */
int inside_getfd(struct survey *s, int num);

#endif
