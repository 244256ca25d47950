/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_JOURNAL_H
#define BOX_JOURNAL_H

#include "wire/json.h"

/*
 * A durable log of results by name: the numbered steps of a trajectory, the
 * idempotency keys.  A line of the file is {MEMBER:name, ...}; the first line
 * of a name counts.  Memory holds a few bytes per line, the rest stays in the
 * file.
 */
struct journal;

/*
 * journal_open(dirfd, file, member, ret, e):
 * Read ${file} if it is there (it is made by the first journal_add()).  What a
 * crash left of a last line is cut off.  ${dirfd} and ${member} are borrowed.
 */
int journal_open(int dirfd, const char *file, const char *member,
		 struct journal **ret, struct err *e);
void journal_free(struct journal *j);

/* journal_find(j, name, ret_line, e): 1 and the line, 0, or -errno. */
int journal_find(struct journal *j, const char *name, json_t **ret_line,
		 struct err *e);

/*
 * journal_add(j, name, line, e):
 * Append ${line}, which gets ${name} under the member unless it has it (an
 * integer is the same name as its digits), and wait until it is durable.  When
 * that fails, the line is kept in memory all the same, so that the name is not
 * used twice while we live.
 */
int journal_add(struct journal *j, const char *name, json_t *line,
		struct err *e);

#endif
