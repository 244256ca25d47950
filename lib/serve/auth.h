/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SERVE_AUTH_H
#define SERVE_AUTH_H

#include <stdbool.h>

#include "base/cleanup.h"
#include "wire/json.h"

/*
 * Who may do what: the bindings of serve.json, from the identity of a client
 * certificate or the digest of a bearer token to a project's subtree and a set
 * of operations.  Nobody without a binding may anything.  Pure: nothing here
 * looks at a sandbox; whoever resolves one holds its project against the
 * subtree by auth_within().
 */
enum auth_op {
	AUTH_RUN = 1 << 0,
	AUTH_EXEC = 1 << 1,    /* commands, sessions, their output */
	AUTH_FILE = 1 << 2,    /* files of a sandbox */
	AUTH_CONNECT = 1 << 3, /* its ports */
	AUTH_PAUSE = 1 << 4,   /* pause, resume, stop */
	AUTH_FORK = 1 << 5,    /* copies and snapshots */
	AUTH_NET = 1 << 6,     /* its network rules */
	AUTH_PS = 1 << 7,
	AUTH_IMG = 1 << 8,	 /* look at images */
	AUTH_IMG_WRITE = 1 << 9, /* make, name and remove them */
	AUTH_REPORT = 1 << 10,	 /* of a node; nodes */
	AUTH_DRAIN = 1 << 11,
	AUTH_NONE = 1 << 12, /* hello, ping: needs no right */
};
#define AUTH_ALL (AUTH_NONE - 1)

struct auth;

struct auth_who {
	const char *uri;     /* dsec://client/NAME, or "token:" and digits */
	const char *project; /* root/rl */
	unsigned ops;
};

/*
 * auth_new(clients, ret, e):
 * From serve.json's "clients" (NULL: none): [{"uri" or "token_sha256",
 * "project","operations":[..]}], names of operations as auth_word(), or "all".
 * Strict: "configuration", with the entry.
 */
must_check int auth_new(const json_t *clients, struct auth **ret,
			struct err *e);
void auth_free(struct auth *a);

/*
 * auth_by_uri(a, uri), auth_by_digest(a, sha256): the binding, or NULL; the
 * digest is that of a token, as hex digits.  auth_find(a, name): by what
 * auth_who calls "uri".
 * auth_of(a, uri, sha256): of a client that has said a token, or ("") none: the
 * token tells who asks where the certificate alone does not.
 */
const struct auth_who *auth_by_uri(const struct auth *a, const char *uri);
const struct auth_who *auth_find(const struct auth *a, const char *name);
const struct auth_who *auth_by_digest(const struct auth *a, const char *hex);
const struct auth_who *auth_of(const struct auth *a, const char *uri,
			       const char *sha256);

/* auth_word(op): "run", "exec" ..; auth_op_of(word): the reverse, or 0. */
const char *auth_word(enum auth_op op);
enum auth_op auth_op_of(const char *word);

/*
 * auth_needs(req, ret, e): the operation that the request, by its "program" and
 * "op", needs.  "unsupported": no such program; "bad_value": no such op.
 */
must_check int auth_needs(const json_t *req, enum auth_op *ret, struct err *e);

/* auth_within(project, subtree): is ${project} ${subtree} or below it? */
bool auth_within(const char *project, const char *subtree);

/* auth_project_ok(project): is it "root" or a path of names below? */
bool auth_project_ok(const char *project);

/*
 * auth_narrow(req, within, e):
 * Hold the request against the subtree ${within} as far as it can be without
 * looking: a project that it names must be in it, one that it leaves out
 * becomes ${within}; names of images and snapshots likewise; and what means a
 * file of the node is refused to everybody, for it is not the caller's.
 * "permission", naming the field.  Fields that are null are taken out first,
 * and those that decide must be what they are: "bad_value".
 */
#define AUTH_KEY_MAX 128
must_check int auth_narrow(json_t *req, const char *within, struct err *e);

/* auth_holds(who, req, within): may ${who} (or NULL: nobody) go on with a
 * request that was begun in the subtree ${within}? */
bool auth_holds(const struct auth_who *who, const json_t *req,
		const char *within);

/* auth_blank_report(rec): leave out of a node's report whose sandboxes it has.
 */
void auth_blank_report(json_t *rec);

#endif
