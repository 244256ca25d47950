/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "ckpt/ckpt_priv.h"

static int split(const char *path, char *parent, const char **name,
		 struct err *e)
{
	const char *slash = strrchr(path, '/');

	if (path[0] != '/' || !slash || !slash[1] || slash == path)
		return err_set(e, -EINVAL, "bad_path",
			       "'%s' cannot be a checkpoint", path);
	*name = slash + 1;
	return tree_path(parent, e, "%.*s", (int)(slash - path), path);
}

static int open_parent(const char *path, const char **name, struct err *e)
{
	char parent[PATH_MAX];
	int fd, r;

	r = split(path, parent, name, e);
	if (r < 0)
		return r;
	fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? err_sys(e, errno, "open '%s'", parent) : fd;
}

int ckpt_begin(const char *path, int *ret_dirfd, struct err *e)
{
	auto_close int parent = -1, dir = -1;
	char tmp[NAME_MAX + 1];
	const char *name;
	int r;

	parent = open_parent(path, &name, e);
	if (parent < 0)
		return parent;
	snprintf(tmp, sizeof(tmp), "%s" CKPT_NEW, name);
	r = fd_remove_tree(parent, tmp, e);
	if (r < 0)
		return r;
	if (mkdirat(parent, tmp, 0700) < 0)
		return err_sys(e, errno, "make '%s" CKPT_NEW "'", path);
	dir = openat(parent, tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* Others may pass: see sys/engine.h.  They do not get here. */
	if (dir < 0 || mkdirat(dir, CKPT_IMAGES, 0700) < 0 ||
	    fchmodat(dir, CKPT_IMAGES, 0755, 0) < 0) {
		r = err_sys(e, errno, "make '%s" CKPT_NEW "'", path);
		(void)fd_remove_tree(parent, tmp, NULL);
		return r;
	}
	*ret_dirfd = steal_fd(&dir);
	return 0;
}

void ckpt_discard(const char *path)
{
	auto_close int parent = -1;
	char tmp[NAME_MAX + 1];
	const char *name;

	parent = open_parent(path, &name, NULL);
	if (parent < 0)
		return;
	snprintf(tmp, sizeof(tmp), "%s" CKPT_NEW, name);
	(void)fd_remove_tree(parent, tmp, NULL);
}

int ckpt_commit(const char *path, bool durable, struct err *e)
{
	auto_close int parent = -1;
	char tmp[NAME_MAX + 1];
	const char *name;

	parent = open_parent(path, &name, e);
	if (parent < 0)
		return parent;
	snprintf(tmp, sizeof(tmp), "%s" CKPT_NEW, name);
	if (renameat2(parent, tmp, parent, name, RENAME_EXCHANGE) < 0 &&
	    (errno != ENOENT || renameat(parent, tmp, parent, name) < 0))
		return err_sys(e, errno, "rename '%s" CKPT_NEW "'", path);
	if (durable && fsync(parent) < 0) {
		int r = err_sys(e, errno, "sync the directory of '%s'", path);

		/* It failed: then there is none. */
		(void)!ckpt_remove(path, NULL);
		return r;
	}
	/* The one that was there before, if it was. */
	(void)fd_remove_tree(parent, tmp, NULL);
	return 0;
}

int ckpt_forget(const char *path, struct err *e)
{
	auto_close int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (dir < 0)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", path);
	if (unlinkat(dir, CKPT_MANIFEST, 0) < 0)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "remove '%s'", path);
	return fsync(dir) < 0 ? err_sys(e, errno, "sync '%s'", path) : 0;
}

int ckpt_remove(const char *path, struct err *e)
{
	auto_close int parent = -1;
	char manifest[NAME_MAX + 32];
	const char *name;

	parent = open_parent(path, &name, e);
	if (parent == -ENOENT)
		return 0;
	if (parent < 0)
		return parent;
	snprintf(manifest, sizeof(manifest), "%s/" CKPT_MANIFEST, name);
	if (unlinkat(parent, manifest, 0) < 0 && errno != ENOENT &&
	    errno != ENOTDIR)
		return err_sys(e, errno, "remove '%s'", path);
	return fd_remove_tree(parent, name, e);
}

struct listing {
	int root;
	struct buf text;
	uint64_t bytes;
	unsigned n;
	bool durable;
};

static int list_file(struct listing *l, const char *path, struct err *e)
{
	auto_close int fd = -1;
	struct ckpt_sum s;
	int r;

	r = ckpt_sum(l->root, path, &s, e);
	if (r < 0)
		return r;
	l->bytes += s.size;
	l->n++;
	if (buf_addf(&l->text, "%" PRIu64 " %s %s\n", s.size,
		     s.sum[0] ? s.sum : "-", path) < 0)
		return err_sys(e, ENOMEM, "manifest");
	if (!l->durable)
		return 0;
	fd = openat(l->root, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fsync(fd) < 0)
		return err_sys(e, errno, "sync '%s' of the checkpoint", path);
	return 0;
}

/* Regular files, and those of img/: there is nothing else. */
static int list_dir(struct listing *l, const char *dir, struct err *e)
{
	auto_dir DIR *d = NULL;
	char path[NAME_MAX + 8];
	struct dirent *de;
	int fd, r = 0;

	fd = openat(l->root, *dir ? dir : ".",
		    O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	d = fd < 0 ? NULL : fdopendir(fd);
	if (!d)
		return err_sys(e, errno, "read the checkpoint's directory");
	while (r == 0 && (de = readdir(d))) {
		if (de->d_name[0] == '.' || !strcmp(de->d_name, CKPT_MANIFEST))
			continue;
		snprintf(path, sizeof(path), "%s%s%s", dir, *dir ? "/" : "",
			 de->d_name);
		if (!*dir && !strcmp(path, CKPT_IMAGES))
			r = list_dir(l, CKPT_IMAGES, e);
		else
			r = list_file(l, path, e);
	}
	if (r == 0 && l->durable && fsync(dirfd(d)) < 0)
		r = err_sys(e, errno, "sync the checkpoint's directory");
	return r;
}

/* The list, and what the manifest says of it. */
static int list_all(struct listing *l, json_t *obj, struct err *e)
{
	json_t *files;
	struct ckpt_sum s;
	int r;

	r = list_dir(l, "", e);
	if (r == 0)
		r = fd_replace(l->root, CKPT_FILES, l->text.data, l->text.len,
			       l->durable ? FD_REPLACE_SYNC : 0, e);
	if (r == 0)
		r = ckpt_sum(l->root, CKPT_FILES, &s, e);
	if (r < 0)
		return r;
	files = json_pack("{s:i, s:s}", "n", (int)l->n, "sum", s.sum);
	if (!files || json_object_set_new(obj, "files", files) < 0 ||
	    json_object_set_new(obj, "bytes",
				json_integer((json_int_t)l->bytes)) < 0)
		return err_sys(e, ENOMEM, "manifest");
	return 0;
}

int ckpt_write(int dirfd, json_t *obj, bool durable, struct err *e)
{
	struct listing l = {.root = dirfd, .durable = durable};
	char sum[17];
	int r;

	r = list_all(&l, obj, e);
	buf_done(&l.text);
	if (r < 0)
		return r;
	if (json_object_set_new(obj, "v", json_integer(CKPT_VERSION)) < 0 ||
	    ckpt_seal(obj, sum, sizeof(sum)) < 0 ||
	    json_object_set_new(obj, "sum", json_string(sum)) < 0)
		return err_sys(e, ENOMEM, "manifest");
	return json_write_file(dirfd, CKPT_MANIFEST, obj,
			       durable ? FD_REPLACE_SYNC : 0, e);
}
