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

const char *pool_copy_name(enum pool_copy how)
{
	static const char *const names[] = {"snapshot", "reflink", "copied"};

	return names[how];
}

/* The subvolume that a layer is, or -1: it is plain directories. */
static int subvol_of(int from)
{
	auto_close int upper = -1, top = -1;
	struct statfs fs;
	struct stat st;

	upper = openat(from, "upper", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (upper < 0)
		return -1;
	top = openat(upper, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0 || fstat(top, &st) < 0 || fstatfs(top, &fs) < 0 ||
	    fs.f_type != BTRFS_SUPER_MAGIC ||
	    st.st_ino != BTRFS_FIRST_FREE_OBJECTID)
		return -1;
	return steal_fd(&top);
}

bool pool_at_once(const struct pool *p, int from)
{
	auto_close int layer = p->kind == POOL_BTRFS ? subvol_of(from) : -1;
	struct statfs a, b;

	/* Each subvolume has an identity of its own out of the file system's
	 * and its number: they share the size of all. */
	return layer >= 0 && fstatfs(layer, &a) == 0 &&
	       fstatfs(p->base, &b) == 0 && a.f_type == b.f_type &&
	       a.f_blocks == b.f_blocks;
}

static int new_work(int layer, struct err *e)
{
	mode_t mask;
	int r;

	r = fd_remove_tree(layer, "work", e);
	if (r < 0)
		return r;
	mask = umask(0);
	if (mkdirat(layer, "work", 0755) < 0)
		r = err_sys(e, errno, "make 'work'");
	umask(mask);
	return r;
}

/* 1: made; 0: this layer is of another file system than the pool. */
static int snapshot(const struct pool *p, int layer,
		    const struct pool_snapshot *want, int *ret_fd,
		    struct err *e)
{
	struct btrfs_ioctl_vol_args_v2 args = {.fd = layer};

	if (snprintf(args.name, sizeof(args.name), "%s", want->id) >= NAME_MAX)
		return err_sys(e, ENAMETOOLONG, "layer '%s'", want->id);
	if (ioctl(p->base, BTRFS_IOC_SNAP_CREATE_V2, &args) < 0)
		return errno == EXDEV ? 0
				      : err_sys(e, errno,
						"snapshot of a layer to '%s'",
						want->id);
	*ret_fd = openat(p->base, want->id, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*ret_fd >= 0)
		return 1;
	return err_sys(e, errno, "open subvolume '%s'", want->id);
}

/* What is left to do touches the copy alone. */
static void captured(const struct pool_snapshot *want)
{
	if (want->captured)
		want->captured(want->arg);
}

static int copy_into(int to, const struct pool_snapshot *want,
		     enum pool_copy *how, struct err *e)
{
	struct pool_copy_tree c = {.to = to, .stop = want->stop};
	char path[64];
	int r = 0;

	for (size_t i = 0; r == 0 && i < POOL_PARTS; i++) {
		if (!strcmp(pool_part[i], "work"))
			continue;
		/* The name may be a link to where the layer is. */
		snprintf(path, sizeof(path), "%s/..", pool_part[i]);
		c.from = openat(want->from, path,
				O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (c.from < 0)
			return err_sys(e, errno, "open '%s'", pool_part[i]);
		c.name = pool_part[i];
		r = pool_copy_tree(&c, e);
		fd_close(c.from);
	}
	if (r == 0) {
		captured(want);
		r = new_work(to, e);
	}
	if (r == 0)
		*how = c.shared && !c.copied ? POOL_COPY_REFLINK
					     : POOL_COPY_COPIED;
	return r;
}

/* Into a subvolume of its own, whatever the source is. */
static int make_subvol(const struct pool *p, const struct pool_snapshot *want,
		       enum pool_copy *how, struct err *e)
{
	auto_close int layer = subvol_of(want->from), fd = -1;
	int r = 0;

	if (layer >= 0)
		r = snapshot(p, layer, want, &fd, e);
	if (r > 0) {
		*how = POOL_COPY_SNAPSHOT;
		captured(want);
		/* Before its limit, which it may have reached already. */
		r = new_work(fd, e);
	} else if (r == 0) {
		r = pool_subvol_make(p, want->id, &fd, e);
	}
	/* A copy is limited before it begins, so that it ends in time. */
	if (r >= 0 && want->limit_bytes)
		r = pool_subvol_limit(fd, want->limit_bytes, e);
	if (r >= 0 && *how != POOL_COPY_SNAPSHOT)
		r = copy_into(fd, want, how, e);
	if (r == 0)
		r = pool_parts_link(want->home, want->id, e);
	return r;
}

static bool taken(const struct pool *p, const struct pool_snapshot *want)
{
	struct stat st;

	if (p->base >= 0 &&
	    fstatat(p->base, want->id, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return true;
	for (size_t i = 0; i < POOL_PARTS; i++)
		if (fstatat(want->home, pool_part[i], &st,
			    AT_SYMLINK_NOFOLLOW) == 0)
			return true;
	return false;
}

int pool_snapshot(const struct pool *p, const struct pool_snapshot *want,
		  enum pool_copy *ret_how, struct err *e)
{
	enum pool_copy how = POOL_COPY_COPIED;
	int r;

	if (want->limit_bytes && p->kind != POOL_BTRFS)
		return pool_no_limit(e, "this node has none");
	if (taken(p, want))
		return err_sys(e, EEXIST, "layer '%s'", want->id);
	if (p->kind == POOL_BTRFS)
		r = make_subvol(p, want, &how, e);
	else
		r = copy_into(want->home, want, &how, e);
	if (r < 0) {
		if (pool_remove_at(p, want->home, want->id, NULL) < 0)
			return err_wrap(e, r, "(and a part of it is left)");
		return r;
	}
	*ret_how = how;
	return 0;
}

static int sync_part(int home, const char *part, struct err *e)
{
	auto_close int fd = openat(home, part,
				   O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 || syncfs(fd) < 0)
		return err_sys(e, errno, "sync '%s' of a layer", part);
	return 0;
}

int pool_flush(int home, struct err *e)
{
	return sync_part(home, "upper", e);
}

/* The names are of another file system than what they lead to. */
int pool_sync(int home, struct err *e)
{
	int r = sync_part(home, "upper", e);

	return r < 0 ? r : sync_part(home, ".", e);
}

int pool_work_new(int home, struct err *e)
{
	auto_close int layer = openat(home, "upper/..",
				      O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (layer < 0)
		return err_sys(e, errno, "open a layer");
	return new_work(layer, e);
}
