/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "box/extract.h"
#include "box/pack.h"
#include "ops.h"

static int make_one(const struct call *c, bool *ret_made, struct err *e)
{
	struct stat st;

	*ret_made = mkdir(c->path, 0700) == 0;
	if (*ret_made)
		return 0;
	if (errno != EEXIST || !c->parents)
		return err_sys(e, errno, "make '%s'", c->path);
	if (stat(c->path, &st) < 0)
		return err_sys(e, errno, "'%s'", c->path);
	if (!S_ISDIR(st.st_mode))
		return err_set(e, -EEXIST, "exists",
			       "'%s' is there and is no directory", c->path);
	return 0;
}

int op_mkdir(struct call *c, struct err *e)
{
	mode_t mode = c->given & ARG_MODE ? c->mode : 0755;
	bool made = false;
	int r = 0;

	if (c->parents)
		r = parent_make(c->path, e);
	if (r == 0)
		r = make_one(c, &made, e);
	if (r < 0)
		return r;
	if (made && chmod(c->path, mode) < 0)
		return err_sys(e, errno, "mode of '%s'", c->path);
	if (json_object_set_new(c->res, "created", json_boolean(made)) < 0)
		return err_sys(e, ENOMEM, "result");
	return 0;
}

/*
 * Remove a tree that may be changed meanwhile.  What cannot be removed is left
 * where it is, the rest goes, and the first reason is told.
 */
static int remove_tree(int dirfd, const char *name, struct err *e)
{
	auto_walk struct walk *w = NULL;
	struct walk_item it;
	struct err first = {0};
	int r, flag;

	r = walk_open(dirfd, name, WALK_POST | WALK_ONE_DEV, &w, e);
	if (r < 0)
		return r;
	while ((r = walk_next(w, &it, e)) > 0) {
		if (it.errnum == ENOENT)
			continue;
		if (it.errnum == EXDEV)
			it.errnum = EBUSY;
		if (it.errnum && !first.r)
			err_sys(&first, it.errnum, "'%s'", it.path);
		if (it.errnum || (S_ISDIR(it.st.st_mode) && !it.post))
			continue;
		flag = it.post ? AT_REMOVEDIR : 0;
		if (unlinkat(it.dirfd, it.name, flag) < 0 && errno != ENOENT &&
		    !first.r)
			err_sys(&first, errno, "'%s'", it.path);
	}
	if (r == 0 && first.r) {
		if (e)
			*e = first;
		return first.r;
	}
	return r;
}

int op_remove(struct call *c, struct err *e)
{
	char name[NAME_MAX + 1];
	auto_close int dir = -1;
	struct stat st;

	dir = parent_open(c->path, false, name, e);
	if (dir < 0)
		return dir;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "'%s'", c->path);
	if (!S_ISDIR(st.st_mode)) {
		if (unlinkat(dir, name, 0) < 0)
			return err_sys(e, errno, "remove '%s'", c->path);
		return 0;
	}
	if (unlinkat(dir, name, AT_REMOVEDIR) == 0)
		return 0;
	if (errno == EEXIST)
		errno = ENOTEMPTY;
	if (errno != ENOTEMPTY || !c->recursive)
		return err_sys(e, errno, "remove '%s'", c->path);
	if (remove_tree(dir, name, e) < 0)
		return err_wrap(e, e->r, "remove '%s'", c->path);
	return 0;
}

static int pack_into(int fd, int dir, const char *name)
{
	struct tar_writer w = {.sink = pack_fd_sink, .arg = &fd};
	struct pack p = {.dirfd = dir, .path = name, .name = "tree"};
	struct pack_result n = {0};
	int r;

	r = pack_tree(&p, &w, &n, NULL);
	tar_writer_done(&w);
	return r < 0 || n.left_out ? 1 : 0;
}

static int extract_from(int fd, int dir, struct err *e)
{
	struct extract x = {
		.dirfd = dir,
		.flags = EXTRACT_SETID | EXTRACT_FIFOS |
			 (geteuid() == 0 ? EXTRACT_OWNER : 0),
		.top = "tree",
	};
	struct extract_result n = {0};
	struct tar_reader rd;
	int r;

	r = tar_reader_init(&rd, extract_fd_source, &fd, e);
	if (r < 0)
		return r;
	r = extract_tree(&x, &rd, &n, e);
	tar_reader_done(&rd);
	if (r == 0 && n.refused)
		return err_set(e, -EXDEV, "unsupported",
			       "it holds what cannot be copied to another file "
			       "system");
	return r;
}

/* Copy ${name} in ${from} to "tree" in ${to}: all of it, or an error. */
static int copy(int from, const char *name, int to, struct err *e)
{
	int pipes[2], status, r;
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		return err_sys(e, errno, "pipe");
	pid = fork();
	if (pid < 0) {
		r = err_sys(e, errno, "fork");
		fd_close(pipes[0]);
		fd_close(pipes[1]);
		return r;
	}
	if (pid == 0) {
		fd_close(pipes[0]);
		_exit(pack_into(pipes[1], from, name));
	}
	fd_close(pipes[1]);
	r = extract_from(pipes[0], to, e);
	fd_close(pipes[0]);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	if (r == 0 && status)
		return err_set(e, -EXDEV, "unsupported",
			       "it holds what cannot be copied to another file "
			       "system");
	return r;
}

/*
 * To another file system, or a directory of a lower layer: copy beside the
 * new place, rename, and only then remove.
 */
static int move_by_copy(int from, const char *old, int to, const char *name,
			struct err *e)
{
	char temp[EXTRACT_TEMP_SIZE];
	auto_close int dir = -1;
	int r;

	r = extract_temp_name(temp, e);
	if (r < 0)
		return r;
	if (mkdirat(to, temp, 0700) < 0)
		return err_sys(e, errno, "make a directory");
	dir = openat(to, temp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	r = dir < 0 ? err_sys(e, errno, "open '%s'", temp)
		    : copy(from, old, dir, e);
	if (r == 0 && renameat(dir, "tree", to, name) < 0)
		r = err_sys(e, errno, "rename to '%s'", name);
	remove_tree(to, temp, NULL);
	return r < 0 ? r : remove_tree(from, old, e);
}

int op_move(struct call *c, struct err *e)
{
	char old[NAME_MAX + 1], name[NAME_MAX + 1];
	auto_close int from = -1;
	auto_close int to = -1;
	struct stat st;
	int r;

	from = parent_open(c->path, false, old, e);
	if (from < 0)
		return from;
	to = parent_open(c->to, false, name, e);
	if (to < 0)
		return to;
	if (renameat(from, old, to, name) == 0)
		return 0;
	if (errno != EXDEV)
		return err_sys(e, errno, "move '%s' to '%s'", c->path, c->to);
	if (fstatat(from, old, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "'%s'", c->path);
	r = move_by_copy(from, old, to, name, e);
	return r < 0 ? err_wrap(e, r, "move '%s' to '%s'", c->path, c->to) : 0;
}
