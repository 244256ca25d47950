/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "img/fstree_priv.h"

#define LINKS_MAX 40

void fs_way_done(struct fs_way *w)
{
	free(w->text);
	w->text = NULL;
}
#define auto_way __attribute__((cleanup(fs_way_done)))

/* Does ${s}, after a component, name nothing further? */
static bool ends_here(const char *s)
{
	for (;;) {
		while (*s == '/')
			s++;
		if (*s == '\0')
			return true;
		if (s[0] != '.' || (s[1] != '/' && s[1] != '\0'))
			return false;
		s++;
	}
}

static int follow(struct fs_way *w, const char *link)
{
	size_t len = strlen(link), rest = strlen(w->rest);
	char *text;

	if (++w->links > LINKS_MAX)
		return -ELOOP;
	text = malloc(len + rest + 2);
	if (!text)
		return -ENOMEM;
	memcpy(text, link, len);
	text[len] = '/';
	memcpy(text + len + 1, w->rest, rest + 1);
	free(w->text);
	w->text = text;
	w->rest = text;
	if (link[0] == '/')
		w->dir = w->t->root;
	return 0;
}

/*
 * A directory where nothing is, or a whiteout, number ${at}: that one hid what
 * lies below, so the directory must hide it too.
 */
static int make_dir(struct fs_way *w, ssize_t at, const char *name, size_t len)
{
	struct fsnode *n = fsnode_new(w->t);
	char *own;

	if (!n || fsnode_opendir(w->t, n) < 0)
		return -ENOMEM;
	fsnode_set_implied(n);
	if (at >= 0) {
		if (fsnode_set_xattr(w->t, n, FS_OPAQUE, "y", 1) < 0)
			return -ENOMEM;
		fs_forget(w->t, fsdir_replace(w->dir, (size_t)at, n));
	} else {
		own = fs_strndup(w->t, name, len);
		if (!own || fsdir_add(w->dir, own, n) < 0)
			return -ENOMEM;
	}
	w->dir = n;
	return 0;
}

static int step(struct fs_way *w, const char *name, size_t len)
{
	struct fsnode *n = NULL;
	ssize_t at = -1;

	if (!w->missing) {
		at = fsdir_lookup(w->dir, name, len);
		n = at < 0 ? NULL : w->dir->dir->ents[at].node;
	}
	if (!n || fsnode_is_whiteout(n)) {
		if (w->make)
			return make_dir(w, at, name, len);
		w->missing++;
		return 0;
	}
	if (S_ISLNK(n->mode))
		return follow(w, n->link);
	if (!S_ISDIR(n->mode))
		return -ENOTDIR;
	w->dir = n;
	return 0;
}

int fs_way_go(struct fs_way *w)
{
	for (;;) {
		const char *name = w->rest;
		size_t len;
		int r;

		while (*name == '/')
			name++;
		len = strcspn(name, "/");
		w->rest = name + len;
		w->name = NULL;
		if (len == 0)
			return 0;
		if (len == 1 && name[0] == '.')
			continue;
		if (len == 2 && name[0] == '.' && name[1] == '.') {
			if (w->missing)
				w->missing--;
			else
				w->dir = w->dir->dir->parent;
			continue;
		}
		if (len > FS_NAME_MAX)
			return -ENAMETOOLONG;
		if (ends_here(w->rest)) {
			w->name = name;
			w->len = len;
			return 0;
		}
		r = step(w, name, len);
		if (r < 0)
			return r;
	}
}

/* To the last component, whose directory is made, but only if all of it can
 * be. */
static int way_make(struct fs_way *w, struct fstree *t, const char *path)
{
	int r;

	*w = (struct fs_way){.t = t, .dir = t->root, .rest = path};
	r = fs_way_go(w);
	if (r < 0 || w->missing == 0)
		return r;
	fs_way_done(w);
	*w = (struct fs_way){.t = t,
			     .dir = t->root,
			     .rest = path,
			     .make = true};
	return fs_way_go(w);
}

static int way_find(struct fs_way *w, struct fstree *t, const char *path)
{
	int r;

	*w = (struct fs_way){.t = t, .dir = t->root, .rest = path};
	r = fs_way_go(w);
	return r < 0 ? r : w->missing ? -ENOENT : 0;
}

static int fail(struct err *e, int r, const char *path)
{
	return err_sys(e, -r, "'%.200s'", path);
}

/* --- entering ----------------------------------------------------------- */

int fsnode_check(const struct fsnode *a)
{
	size_t len;

	if (a->uid == (uid_t)-1 || a->gid == (gid_t)-1 ||
	    a->mtime.tv_nsec < 0 || a->mtime.tv_nsec > 999999999)
		return -EINVAL;
	switch (a->mode & S_IFMT) {
	case S_IFDIR:
	case S_IFIFO:
	case S_IFSOCK:
		return 0;
	case S_IFREG:
		return a->size > FS_FILE_MAX ? -EFBIG : 0;
	case S_IFCHR:
	case S_IFBLK:
		if (major(a->rdev) > 0xfff || minor(a->rdev) > 0xfffff)
			return -EINVAL;
		return 0;
	case S_IFLNK:
		len = a->link ? strlen(a->link) : 0;
		if (len >= PATH_MAX)
			return -ENAMETOOLONG;
		return len == 0 ? -EINVAL : 0;
	default:
		return -EINVAL;
	}
}

static void dir_attr(struct fsnode *n, const struct fsnode *a)
{
	if (a->implied)
		return;
	n->mode = S_IFDIR | (a->mode & 07777);
	n->uid = a->uid;
	n->gid = a->gid;
	n->mtime = a->mtime;
	n->implied = false;
	if (fsnode_looks_implied(n))
		n->mtime.tv_nsec = 0;
}

static struct fsnode *node_of(struct fstree *t, const struct fsnode *a)
{
	struct fsnode *n = fsnode_new(t);

	if (!n)
		return NULL;
	n->mode = a->mode & (S_IFMT | 07777);
	n->uid = a->uid;
	n->gid = a->gid;
	n->mtime = a->mtime;
	switch (a->mode & S_IFMT) {
	case S_IFDIR:
		if (fsnode_opendir(t, n) < 0)
			return NULL;
		fsnode_set_implied(n);
		dir_attr(n, a);
		break;
	case S_IFREG:
		n->size = a->size;
		break;
	case S_IFCHR:
	case S_IFBLK:
		n->rdev = a->rdev;
		break;
	case S_IFLNK:
		n->mode = S_IFLNK | 0777;
		n->size = strlen(a->link);
		n->link = fs_strndup(t, a->link, n->size);
		if (!n->link)
			return NULL;
		break;
	default:
		break;
	}
	return n;
}

/* ${n} at the end of the way, instead of what is there. */
static int enter(struct fs_way *w, struct fsnode *n)
{
	ssize_t at = fsdir_lookup(w->dir, w->name, w->len);
	struct fsnode *old;
	char *own;

	if (at < 0) {
		own = fs_strndup(w->t, w->name, w->len);
		return own ? fsdir_add(w->dir, own, n) : -ENOMEM;
	}
	old = w->dir->dir->ents[at].node;
	if (S_ISDIR(n->mode) && fsnode_is_whiteout(old) &&
	    fsnode_set_xattr(w->t, n, FS_OPAQUE, "y", 1) < 0)
		return -ENOMEM;
	fs_forget(w->t, fsdir_replace(w->dir, (size_t)at, n));
	return 0;
}

int fstree_put(struct fstree *t, const char *path, const struct fsnode *attr,
	       struct fsnode **ret, struct err *e)
{
	auto_way struct fs_way w = {0};
	struct fsnode *n;
	int r = fsnode_check(attr);

	if (r == 0)
		r = way_make(&w, t, path);
	if (r < 0)
		return fail(e, r, path);
	n = w.name ? fsdir_get(w.dir, w.name, w.len) : w.dir;
	if (n && S_ISDIR(n->mode) && S_ISDIR(attr->mode)) {
		dir_attr(n, attr);
		*ret = n;
		return 0;
	}
	if (!w.name)
		return err_set(e, -EINVAL, "bad_value",
			       "'%.200s': a directory has to stay one", path);
	n = node_of(t, attr);
	if (!n)
		return fail(e, -ENOMEM, path);
	r = enter(&w, n);
	if (r < 0)
		return fail(e, r, path);
	*ret = n;
	return 0;
}

int fstree_link(struct fstree *t, const char *path, struct fsnode *node,
		struct err *e)
{
	auto_way struct fs_way w = {0};
	int r = S_ISDIR(node->mode) ? -EISDIR : way_make(&w, t, path);

	if (r == 0 && !w.name)
		r = -EISDIR;
	if (r < 0)
		return fail(e, r, path);
	if (fsdir_get(w.dir, w.name, w.len) == node)
		return 0;
	if (node->nlink == 0) /* it was replaced, and is wanted again */
		t->count++;
	r = enter(&w, node);
	return r < 0 ? fail(e, r, path) : 0;
}

struct fsnode *fstree_find(struct fstree *t, const char *path)
{
	auto_way struct fs_way w = {0};

	if (way_find(&w, t, path) < 0)
		return NULL;
	return w.name ? fsdir_get(w.dir, w.name, w.len) : w.dir;
}

void fstree_remove(struct fstree *t, const char *path)
{
	auto_way struct fs_way w = {0};
	ssize_t at;

	if (way_find(&w, t, path) < 0)
		return;
	if (!w.name) {
		if (w.dir == t->root)
			fstree_clear_dir(t, w.dir);
		return;
	}
	at = fsdir_lookup(w.dir, w.name, w.len);
	if (at >= 0)
		fs_forget(t, fsdir_drop(w.dir, (size_t)at));
}

/* --- moving -------------------------------------------------------------- */

static int check_at(const char *at)
{
	size_t len;

	if (at[0] != '/')
		return -EINVAL;
	for (; *at; at += len) {
		while (*at == '/')
			at++;
		len = strcspn(at, "/");
		if (len == 2 && at[0] == '.' && at[1] == '.')
			return -EINVAL;
		if (len > FS_NAME_MAX)
			return -ENAMETOOLONG;
	}
	return 0;
}

int fstree_rebase(struct fstree *t, const char *at, struct err *e)
{
	auto_way struct fs_way w = {0};
	struct fsnode *old = t->root, *root;
	int r = check_at(at);

	if (r < 0)
		return err_set(e, r, "bad_value",
			       "'%.200s' is no place: an absolute path without "
			       "\"..\" is",
			       at);
	if (ends_here(at))
		return 0;
	root = fsnode_new(t);
	if (!root || fsnode_opendir(t, root) < 0)
		return fail(e, -ENOMEM, at);
	fsnode_set_implied(root);
	root->dir->parent = root;
	t->root = root;
	r = way_make(&w, t, at);
	if (r == 0)
		r = enter(&w, old);
	return r < 0 ? fail(e, r, at) : 0;
}
