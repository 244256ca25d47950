/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_USER_H
#define BOX_USER_H

#include <stddef.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * Who a command runs as, resolved by the sandbox's own /etc/passwd and
 * /etc/group.  Those files belong to whoever is inside: they are looked up
 * beneath the sandbox's root, must be regular, are read up to a limit, and a
 * line that makes no sense is skipped.
 */
struct user {
	uid_t uid; /* as seen inside */
	gid_t gid;
	gid_t *groups; /* supplementary, without gid */
	size_t ngroups;
	char *name; /* NULL: passwd has no line for uid */
	char *home; /* "/" where passwd does not say */
};

/* Ids of a sandbox are 0 to USER_IDS - 1: the size of its range. */
#define USER_IDS 65536

#define auto_user __attribute__((cleanup(user_done)))

/*
 * user_resolve(root_fd, word, dflt, ret, e):
 * ${word} is USER, USER:GROUP or :GROUP, each a name or a decimal number;
 * ${root_fd} is the sandbox's root (O_PATH will do).  ":GROUP" takes its user
 * from ${dflt}, itself such a word, or root if that has none.  A number needs
 * no line in the files, nor does "root": its group is then the same number,
 * unless given.  With a GROUP there are no supplementary groups.  Code
 * "user_unknown" for everything else; nothing but 0, "root" or a name whose
 * passwd line says so is ever root.
 */
int user_resolve(int root_fd, const char *word, const char *dflt,
		 struct user *ret, struct err *e);
void user_done(struct user *u);

#endif
