/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_BOX_STARTER_H
#define DSEC_BOX_STARTER_H

#include "box.h"
#include "box/enter.h"
#include "box/user.h"

/*
 * From what was asked to a process in the sandbox: who, with which environment,
 * where.
 */
struct starter_want {
	const json_t *argv; /* array of strings */
	const json_t *env;  /* object, or NULL */
	const char *cwd;    /* NULL: the spec's */
	const char *user;   /* NULL: the spec's */
	bool tty;
	bool bare; /* our own helper: no environment of image or spec */
};

struct starter {
	struct box *box;
	struct user user;
	struct enter en; /* fds, tty and extra ones are the caller's to set */
	const char **argv;
	char **envp;
	char *cwd;
	bool cwd_default;
	uid_t host_uid; /* the user's, outside */
	gid_t host_gid;
};

/* starter_init(s, b, want, e): everything but the descriptors. */
int starter_init(struct starter *s, struct box *b,
		 const struct starter_want *want, struct err *e);
void starter_done(struct starter *s);

/* starter_own(s, fd, e): make a pipe the user's, so that /dev/stdout opens. */
int starter_own(const struct starter *s, int fd, struct err *e);

/* starter_enter(s, leaf, ret, e): make the leaf and start; or nothing is
 * left.*/
int starter_enter(struct starter *s, const char *leaf, struct entered *ret,
		  struct err *e);

#endif
