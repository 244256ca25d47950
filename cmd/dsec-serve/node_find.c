/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/hash.h"
#include "ckpt/snap.h"
#include "life/ctl.h"
#include "life/recover.h"
#include "node_keeper.h"

static int unknown(const char *word, struct err *e)
{
	return err_set(e, -ENOENT, "sandbox_unknown", "no sandbox '%.64s' here",
		       word);
}

static struct known *slot_of(struct keeper *k, const char *id)
{
	return &k->known[hash_fnv(id, strlen(id)) % array_len(k->known)];
}

/* The live have a claim, those on the disk a spec, the dead a record. */
static json_t *read_any(struct keeper *k, const char *id)
{
	json_t *rec = NULL;
	char path[PATH_MAX];

	if (select_life(&k->tree, id, &rec) != SELECT_GONE && rec)
		return rec;
	if (tree_path(path, NULL, "%s/sb/%s/spec.json", k->tree.lib, id) == 0 &&
	    json_read_file(AT_FDCWD, path, &rec, NULL) == 0)
		return rec;
	return ctl_dead(&k->tree, id, &rec, NULL) == 0 ? rec : NULL;
}

static const char *project_in(const json_t *rec)
{
	const char *p = json_str(rec, "project");

	if (!*p)
		p = json_str(json_object_get(rec, "spec"), "project");
	return *p ? p : "root";
}

/* A sandbox's project is for life: it is looked up once. */
static const char *project_of(struct keeper *k, const char *id)
{
	struct known *s = slot_of(k, id);
	auto_json json_t *rec = NULL;
	char *project;

	if (s->project && !strcmp(s->id, id))
		return s->project;
	rec = read_any(k, id);
	project = rec ? strdup(project_in(rec)) : NULL;
	if (!project)
		return NULL;
	free(s->project);
	s->project = project;
	memcpy(s->id, id, sizeof(s->id));
	return project;
}

int find_sandbox(struct keeper *k, const char *word, const char *within,
		 char *id, struct err *e)
{
	const char *project;
	int r = recover_find_any(&k->tree, word, id, e);

	if (r < 0)
		return r;
	if (!tree_is_id(id))
		return unknown(word, e);
	if (!strcmp(within, "root"))
		return 0; /* all are */
	project = project_of(k, id);
	return project && auth_within(project, within) ? 0 : unknown(word, e);
}

int find_snapshot(struct keeper *k, const json_t *req, const char *key,
		  const char *within, struct err *e)
{
	const char *word = json_str(req, key);
	char name[SNAP_PATH_MAX + 1];

	if (!tree_is_id(word) || !strcmp(within, "root"))
		return 0;
	if (snap_name(&k->tree, word, name, NULL) == 0 && *name &&
	    auth_within(name, within))
		return 0;
	return err_set(e, -ENOENT, "snapshot_unknown", "no snapshot '%s' here",
		       word);
}
