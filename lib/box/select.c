/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "box/select.h"

struct select_walk {
	const struct tree *tree;
	const struct select *sel;
	DIR *dir; /* NULL: a task that nobody has */
};

void select_from(struct select *s, const json_t *req)
{
	const char *task = json_str(req, "task");
	const char *project = json_str(req, "project");

	s->task = *task ? task : NULL;
	s->project = *project ? project : NULL;
	s->labels = json_object_get(req, "labels");
}

bool select_narrows(const struct select *s)
{
	return s->task || s->project || json_object_size(s->labels) > 0;
}

static bool in_project(const char *project, const char *top)
{
	size_t n = strlen(top);

	return !strncmp(project, top, n) &&
	       (project[n] == '\0' || project[n] == '/');
}

bool select_match(const struct select *s, const json_t *rec)
{
	const json_t *have = json_object_get(rec, "labels");
	json_t *labels = (json_t *)(uintptr_t)s->labels;
	const char *key;
	json_t *want;

	if (s->task && strcmp(json_str(rec, "task"), s->task))
		return false;
	if (s->project && !in_project(json_str(rec, "project"), s->project))
		return false;
	json_object_foreach(labels, key, want)
		if (!json_equal(json_object_get(have, key), want))
			return false;
	return true;
}

int select_open(const struct tree *t, const struct select *s,
		struct select_walk **ret_walk, struct err *e)
{
	struct select_walk *w;
	char path[PATH_MAX];
	int r;

	/* The name becomes a path below. */
	if (s->task && (strchr(s->task, '/') || s->task[0] == '.'))
		return err_set(e, -EBADMSG, "bad_value",
			       "'task' is not a name");
	r = tree_allowed(t, e);
	if (r < 0)
		return r;
	if (s->task)
		r = tree_path(path, e, "%s/task/%s", t->run, s->task);
	else
		r = tree_path(path, e, "%s/sb", t->run);
	if (r < 0)
		return r;
	w = calloc(1, sizeof(*w));
	if (!w)
		return err_sys(e, ENOMEM, "sandboxes");
	w->tree = t;
	w->sel = s;
	w->dir = opendir(path);
	if (!w->dir && errno != ENOENT) {
		r = err_sys(e, errno, "read '%s'", path);
		free(w);
		return r;
	}
	*ret_walk = w;
	return 0;
}

void select_close(struct select_walk *w)
{
	if (!w)
		return;
	if (w->dir)
		closedir(w->dir);
	free(w);
}

static int read_claim(const struct tree *t, const char *id, json_t **ret_claim)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, NULL, "%s/sb/%s/claim.json", t->run, id);
	return r < 0 ? r : json_read_file(AT_FDCWD, path, ret_claim, NULL);
}

/* Is ${id} one of them?  Also its claim, where it can be read. */
static bool fits(const struct select_walk *w, const char *id,
		 json_t **ret_claim)
{
	auto_json json_t *claim = NULL;
	int r;

	r = read_claim(w->tree, id, &claim);
	/* Gone, or not there yet: the claim is what makes a sandbox. */
	if (r == -ENOENT)
		return false;
	if (r < 0 ? select_narrows(w->sel) : !select_match(w->sel, claim))
		return false;
	*ret_claim = steal_ptr(claim);
	return true;
}

int select_next(struct select_walk *w, char *id, json_t **ret_claim,
		struct err *e)
{
	const struct dirent *de;

	while (w->dir) {
		errno = 0;
		de = readdir(w->dir);
		if (!de && errno)
			return err_sys(e, errno, "read the sandboxes");
		if (!de)
			return 0;
		if (!tree_is_id(de->d_name))
			continue;
		*ret_claim = NULL;
		if (!fits(w, de->d_name, ret_claim))
			continue;
		memcpy(id, de->d_name, BOX_ID_LEN + 1);
		return 1;
	}
	return 0;
}

enum select_life select_life(const struct tree *t, const char *id,
			     json_t **ret_claim)
{
	auto_close int fd = -1;
	char path[PATH_MAX];
	struct stat st;

	if (ret_claim)
		*ret_claim = NULL;
	if (tree_path(path, NULL, "%s/sb/%s/claim.json", t->run, id) < 0)
		return SELECT_GONE;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR ? SELECT_GONE
							   : SELECT_LIVE;
	if (ret_claim && read_claim(t, id, ret_claim) < 0)
		*ret_claim = NULL;
	/* Shared: two that ask at once are not to take each other for it. */
	if (flock(fd, LOCK_SH | LOCK_NB) < 0)
		return SELECT_LIVE;
	/* Released between our opening and our locking it. */
	if (fstat(fd, &st) < 0 || st.st_nlink == 0)
		return SELECT_GONE;
	return SELECT_LOST;
}
