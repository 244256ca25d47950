/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/ckpt.h"
#include "box/select.h"
#include "ckpt/snap.h"
#include "life/teardown.h"
#include "doctor.h"

#define AGAIN_MS 300

struct scan {
	const struct doctor *d;
	json_t *list;
	json_t *worked; /* object: sandboxes that a dsec-ckpt works on */
	int r;		/* the first failure */
};

static void found(struct scan *s, const char *kind, const char *id,
		  const char *path)
{
	json_t *rec = json_pack("{s:s, s:s}", "leak", kind, "path", path);

	if (rec && id)
		json_object_set_new(rec, "sandbox", json_string(id));
	if (!rec || json_array_append_new(s->list, rec) < 0)
		s->r = -ENOMEM;
}

/* A claim is the last thing of a sandbox to go. */
static bool has_claim(const struct scan *s, const char *id)
{
	return select_life(&s->d->tree, id, NULL) != SELECT_GONE;
}

typedef void entry_fn(struct scan *s, const char *dir, const char *name);

static void each(struct scan *s, entry_fn *fn, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void each(struct scan *s, entry_fn *fn, const char *fmt, ...)
{
	auto_dir DIR *dir = NULL;
	const struct dirent *de;
	char path[PATH_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(path, sizeof(path), fmt, ap);
	va_end(ap);
	dir = opendir(path);
	while (dir && (de = readdir(dir)))
		if (strcmp(de->d_name, ".") && strcmp(de->d_name, ".."))
			fn(s, path, de->d_name);
}

static void run_dir(struct scan *s, const char *dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!tree_is_id(name))
		found(s, "file", NULL, path);
	else if (select_life(&s->d->tree, name, NULL) == SELECT_LOST)
		found(s, "claim", name, path);
	else if (!has_claim(s, name) && access(path, F_OK) == 0)
		found(s, "run", name, path);
}

/* A link to an id that has no claim. */
static void link_to(struct scan *s, const char *dir, const char *name,
		    const char *kind)
{
	char path[PATH_MAX], id[BOX_ID_LEN + 1];
	ssize_t n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	n = readlink(path, id, sizeof(id));
	if (n < 0 && errno == ENOENT)
		return;
	if (n != BOX_ID_LEN) {
		found(s, kind, NULL, path);
		return;
	}
	id[BOX_ID_LEN] = '\0';
	if (!has_claim(s, id))
		found(s, kind, id, path);
}

static void name_link(struct scan *s, const char *dir, const char *name)
{
	link_to(s, dir, name, "name");
}

static void uid_link(struct scan *s, const char *dir, const char *name)
{
	link_to(s, dir, name, "uid");
}

static void task_link(struct scan *s, const char *dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!tree_is_id(name) || !has_claim(s, name))
		found(s, "task", tree_is_id(name) ? name : NULL, path);
}

static void task_dir(struct scan *s, const char *dir, const char *name)
{
	each(s, task_link, "%s/%s", dir, name);
}

static void lib_dir(struct scan *s, const char *dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (!tree_is_id(name))
		found(s, "file", NULL, path);
	else if (!has_claim(s, name) && !teardown_kept(&s->d->tree, name))
		found(s, "layer", name, path);
}

/* A layer in the pool is a sandbox's or a snapshot's. */
static void pool_dir(struct scan *s, const char *dir, const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/snap/%s", s->d->tree.lib, name);
	if (!tree_is_id(name) || access(path, F_OK) < 0)
		lib_dir(s, dir, name);
}

/* A checkpoint that was begun, and nobody is at it. */
static void lib_sandbox(struct scan *s, const char *dir, const char *name)
{
	char path[PATH_MAX];

	lib_dir(s, dir, name);
	snprintf(path, sizeof(path), "%s/%s/ckpt" CKPT_NEW, dir, name);
	if (access(path, F_OK) == 0 && has_claim(s, name) &&
	    !json_object_get(s->worked, name))
		found(s, "checkpoint", name, path);
}

static void cgroup_dir(struct scan *s, const char *dir, const char *name)
{
	char path[PATH_MAX];

	if (!tree_is_id(name) || has_claim(s, name))
		return;
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	found(s, "cgroup", name, path);
}

static void cgroup_tree(struct scan *s, const char *dir, const char *name)
{
	each(s, cgroup_dir, "%s/%s/%s", dir, name, s->d->tree.cgroup);
}

/* Snapshots without a name that nobody holds, and names that lead nowhere. */
static void snapshots(struct scan *s)
{
	char path[PATH_MAX];
	unsigned n = 0;

	if (snap_sweep(&s->d->tree, NULL, &n, NULL) == 0 && n > 0 &&
	    tree_path(path, NULL, "%s/snap", s->d->tree.lib) == 0)
		found(s, "snapshot", NULL, path);
}

/* Links and sockets of sandboxes that are gone. */
static void networks(struct scan *s)
{
	char path[PATH_MAX];

	if (count_networks(&s->d->tree) > 0 &&
	    tree_path(path, NULL, "%s/net", s->d->tree.run) == 0)
		found(s, "network", NULL, path);
}

/* --- mounts -------------------------------------------------------------- */

static bool below(const char *path, const char *top, const char *sub)
{
	size_t n = strlen(top), k = strlen(sub);

	return !strncmp(path, top, n) && !strncmp(path + n, sub, k);
}

/* Launches mount in namespaces of their own; one of these is left over, unless
 * the sandbox lives and somebody looks into it. */
static void mount_at(struct scan *s, const char *at)
{
	const struct tree *t = &s->d->tree;
	char id[BOX_ID_LEN + 1];
	const char *rest;

	if (below(at, t->run, "/sb/"))
		rest = at + strlen(t->run) + strlen("/sb/");
	else if (below(at, t->lib, "/sb/"))
		rest = at + strlen(t->lib) + strlen("/sb/");
	else
		return;
	snprintf(id, sizeof(id), "%s", rest);
	if (!tree_is_id(id))
		found(s, "mount", NULL, at);
	else if (select_life(t, id, NULL) != SELECT_LIVE)
		found(s, "mount", id, at);
}

static void mounts(struct scan *s)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, at[PATH_MAX];
	size_t size = 0;

	while (f && getline(&line, &size, f) > 0)
		if (sscanf(line, "%*s %*s %*s %*s %4095s", at) == 1)
			mount_at(s, at);
	free(line);
	if (f)
		fclose(f);
}

/* --- processes ----------------------------------------------------------- */

/* Does a process's environment name our tree?  Without DSEC_RUN it is that of
 * the default one. */
static bool is_of_tree(const char *pid, const struct tree *t)
{
	char path[64], want[PATH_MAX + 16];
	auto_free char *env = NULL;
	bool has = false, ours = false;
	size_t len;

	snprintf(path, sizeof(path), "/proc/%.16s/environ", pid);
	if (fd_read_file(AT_FDCWD, path, 4 << 20, &env, &len, NULL) < 0)
		return false;
	snprintf(want, sizeof(want), "DSEC_RUN=%s", t->run);
	for (const char *p = env; p < env + len; p += strlen(p) + 1) {
		has |= !strncmp(p, "DSEC_RUN=", 9);
		ours |= !strcmp(p, want);
	}
	return ours || (!has && !strcmp(t->run, "/run/dsec"));
}

/* The sandbox that a supervisor was started for is one of its arguments. */
static bool sandbox_of(const char *pid, char *id)
{
	auto_free char *args = NULL;
	char path[64];
	size_t len;

	snprintf(path, sizeof(path), "/proc/%.16s/cmdline", pid);
	if (fd_read_file(AT_FDCWD, path, 1 << 20, &args, &len, NULL) < 0)
		return false;
	for (const char *p = args; p < args + len; p += strlen(p) + 1) {
		if (!tree_is_id(p))
			continue;
		memcpy(id, p, BOX_ID_LEN + 1);
		return true;
	}
	return false;
}

static void process(struct scan *s, const char *dir, const char *pid)
{
	auto_free char *comm = NULL;
	char path[64], id[BOX_ID_LEN + 1];
	size_t len;

	(void)dir;
	if (pid[strspn(pid, "0123456789")] != '\0')
		return;
	snprintf(path, sizeof(path), "/proc/%.16s/comm", pid);
	if (fd_read_file(AT_FDCWD, path, 64, &comm, &len, NULL) < 0 ||
	    (strncmp(comm, "dsec-box", 8) && strncmp(comm, "dsec-ckpt", 9)))
		return;
	if (!is_of_tree(pid, &s->d->tree) || !sandbox_of(pid, id))
		return;
	if (!strncmp(comm, "dsec-ckpt", 9))
		json_object_set_new(s->worked, id, json_true());
	if (has_claim(s, id))
		return;
	snprintf(path, sizeof(path), "/proc/%.16s", pid);
	found(s, "process", id, path);
}

/* --- all of it ----------------------------------------------------------- */

static int look(const struct doctor *d, json_t **ret_list, struct err *e)
{
	const struct tree *t = &d->tree;
	struct scan s = {.d = d, .list = json_array(), .worked = json_object()};

	if (!s.list || !s.worked)
		return err_sys(e, ENOMEM, "leaks");
	each(&s, process, "/proc");
	each(&s, run_dir, "%s/sb", t->run);
	each(&s, name_link, "%s/name", t->run);
	each(&s, uid_link, "%s/uid", t->run);
	each(&s, task_dir, "%s/task", t->run);
	each(&s, lib_sandbox, "%s/sb", t->lib);
	each(&s, pool_dir, "%s/pool", t->lib);
	each(&s, cgroup_dir, "/sys/fs/cgroup/%s", t->cgroup);
	each(&s, cgroup_tree, "/sys/fs/cgroup");
	snapshots(&s);
	networks(&s);
	mounts(&s);
	json_decref(s.worked);
	if (s.r < 0) {
		json_decref(s.list);
		return err_sys(e, -s.r, "leaks");
	}
	*ret_list = s.list;
	return 0;
}

static bool contains(const json_t *list, const json_t *rec)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (json_equal(json_array_get(list, i), rec))
			return true;
	return false;
}

int leaks(const struct doctor *d, json_t **ret_list, struct err *e)
{
	auto_json json_t *first = NULL, *second = NULL;
	json_t *both;
	int r;

	r = look(d, &first, e);
	if (r < 0)
		return r;
	if (json_array_size(first) > 0) {
		poll(NULL, 0, AGAIN_MS);
		r = look(d, &second, e);
		if (r < 0)
			return r;
	}
	both = json_array();
	if (!both)
		return err_sys(e, ENOMEM, "leaks");
	for (size_t i = 0; i < json_array_size(first); i++)
		if (contains(second, json_array_get(first, i)))
			json_array_append(both, json_array_get(first, i));
	*ret_list = both;
	return 0;
}
