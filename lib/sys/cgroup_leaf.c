/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "sys/cgroup_priv.h"

#define PROCS_MAX (64 * 1024 * 1024)

int cgroup_each_leaf(const struct cgroup_root *root, const char *id,
		     cgroup_leaf_fn *fn, void *arg, struct err *e)
{
	auto_dir DIR *d = NULL;
	auto_close int fd = -1;
	const struct dirent *de;
	char path[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(path, id, "init", NULL, e);
	if (r < 0)
		return r;
	fd = openat(root->tree[0], path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0)
		return err_sys(e, errno, "open cgroup '%s'", path);
	d = fdopendir(fd);
	if (!d)
		return err_sys(e, errno, "read cgroup '%s'", path);
	steal_fd(&fd);
	while (r >= 0 && (de = readdir(d)))
		if (de->d_type == DT_DIR && de->d_name[0] != '.')
			r = fn(root, id, de->d_name, arg, e);
	if (r >= 0)
		r = fn(root, id, "init", arg, e);
	return r < 0 ? r : 0;
}

int cgroup_leaf_add(const struct cgroup_root *root, const char *id,
		    const char *leaf, pid_t pid, struct err *e)
{
	char path[CGROUP_PATH_MAX], text[16];
	int r;

	r = cgroup_path(path, id, leaf, "cgroup.procs", e);
	if (r < 0)
		return r;
	snprintf(text, sizeof(text), "%d", (int)pid);
	return fd_write_str(root->tree[0], path, text, e);
}

static int parse_pids(char *text, struct cgroup_pids *pids, const char *dir,
		      struct err *e)
{
	size_t lines = 0;
	pid_t *all;
	char *end;

	for (const char *p = text; *p; p++)
		lines += *p == '\n';
	all = reallocarray(pids->pid, pids->n + lines + 1, sizeof(*all));
	if (!all)
		return err_sys(e, ENOMEM, "processes of '%s'", dir);
	pids->pid = all;
	for (char *p = text; lines > 0; p = end, lines--) {
		long v = strtol(p, &end, 10);

		if (end == p)
			break;
		/* 0 stands for a process of another pid namespace. */
		if (v > 0)
			all[pids->n++] = (pid_t)v;
	}
	return 0;
}

int cgroup_read_pids(const struct cgroup_root *root, const char *dir,
		     struct cgroup_pids *pids, struct err *e)
{
	char path[CGROUP_PATH_MAX + 16];
	auto_free char *text = NULL;
	int r;

	snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
	r = fd_read_file(root->tree[0], path, PROCS_MAX, &text, NULL, e);
	return r < 0 ? r : parse_pids(text, pids, dir, e);
}

static int add_pids(const struct cgroup_root *root, const char *id,
		    const char *leaf, void *arg, struct err *e)
{
	char dir[CGROUP_PATH_MAX];
	int r;

	r = cgroup_path(dir, id, leaf, NULL, e);
	if (r == 0)
		r = cgroup_read_pids(root, dir, arg, e);
	/* A leaf that goes while we look holds nobody. */
	return r == -ENOENT || r == -ENODEV ? 0 : r;
}

int cgroup_pids(const struct cgroup_root *root, const char *id,
		const char *leaf, pid_t **ret_pids, size_t *ret_n,
		struct err *e)
{
	struct cgroup_pids pids = {NULL, 0};
	int r;

	r = leaf ? add_pids(root, id, leaf, &pids, e)
		 : cgroup_each_leaf(root, id, add_pids, &pids, e);
	if (r < 0) {
		free(pids.pid);
		return r;
	}
	*ret_pids = pids.pid;
	*ret_n = pids.n;
	return 0;
}

int cgroup_freezer_dir(const struct cgroup_root *root, const char *id,
		       char *path, struct err *e)
{
	char link[32];
	ssize_t n;

	snprintf(link, sizeof(link), "/proc/self/fd/%d", root->tree[0]);
	n = readlink(link, path, PATH_MAX - 1);
	if (n < 0)
		return err_sys(e, errno, "name of the cgroup of '%s'", id);
	if ((size_t)n + 1 + strlen(id) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "cgroup of '%s'", id);
	snprintf(path + n, PATH_MAX - (size_t)n, "/%s", id);
	return 0;
}
