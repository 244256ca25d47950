/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "sys/pool_priv.h"

/* Simple quotas are younger than some distributions' headers. */
#ifndef BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA
#define BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA 4
#endif

/* out is 0700: what a command printed is not for other users of the node. */
const char *const pool_part[POOL_PARTS] = {"upper", "work", "out"};
static const mode_t part_mode[POOL_PARTS] = {0755, 0755, 0700};

const char *pool_kind_name(enum pool_kind kind)
{
	return kind == POOL_BTRFS ? "btrfs" : "directory";
}

const char *pool_quota_name(enum pool_quota quota)
{
	switch (quota) {
	case POOL_QUOTA_SIMPLE:
		return "squota";
	case POOL_QUOTA_GROUP:
		return "qgroup";
	default:
		return "none";
	}
}

static bool is_btrfs(int fd)
{
	struct statfs st;

	return fstatfs(fd, &st) == 0 && st.f_type == BTRFS_SUPER_MAGIC;
}

static int open_dir(int dirfd, const char *name)
{
	return openat(dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

int pool_open(const char *lib, struct pool *ret_pool, struct err *e)
{
	auto_close int top = -1, sb = -1, base = -1;

	top = open_dir(AT_FDCWD, lib);
	if (top < 0)
		return err_sys(e, errno, "open '%s'", lib);
	sb = open_dir(top, "sb");
	if (sb < 0 && errno == ENOENT) {
		if (mkdirat(top, "sb", 0700) < 0 && errno != EEXIST)
			return err_sys(e, errno, "make '%s/sb'", lib);
		sb = open_dir(top, "sb");
	}
	if (sb < 0)
		return err_sys(e, errno, "open '%s/sb'", lib);
	base = open_dir(top, "pool");
	if (base < 0 && errno == ENOENT && is_btrfs(top)) {
		if (mkdirat(top, "pool", 0700) < 0 && errno != EEXIST)
			return err_sys(e, errno, "make '%s/pool'", lib);
		base = open_dir(top, "pool");
	}
	if (base < 0 && errno != ENOENT)
		return err_sys(e, errno, "open '%s/pool'", lib);
	if (base >= 0 && !is_btrfs(base)) {
		fd_close(base);
		base = -1;
	}
	ret_pool->kind = base >= 0 ? POOL_BTRFS : POOL_DIRECTORY;
	ret_pool->sb = steal_fd(&sb);
	ret_pool->base = steal_fd(&base);
	return 0;
}

void pool_close(struct pool *p)
{
	if (p->sb >= 0)
		fd_close(steal_fd(&p->sb));
	if (p->base >= 0)
		fd_close(steal_fd(&p->base));
}

/* --- quota --------------------------------------------------------------- */

/* The subvolume's number, which is its quota group's as well (level 0). */
static int subvol_number(int fd, uint64_t *ret_number, struct err *e)
{
	struct btrfs_ioctl_ino_lookup_args args = {
		.objectid = BTRFS_FIRST_FREE_OBJECTID,
	};

	if (ioctl(fd, BTRFS_IOC_INO_LOOKUP, &args) < 0)
		return err_sys(e, errno, "the number of a subvolume");
	*ret_number = args.treeid;
	return 0;
}

int pool_no_limit(struct err *e, const char *why)
{
	return err_set(e, -EOPNOTSUPP, "unsupported",
		       "a disk limit needs a pool that can enforce it, and %s: "
		       "dsec-doctor --fix --pool-size 20G makes one",
		       why);
}

int pool_subvol_limit(int fd, uint64_t limit_bytes, struct err *e)
{
	struct btrfs_ioctl_qgroup_limit_args args = {
		.lim.flags = BTRFS_QGROUP_LIMIT_MAX_RFER,
	};
	uint64_t number;
	int r;

	r = subvol_number(fd, &number, e);
	if (r < 0)
		return r;
	args.qgroupid = number;
	/* All ones is "no limit" to the kernel. */
	args.lim.max_rfer = limit_bytes ? limit_bytes : UINT64_MAX;
	if (ioctl(fd, BTRFS_IOC_QGROUP_LIMIT, &args) == 0)
		return 0;
	if (errno == ENOTCONN || errno == EINVAL)
		return pool_no_limit(e, "quota is off on this node's");
	return err_sys(e, errno, "set a disk limit");
}

int pool_set_limit(const struct pool *p, const char *id, uint64_t limit_bytes,
		   struct err *e)
{
	auto_close int fd = -1;

	if (p->kind != POOL_BTRFS)
		return pool_no_limit(e, "this node has none");
	fd = open_dir(p->base, id);
	if (fd < 0)
		return err_sys(e, errno, "open layer '%s'", id);
	return pool_subvol_limit(fd, limit_bytes, e);
}

static int qgroup_dir(const struct pool *p)
{
	struct btrfs_ioctl_fs_info_args info = {0};
	char path[96];
	size_t n;

	if (p->kind != POOL_BTRFS || ioctl(p->base, BTRFS_IOC_FS_INFO, &info))
		return -1;
	n = (size_t)snprintf(path, sizeof(path), "/sys/fs/btrfs/");
	for (int i = 0; i < BTRFS_FSID_SIZE; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			path[n++] = '-';
		n += (size_t)snprintf(path + n, sizeof(path) - n, "%02x",
				      info.fsid[i]);
	}
	snprintf(path + n, sizeof(path) - n, "/qgroups");
	return open_dir(AT_FDCWD, path);
}

enum pool_quota pool_quota(const struct pool *p)
{
	auto_close int dir = qgroup_dir(p);
	auto_free char *on = NULL, *mode = NULL;
	size_t len;

	if (dir < 0 || fd_read_file(dir, "enabled", 64, &on, &len, NULL) < 0 ||
	    on[0] != '1')
		return POOL_QUOTA_NONE;
	/* Kernels without simple quotas have no such file. */
	if (fd_read_file(dir, "mode", 64, &mode, &len, NULL) == 0 &&
	    !strncmp(mode, "squota", 6))
		return POOL_QUOTA_SIMPLE;
	return POOL_QUOTA_GROUP;
}

int pool_quota_enable(const struct pool *p, struct err *e)
{
	struct btrfs_ioctl_quota_ctl_args args = {
		.cmd = BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA,
	};

	if (p->kind != POOL_BTRFS)
		return pool_no_limit(e, "this node has none");
	if (pool_quota(p) != POOL_QUOTA_NONE)
		return 0;
	if (ioctl(p->base, BTRFS_IOC_QUOTA_CTL, &args) == 0)
		return 0;
	args = (struct btrfs_ioctl_quota_ctl_args){
		.cmd = BTRFS_QUOTA_CTL_ENABLE,
	};
	if (ioctl(p->base, BTRFS_IOC_QUOTA_CTL, &args) < 0)
		return err_sys(e, errno, "turn on the pool's quota");
	return 0;
}

/* The first item of the quota tree at or after ${key}, if it is of its kind. */
int pool_usage(const struct pool *p, const char *id, uint64_t *ret_bytes,
	       struct err *e)
{
	struct btrfs_ioctl_search_args args = {0};
	struct btrfs_ioctl_search_header head;
	struct btrfs_qgroup_info_item item;
	auto_close int fd = -1;
	uint64_t number;
	int r;

	if (p->kind != POOL_BTRFS)
		return pool_no_limit(e, "this node has none");
	fd = open_dir(p->base, id);
	if (fd < 0)
		return err_sys(e, errno, "open layer '%s'", id);
	r = subvol_number(fd, &number, e);
	if (r < 0)
		return r;
	args.key = (struct btrfs_ioctl_search_key){
		.tree_id = BTRFS_QUOTA_TREE_OBJECTID,
		.min_type = BTRFS_QGROUP_INFO_KEY,
		.max_type = BTRFS_QGROUP_INFO_KEY,
		.min_offset = number,
		.max_offset = number,
		.max_transid = UINT64_MAX,
		.nr_items = 1,
	};
	if (ioctl(p->base, BTRFS_IOC_TREE_SEARCH, &args) < 0 ||
	    args.key.nr_items == 0)
		return pool_no_limit(e, "quota is off on this node's");
	memcpy(&head, args.buf, sizeof(head));
	if (head.len < sizeof(item) ||
	    head.len > sizeof(args.buf) - sizeof(head))
		return err_sys(e, EIO, "usage of layer '%s'", id);
	memcpy(&item, args.buf + sizeof(head), sizeof(item));
	*ret_bytes = le64toh(item.rfer);
	return 0;
}

/* --- layers -------------------------------------------------------------- */

int pool_parts_make(int dir, const char *id, struct err *e)
{
	mode_t mask = umask(0);
	int r = 0;

	for (size_t i = 0; r == 0 && i < POOL_PARTS; i++)
		if (mkdirat(dir, pool_part[i], part_mode[i]) < 0)
			r = err_sys(e, errno, "make '%s' of layer '%s'",
				    pool_part[i], id);
	umask(mask);
	return r;
}

int pool_parts_link(int home, const char *id, struct err *e)
{
	char to[NAME_MAX + 32];

	for (size_t i = 0; i < POOL_PARTS; i++) {
		snprintf(to, sizeof(to), "../../pool/%.*s/%s", NAME_MAX, id,
			 pool_part[i]);
		if (symlinkat(to, home, pool_part[i]) < 0)
			return err_sys(e, errno, "link '%s' of layer '%s'",
				       pool_part[i], id);
	}
	return 0;
}

int pool_subvol_make(const struct pool *p, const char *id, int *ret_fd,
		     struct err *e)
{
	struct btrfs_ioctl_vol_args_v2 args = {0};

	if (snprintf(args.name, sizeof(args.name), "%s", id) >= NAME_MAX)
		return err_sys(e, ENAMETOOLONG, "layer '%s'", id);
	if (ioctl(p->base, BTRFS_IOC_SUBVOL_CREATE_V2, &args) < 0)
		return err_sys(e, errno, "make subvolume '%s'", id);
	*ret_fd = open_dir(p->base, id);
	return *ret_fd < 0 ? err_sys(e, errno, "open subvolume '%s'", id) : 0;
}

int pool_subvol_remove(const struct pool *p, const char *id, struct err *e)
{
	struct btrfs_ioctl_vol_args args = {0};
	struct btrfs_ioctl_qgroup_create_args group = {.create = 0};
	auto_close int fd = open_dir(p->base, id);
	uint64_t number = 0;

	if (fd < 0)
		return errno == ENOENT
			       ? 0
			       : err_sys(e, errno, "open subvolume '%s'", id);
	if (subvol_number(fd, &number, NULL) < 0)
		number = 0;
	snprintf(args.name, sizeof(args.name), "%s", id);
	if (ioctl(p->base, BTRFS_IOC_SNAP_DESTROY, &args) < 0 &&
	    errno != ENOENT)
		return err_sys(e, errno, "remove subvolume '%s'", id);
	/*
	 * Newer kernels drop the quota group with the last of its data; here
	 * it is still charged, mostly, and stays.  It limits nothing any more.
	 */
	if (number >= BTRFS_FIRST_FREE_OBJECTID) {
		group.qgroupid = number;
		(void)ioctl(p->base, BTRFS_IOC_QGROUP_CREATE, &group);
	}
	return 0;
}

static int make_btrfs(const struct pool *p, int home, const char *id,
		      uint64_t limit_bytes, struct err *e)
{
	auto_close int fd = -1;
	int r;

	r = pool_subvol_make(p, id, &fd, e);
	if (r < 0)
		return r;
	if (limit_bytes)
		r = pool_subvol_limit(fd, limit_bytes, e);
	if (r == 0)
		r = pool_parts_make(fd, id, e);
	if (r == 0)
		r = pool_parts_link(home, id, e);
	if (r < 0 && pool_subvol_remove(p, id, NULL) < 0)
		return err_wrap(e, r, "(and its subvolume is left)");
	return r;
}

int pool_make(const struct pool *p, const char *id, uint64_t limit_bytes,
	      struct err *e)
{
	auto_close int home = -1;
	int r;

	if (limit_bytes && p->kind != POOL_BTRFS)
		return pool_no_limit(e, "this node has none");
	if (mkdirat(p->sb, id, 0700) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '%s'", id);
	home = open_dir(p->sb, id);
	if (home < 0)
		return err_sys(e, errno, "open '%s'", id);
	if (p->kind == POOL_BTRFS)
		r = make_btrfs(p, home, id, limit_bytes, e);
	else
		r = pool_parts_make(home, id, e);
	/* -EEXIST is somebody else's layer: not ours to remove. */
	if (r < 0 && r != -EEXIST && pool_remove(p, id, NULL) < 0)
		return err_wrap(e, r, "(and a part of it is left)");
	return r;
}

int pool_remove_at(const struct pool *p, int home, const char *id,
		   struct err *e)
{
	int r = 0, one;

	for (size_t i = 0; home >= 0 && i < POOL_PARTS; i++) {
		one = fd_remove_tree(home, pool_part[i], r < 0 ? NULL : e);
		if (one < 0)
			r = one;
	}
	if (p->base >= 0) {
		one = pool_subvol_remove(p, id, r < 0 ? NULL : e);
		if (one < 0)
			r = one;
	}
	return r;
}

int pool_remove(const struct pool *p, const char *id, struct err *e)
{
	auto_close int home = open_dir(p->sb, id);

	if (home < 0 && errno != ENOENT)
		return err_sys(e, errno, "open '%s'", id);
	return pool_remove_at(p, home, id, e);
}
