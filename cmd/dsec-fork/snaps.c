/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "ckpt/ckpt.h"
#include "fork.h"

/* --- one ----------------------------------------------------------------- */

int snaps_open(struct request *r, const char *word, struct err *e)
{
	struct snap_source s;
	int res;

	res = snap_source_open(&r->app->tree, r->project, word,
			       json_flag(r->req, "fs_only"), &s, e);
	if (res < 0)
		return res;
	r->snap = s.snap;
	r->spec = s.spec;
	r->memory = s.memory;
	return 0;
}

/* --- records ------------------------------------------------------------- */

static int describe(const char *id, const char *name, const json_t *manifest,
		    json_t **ret, struct err *e)
{
	static const char *const keys[] = {
		"made_ms", "bytes",	"engine", "engine_version", "kernel",
		"arch",	   "processes", "layer",  "warnings",
	};
	/* What a copy is made of, and takes. */
	static const char *const of_spec[] = {
		"image",	 "image_layers",    "backend",
		"user",		 "cpu_cores_limit", "memory_limit_mb",
		"disk_limit_mb", "pids_limit",
	};
	const json_t *spec = json_object_get(manifest, "spec");
	auto_json json_t *rec = NULL;
	json_t *v;
	int r;

	r = json_pack_or(&rec, e, "{s:s}", "snapshot", id);
	if (r == 0 && *name)
		json_object_set_new(rec, "name", json_string(name));
	if (r == 0 && manifest)
		json_object_set_new(rec, "parent",
				    json_string(json_str(manifest, "sandbox")));
	for (size_t i = 0; r == 0 && i < array_len(keys); i++) {
		v = json_object_get(manifest, keys[i]);
		if (v)
			json_object_set(rec, keys[i], v);
	}
	for (size_t i = 0; r == 0 && i < array_len(of_spec); i++) {
		v = json_object_get(spec, of_spec[i]);
		if (v)
			json_object_set(rec, of_spec[i], v);
	}
	if (r == 0)
		*ret = steal_ptr(rec);
	return r;
}

struct listing {
	struct request *r;
	unsigned count;
};

/* An event for each; one that nobody can use says so. */
static int tell(void *arg, const char *id, const char *name,
		const json_t *manifest, struct err *e)
{
	struct listing *l = arg;
	json_t *rec = NULL, *req_id = json_object_get(l->r->req, "id");
	int r;

	r = describe(id, name, manifest, &rec, e);
	if (r < 0)
		return r;
	json_object_set_new(rec, "event", json_string("snapshot"));
	if (req_id)
		json_object_set(rec, "id", req_id);
	if (!manifest)
		json_object_set_new(rec, "damaged", json_true());
	l->count++;
	app_answer(l->r->app, rec);
	return 0;
}

int snaps_list(struct request *r, struct err *e)
{
	const char *project = json_str(r->req, "project");
	struct listing l = {.r = r};
	json_t *rec;
	int res;

	res = snap_list(&r->app->tree, *project ? project : NULL, tell, &l, e);
	if (res < 0)
		return res;
	rec = record_ok(r->req);
	if (rec)
		json_object_set_new(rec, "count", json_integer(l.count));
	app_answer(r->app, rec);
	return 0;
}

int snaps_inspect(struct request *r, json_t **ret_rec, struct err *e)
{
	auto_snap struct snap s = SNAP_INIT;
	char name[SNAP_PATH_MAX + 1];
	auto_ckpt struct ckpt c = {0};
	auto_close int dir = -1;
	struct err why = {0};
	int res;

	res = snap_open(&r->app->tree, r->project, json_str(r->req, "snapshot"),
			SNAP_USE, &s, e);
	if (res == 0)
		res = snap_name(&r->app->tree, s.id, name, e);
	if (res < 0)
		return res;
	dir = openat(s.dir, "ckpt", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open snapshot %s", s.id);
	res = ckpt_read(dir, &c, e);
	if (res == 0)
		res = describe(s.id, name, c.json, ret_rec, e);
	if (res < 0)
		return res;
	if (snap_fits(&r->app->tree, &c, &why) < 0)
		json_object_set_new(*ret_rec, "incompatible",
				    json_string(why.msg));
	return 0;
}

/* --- the end ------------------------------------------------------------- */

/* What was left of others' is swept with it. */
int drop_snapshot(struct request *r, unsigned index, int stop, json_t **ret_rec,
		  struct err *e)
{
	char name[SNAP_PATH_MAX + 1];
	int res;

	(void)index;
	(void)stop; /* half of one is of no use */
	res = snap_name(&r->app->tree, r->snap.id, name, e);
	if (res == 0)
		res = snap_remove(&r->app->tree, &r->app->creator.pool,
				  &r->snap, e);
	if (res < 0)
		return res;
	(void)snap_sweep(&r->app->tree, &r->app->creator.pool, NULL, NULL);
	*ret_rec = json_pack("{s:b, s:s, s:s*}", "ok", 1, "snapshot",
			     r->snap.id, "name", *name ? name : NULL);
	return 0;
}
