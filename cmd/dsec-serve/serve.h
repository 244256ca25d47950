/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_SERVE_SERVE_H
#define DSEC_SERVE_SERVE_H

#include <sys/types.h>

#include "serve/conf.h"

/*
 * The verbs of dsec-serve.  Each gets what the command line says and returns
 * the exit status, or -errno with ${e} set.
 */
#define ARG_HOSTS_MAX 32
#define ARG_WORDS_MAX 64

struct args {
	const char *words[ARG_WORDS_MAX]; /* behind the verb */
	size_t nwords;
	char **rest; /* client: the program and its arguments */
	const char *name, *user, *out, *server, *dir;
	const char *cert, *key, *ca, *peer;
	const char *node, *control, *client; /* issue: which, and its name */
	const char *hosts[ARG_HOSTS_MAX];
	size_t nhosts;
	int days; /* -1: as it would be */
	bool all, upgrade;
	int ready_fd; /* -1: nobody waits */
	int adopt_fd; /* -1: a fresh start */
};

/* certs.c: files of the directory, a record on stdout for each. */
int verb_init(const struct args *a, struct err *e);
int verb_issue(const struct args *a, struct err *e);
int verb_renew(const struct args *a, struct err *e);
int verb_revoke(const struct args *a, struct err *e);

/* control.c, client.c */
int verb_control(const struct args *a, struct err *e);
int verb_client(const struct args *a, struct err *e);

/* Of node.c and audit.c */
int verb_node(const struct args *a, struct err *e);
int verb_keeper(const struct args *a, struct err *e);
int verb_worker(const struct args *a, struct err *e);
int verb_audit(const struct args *a, struct err *e);

/* role.c */
int verb_check(const struct args *a, struct err *e);
/*
 * role_check(dir, only, told, e): could the roles of ${dir}/serve.json, or
 * ${only} "node" or "control" (NULL: all), start with it: the file,
 * certificates, keys, clients and the user?  Nothing is begun; if ${told}, a
 * record says which roles there are.
 * role_user(user, ret_uid, ret_gid, e): who is meant by "node.user": a name or
 * a number; NULL: a uid that is nobody else's.
 */
must_check int role_check(const char *dir, const char *only, bool told,
			  struct err *e);
must_check int role_user(const char *user, uid_t *ret_uid, gid_t *ret_gid,
			 struct err *e);

/* audit_moved(a): the log (or NULL) may have been moved away. */
struct audit;
void audit_moved(struct audit *a);

/* serve_ready(fd, text): a line for whoever started us; fd -1: nobody. */
void serve_ready(int fd, const char *text);

#endif
