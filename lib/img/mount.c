/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/mount_priv.h"
#include "img/sha256.h"
#include "img/unpack.h"
#include "sys/erofs.h"

#define LEASE_WHY "mounted"

/* A layer that is being mounted. */
struct job {
	const struct layer_node *n;
	const struct store *s;
	const struct digest *d;
	struct layer layer;
	struct fstree *tree;
};

/* --- checks -------------------------------------------------------------- */

/* What overlay would follow to other places than the layer says. */
static int check_node(void *arg, const char *path, struct fsnode *n,
		      struct err *e)
{
	static const char *const never[] = {"trusted.overlay.redirect",
					    "trusted.overlay.metacopy"};

	(void)arg;
	for (size_t i = 0; n->nxattrs > 0 && i < array_len(never); i++)
		if (fsnode_xattr(n, never[i]))
			return err_set(e, -EBADMSG, "image_damaged",
				       "'%s' has the attribute '%s', which no "
				       "layer may have",
				       path, never[i]);
	return 0;
}

/* The kernel takes metadata at its word: nothing is mounted that we have not
 * read ourselves. */
static int check(struct job *j, struct err *e)
{
	int r;

	r = store_layer_checked(j->s, j->d, &j->layer, e);
	if (r == 0)
		r = store_tree(j->s, &j->layer, &j->tree, e);
	return r < 0 ? r : fstree_walk(j->tree, check_node, NULL, e);
}

/* --- metadata of our own ------------------------------------------------- */

/* No more than ${max}: it may have grown since it was checked. */
static int copy_fd(int from, int to, uint64_t max, struct err *e)
{
	auto_free char *text = malloc(BLOB_PIECE);
	ssize_t n;
	int r = 0;

	if (!text)
		return err_sys(e, ENOMEM, "copy");
	while (r == 0 && max > 0) {
		n = read(from, text, max < BLOB_PIECE ? max : BLOB_PIECE);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read metadata");
		if (n == 0)
			break;
		max -= (uint64_t)n;
		r = fd_write_all(to, text, (size_t)n, e);
	}
	return r;
}

static bool only_ours(const struct store *s)
{
	struct stat st;

	return s->builder && fstat(s->fd, &st) == 0 && st.st_uid == geteuid() &&
	       !(st.st_mode & (S_IWGRP | S_IWOTH));
}

/*
 * A store that others write may change what was checked before it is mounted:
 * of its metadata a copy is mounted, which was checked if it has the same
 * digest.  It has no name: it goes with the mount, or with us.
 */
static int own_meta(const struct job *j, int from, struct err *e)
{
	auto_close int to = -1;
	struct digest is;
	int r;

	to = open(j->n->lib, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
	if (to < 0)
		return err_sys(e, errno, "create a file in '%s'", j->n->lib);
	r = copy_fd(from, to, j->layer.meta_bytes, e);
	if (r == 0 && lseek(to, 0, SEEK_SET) < 0)
		r = err_sys(e, errno, "read metadata");
	if (r == 0)
		r = sha256_fd(to, &is, e);
	if (r == 0 && !digest_eq(&is, &j->layer.meta))
		r = err_set(e, -EBADMSG, "image_damaged",
			    "its metadata changed while it was read");
	return r < 0 ? r : steal_fd(&to);
}

static int open_meta(const struct job *j, struct err *e)
{
	auto_close int fd = -1;

	fd = store_open_meta(j->s, &j->layer.meta, e);
	if (fd < 0)
		return fd;
	return only_ours(j->s) ? steal_fd(&fd) : own_meta(j, fd, e);
}

/* --- ways ---------------------------------------------------------------- */

static int open_blob(const struct job *j, size_t i, struct err *e)
{
	struct err why = {0};
	int fd;

	fd = store_open_blob((void *)(uintptr_t)j->s, &j->layer.devices[i].root,
			     &why);
	if (fd == -ENOENT)
		return err_set(e, -EBADMSG, "image_damaged", "%s", why.msg);
	if (fd < 0 && e)
		*e = why;
	return fd;
}

static int mount_erofs(const struct job *j, bool loop, const char *target,
		       struct err *e)
{
	size_t n = j->layer.ndevices, opened = 0;
	struct erofs_want w = {.meta = -1, .ndevices = n, .loop = loop};
	int *fds = malloc((n + 1) * sizeof(*fds));
	int r = fds ? 0 : err_sys(e, ENOMEM, "mount");

	if (r == 0)
		r = w.meta = open_meta(j, e);
	while (r >= 0 && opened < n) {
		r = open_blob(j, opened, e);
		if (r >= 0)
			fds[opened++] = r;
	}
	w.devices = fds;
	if (r >= 0)
		r = erofs_mount(&w, target, e);
	while (opened > 0)
		fd_close(fds[--opened]);
	if (w.meta >= 0)
		fd_close(w.meta);
	free(fds);
	return r;
}

static int mount_on(const struct job *j, bool loop, struct err *e)
{
	char target[PATH_MAX];
	int r;

	r = layer_mount_path(j->n->run, j->d, target, e);
	if (r < 0)
		return r;
	if (mkdir(target, 0700) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '%s'", target);
	r = mount_erofs(j, loop, target, e);
	if (r < 0)
		rmdir(target);
	return r;
}

static int unpack_into(const struct job *j, int dirs, const char *tmp,
		       struct err *e)
{
	auto_close int dir = -1;

	if (mkdirat(dirs, tmp, 0700) < 0)
		return err_sys(e, errno, "make '%s'", tmp);
	dir = openat(dirs, tmp,
		     O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", tmp);
	return unpack_tree(j->tree, store_open_blob, (void *)(uintptr_t)j->s,
			   dir, e);
}

static int unpack(const struct job *j, struct err *e)
{
	char path[PATH_MAX], hex[DIGEST_HEX + 1];
	char tmp[sizeof(LAYER_TMP) + DIGEST_HEX];
	auto_close int dirs = -1;
	int r;

	if (snprintf(path, sizeof(path), "%s/" LAYER_DIRS, j->n->lib) >=
	    PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "%s", j->n->lib);
	r = fd_mkdir_p(path, 0700, e);
	if (r < 0)
		return r;
	dirs = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dirs < 0)
		return err_sys(e, errno, "open '%s'", path);
	snprintf(tmp, sizeof(tmp), LAYER_TMP "%s", digest_hex(j->d, hex));
	/* Of one that was killed: the lock is ours. */
	r = fd_remove_tree(dirs, tmp, e);
	if (r == 0)
		r = unpack_into(j, dirs, tmp, e);
	if (r == 0 && renameat(dirs, tmp, dirs, hex) < 0)
		r = err_sys(e, errno, "rename to '%s/%s'", path, hex);
	if (r == 0 && fsync(dirs) < 0)
		r = err_sys(e, errno, "sync '%s'", path);
	if (r < 0)
		(void)fd_remove_tree(dirs, tmp, NULL);
	return r;
}

static int by(const struct job *j, enum image_way way, struct err *e)
{
	int r;

	r = way == IMAGE_DIRECTORY ? unpack(j, e)
				   : mount_on(j, way == IMAGE_LOOP, e);
	return r < 0 ? err_wrap(e, r, "by %s", image_way_name(way)) : 0;
}

/* Not the way's fault: another would meet the same. */
static bool is_final(int r)
{
	return r == -EBADMSG || r == -ENOMEM || r == -EIO || r == -ENOSPC ||
	       r == -EMFILE || r == -ENFILE;
}

static int bring(const struct job *j, enum image_way way,
		 enum image_way *ret_way, struct err *e)
{
	static const enum image_way order[] = {IMAGE_FILE, IMAGE_LOOP,
					       IMAGE_DIRECTORY};
	char before[ERR_MSG_MAX / 2] = "";
	struct err why = {0};
	int r = -EINVAL;

	for (size_t i = 0; i < array_len(order); i++) {
		if (way != IMAGE_AUTO && way != order[i])
			continue;
		r = by(j, order[i], &why);
		if (r == 0) {
			*ret_way = order[i];
			return 0;
		}
		if (is_final(r) || way != IMAGE_AUTO || i == 2)
			break;
		snprintf(before + strlen(before),
			 sizeof(before) - strlen(before), "%.100s; ", why.msg);
	}
	return err_set(e, r, why.code, "%s%s", before, why.msg);
}

/* --- layers -------------------------------------------------------------- */

/* Where the store is ours, it is told before: from here on nobody, on no node,
 * takes the layer away. */
static int lease(const struct job *j, struct err *e)
{
	return j->s->builder
		       ? store_lease(j->s, j->n->holder, j->d, 0, LEASE_WHY, e)
		       : 0;
}

int layer_lease_drop(const struct layer_node *n, const struct store *s,
		     const struct digest *d, struct err *e)
{
	return s->builder ? store_lease_drop(s, n->holder, d, e) : 0;
}

/* Digests of leases that may be idle: they are dropped after the list of
 * leases was read, which must not change meanwhile. */
struct own {
	const struct layer_node *n;
	const struct digest *used;
	size_t nused;
	struct digest *d;
	size_t len;
};

static int note_own(void *arg, const char *holder, const struct digest *d,
		    int64_t until_ms, const char *why, struct err *e)
{
	struct own *o = arg;
	struct digest *p;

	if (until_ms || strcmp(holder, o->n->holder) || strcmp(why, LEASE_WHY))
		return 0;
	for (size_t i = 0; i < o->nused; i++)
		if (digest_eq(&o->used[i], d))
			return 0;
	p = realloc(o->d, (o->len + 1) * sizeof(*p));
	if (!p)
		return err_sys(e, ENOMEM, "leases");
	o->d = p;
	o->d[o->len++] = *d;
	return 0;
}

/* Under the layer's lock: nobody is mounting it just now. */
static int tidy_one(const struct layer_node *n, const struct store *s,
		    const struct digest *d, struct err *e)
{
	auto_close int lock = -1;

	if (layer_lock(n, d, false, &lock, NULL) < 0 ||
	    layer_ready(n, d, IMAGE_AUTO) != IMAGE_AUTO)
		return 0;
	return store_lease_drop(s, n->holder, d, e);
}

int layer_leases_tidy(const struct layer_node *n, const struct store *s,
		      const struct digest *used, size_t nused, struct err *e)
{
	struct own o = {.n = n, .used = used, .nused = nused};
	int r;

	if (!s->builder)
		return 0;
	r = store_leases(s, note_own, &o, e);
	for (size_t i = 0; r == 0 && i < o.len; i++)
		r = tidy_one(n, s, &o.d[i], e);
	free(o.d);
	return r;
}

int layer_mount(const struct layer_node *n, const struct store *s,
		const struct digest *d, enum image_way way,
		enum image_way *ret_way, struct err *e)
{
	struct job j = {.n = n, .s = s, .d = d};
	auto_close int lock = -1;
	int r;

	r = layer_lock(n, d, true, &lock, e);
	if (r < 0)
		return r;
	*ret_way = layer_ready(n, d, way);
	if (*ret_way == IMAGE_FILE && layer_on_loop(n, d))
		*ret_way = IMAGE_LOOP;
	if (*ret_way != IMAGE_AUTO)
		return 0;
	r = lease(&j, e);
	if (r == 0)
		r = check(&j, e);
	if (r == 0)
		r = bring(&j, way, ret_way, e);
	/* Unless it is here in another form, which a lease keeps. */
	if (r < 0 && layer_ready(n, d, IMAGE_AUTO) == IMAGE_AUTO)
		(void)layer_lease_drop(n, s, d, NULL);
	fstree_free(j.tree);
	layer_done(&j.layer);
	return r;
}
