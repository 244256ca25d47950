/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_ACL_H
#define WIRE_ACL_H

#include <stdbool.h>

#include "base/buf.h"

/*
 * POSIX access lists: as text, which archives carry, and as the value of the
 * extended attribute by which Linux stores and shows them.
 */
#define ACL_XATTR_ACCESS  "system.posix_acl_access"
#define ACL_XATTR_DEFAULT "system.posix_acl_default"
#define ACL_ENTRIES_MAX	  1024

/*
 * acl_from_text(text, len, ret):
 * "user::rwx,user:1000:r-x,mask::r-x,.." (also by lines, with short tags, with
 * the number after a name: "user:joe:r-x:1000") appended to ${ret} as the
 * attribute's value; no text is no bytes.  -EINVAL: no valid ACL; -ENOENT: it
 * has the name of a user or group and not the number, which nobody here can
 * know (root is 0); -ENOMEM.
 */
int acl_from_text(const char *text, size_t len, struct buf *ret);

/* acl_to_text(value, len, ret): the reverse, with numbers, one line with
 * commas.  -EINVAL, -ENOMEM. */
int acl_to_text(const void *value, size_t len, struct buf *ret);

/* acl_check(value, len): 0, or -EINVAL: the kernel would not take it. */
int acl_check(const void *value, size_t len);

/* acl_is_mode(value, len): does this (valid) one say no more than a mode? */
bool acl_is_mode(const void *value, size_t len);

#endif
