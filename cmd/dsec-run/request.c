/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/sig.h"
#include "life/ctl.h"
#include "box/key.h"
#include "box/result.h"
#include "box/spec.h"
#include "run.h"
#include "wire/record.h"

static int put_made(const struct creator *c, const struct created *m,
		    const json_t *spec, uint64_t began_ms, json_t *rec,
		    struct err *e)
{
	bool can = c->image.checkpointable && c->profile.checkpointable;
	enum cgroup_mode mode = cgroup_mode(c->cgroups);
	auto_json json_t *made = NULL;
	const char *name = json_str(spec, "name");
	int r;

	r = json_pack_or(&made, e, "{s:s, s:s, s:i, s:s, s:b, s:s, s:s, s:I}",
			 "sandbox", m->id, "state", "running", "generation", 1,
			 "profile", c->profile.name, "checkpointable", can,
			 "cgroup", cgroup_mode_name(mode), "pool",
			 pool_kind_name(c->pool.kind), "launch_ms",
			 (json_int_t)(clock_ms() - began_ms));
	if (r < 0)
		return r;
	if (*name)
		json_object_set_new(made, "name", json_string(name));
	if (!can)
		json_object_set_new(made, "checkpointable_why",
				    json_string(c->image.checkpointable
							? "the profile"
							: c->image.why_not));
	if (json_object_get(spec, "network"))
		json_object_set(made, "network",
				json_object_get(spec, "network"));
	if (json_object_get(spec, "published"))
		json_object_set(made, "published",
				json_object_get(spec, "published"));
	if (json_object_get(spec, "command"))
		json_object_set_new(made, "exec", json_string("e0"));
	return json_object_update(rec, made) < 0 ? err_sys(e, ENOMEM, "record")
						 : 0;
}

/* Whatever comes of a wait, ${req} says what was made for it. */
static int not_waited(const struct running *w, json_t *req, int r,
		      struct err *e)
{
	json_object_set_new(req, "sandbox", json_string(w->sandbox));
	json_object_set_new(req, "exec", json_string(w->exec));
	return strcmp(e->code, "cancelled") != 0
		       ? r
		       : err_set(e, r, "cancelled",
				 "nobody waits for command %s of sandbox %s "
				 "any more; both live on: dsec-pause --stop %s "
				 "ends them",
				 w->exec, w->sandbox, w->sandbox);
}

/* "wait": the record of the command with its output, on top of what is there.
 */
static int put_result(const struct tree *t, const struct running *w,
		      json_t *req, json_t *rec, struct err *e)
{
	auto_json json_t *ask = NULL;
	auto_json json_t *end = NULL;
	const char *key;
	json_t *v;
	int r;

	r = json_pack_or(&ask, e, "{s:i, s:s, s:s}", "id", 0, "op", "wait",
			 "exec", w->exec);
	if (r == 0)
		r = ctl_call_stop(t, w->sandbox, ask, w->stop, &end, e);
	if (r == 0)
		r = result_add_output(t, w->sandbox, end, RESULT_INLINE_KB, e);
	if (r < 0)
		return not_waited(w, req, r, e);
	json_object_foreach(end, key, v)
		if (strcmp(key, "id") && json_object_set(rec, key, v) < 0)
			return err_sys(e, ENOMEM, "record");
	return 0;
}

json_t *request_failed(const json_t *req, const struct err *why)
{
	json_t *rec = record_error(req, why), *exec;

	exec = json_object_get(req, "exec");
	if (rec && exec)
		json_object_set(rec, "exec", exec);
	return rec;
}

static int make_supervised(struct creator *c, json_t *req, int sig,
			   json_t **ret_rec, struct err *e)
{
	struct running w = {.exec = "e0", .stop = sig};
	auto_json json_t *rec = record_ok(req);
	uint64_t began = clock_ms();
	struct created made;
	int r;

	if (!rec)
		return err_sys(e, ENOMEM, "record");
	r = create_supervised(c, req, &made, e);
	if (r == 0)
		r = put_made(c, &made, req, began, rec, e);
	if (r == 0)
		memcpy(w.sandbox, made.id, sizeof(w.sandbox));
	if (r == 0 && json_flag(req, "wait") && json_object_get(req, "command"))
		r = put_result(c->tree, &w, req, rec, e);
	if (r == 0)
		*ret_rec = json_incref(rec);
	/* Supervisors of sandboxes that ended meanwhile are our children. */
	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	return r;
}

static int make_from(struct creator *c, json_t *req, int sig, json_t **ret_rec,
		     struct err *e)
{
	struct running w = {.stop = sig};
	auto_json json_t *rec = record_ok(req);
	int r;

	if (!rec)
		return err_sys(e, ENOMEM, "record");
	r = from_snapshot(c, req, rec, &w, e);
	if (r < 0 && *w.sandbox)
		json_object_set_new(req, "sandbox", json_string(w.sandbox));
	if (r == 0 && json_flag(req, "wait") && *w.exec)
		r = put_result(c->tree, &w, req, rec, e);
	if (r == 0)
		*ret_rec = json_incref(rec);
	return r;
}

static int dispatch(struct creator *c, json_t *req, int sig, json_t **ret_rec,
		    struct err *e)
{
	int r;

	if (json_object_get(req, "snapshot"))
		return make_from(c, req, sig, ret_rec, e);
	r = spec_complete(req, e);
	if (r < 0)
		return r;
	if (!json_flag(req, "rm"))
		return make_supervised(c, req, sig, ret_rec, e);
	return one_shot_record(c, req, sig, ret_rec, e);
}

static int put_known(const struct creator *c, const json_t *is, json_t *rec,
		     struct err *e)
{
	static const char *const keys[] = {
		"state",	  "generation",		"profile",
		"checkpointable", "checkpointable_why", "name",
		"network",	  "published",		"parent",
	};
	enum cgroup_mode mode = cgroup_mode(c->cgroups);
	auto_json json_t *all = NULL;
	json_t *v;
	int r;

	r = json_pack_or(&all, e, "{s:s, s:s, s:O*}", "cgroup",
			 cgroup_mode_name(mode), "pool",
			 pool_kind_name(c->pool.kind), "snapshot",
			 json_object_get(is, "made_from"));
	for (size_t i = 0; r == 0 && i < array_len(keys); i++) {
		v = json_object_get(is, keys[i]);
		if (v && json_object_set(all, keys[i], v) < 0)
			r = err_sys(e, ENOMEM, "record");
	}
	if (r == 0 && json_object_update(rec, all) < 0)
		r = err_sys(e, ENOMEM, "record");
	return r;
}

/* What its command comes to.  Of one that ended nothing of it is kept. */
static int adopt_command(const struct tree *t, json_t *req, struct running *w,
			 json_t *rec, struct err *e)
{
	bool ended = !strcmp(json_str(rec, "state"), "stopped");
	int r = 0;

	if (!json_object_get(req, "snapshot"))
		memcpy(w->exec, "e0", sizeof("e0"));
	else if (!ended)
		r = from_command(t, req, w, e);
	if (r == 0 && *w->exec)
		json_object_set_new(rec, "exec", json_string(w->exec));
	if (r == 0 && !ended && json_flag(req, "wait"))
		r = put_result(t, w, req, rec, e);
	return r;
}

/* The record of a sandbox whose maker died before he could tell of it: 0; or
 * 1: it was not made. */
static int adopt(struct creator *c, json_t *req, struct running *w,
		 json_t **ret_rec, struct err *e)
{
	auto_json json_t *rec = record_ok(req);
	auto_json json_t *is = NULL;
	int r = ctl_made(c->tree, w->sandbox, &is, e);

	if (r != 0)
		return r;
	if (!rec ||
	    json_object_set_new(rec, "sandbox", json_string(w->sandbox)) < 0)
		return err_sys(e, ENOMEM, "record");
	r = put_known(c, is, rec, e);
	if (r == 0 && json_object_get(req, "command"))
		r = adopt_command(c->tree, req, w, rec, e);
	if (r == 0)
		*ret_rec = json_incref(rec);
	return r;
}

/* Whoever repeats it finds what was made, should we die on the way. */
static int make(struct creator *c, struct key *key, json_t *req, int sig,
		json_t **ret_rec, struct err *e)
{
	int r = 0;

	json_object_del(req, "attempt");
	if (sig_came(sig, 0))
		return err_set(e, -ECANCELED, "cancelled",
			       "it was ended before anything was made");
	if (key->lock >= 0 && !json_flag(req, "rm")) {
		r = tree_new_id(c->tree, c->next_id, e);
		if (r == 0)
			r = key_making(key, c->next_id, e);
	}
	if (r == 0)
		r = dispatch(c, req, sig, ret_rec, e);
	c->next_id[0] = '\0';
	return r;
}

int request_do(struct creator *c, json_t *req, int sig, json_t **ret_rec,
	       struct err *e)
{
	struct running made = {.stop = sig};
	struct err late = {0};
	struct key key;
	bool there;
	int r;

	r = key_begin(&key, c->tree, req, sig, ret_rec, e);
	if (r != 0)
		return r < 0 ? r : 0;
	memcpy(made.sandbox, key.made, sizeof(made.sandbox));
	r = *key.made ? adopt(c, req, &made, ret_rec, e) : 1;
	there = r < 0;
	if (there)
		json_object_set_new(req, "sandbox", json_string(made.sandbox));
	if (r == 1) {
		r = make(c, &key, req, sig, ret_rec, e);
		there = r < 0 && json_object_get(req, "sandbox");
	}
	if (there) { /* who repeats it waits for what was made */
		key_done(&key);
		return r;
	}
	/* What was done stands, even when it cannot be kept. */
	if (key_end(&key, r < 0 ? NULL : *ret_rec, &late) < 0)
		log_err(&late);
	key_done(&key);
	return r;
}
