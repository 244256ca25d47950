/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_RESIDUE_H
#define IMG_RESIDUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

/*
 * Residue: what work in a sandbox leaves in its files and a layer made of them
 * should not carry: caches, histories, keys, what lay in /tmp.  A rule has a
 * name, by which it is turned on and off, and patterns of paths; a few look
 * into the file as well.  Which rules are on is a set of bits.
 *
 * A pattern is components divided by '/', each literal or with '*' for any
 * bytes; it begins at the root with a leading '/', else at any directory.
 */
typedef uint64_t residue_set;

/* Bytes of a file a rule may want to see: its first ones. */
#define RESIDUE_HEAD (64 * 1024)

enum residue_part {
	RESIDUE_NONE,  /* nothing of it */
	RESIDUE_ALL,   /* the entry and all below */
	RESIDUE_BELOW, /* a directory's content; itself it stays */
	RESIDUE_LOOK,  /* a file: all of it if residue_look() says so */
};

struct residue_hit {
	const char *rule; /* its name, a literal */
	enum residue_part part;
	unsigned pattern; /* for residue_look() */
};

/* residue_default(): the rules that are on unless something else is asked. */
residue_set residue_default(void);

/* residue_switch(set, rule, on, e): "bad_value" lists the rules there are. */
int residue_switch(residue_set *set, const char *rule, bool on, struct err *e);

/* residue_rule(i, ret_what): the name of rule ${i} from 0 and what it is about;
 * NULL beyond the last. */
const char *residue_rule(size_t i, const char **ret_what);

/*
 * residue_match(set, path, mode, ret):
 * What of the entry at ${path} (below the root, without a leading '/') is
 * residue.  Its directories are not looked at again: who walks a tree leaves
 * out what is below a hit.
 */
enum residue_part residue_match(residue_set set, const char *path, mode_t mode,
				struct residue_hit *ret);

/* residue_look(hit, data, len): does a file that begins with ${data} fit? */
bool residue_look(const struct residue_hit *hit, const void *data, size_t len);

/* residue_is_key(data, len): a private key in PEM form is in it. */
bool residue_is_key(const void *data, size_t len);

#endif
