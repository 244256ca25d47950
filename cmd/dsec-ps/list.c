/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box/spec.h"
#include "ckpt/ckpt.h"
#include "life/recover.h"
#include "life/teardown.h"
#include "ps.h"

#define INSPECT_MS 2000

static const char *const from_claim[] = {
	"name",	      "kind",	"image",	   "task",
	"project",    "labels", "cpu_cores_limit", "memory_limit_mb",
	"created_ms",
};

static const char *const from_state[] = {
	"state",      "level",	  "outcome",	    "infra",
	"generation", "since_ms", "supervisor_pid", "init_pid",
};

static int copy_missing(json_t *to, const json_t *from, const char *const *keys,
			size_t n)
{
	json_t *v;

	for (size_t i = 0; i < n; i++) {
		v = json_object_get(from, keys[i]);
		if (v && !json_object_get(to, keys[i]) &&
		    json_object_set(to, keys[i], v) < 0)
			return -ENOMEM;
	}
	return 0;
}

static void copy_keys(json_t *to, const json_t *from, const char *const *keys,
		      size_t n)
{
	json_t *v;

	for (size_t i = 0; i < n; i++) {
		v = json_object_get(from, keys[i]);
		if (v)
			json_object_set(to, keys[i], v);
	}
}

static void set_lost(json_t *rec)
{
	json_object_set_new(rec, "state", json_string("stopped"));
	json_object_set_new(rec, "outcome", json_string("supervisor-lost"));
	json_object_set_new(rec, "infra", json_true());
}

static int64_t made_ms(const struct app *app, const char *id)
{
	auto_json json_t *manifest = NULL;
	char dir[PATH_MAX], path[PATH_MAX];

	if (ckpt_dir(&app->tree, id, dir, NULL) < 0 ||
	    tree_path(path, NULL, "%s/" CKPT_MANIFEST, dir) < 0 ||
	    json_read_file(AT_FDCWD, path, &manifest, NULL) < 0)
		return 0;
	return json_int(manifest, "made_ms", 0);
}

/* It is on the disk, and the next who names it gives it a supervisor. */
static void set_waiting(const struct app *app, const char *id, json_t *rec)
{
	int64_t since = made_ms(app, id);

	json_object_set_new(rec, "state", json_string("paused"));
	json_object_set_new(rec, "level", json_string("disk"));
	json_object_set_new(rec, "recovery", json_true());
	if (since > 0)
		json_object_set_new(rec, "since_ms", json_integer(since));
	json_object_del(rec, "supervisor_pid");
	json_object_del(rec, "init_pid");
	json_object_del(rec, "outcome");
	json_object_del(rec, "infra");
}

static int read_state(const struct app *app, const char *id, json_t **ret_state)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, NULL, "%s/sb/%s/state.json", app->tree.run, id);
	return r < 0 ? r : json_read_file(AT_FDCWD, path, ret_state, NULL);
}

static void add_state(const struct app *app, const char *id, json_t *rec)
{
	auto_json json_t *state = NULL;
	const char *kind = json_str(rec, "kind");

	/* Written anew while it was read: the next one is whole. */
	for (int i = 0; i < 3 && read_state(app, id, &state) == -EBADMSG; i++)
		;
	if (state)
		copy_keys(rec, state, from_state, array_len(from_state));
	/* A one-shot has nobody who would write a state. */
	if (!*json_str(rec, "state"))
		json_object_set_new(rec, "state",
				    json_string(strcmp(kind, "one-shot")
							? "creating"
							: "running"));
}

/* What only its supervisor knows. */
static void add_stats(const struct app *app, const char *id, json_t *rec)
{
	auto_json json_t *req = json_pack("{s:i, s:s, s:b}", "id", 1, "op",
					  "inspect", "pss", 1);
	auto_json json_t *answer = NULL;
	struct err e = {0};
	const char *key;
	json_t *v;

	if (!req || !strcmp(json_str(rec, "kind"), "one-shot"))
		return;
	if (ctl_call(&app->tree, id, req, clock_ms() + INSPECT_MS, &answer,
		     &e) < 0) {
		/* Lost between two looks, or stopped: what ps_dead() says. */
		if (!strcmp(e.code, "supervisor_lost"))
			set_lost(rec);
		return;
	}
	json_object_foreach(answer, key, v)
		if (strcmp(key, "id") && strcmp(key, "ok"))
			json_object_set(rec, key, v);
}

/* Its spec is the truth about it; the claim is there a little earlier. */
static int base_of(const struct app *app, const char *id, const json_t *claim,
		   json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = NULL;
	int r;

	r = spec_read(&app->tree, id, &rec, e);
	if (r == -EACCES || r == -EPERM) /* not ours: say nothing false */
		return r;
	if (r < 0)
		rec = json_object();
	if (!rec || json_object_set_new(rec, "sandbox", json_string(id)) < 0 ||
	    copy_missing(rec, claim, from_claim, array_len(from_claim)) < 0)
		return err_sys(e, ENOMEM, "sandbox %s", id);
	*ret_rec = steal_ptr(rec);
	return 0;
}

int ps_live(const struct app *app, const char *id, const json_t *claim,
	    bool stats, json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = NULL;
	enum select_life life;
	int r;

	r = base_of(app, id, claim, &rec, e);
	if (r < 0)
		return r;
	add_state(app, id, rec);
	/* Last: what was read above is no older than this. */
	life = select_life(&app->tree, id, NULL);
	if (life == SELECT_GONE)
		return err_set(e, -ENOENT, "sandbox_unknown",
			       "no sandbox '%s' here", id);
	if (life == SELECT_LOST && teardown_kept(&app->tree, id))
		set_waiting(app, id, rec);
	else if (life == SELECT_LOST &&
		 strcmp(json_str(rec, "state"), "stopped"))
		set_lost(rec);
	else if (life == SELECT_LIVE && stats)
		add_stats(app, id, rec);
	ps_net(app, rec);
	*ret_rec = steal_ptr(rec);
	return 0;
}

int ps_waiting(const struct app *app, const char *id, json_t **ret_rec,
	       struct err *e)
{
	json_t *rec = NULL;
	int r;

	r = base_of(app, id, NULL, &rec, e);
	if (r < 0)
		return r;
	json_object_set_new(rec, "kind", json_string("supervised"));
	set_waiting(app, id, rec);
	ps_net(app, rec);
	*ret_rec = rec;
	return 0;
}

int ps_dead(const struct app *app, const char *id, json_t **ret_rec,
	    struct err *e)
{
	auto_json json_t *dead = NULL, *spec = NULL;
	int r;

	r = ctl_dead(&app->tree, id, &dead, e);
	if (r < 0)
		return r;
	json_object_set_new(dead, "state", json_string("stopped"));
	spec = json_incref(json_object_get(dead, "spec"));
	json_object_del(dead, "spec");
	if (spec && json_object_update_missing(dead, spec) < 0)
		return err_sys(e, ENOMEM, "sandbox %s", id);
	ps_net(app, dead);
	*ret_rec = steal_ptr(dead);
	return 0;
}

int ps_one(const struct app *app, const char *id, bool stats, json_t **ret_rec,
	   struct err *e)
{
	auto_json json_t *claim = NULL;
	enum select_life life = select_life(&app->tree, id, &claim);
	int r = -ENOENT;

	if (life != SELECT_GONE)
		r = ps_live(app, id, claim, stats, ret_rec, e);
	else if (recover_waits(&app->tree, id))
		r = ps_waiting(app, id, ret_rec, e);
	if (r == 0 || r == -EACCES || r == -EPERM)
		return r;
	return ps_dead(app, id, ret_rec, e);
}

static void show(struct app *app, json_t *rec)
{
	if (app->table) {
		ps_table(rec);
		json_decref(rec);
	} else {
		json_object_set_new(rec, "ok", json_true());
		app_write(app, rec);
	}
}

struct waiting {
	struct app *app;
	json_t *seen; /* NULL: need not be known */
};

static int list_one_waiting(void *arg, const char *id, const json_t *spec,
			    struct err *e)
{
	struct waiting *w = arg;
	json_t *rec = NULL;

	if (select_narrows(&w->app->sel) &&
	    (!spec || !select_match(&w->app->sel, spec)))
		return 0;
	if (ps_waiting(w->app, id, &rec, NULL) < 0)
		return 0;
	if (w->seen && json_object_set_new(w->seen, id, json_true()) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "list");
	}
	show(w->app, rec);
	return w->app->status == EXIT_STDOUT_LOST;
}

static int list_live(struct app *app, json_t *seen, struct err *e)
{
	auto_select struct select_walk *w = NULL;
	char id[BOX_ID_LEN + 1];
	int r;

	r = select_open(&app->tree, &app->sel, &w, e);
	while (r >= 0) {
		auto_json json_t *claim = NULL;
		json_t *rec = NULL;

		r = select_next(w, id, &claim, e);
		if (r <= 0)
			break;
		if (ps_live(app, id, claim, app->stats, &rec, NULL) < 0)
			continue;
		if (seen && json_object_set_new(seen, id, json_true()) < 0)
			r = err_sys(e, ENOMEM, "list");
		show(app, rec);
		if (app->status == EXIT_STDOUT_LOST)
			break;
	}
	return r < 0 ? r : 0;
}

static void list_one_dead(struct app *app, const json_t *seen, const char *hour,
			  const char *file)
{
	char id[BOX_ID_LEN + 1], path[PATH_MAX];
	auto_json json_t *dead = NULL;
	json_t *rec = NULL;

	if (strlen(file) != BOX_ID_LEN + 5 ||
	    strcmp(file + BOX_ID_LEN, ".json"))
		return;
	memcpy(id, file, BOX_ID_LEN);
	id[BOX_ID_LEN] = '\0';
	if (!tree_is_id(id) || json_object_get(seen, id))
		return;
	if (select_narrows(&app->sel) &&
	    (tree_path(path, NULL, "%s/dead/%s/%s", app->tree.lib, hour, file) <
		     0 ||
	     json_read_file(AT_FDCWD, path, &dead, NULL) < 0 ||
	     !select_match(&app->sel, json_object_get(dead, "spec"))))
		return;
	if (ps_dead(app, id, &rec, NULL) == 0)
		show(app, rec);
}

static int list_dead(struct app *app, const json_t *seen, struct err *e)
{
	struct dirent **hours = NULL;
	char path[PATH_MAX];
	int n, r;

	r = tree_path(path, e, "%s/dead", app->tree.lib);
	if (r < 0)
		return r;
	n = scandir(path, &hours, NULL, alphasort);
	if (n < 0)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "read '%s'", path);
	for (int i = 0; i < n; i++) {
		auto_dir DIR *d = NULL;
		const struct dirent *de;

		if (hours[i]->d_name[0] != '.' &&
		    tree_path(path, NULL, "%s/dead/%s", app->tree.lib,
			      hours[i]->d_name) == 0)
			d = opendir(path);
		while (d && (de = readdir(d)))
			list_one_dead(app, seen, hours[i]->d_name, de->d_name);
		free(hours[i]);
	}
	free(hours);
	return 0;
}

int ps_list(struct app *app, struct err *e)
{
	/* One that ends in between must be in the list once. */
	auto_json json_t *seen = app->all ? json_object() : NULL;
	struct waiting waiting = {app, seen};
	int r;

	if (app->table)
		ps_table(NULL);
	r = list_live(app, seen, e);
	if (r == 0)
		r = recover_each(&app->tree, list_one_waiting, &waiting, e);
	if (r == 0 && app->all)
		r = list_dead(app, seen, e);
	return r;
}
