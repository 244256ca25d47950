/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "ckpt/ckpt.h"
#include "ckpt/snap_priv.h"
#include "img/manifest.h"

/* A walk over the snapshots; the registry's lock is not held during it. */
static int open_list(const struct tree *t, DIR **ret, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/snap", t->lib);
	if (r < 0)
		return r;
	*ret = opendir(path);
	if (!*ret && errno != ENOENT)
		return err_sys(e, errno, "open '%s'", path);
	return 0;
}

static const char *next_id(DIR *d)
{
	const struct dirent *de;

	while ((de = readdir(d)))
		if (tree_is_id(de->d_name))
			return de->d_name;
	return NULL;
}

int snap_manifest(const struct tree *t, const char *id, json_t **ret,
		  struct err *e)
{
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	char path[PATH_MAX];
	int r;

	r = snap_path(t, id, "ckpt", path, e);
	if (r < 0)
		return r;
	dir = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0 || faccessat(dir, CKPT_MANIFEST, F_OK, 0) < 0)
		return err_sys(e, errno, "manifest of snapshot %s", id);
	r = ckpt_read(dir, &c, e);
	if (r < 0)
		return err_wrap(e, r, "snapshot %s", id);
	*ret = json_incref(c.json);
	return 0;
}

int snap_name(const struct tree *t, const char *id, char *name, struct err *e)
{
	auto_dir DIR *d = NULL;
	int r = open_list(t, &d, e);

	name[0] = '\0';
	return r < 0 || !d ? r : snap_name_of(dirfd(d), id, name, e);
}

static bool in_project(const char *name, const char *top)
{
	size_t n = strlen(top);

	return !strncmp(name, top, n) && name[n] == '/';
}

int snap_list(const struct tree *t, const char *project, snap_list_fn *fn,
	      void *arg, struct err *e)
{
	char name[SNAP_PATH_MAX + 1];
	auto_dir DIR *d = NULL;
	const char *id;
	int r;

	r = open_list(t, &d, e);
	while (r == 0 && d && (id = next_id(d))) {
		auto_json json_t *manifest = NULL;

		r = snap_name_of(dirfd(d), id, name, e);
		if (r < 0 || (project && !in_project(name, project)))
			continue;
		(void)snap_manifest(t, id, &manifest, NULL);
		r = fn(arg, id, name, manifest, e);
	}
	return r;
}

static size_t digests_of(const json_t *manifest, struct digest *d)
{
	const json_t *spec = json_object_get(manifest, "spec"), *v;
	size_t i, n = 0;

	json_array_foreach(json_object_get(spec, "image_layers"), i, v) {
		const char *hex = json_string_value(v);

		if (hex && n < ENV_LAYERS_MAX && digest_parse(hex, &d[n]) == 0)
			n++;
	}
	return n;
}

int snap_layers(const struct tree *t, snap_layers_fn *fn, void *arg,
		struct err *e)
{
	struct digest layers[ENV_LAYERS_MAX];
	char name[SNAP_PATH_MAX + 1];
	auto_dir DIR *d = NULL;
	const char *id;
	size_t n;
	int r;

	r = open_list(t, &d, e);
	while (r == 0 && d && (id = next_id(d))) {
		auto_json json_t *manifest = NULL;

		r = snap_manifest(t, id, &manifest, e);
		/* Being made, and its source holds them; or removed. */
		if (r == -ENOENT || r == -ENOTDIR) {
			r = 0;
			continue;
		}
		if (r == 0)
			r = snap_name_of(dirfd(d), id, name, e);
		/* What it needs is not known: nothing may be taken away. */
		if (r < 0)
			return r;
		n = digests_of(manifest, layers);
		if (n > 0)
			r = fn(arg, id, name, layers, n, e);
	}
	return r;
}

/* --- what belongs to nobody ---------------------------------------------- */

/* 1: ${id} is nobody's, and now ours alone; 0: it is somebody's. */
static int take_orphan(const struct tree *t, const char *id, struct snap *ret,
		       struct err *e)
{
	auto_reg struct snap_reg reg = {-1};
	auto_snap struct snap s = SNAP_INIT;
	char name[SNAP_PATH_MAX + 1];
	int r;

	r = snap_reg_open(t, false, &reg, e);
	if (r == 0)
		r = snap_name_of(reg.dir, id, name, e);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	if (*name)
		return 0;
	memcpy(s.id, id, sizeof(s.id));
	s.dir = openat(reg.dir, id,
		       O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (s.dir < 0)
		return errno == ENOENT
			       ? 0
			       : err_sys(e, errno, "open snapshot %s", id);
	if (flock(s.dir, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK
			       ? 0
			       : err_sys(e, errno, "lock snapshot %s", id);
	*ret = s;
	s.dir = -1;
	return 1;
}

static int sweep_one(const struct tree *t, const struct pool *pool,
		     const char *id, struct err *e)
{
	auto_snap struct snap s = SNAP_INIT;
	int r = take_orphan(t, id, &s, e);

	if (r == 1 && pool)
		r = snap_remove(t, pool, &s, e);
	else
		return r;
	return r < 0 ? err_wrap(e, r, "remove snapshot %s", id) : 1;
}

static bool leads_nowhere(int reg, const struct walk_item *it)
{
	char text[BOX_ID_LEN + 2];
	struct stat st;
	ssize_t n;

	if (!S_ISLNK(it->st.st_mode))
		return false;
	n = readlinkat(it->dirfd, it->name, text, sizeof(text) - 1);
	if (n < 0)
		return false;
	text[n] = '\0';
	return !tree_is_id(text) ||
	       (fstatat(reg, text, &st, AT_SYMLINK_NOFOLLOW) < 0 &&
		errno == ENOENT);
}

static int sweep_names(const struct tree *t, struct err *e)
{
	auto_reg struct snap_reg reg = {-1};
	auto_walk struct walk *w = NULL;
	struct walk_item it;
	int r;

	r = snap_reg_open(t, false, &reg, e);
	if (r == 0)
		r = walk_open(reg.dir, "name", WALK_POST, &w, e);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	while ((r = walk_next(w, &it, e)) > 0) {
		if (it.post && it.depth > 0)
			(void)unlinkat(it.dirfd, it.name, AT_REMOVEDIR);
		else if (leads_nowhere(reg.dir, &it))
			(void)unlinkat(it.dirfd, it.name, 0);
	}
	return r;
}

int snap_sweep(const struct tree *t, const struct pool *pool,
	       unsigned *ret_removed, struct err *e)
{
	auto_dir DIR *d = NULL;
	unsigned removed = 0;
	const char *id;
	int r, first;

	first = open_list(t, &d, e);
	while (d && (id = next_id(d))) {
		r = sweep_one(t, pool, id, first < 0 ? NULL : e);
		if (r < 0 && first == 0)
			first = r;
		removed += r > 0;
	}
	r = pool && d ? sweep_names(t, first < 0 ? NULL : e) : 0;
	if (ret_removed)
		*ret_removed = removed;
	return first < 0 ? first : r;
}
