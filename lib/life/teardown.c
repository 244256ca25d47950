/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "ckpt/ckpt.h"
#include "box/net.h"
#include "box/select.h"
#include "life/teardown.h"
#include "sys/pool.h"

#define RETAIN_S     86400
#define KILL_WAIT_MS 5000
#define HOUR_FORMAT  "%Y%m%d%H"

static void keep_first(struct err *e, int *first, int r, const struct err *why)
{
	if (r >= 0 || *first < 0)
		return;
	*first = r;
	if (e)
		*e = *why;
}

static time_t retain_s(void)
{
	const char *s = getenv("DSEC_RETAIN_S");

	return s && *s && s[strspn(s, "0123456789")] == '\0' ? atoll(s)
							     : RETAIN_S;
}

/* Drop the hours whose last second is older than what is kept. */
static void prune(int dead_fd, time_t now)
{
	auto_close int fd = openat(dead_fd, ".", O_DIRECTORY | O_CLOEXEC);
	time_t oldest = now - retain_s();
	auto_dir DIR *d = NULL;
	const struct dirent *de;

	d = fd >= 0 ? fdopendir(fd) : NULL;
	if (!d)
		return;
	steal_fd(&fd);
	while ((de = readdir(d))) {
		struct tm tm = {0};
		const char *end = strptime(de->d_name, HOUR_FORMAT, &tm);

		if (end && !*end && timegm(&tm) + 3600 < oldest)
			fd_remove_tree(dead_fd, de->d_name, NULL);
	}
}

/* The directory of this hour; the old ones go whenever a new one begins. */
static int open_hour(const struct tree *t, struct err *e)
{
	auto_close int dead = -1, fd = -1;
	time_t now = (time_t)(clock_wall_ms() / 1000);
	char path[PATH_MAX], hour[16];
	struct tm tm;
	int r;

	r = tree_path(path, e, "%s/dead", t->lib);
	if (r < 0)
		return r;
	r = fd_mkdir_p(path, 0700, e);
	if (r < 0)
		return r;
	dead = open(path, O_DIRECTORY | O_CLOEXEC);
	if (dead < 0)
		return err_sys(e, errno, "open '%s'", path);
	gmtime_r(&now, &tm);
	strftime(hour, sizeof(hour), HOUR_FORMAT, &tm);
	if (mkdirat(dead, hour, 0700) == 0)
		prune(dead, now);
	else if (errno != EEXIST)
		return err_sys(e, errno, "make '%s/%s'", path, hour);
	fd = openat(dead, hour, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_sys(e, errno, "open '%s/%s'", path, hour);
	return steal_fd(&fd);
}

static json_t *record_of(const struct tree *t, const char *id,
			 const json_t *why)
{
	json_t *rec = json_object(), *spec = NULL;
	char path[PATH_MAX];

	if (!rec)
		return NULL;
	json_object_set_new(rec, "sandbox", json_string(id));
	json_object_update(rec, (json_t *)(uintptr_t)why);
	if (!json_object_get(rec, "ended_ms"))
		json_object_set_new(rec, "ended_ms",
				    json_integer((json_int_t)clock_wall_ms()));
	if (tree_path(path, NULL, "%s/sb/%s/spec.json", t->lib, id) == 0 &&
	    json_read_file(AT_FDCWD, path, &spec, NULL) == 0)
		json_object_set_new(rec, "spec", spec);
	return rec;
}

bool teardown_recorded(const struct tree *t, const char *id, json_t **ret_rec)
{
	auto_dir DIR *d = NULL;
	char path[PATH_MAX], name[300];
	const struct dirent *de;

	if (tree_path(path, NULL, "%s/dead", t->lib) < 0)
		return false;
	d = opendir(path);
	while (d && (de = readdir(d))) {
		if (de->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s.json", de->d_name, id);
		if (json_read_file(dirfd(d), name, ret_rec, NULL) == 0)
			return true;
	}
	return false;
}

/* Whole or not at all, and on the disk before its name is. */
static int write_record(int dirfd, const char *name, const char *text,
			size_t len, struct err *e)
{
	char tmp[64];
	int r;

	snprintf(tmp, sizeof(tmp), ".%s", name);
	{
		auto_close int fd = openat(dirfd, tmp,
					   O_WRONLY | O_CREAT | O_TRUNC |
						   O_CLOEXEC | O_NOFOLLOW,
					   0600);

		if (fd < 0)
			return err_sys(e, errno, "create '%s'", name);
		r = fd_write_all(fd, text, len, e);
		if (r == 0 && fdatasync(fd) < 0)
			r = err_sys(e, errno, "sync '%s'", name);
	}
	if (r == 0 && renameat2(dirfd, tmp, dirfd, name, RENAME_NOREPLACE) < 0)
		r = errno == EEXIST ? -EEXIST
				    : err_sys(e, errno, "rename '%s'", name);
	if (r < 0)
		unlinkat(dirfd, tmp, 0);
	return r == -EEXIST ? 0 : r;
}

/* dead/<hour>/@<name>: the last of that name, for teardown_named().  One that
 * cannot be made is missed by people alone. */
static void link_name(int dirfd, const char *name, const char *id)
{
	char tmp[BOX_ID_LEN + 2], path[NAME_MAX + 1];

	snprintf(tmp, sizeof(tmp), ".%s", id);
	if (*name &&
	    snprintf(path, sizeof(path), "@%s", name) < (int)sizeof(path) &&
	    symlinkat(id, dirfd, tmp) == 0 &&
	    renameat(dirfd, tmp, dirfd, path) < 0)
		(void)unlinkat(dirfd, tmp, 0);
}

bool teardown_named(const struct tree *t, const char *name, char *id)
{
	struct dirent **hours = NULL;
	char path[PATH_MAX];
	bool found = false;
	int n;

	if (strchr(name, '/') || tree_path(path, NULL, "%s/dead", t->lib) < 0)
		return false;
	n = scandir(path, &hours, NULL, alphasort);
	while (n-- > 0) {
		if (!found &&
		    tree_path(path, NULL, "%s/dead/%s/@%s", t->lib,
			      hours[n]->d_name, name) == 0 &&
		    readlink(path, id, BOX_ID_LEN + 1) == BOX_ID_LEN) {
			id[BOX_ID_LEN] = '\0';
			found = tree_is_id(id);
		}
		free(hours[n]);
	}
	free(hours);
	return found;
}

static int record_once(const struct tree *t, const char *id, const json_t *why,
		       struct err *e)
{
	auto_json json_t *rec = NULL, *was = NULL;
	auto_free char *text = NULL;
	auto_close int dirfd = -1;
	char name[BOX_ID_LEN + 8];
	size_t len;
	int r;

	if (teardown_recorded(t, id, &was))
		return 0;
	dirfd = open_hour(t, e);
	if (dirfd < 0)
		return err_wrap(e, dirfd, "record the end of %s", id);
	rec = record_of(t, id, why);
	text = rec ? json_dumps(rec, JSON_COMPACT) : NULL;
	if (!text)
		return err_sys(e, ENOMEM, "record the end of %s", id);
	len = strlen(text);
	text[len] = '\n';
	snprintf(name, sizeof(name), "%s.json", id);
	r = write_record(dirfd, name, text, len + 1, e);
	if (r == 0)
		link_name(dirfd, json_str(json_object_get(rec, "spec"), "name"),
			  id);
	return r < 0 ? err_wrap(e, r, "record the end of %s", id) : 0;
}

bool teardown_kept(const struct tree *t, const char *id)
{
	char path[PATH_MAX], manifest[PATH_MAX];

	/* It appears complete or not at all. */
	return ckpt_dir(t, id, path, NULL) == 0 &&
	       tree_path(manifest, NULL, "%s/" CKPT_MANIFEST, path) == 0 &&
	       access(manifest, F_OK) == 0;
}

/* A claim that is seen before or after: it comes back meanwhile, or ended. */
static bool has_claim(const struct tree *t, const char *id)
{
	return select_life(t, id, NULL) != SELECT_GONE;
}

bool teardown_lost(const struct tree *t, const char *id, json_t **ret_rec)
{
	auto_json json_t *why = NULL;
	char path[PATH_MAX];
	json_t *name;

	if (has_claim(t, id) || teardown_kept(t, id) ||
	    tree_path(path, NULL, "%s/sb/%s/spec.json", t->lib, id) < 0 ||
	    access(path, F_OK) < 0 || has_claim(t, id))
		return false;
	if (json_pack_or(&why, NULL, "{s:s, s:b, s:s}", "outcome", "node-lost",
			 "infra", 1, "why",
			 "the node was started anew, or its run directory was "
			 "lost, and the sandbox was not paused to disk") < 0)
		return false;
	*ret_rec = record_of(t, id, why);
	if (!*ret_rec)
		return false;
	name = json_object_get(json_object_get(*ret_rec, "spec"), "name");
	if (name)
		json_object_set(*ret_rec, "name", name);
	return true;
}

/* Before anything else goes: nothing comes back from half of it. */
static int drop_checkpoint(const struct tree *t, const char *id, struct err *e)
{
	char path[PATH_MAX];
	int r;

	if (!teardown_kept(t, id))
		return 0;
	r = ckpt_dir(t, id, path, e);
	return r < 0 ? r : ckpt_remove(path, e);
}

int teardown_record(const struct tree *t, const char *id, const json_t *why,
		    struct err *e)
{
	auto_pool struct pool pool = POOL_INIT;
	int r = record_once(t, id, why, e);

	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	/* It may have filled the disk itself: its layer is going anyway. */
	if (drop_checkpoint(t, id, NULL) < 0 ||
	    pool_open(t->lib, &pool, NULL) < 0 ||
	    pool_remove(&pool, id, NULL) < 0)
		return r;
	return record_once(t, id, why, e);
}

/* The name it has, by its claim or, where that is torn, its spec. */
static int read_name(const struct tree *t, const char *id, json_t **ret_obj)
{
	char path[PATH_MAX];

	if (tree_path(path, NULL, "%s/sb/%s/claim.json", t->run, id) == 0 &&
	    json_read_file(AT_FDCWD, path, ret_obj, NULL) == 0)
		return 0;
	if (tree_path(path, NULL, "%s/sb/%s/spec.json", t->lib, id) < 0)
		return -ENOENT;
	return json_read_file(AT_FDCWD, path, ret_obj, NULL);
}

void teardown_name(const struct tree *t, const char *id)
{
	char path[PATH_MAX], target[BOX_ID_LEN + 2];
	auto_json json_t *obj = NULL;
	const char *name;
	ssize_t n;

	if (read_name(t, id, &obj) < 0)
		return;
	name = json_str(obj, "name");
	if (!*name || strchr(name, '/') || name[0] == '.' ||
	    tree_path(path, NULL, "%s/name/%s", t->run, name) < 0)
		return;
	n = readlink(path, target, sizeof(target));
	if (n == BOX_ID_LEN && !memcmp(target, id, BOX_ID_LEN))
		unlink(path);
}

static int kill_all(const struct cgroup_root *cgroups, const char *id,
		    struct err *e)
{
	int r = cgroup_kill(cgroups, id, NULL, KILL_WAIT_MS, NULL, e);

	return r == -ENOENT ? 0 : r;
}

/* What stays as long as there is a claim: without a state, a sandbox with one
 * would be taken for one that is being made. */
static bool goes_last(const char *name)
{
	return !strcmp(name, "claim.json") || !strcmp(name, "state.json");
}

/* The run directory, but for what goes last. */
static int clear_run(const struct tree *t, const char *id, struct err *e)
{
	auto_dir DIR *d = NULL;
	char path[PATH_MAX];
	const struct dirent *de;
	int r, first = 0;

	r = tree_path(path, e, "%s/sb/%s", t->run, id);
	if (r < 0)
		return r;
	d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", path);
	while ((de = readdir(d))) {
		struct err why;

		if (!strcmp(de->d_name, ".") || !strcmp(de->d_name, "..") ||
		    goes_last(de->d_name))
			continue;
		r = fd_remove_tree(dirfd(d), de->d_name, &why);
		keep_first(e, &first, r, &why);
	}
	return first;
}

/*
 * Most sandboxes end as they were made: with an empty layer in which overlay
 * left its mark.  Those names are known; anything else is left standing.
 */
static bool remove_unused(const char *path)
{
	static const struct {
		const char *name;
		int flags;
	} made[] = {
		{"spec.json", 0},
		{"work/work/incompat/volatile/dirty", 0},
		{"work/work/incompat/volatile", AT_REMOVEDIR},
		{"work/work/incompat", AT_REMOVEDIR},
		{"work/work", AT_REMOVEDIR},
		{"work", AT_REMOVEDIR},
		{"upper", AT_REMOVEDIR},
		{"out", AT_REMOVEDIR},
	};
	auto_close int dir = -1;

	dir = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (dir < 0)
		return false; /* there may be a layer in the pool */
	for (size_t i = 0; i < array_len(made); i++)
		if (unlinkat(dir, made[i].name, made[i].flags) < 0 &&
		    errno != ENOENT)
			return false;
	if (rmdir(path) == 0)
		return true;
	/* Those of a network, which few have. */
	unlinkat(dir, "denied.jsonl", 0);
	unlinkat(dir, "names", 0);
	return rmdir(path) == 0;
}

static int clear_lib(const struct tree *t, const char *id, struct err *e)
{
	auto_pool struct pool pool = POOL_INIT;
	char path[PATH_MAX];
	int r;

	r = drop_checkpoint(t, id, e);
	if (r == 0)
		r = tree_path(path, e, "%s/sb/%s", t->lib, id);
	if (r < 0)
		return r;
	if (remove_unused(path))
		return 0;
	r = pool_open(t->lib, &pool, e);
	if (r == 0)
		r = pool_remove(&pool, id, e);
	return r < 0 ? r : fd_remove_tree(AT_FDCWD, path, e);
}

static int clear_cgroup(const struct cgroup_root *cgroups, const char *id,
			struct err *e)
{
	int r;

	/* Groups that can be removed have nobody in them. */
	r = cgroup_remove(cgroups, id, e);
	if (r != -EBUSY)
		return r;
	r = kill_all(cgroups, id, e);
	return r < 0 ? r : cgroup_remove(cgroups, id, e);
}

int teardown_layer(const struct tree *t, const struct cgroup_root *cgroups,
		   const char *id, struct err *e)
{
	int r = clear_cgroup(cgroups, id, e);

	/* While something runs nothing may be taken from under it. */
	return r < 0 ? r : clear_lib(t, id, e);
}

int teardown(const struct tree *t, const struct cgroup_root *cgroups,
	     const char *id, const json_t *why, struct err *e)
{
	struct err this = {0};
	int r, first = 0;

	if (why) {
		r = teardown_record(t, id, why, &this);
		keep_first(e, &first, r, &this);
	}
	r = teardown_layer(t, cgroups, id, &this);
	keep_first(e, &first, r, &this);
	net_detach(t, id);
	r = clear_run(t, id, &this);
	keep_first(e, &first, r, &this);
	return first;
}

/* All but what it comes back from. */
static int put_away(const struct tree *t, const struct cgroup_root *cgroups,
		    const char *id, struct err *e)
{
	int r;

	r = clear_cgroup(cgroups, id, e);
	net_detach(t, id);
	return r < 0 ? r : clear_run(t, id, e);
}

int teardown_bury(const struct tree *t, const char *id, const json_t *claim,
		  void *arg, struct err *e)
{
	auto_json json_t *why = NULL;
	int r;

	if (teardown_kept(t, id))
		return put_away(t, arg, id, e);
	if (strcmp(json_str(claim, "kind"), "one-shot")) {
		r = json_pack_or(&why, e, "{s:s, s:b, s:O*}", "outcome",
				 "supervisor-lost", "infra", 1, "name",
				 json_object_get(claim, "name"));
		if (r < 0)
			return r;
	}
	return teardown(t, arg, id, why, e);
}
