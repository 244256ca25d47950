/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "ops.h"
#include "wire/record.h"

#define LIST_DEFAULT 10000

static const char *type_name(mode_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
		return "file";
	case S_IFDIR:
		return "directory";
	case S_IFLNK:
		return "symlink";
	case S_IFIFO:
		return "fifo";
	case S_IFSOCK:
		return "socket";
	case S_IFCHR:
		return "char";
	default:
		return "block";
	}
}

static int stat_set(json_t *obj, const struct stat *st)
{
	int64_t ms = (int64_t)st->st_mtim.tv_sec * 1000 +
		     st->st_mtim.tv_nsec / 1000000;
	auto_json json_t *more = NULL;
	char mode[8];

	snprintf(mode, sizeof(mode), "%04o", st->st_mode & 07777);
	more = json_pack("{s:s, s:I, s:s, s:I, s:I, s:I}", "type",
			 type_name(st->st_mode), "size",
			 (json_int_t)st->st_size, "mode", mode, "uid",
			 (json_int_t)st->st_uid, "gid", (json_int_t)st->st_gid,
			 "mtime_ms", (json_int_t)ms);
	return more ? json_object_update(obj, more) : -1;
}

static int set_target(json_t *obj, int dirfd, const char *name)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(dirfd, name, target, sizeof(target));

	return n < 0 ? 0 : json_set_bytes(obj, "target", target, (size_t)n);
}

static json_t *stat_entry(int dirfd, const char *name, const struct stat *st,
			  const char *path)
{
	auto_json json_t *obj = json_object();

	if (!obj || json_set_bytes(obj, "name", path, strlen(path)) < 0 ||
	    stat_set(obj, st) < 0)
		return NULL;
	if (S_ISLNK(st->st_mode) && set_target(obj, dirfd, name) < 0)
		return NULL;
	return steal_ptr(obj);
}

int op_stat(struct call *c, struct err *e)
{
	auto_json json_t *entry = NULL;
	const char *base = strrchr(c->path, '/');
	struct stat st;

	if (fstatat(AT_FDCWD, c->path, &st,
		    c->follow ? 0 : AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "'%s'", c->path);
	base = base && base[1] ? base + 1 : c->path;
	entry = stat_entry(AT_FDCWD, c->path, &st, base);
	if (!entry || json_object_update(c->res, entry) < 0)
		return err_sys(e, ENOMEM, "stat");
	return 0;
}

static int list_one(const struct walk_item *it, struct err *e)
{
	auto_json json_t *entry = NULL;

	entry = stat_entry(it->dirfd, it->name, &it->st, it->path);
	if (!entry)
		return err_sys(e, ENOMEM, "list");
	return record_write(STDOUT_FILENO, entry, e);
}

/* 1: told, 0: nothing to tell. */
static int list_item(struct walk *w, const struct walk_item *it, int64_t depth,
		     const char *path, struct err *e)
{
	if (it->depth == 0 && it->errnum)
		return err_sys(e, it->errnum, "'%s'", path);
	if (it->depth >= depth)
		walk_skip(w);
	/* What vanished or may not be entered is no failure of the list. */
	if (it->depth == 0 || it->errnum)
		return 0;
	return list_one(it, e) < 0 ? e->r : 1;
}

int op_list(struct call *c, struct err *e)
{
	int64_t limit = c->given & ARG_LIMIT ? c->limit : LIST_DEFAULT, n = 0;
	int64_t depth = c->given & ARG_DEPTH ? c->depth : 1;
	auto_walk struct walk *w = NULL;
	char path[PATH_MAX + 4];
	struct walk_item it;
	bool truncated = false;
	int r;

	/* The directory itself may be named by a link; none is followed below
	 * it. */
	snprintf(path, sizeof(path), "%s/.", c->path);
	r = walk_open(AT_FDCWD, path, WALK_NO_PROC, &w, e);
	while (r >= 0 && (r = walk_next(w, &it, e)) > 0) {
		truncated = it.depth > 0 && n >= limit;
		if (truncated)
			break;
		r = list_item(w, &it, depth, c->path, e);
		if (r > 0)
			n++;
	}
	if (r < 0)
		return r;
	if (json_object_set_new(c->res, "count", json_integer(n)) < 0 ||
	    json_object_set_new(c->res, "truncated", json_boolean(truncated)))
		return err_sys(e, ENOMEM, "list");
	return 0;
}
