/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "ckpt/snap_priv.h"
#include "box/spec.h"

#define BUSY_MS 200

int snap_path(const struct tree *t, const char *id, const char *below,
	      char *path, struct err *e)
{
	return tree_path(path, e, "%s/snap/%s%s%s", t->lib, id,
			 *below ? "/" : "", below);
}

/* --- the registry -------------------------------------------------------- */

static int open_dir(int dir, const char *name)
{
	return openat(dir, name,
		      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

int snap_reg_open(const struct tree *t, bool make, struct snap_reg *ret,
		  struct err *e)
{
	auto_close int dir = -1;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/snap", t->lib);
	if (r < 0)
		return r;
	if (make && mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_sys(e, errno, "make '%s'", path);
	dir = open_dir(AT_FDCWD, path);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	while (flock(dir, LOCK_EX) < 0)
		if (errno != EINTR)
			return err_sys(e, errno, "lock '%s'", path);
	ret->dir = steal_fd(&dir);
	return 0;
}

void snap_reg_close(struct snap_reg *reg)
{
	if (reg->dir >= 0)
		fd_close(steal_fd(&reg->dir));
}

int snap_link_path(const char *name, char *path, struct err *e)
{
	const char *last = strrchr(name, '/');

	return tree_path(path, e, "name/%.*s/@%s", (int)(last - name), name,
			 last + 1);
}

int snap_link_read(int dir, const char *name, char *id)
{
	char path[PATH_MAX], text[BOX_ID_LEN + 2];
	ssize_t n;

	if (snap_link_path(name, path, NULL) < 0)
		return -ENOENT;
	n = readlinkat(dir, path, text, sizeof(text) - 1);
	if (n < 0)
		return -ENOENT;
	text[n] = '\0';
	if (!tree_is_id(text))
		return -ENOENT;
	memcpy(id, text, BOX_ID_LEN + 1);
	return 0;
}

/* PROJECT/NAME, both as they may be. */
static bool is_whole(const char *name)
{
	const char *last = strrchr(name, '/');
	char project[SNAP_PATH_MAX + 1];

	if (!last || strlen(name) > SNAP_PATH_MAX)
		return false;
	snprintf(project, sizeof(project), "%.*s", (int)(last - name), name);
	return spec_is_project(project) &&
	       snap_name_check(project, last + 1, NULL) == 0;
}

int snap_name_of(int dir, const char *id, char *name, struct err *e)
{
	char path[BOX_ID_LEN + 8], is[BOX_ID_LEN + 1];
	auto_free char *text = NULL;
	size_t len;
	int r;

	name[0] = '\0';
	snprintf(path, sizeof(path), "%s/name", id);
	r = fd_read_file(dir, path, SNAP_PATH_MAX, &text, &len, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0;
	if (r < 0)
		return err_wrap(e, r, "name of snapshot %s", id);
	if (is_whole(text) && snap_link_read(dir, text, is) == 0 &&
	    !strcmp(is, id))
		snprintf(name, SNAP_PATH_MAX + 1, "%s", text);
	return 0;
}

/* --- locks --------------------------------------------------------------- */

static int busy(struct err *e, const char *what)
{
	err_set(e, -EBUSY, "busy", "snapshot '%s' is being %s", what,
		"made, removed or restored from");
	if (e)
		e->retry_after_ms = BUSY_MS;
	return -EBUSY;
}

int snap_new(const struct tree *t, struct snap *ret, struct err *e)
{
	auto_reg struct snap_reg reg = {-1};
	auto_snap struct snap s = SNAP_INIT;
	int r;

	r = snap_reg_open(t, true, &reg, e);
	if (r == 0)
		r = tree_new_id(t, s.id, e);
	if (r < 0)
		return r;
	if (mkdirat(reg.dir, s.id, 0700) < 0)
		return err_sys(e, errno, "make snapshot %s", s.id);
	s.dir = open_dir(reg.dir, s.id);
	if (s.dir < 0 || flock(s.dir, LOCK_EX | LOCK_NB) < 0) {
		r = err_sys(e, errno, "lock snapshot %s", s.id);
		unlinkat(reg.dir, s.id, AT_REMOVEDIR);
		return r;
	}
	*ret = s;
	s.dir = -1;
	return 0;
}

/* The kernel lets go of the one lock before it takes the other: between them
 * nobody may look, which the registry's lock sees to. */
int snap_share(const struct tree *t, struct snap *s, struct err *e)
{
	auto_reg struct snap_reg reg = {-1};
	int r = snap_reg_open(t, false, &reg, e);

	if (r < 0)
		return r;
	if (flock(s->dir, LOCK_SH | LOCK_NB) < 0)
		return err_sys(e, errno, "lock snapshot %s", s->id);
	return 0;
}

void snap_close(struct snap *s)
{
	if (s->dir >= 0)
		fd_close(steal_fd(&s->dir));
}

static int unknown(struct err *e, const char *word, const char *project)
{
	if (strchr(word, '/'))
		return err_set(e, -ENOENT, "snapshot_unknown",
			       "there is no snapshot '%s'", word);
	return err_set(e, -ENOENT, "snapshot_unknown",
		       "there is no snapshot '%s' in project '%s'", word,
		       project);
}

/* Which one ${word} means. */
static int resolve(int dir, const char *project, const char *word, char *id,
		   struct err *e)
{
	char whole[PATH_MAX];
	struct stat st;
	int r;

	r = strchr(word, '/') ? tree_path(whole, e, "%s", word)
			      : tree_path(whole, e, "%s/%s", project, word);
	if (r == 0 && is_whole(whole) && snap_link_read(dir, whole, id) == 0)
		return 0;
	if (!tree_is_id(word) ||
	    fstatat(dir, word, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return unknown(e, word, project);
	memcpy(id, word, BOX_ID_LEN + 1);
	return 0;
}

int snap_open(const struct tree *t, const char *project, const char *word,
	      enum snap_lock how, struct snap *ret, struct err *e)
{
	int op = (how == SNAP_USE ? LOCK_SH : LOCK_EX) | LOCK_NB;
	auto_reg struct snap_reg reg = {-1};
	auto_snap struct snap s = SNAP_INIT;
	int r;

	r = snap_reg_open(t, false, &reg, e);
	if (r == -ENOENT)
		return unknown(e, word, project);
	if (r == 0)
		r = resolve(reg.dir, project, word, s.id, e);
	if (r < 0)
		return r;
	s.dir = open_dir(reg.dir, s.id);
	if (s.dir < 0)
		return errno == ENOENT
			       ? unknown(e, word, project)
			       : err_sys(e, errno, "open snapshot '%s'", word);
	if (flock(s.dir, op) < 0)
		return errno == EWOULDBLOCK
			       ? busy(e, word)
			       : err_sys(e, errno, "lock snapshot '%s'", word);
	/* What its maker left behind when he died is none, unless it is to be
	 * removed. */
	if (how == SNAP_USE &&
	    faccessat(s.dir, "ckpt/manifest.json", F_OK, 0) < 0)
		return unknown(e, word, project);
	*ret = s;
	s.dir = -1;
	return 0;
}

/* --- names --------------------------------------------------------------- */

int snap_name_check(const char *project, const char *word, struct err *e)
{
	static const char chars[] = "abcdefghijklmnopqrstuvwxyz"
				    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t n = strlen(word);

	if (!spec_is_project(project) || strlen(project) > 256)
		return err_set(e, -EINVAL, "bad_value",
			       "'%s' is not a path of names such as "
			       "root/rl/job-42",
			       project);
	if (n == 0 || n > SNAP_NAME_MAX || word[strspn(word, chars)] ||
	    strchr("._-", word[0]))
		return err_set(e, -EINVAL, "bad_value",
			       "'%s' cannot be a snapshot's name: letters, "
			       "digits and ._-, the first a letter or digit, "
			       "%d at most",
			       word, SNAP_NAME_MAX);
	if (tree_is_id(word))
		return err_set(e, -EINVAL, "bad_value",
			       "'%s' looks like an id: a snapshot cannot be "
			       "called that",
			       word);
	return 0;
}

/* Who has the name now, into ${id}: "" nobody, and -EEXIST where that is more
 * than the rest of a removal. */
static int holder(int dir, const char *whole, char *id, struct err *e)
{
	char name[SNAP_PATH_MAX + 1];
	int r;

	if (snap_link_read(dir, whole, id) < 0) {
		id[0] = '\0';
		return 0;
	}
	r = snap_name_of(dir, id, name, e);
	return r < 0 ? r : *name ? -EEXIST : 0;
}

/* The link appears in place of what was there, and lasts. */
static int put_link(const struct snap_reg *reg, const char *whole,
		    const char *id, struct err *e)
{
	char path[PATH_MAX], here[PATH_MAX];
	auto_close int dir = -1;
	char *last;
	int r;

	r = snap_link_path(whole, path, e);
	if (r < 0)
		return r;
	last = strrchr(path, '/');
	*last++ = '\0';
	r = tree_path(here, e, "/proc/self/fd/%d/%s", reg->dir, path);
	if (r == 0)
		r = fd_mkdir_p(here, 0700, e);
	if (r < 0)
		return r;
	dir = open_dir(reg->dir, path);
	if (dir < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (unlinkat(dir, "@", 0) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s/@'", path);
	if (symlinkat(id, dir, "@") < 0)
		return err_sys(e, errno, "name '%s'", whole);
	if (renameat(dir, "@", dir, last) < 0) {
		r = err_sys(e, errno, "name '%s'", whole);
		unlinkat(dir, "@", 0);
		return r;
	}
	return fsync(dir) < 0 ? err_sys(e, errno, "sync '%s'", path) : 0;
}

int snap_keep(const struct tree *t, const struct snap *s, const char *project,
	      const char *word, bool replace, char *ret_old, struct err *e)
{
	char whole[SNAP_PATH_MAX + 1], old[BOX_ID_LEN + 1];
	auto_reg struct snap_reg reg = {-1};
	int r;

	r = snap_name_check(project, word, e);
	if (r < 0)
		return r;
	snprintf(whole, sizeof(whole), "%s/%s", project, word);
	r = snap_reg_open(t, false, &reg, e);
	if (r == 0)
		r = holder(reg.dir, whole, old, e);
	if (r == -EEXIST && !replace)
		return err_set(e, r, "exists", "there is a snapshot '%s'",
			       whole);
	if (r < 0 && r != -EEXIST)
		return r;
	/* Without the link, the file says nothing. */
	r = fd_replace(s->dir, "name", whole, strlen(whole), FD_REPLACE_SYNC,
		       e);
	if (r == 0)
		r = put_link(&reg, whole, s->id, e);
	if (r == 0 && fsync(reg.dir) < 0)
		r = err_sys(e, errno, "sync the snapshots");
	if (r == 0)
		memcpy(ret_old, old, sizeof(old));
	return r;
}

/* --- the end ------------------------------------------------------------- */

static void drop_link(int dir, const char *name)
{
	char path[PATH_MAX];
	char *last;

	if (snap_link_path(name, path, NULL) < 0)
		return;
	unlinkat(dir, path, 0);
	/* Projects go with their last name. */
	while ((last = strrchr(path, '/'))) {
		*last = '\0';
		if (unlinkat(dir, path, AT_REMOVEDIR) < 0)
			break;
	}
}

static int hide(const struct tree *t, const struct snap *s, struct err *e)
{
	auto_reg struct snap_reg reg = {-1};
	char name[SNAP_PATH_MAX + 1];
	int r = snap_reg_open(t, false, &reg, e);

	if (r == 0 && flock(s->dir, LOCK_EX | LOCK_NB) < 0)
		r = errno == EWOULDBLOCK
			    ? busy(e, s->id)
			    : err_sys(e, errno, "lock snapshot %s", s->id);
	if (r == 0)
		r = snap_name_of(reg.dir, s->id, name, e);
	if (r == 0 && *name)
		drop_link(reg.dir, name);
	return r;
}

int snap_remove(const struct tree *t, const struct pool *pool, struct snap *s,
		struct err *e)
{
	char path[PATH_MAX];
	int r = hide(t, s, e);

	if (r == 0)
		r = fd_remove_tree(s->dir, "ckpt", e);
	if (r == 0)
		r = pool_remove_at(pool, s->dir, s->id, e);
	if (r == 0)
		r = snap_path(t, s->id, "", path, e);
	if (r == 0)
		r = fd_remove_tree(AT_FDCWD, path, e);
	snap_close(s);
	return r;
}
