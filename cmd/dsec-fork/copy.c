/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "life/ctl.h"
#include "box/inherit.h"
#include "fork.h"

/* --- the snapshot -------------------------------------------------------- */

/* A named one outlives the node's next crash. */
static int sync_snapshot(const struct request *r, struct err *e)
{
	int res = pool_sync(r->snap.dir, e);

	if (res == 0 && syncfs(r->snap.dir) < 0)
		res = err_sys(e, errno, "sync the snapshot");
	return res;
}

int take_snapshot(struct request *r, unsigned index, int stop, json_t **ret_rec,
		  struct err *e)
{
	auto_json json_t *req = NULL;
	int res;

	(void)index;
	res = json_pack_or(&req, e, "{s:i, s:s, s:s, s:b}", "id", 1, "op",
			   "snapshot", "snapshot", r->snap.id, "fs_only",
			   !r->memory);
	if (res < 0)
		return res;
	res = ctl_call_stop(&r->app->tree, r->source, req, stop, ret_rec, e);
	if (res == 0 && r->keep)
		res = sync_snapshot(r, e);
	return res;
}

/* --- a copy -------------------------------------------------------------- */

/* Names are told apart by the copy's number. */
static int spec_of(const struct request *r, unsigned index, json_t **ret,
		   struct err *e)
{
	const char *name = json_str(r->req, "name");
	auto_json json_t *over = json_copy(r->req);
	char own[96];

	if (!over)
		return err_sys(e, ENOMEM, "spec");
	snprintf(own, sizeof(own), "%s-%u", name, index);
	if (*name && json_object_set_new(over, "name", json_string(own)) < 0)
		return err_sys(e, ENOMEM, "spec");
	return inherit_spec(r->spec, over, ret, e);
}

static int add_all(json_t *to, const json_t *from)
{
	return json_is_array(from)
		       ? json_array_extend(to, (json_t *)(uintptr_t)from)
		       : 0;
}

/* The warnings of both halves. */
static int put_warnings(const struct request *r, const struct create_copied *m,
			json_t *rec)
{
	json_t *all = json_array();

	if (!all || add_all(all, json_object_get(r->taken, "warnings")) < 0 ||
	    add_all(all, json_object_get(m->restored, "warnings")) < 0) {
		json_decref(all);
		return -1;
	}
	return json_object_set_new(rec, "warnings", all);
}

static int put_copied(json_t *rec, const json_t *from, const char *const *keys,
		      size_t n)
{
	json_t *v;

	for (size_t i = 0; i < n; i++) {
		v = json_object_get(from, keys[i]);
		if (v && json_object_set(rec, keys[i], v) < 0)
			return -1;
	}
	return 0;
}

static int record_of(const struct request *r, const struct create_copied *m,
		     const json_t *spec, json_t **ret, struct err *e)
{
	static const char *const taken[] = {"frozen_ms", "engine_frozen_ms"};
	static const char *const told[] = {"memory", "reset", "not_reset"};
	static const char *const of_spec[] = {"name", "profile"};
	auto_json json_t *rec = NULL;
	int res;

	res = json_pack_or(&rec, e,
			   "{s:b, s:s, s:s, s:s, s:i, s:s, s:s, s:s, "
			   "s:I}",
			   "ok", 1, "sandbox", m->made.id, "parent",
			   json_str(r->spec, "sandbox"), "snapshot", r->snap.id,
			   "generation", 1, "state", "running", "memory",
			   r->memory ? "private" : "none", "layer",
			   pool_copy_name(m->layer), "fork_ms",
			   (json_int_t)(clock_ms() - r->began_ms));
	if (res < 0)
		return res;
	if (put_copied(rec, r->taken, taken, array_len(taken)) < 0 ||
	    put_copied(rec, m->restored, told, array_len(told)) < 0 ||
	    put_copied(rec, spec, of_spec, array_len(of_spec)) < 0 ||
	    put_warnings(r, m, rec) < 0)
		return err_sys(e, ENOMEM, "record");
	*ret = steal_ptr(rec);
	return 0;
}

static int copy_now(struct request *r, unsigned index, int stop,
		    json_t **ret_rec, struct err *e)
{
	const struct create_from from = {
		.snap = &r->snap,
		.source = r->spec,
		.follow = *r->source ? r->source : NULL,
		.memory = r->memory,
		.stop = stop,
	};
	auto_json json_t *spec = NULL;
	struct create_copied made;
	int res;

	res = spec_of(r, index, &spec, e);
	if (res == 0)
		res = create_from(&r->app->creator, spec, &from, &made, e);
	if (res < 0)
		return res;
	res = record_of(r, &made, spec, ret_rec, e);
	json_decref(made.restored);
	return res;
}

/* One whose worker died before it could tell of it; 1: it was not made. */
static int adopt(const struct request *r, const char *id, json_t **ret_rec,
		 struct err *e)
{
	static const char *const known[] = {"parent", "generation", "state",
					    "name", "profile"};
	auto_json json_t *rec = NULL, *is = NULL;
	int res = ctl_made(&r->app->tree, id, &is, e);

	if (res == 0)
		res = json_pack_or(&rec, e, "{s:b, s:s, s:O*}", "ok", 1,
				   "sandbox", id, "snapshot",
				   json_object_get(is, "made_from"));
	if (res == 0 && put_copied(rec, is, known, array_len(known)) < 0)
		res = err_sys(e, ENOMEM, "record");
	if (res == 0)
		*ret_rec = steal_ptr(rec);
	return res;
}

static int copy_keyed(struct request *r, unsigned index, int stop,
		      struct key *key, json_t **ret_rec, struct err *e)
{
	struct creator *c = &r->app->creator;
	int res = 0;

	if (key->lock >= 0)
		res = tree_new_id(c->tree, c->next_id, e);
	if (res == 0 && key->lock >= 0)
		res = key_making(key, c->next_id, e);
	return res < 0 ? res : copy_now(r, index, stop, ret_rec, e);
}

/* Each copy has a key of its own, which the process that makes it keeps: where
 * the request is made again because dsec-fork was killed before it could keep
 * its own, those that are there are not made twice. */
int make_copy(struct request *r, unsigned index, int stop, json_t **ret_rec,
	      struct err *e)
{
	auto_json json_t *req = json_copy(r->req);
	const char *whole = json_str(r->req, "key");
	struct key key = KEY_INIT;
	struct err late = {0};
	int res = req ? 0 : err_sys(e, ENOMEM, "request");

	if (res == 0 && *whole &&
	    json_object_set_new(req, "key",
				json_sprintf("%s/%u", whole, index)) < 0)
		res = err_sys(e, ENOMEM, "key");
	if (res == 0)
		res = key_begin(&key, &r->app->tree, req, stop, ret_rec, e);
	if (res != 0)
		return res < 0 ? res : 0;
	res = *key.made ? adopt(r, key.made, ret_rec, e) : 1;
	if (res < 0) { /* it is there */
		key_done(&key);
		return res;
	}
	if (res == 1)
		res = copy_keyed(r, index, stop, &key, ret_rec, e);
	if (key_end(&key, res < 0 ? NULL : *ret_rec, &late) < 0)
		log_err(&late);
	key_done(&key);
	return res;
}
