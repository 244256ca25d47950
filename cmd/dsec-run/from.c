/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "life/ctl.h"
#include "box/inherit.h"
#include "ckpt/snap.h"
#include "run.h"
#include "wire/record.h"

#define START_MS 60000

static int put_made(const struct creator *c, const struct create_copied *m,
		    const struct snap_source *s, const json_t *spec,
		    uint64_t began_ms, json_t *rec, struct err *e)
{
	static const char *const told[] = {"memory", "reset", "not_reset",
					   "warnings"};
	auto_json json_t *made = NULL;
	json_t *v;
	int r;

	r = json_pack_or(&made, e,
			 "{s:s, s:s, s:s, s:s, s:i, s:s, s:O*, s:O*, s:s, s:s, "
			 "s:s, s:s, s:I}",
			 "sandbox", m->made.id, "parent",
			 json_str(s->spec, "sandbox"), "snapshot", s->snap.id,
			 "state", "running", "generation", 1, "profile",
			 json_str(spec, "profile"), "checkpointable",
			 json_object_get(spec, "checkpointable"),
			 "checkpointable_why",
			 json_object_get(spec, "checkpointable_why"), "cgroup",
			 cgroup_mode_name(cgroup_mode(c->cgroups)), "pool",
			 pool_kind_name(c->pool.kind), "layer",
			 pool_copy_name(m->layer), "memory",
			 s->memory ? "private" : "none", "launch_ms",
			 (json_int_t)(clock_ms() - began_ms));
	if (r < 0)
		return r;
	if (*json_str(spec, "name"))
		json_object_set(made, "name", json_object_get(spec, "name"));
	if (*json_str(spec, "network"))
		json_object_set(made, "network",
				json_object_get(spec, "network"));
	for (size_t i = 0; i < array_len(told); i++) {
		v = json_object_get(m->restored, told[i]);
		if (v && json_object_set(made, told[i], v) < 0)
			return err_sys(e, ENOMEM, "record");
	}
	return json_object_update(rec, made) < 0 ? err_sys(e, ENOMEM, "record")
						 : 0;
}

/* To the supervisor this is one more command, after those of the source.  With
 * a key there it is begun once, whoever dies before he could tell of it; the
 * sandbox's id is what nobody inside calls something else. */
int from_command(const struct tree *t, const json_t *req, struct running *w,
		 struct err *e)
{
	bool keyed = json_object_get(req, "key");
	uint64_t until = clock_ms() + START_MS;
	auto_json json_t *ask = NULL;
	struct ctl *ctl = NULL;
	bool begun = false;
	int r;

	r = json_pack_or(&ask, e, "{s:i, s:s, s:O, s:b, s:b, s:s*}", "id", 1,
			 "op", "exec", "command",
			 json_object_get(req, "command"), "tty",
			 json_flag(req, "tty"), "detach", 1, "key",
			 keyed ? w->sandbox : NULL);
	if (r == 0)
		r = ctl_open(t, w->sandbox, 0, &ctl, e);
	if (r == 0)
		r = ctl_send(ctl, ask, NULL, 0, e);
	while (r == 0 && !begun) {
		auto_ctl_record struct ctl_record rec = {0};

		r = ctl_wait(ctl, until, &rec, e);
		if (r == 0 && rec.final)
			r = record_to_err(rec.rec, e);
		if (r < 0 || !*json_str(rec.rec, "exec"))
			continue;
		snprintf(w->exec, sizeof(w->exec), "%s",
			 json_str(rec.rec, "exec"));
		begun = true;
	}
	ctl_free(ctl);
	return r;
}

static int make(struct creator *c, const json_t *req, struct snap_source *s,
		json_t *rec, struct running *w, struct err *e)
{
	const struct create_from from = {
		.snap = &s->snap,
		.source = s->spec,
		.memory = s->memory,
		.stop = w->stop,
	};
	auto_json json_t *spec = NULL;
	struct create_copied made;
	uint64_t began = clock_ms();
	int r;

	r = inherit_spec(s->spec, req, &spec, e);
	if (r == 0)
		r = create_from(c, spec, &from, &made, e);
	if (r < 0)
		return r;
	memcpy(w->sandbox, made.made.id, sizeof(w->sandbox));
	r = put_made(c, &made, s, spec, began, rec, e);
	json_decref(made.restored);
	if (r == 0 && json_object_get(req, "command"))
		r = from_command(c->tree, req, w, e);
	if (r == 0 && *w->exec)
		json_object_set_new(rec, "exec", json_string(w->exec));
	return r;
}

int from_snapshot(struct creator *c, const json_t *req, json_t *rec,
		  struct running *w, struct err *e)
{
	const char *project = json_str(req, "project");
	struct snap_source s;
	int r;

	r = inherit_check(req, e);
	if (r == 0)
		r = snap_source_open(c->tree, *project ? project : "root",
				     json_str(req, "snapshot"), false, &s, e);
	if (r < 0)
		return r;
	r = make(c, req, &s, rec, w, e);
	snap_source_done(&s);
	return r;
}
