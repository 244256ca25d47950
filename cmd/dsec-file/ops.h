/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_FILE_OPS_H
#define DSEC_FILE_OPS_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "wire/json.h"

/* The arguments, one bit each: which were given, which an operation takes. */
enum arg {
	ARG_PATH = 1 << 0,
	ARG_TO = 1 << 1,
	ARG_NAME = 1 << 2,
	ARG_OFFSET = 1 << 3,
	ARG_LIMIT = 1 << 4,
	ARG_SIZE = 1 << 5,
	ARG_DEPTH = 1 << 6,
	ARG_MODE = 1 << 7,
	ARG_TIMEOUT = 1 << 8,
	ARG_PARENTS = 1 << 9,
	ARG_RECURSIVE = 1 << 10,
	ARG_SYNC = 1 << 11,
	ARG_OWNER = 1 << 12,
	ARG_FOLLOW = 1 << 13,
	ARG_TAG = 1 << 14, /* any word, to tell requests of one key apart */
};

/* One call: its arguments, and in ${res} the keys of its result. */
struct call {
	unsigned given;
	char *path, *to, *name, *tag;
	int64_t offset, limit, size, depth, timeout_ms;
	mode_t mode;
	bool parents, recursive, sync, owner, follow;
	json_t *res;
};

/* Data comes from 0 and goes to 1; 0 with ${c}->res filled, or -errno. */
typedef int op_fn(struct call *c, struct err *e);
op_fn op_read, op_write, op_list, op_stat, op_mkdir, op_move, op_remove,
	op_watch, op_tar_out, op_tar_in;

/* parent.c */

/*
 * parent_open(path, follow, ret_name, e):
 * The directory that ${path} is in, and its last name into
 * ret_name[NAME_MAX + 1].  With ${follow}, where the name is a link, the place
 * it points to instead, whether there is something or not.  "is_directory"
 * for names that can only be directories ("/", "..", and with ${follow} a
 * trailing slash).
 */
int parent_open(const char *path, bool follow, char *ret_name, struct err *e);

/* parent_make(path, e): make the directories above ${path}. */
int parent_make(const char *path, struct err *e);

#endif
