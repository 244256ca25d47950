/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_TREE_H
#define BOX_TREE_H

#include <limits.h>
#include <stddef.h>

#include "base/err.h"

/*
 * Where things are: the run tree ($DSEC_RUN, on tmpfs), the library
 * ($DSEC_LIB, durable), the name of our cgroup and the configuration.
 * Environment variables that are not absolute paths are refused.
 */
struct tree {
	const char *run, *lib, *cgroup, *config; /* borrowed, no trailing '/' */
};

/* tree_init(t, e): from the environment; makes nothing. */
int tree_init(struct tree *t, struct err *e);

/*
 * tree_allowed(t, e): may this process look into the run directory?  0; or what
 * tree_not_root() says: "not_root", with the way out.
 */
int tree_allowed(const struct tree *t, struct err *e);
int tree_not_root(struct err *e);

/* tree_make(t, e): make the directories that all programs count on, 0700. */
int tree_make(const struct tree *t, struct err *e);

#define BOX_ID_LEN 20

/* tree_is_id(s): [a-z2-7]{20}. */
int tree_is_id(const char *s);

/*
 * tree_new_id(t, id, e):
 * A new id into id[BOX_ID_LEN + 1]: the node's 4 characters (made once, kept
 * in $DSEC_LIB/node), then 16 random ones.
 */
int tree_new_id(const struct tree *t, char *id, struct err *e);

/*
 * tree_node(t, name, e): what this node is called where several share a store,
 * into name[TREE_NODE_LEN + 1]: its 4 characters, '-', its host name as far as
 * that is letters, digits, '.', '_' and '-'.
 */
#define TREE_NODE_LEN 72
int tree_node(const struct tree *t, char *name, struct err *e);

/*
 * tree_find(t, word, id, e):
 * The id of a sandbox given by id or name, into id[BOX_ID_LEN + 1].  An id is
 * not looked up.  "sandbox_unknown" for a name nobody has,
 * "permission" where we may not see.
 */
int tree_find(const struct tree *t, const char *word, char *id, struct err *e);

/*
 * tree_each(top, fn, arg, e):
 * Each id in ${top}/sb, the run tree's or the library's, until ${fn} returns
 * something other than 0, which is returned.
 */
typedef int tree_fn(void *arg, const char *id, struct err *e);
int tree_each(const char *top, tree_fn *fn, void *arg, struct err *e);

/* tree_path(buf, fmt, ...): snprintf into buf[PATH_MAX]; -ENAMETOOLONG. */
int tree_path(char *buf, struct err *e, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

#endif
