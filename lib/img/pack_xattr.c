/* SPDX-License-Identifier: Apache-2.0 */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/limits.h>
#include <linux/posix_acl_xattr.h>
#include <linux/posix_acl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "img/pack_upper.h"
#include "img/pack_xattr.h"

#define OVERLAY	  "trusted.overlay."
#define PROC_NAME 32

int pack_xattr_init(struct pack_xattr *x)
{
	x->names = malloc(XATTR_LIST_MAX);
	x->value = malloc(XATTR_SIZE_MAX);
	return x->names && x->value ? 0 : -ENOMEM;
}

void pack_xattr_done(struct pack_xattr *x)
{
	free(x->names);
	free(x->value);
}

static bool is_path_fd(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags >= 0 && (flags & O_PATH);
}

/* By the descriptor; where that is one of O_PATH, by its name in proc. */
static ssize_t list(int fd, char *names, char *name)
{
	ssize_t n;

	*name = '\0';
	n = flistxattr(fd, names, XATTR_LIST_MAX);
	if (n >= 0 || errno != EBADF || !is_path_fd(fd))
		return n;
	snprintf(name, PROC_NAME, "/proc/self/fd/%d", fd);
	return listxattr(name, names, XATTR_LIST_MAX);
}

static ssize_t get(int fd, const char *path, const char *name, void *value,
		   size_t size)
{
	return *path ? getxattr(path, name, value, size)
		     : fgetxattr(fd, name, value, size);
}

int pack_xattr_whiteout(int fd)
{
	return fgetxattr(fd, OVERLAY "whiteout", NULL, 0) >= 0;
}

/* 1: keep it, 0: drop it. */
static int overlay(const char *name, const char *value, size_t len,
		   struct err *e)
{
	static const char *const own[] = {"origin", "impure", "uuid",
					  "nlink",  "upper",  "protattr"};
	const char *rest = name + strlen(OVERLAY);

	for (size_t i = 0; i < array_len(own); i++)
		if (!strcmp(rest, own[i]))
			return 0;
	/* One level down it is data of an overlay inside. */
	if (!strncmp(rest, "overlay.", 8))
		return 1;
	if (!strcmp(rest, "opaque") && len == 1 && *value == 'y')
		return 1;
	/* Whiteouts in another form below, which are translated. */
	if (!strcmp(rest, "opaque") && len == 1 && *value == 'x')
		return 0;
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "it has %.64s: its content is not in this directory "
		       "alone",
		       name);
}

/*
 * A capability for the root of a user namespace.  That of the sandbox's own
 * root means what version 2 means in the layer; another's would become more
 * than it was.
 */
static int capability(const struct pack_xattr *x, char *value, size_t *len)
{
	struct vfs_ns_cap_data *cap = (void *)value;
	uint32_t magic, root;

	if (*len < sizeof(magic))
		return 1;
	magic = le32toh(cap->magic_etc);
	if ((magic & VFS_CAP_REVISION_MASK) != VFS_CAP_REVISION_3 ||
	    *len != XATTR_CAPS_SZ_3)
		return 1;
	root = le32toh(cap->rootid);
	if (x->uid_base && root >= x->uid_base &&
	    root - x->uid_base <= PACK_ID_MAX)
		root -= x->uid_base;
	if (root > PACK_ID_MAX)
		return 0;
	cap->rootid = htole32(root);
	if (root != 0)
		return 1;
	cap->magic_etc = htole32((magic & ~VFS_CAP_REVISION_MASK) |
				 VFS_CAP_REVISION_2);
	*len = XATTR_CAPS_SZ_2;
	return 1;
}

static int acl(const char *value, size_t len, struct err *e)
{
	const struct posix_acl_xattr_entry *en;
	size_t head = sizeof(struct posix_acl_xattr_header);

	if (len < head || (len - head) % sizeof(*en))
		return err_set(e, -EBADMSG, "bad_value",
			       "its access list is malformed");
	en = (const void *)(value + head);
	for (size_t i = 0; i < (len - head) / sizeof(*en); i++) {
		unsigned tag = le16toh(en[i].e_tag);

		if ((tag == ACL_USER || tag == ACL_GROUP) &&
		    le32toh(en[i].e_id) > PACK_ID_MAX)
			return err_set(e, -EOVERFLOW, "bad_value",
				       "its access list names id %u, which is "
				       "nobody of a sandbox",
				       le32toh(en[i].e_id));
	}
	return 1;
}

static int keep(const struct pack_xattr *x, const char *name, char *value,
		size_t *len, struct err *e)
{
	if (!strncmp(name, OVERLAY, strlen(OVERLAY)))
		return overlay(name, value, *len, e);
	if (!strcmp(name, "security.capability"))
		return capability(x, value, len);
	if (!strcmp(name, "system.posix_acl_access") ||
	    !strcmp(name, "system.posix_acl_default"))
		return acl(value, *len, e);
	/* How the file system of the upper stores it. */
	return strncmp(name, "btrfs.", 6) != 0;
}

static int one(struct pack_xattr *x, int fd, const char *path, const char *name,
	       struct fstree *t, struct fsnode *n, struct err *e)
{
	ssize_t got = get(fd, path, name, x->value, XATTR_SIZE_MAX);
	size_t len = (size_t)got;
	int r;

	if (got < 0)
		return err_sys(e, errno, "read attribute %.64s", name);
	r = keep(x, name, x->value, &len, e);
	if (r <= 0)
		return r;
	x->bytes += strlen(name) + len;
	if (x->bytes > PACK_XATTRS_MAX)
		return err_set(e, -EFBIG, "too_large",
			       "attributes are over %u MiB together",
			       PACK_XATTRS_MAX >> 20);
	r = fsnode_set_xattr(t, n, name, x->value, len);
	return r < 0 ? err_sys(e, -r, "attribute %.64s", name) : 0;
}

int pack_xattr_apply(struct pack_xattr *x, int fd, struct fstree *t,
		     struct fsnode *n, struct err *e)
{
	char path[PROC_NAME];
	ssize_t len = list(fd, x->names, path);
	int r = 0;

	if (len < 0 && (errno == ENOTSUP || errno == ENODATA))
		return 0;
	if (len < 0)
		return err_sys(e, errno, "list attributes");
	for (ssize_t i = 0; r == 0 && i < len;
	     i += (ssize_t)strnlen(x->names + i, (size_t)(len - i)) + 1)
		r = one(x, fd, path, x->names + i, t, n, e);
	return r;
}
