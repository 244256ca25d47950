/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "hold.h"
#include "img/pack_upper.h"
#include "life/recover.h"
#include "pack.h"

#define REMOVED_LISTED 100 /* in the answer; all are counted */
#define MIN_SAVED      (1024 * 1024)

/* --- what the request says ----------------------------------------------- */

static int switch_all(residue_set *set, const json_t *rules, bool on,
		      struct err *e)
{
	json_t *v;
	size_t i;
	int r = 0;

	json_array_foreach((json_t *)(uintptr_t)rules, i, v) {
		r = residue_switch(set, json_string_value(v), on, e);
		if (r < 0)
			break;
	}
	return r;
}

static int residue_of(struct pack *p, const json_t *req, struct err *e)
{
	const char *what = json_str(req, "residue");
	int r;

	p->residue = residue_default();
	if (!strcmp(what, "off"))
		p->residue = 0;
	else if (!strcmp(what, "list"))
		p->list_only = true;
	else if (*what && strcmp(what, "remove") != 0)
		return err_set(e, -EINVAL, "bad_value",
			       "'residue' is remove, list or off, not '%.32s'",
			       what);
	r = switch_all(&p->residue, json_object_get(req, "also"), true, e);
	if (r == 0 && json_flag(req, "git_shallow"))
		r = residue_switch(&p->residue, "git", true, e);
	if (r == 0)
		r = switch_all(&p->residue, json_object_get(req, "keep"), false,
			       e);
	return r;
}

static int config_of(struct pack *p, const json_t *req, struct err *e)
{
	static const char *const keys[] = {"env", "user", "workdir"};
	json_t *v;

	p->layer.config = json_object();
	if (!p->layer.config)
		return err_sys(e, ENOMEM, "pack");
	for (size_t i = 0; i < array_len(keys); i++) {
		v = json_object_get(req, keys[i]);
		if (v && json_object_set(p->layer.config, keys[i], v) < 0)
			return err_sys(e, ENOMEM, "pack");
	}
	return 0;
}

static int request(struct pack *p, const json_t *req, struct err *e)
{
	const char *kind = json_str(req, "kind"), *as = json_str(req, "as");
	int r = 0;

	p->layer.kind = LAYER_WORKSPACE;
	p->dry_run = json_flag(req, "dry_run");
	if (*kind)
		r = layer_kind_parse(kind, &p->layer.kind, e);
	if (r == 0 && *as)
		r = img_name_parse(as, &p->name, e);
	if (r == 0 && p->name.by_digest)
		return err_set(e, -EINVAL, "bad_value",
			       "'as' is a name, not a digest");
	if (r == 0)
		r = residue_of(p, req, e);
	if (r == 0)
		r = config_of(p, req, e);
	p->named = *as;
	return r;
}

/* --- the sandbox --------------------------------------------------------- */

/* The layers below the upper, lowest first, from its claim. */
static int parents_of(struct pack *p, struct err *e)
{
	auto_json json_t *claim = NULL;
	char path[PATH_MAX];
	json_t *v;
	size_t i;
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", p->c->tree.run, p->id);
	if (r == 0)
		r = json_read_file(AT_FDCWD, path, &claim, e);
	if (r < 0)
		return r;
	json_array_foreach(json_object_get(claim, "layers"), i, v) {
		const char *hex = json_string_value(v);

		if (i >= LAYER_PARENTS_MAX || !hex ||
		    digest_parse(hex, &p->layer.parents[i]) < 0)
			return err_set(e, -EBADMSG, "internal",
				       "the claim of sandbox %s names layer "
				       "'%.80s'",
				       p->id, hex ? hex : "?");
		p->layer.nparents = i + 1;
	}
	return 0;
}

static int open_upper(struct pack *p, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb/%s/upper", p->c->tree.lib, p->id);
	if (r < 0)
		return r;
	p->upper = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (p->upper < 0)
		return err_sys(e, errno, "open '%s'", path);
	return 0;
}

/* What is on its way to the disk may fail there: then it is no layer. */
static int sync_upper(const struct pack *p, struct err *e)
{
	return syncfs(p->upper) < 0
		       ? err_sys(e, errno, "sync the file system of sandbox %s",
				 p->id)
		       : 0;
}

/* What can be known of it while it still runs. */
static int find_sandbox(struct pack *p, struct err *e)
{
	int r, gone = 0;

	r = open_upper(p, e);
	if (r == 0)
		r = parents_of(p, e);
	/* Without these it has ended: its supervisor's place tells how. */
	if (r == -ENOENT)
		gone = hold_take(&p->c->tree, p->id, &p->hold, e);
	return gone < 0 ? gone : r;
}

static int stand_still(struct pack *p, struct err *e)
{
	int r;

	r = sync_upper(p, e); /* most of it, while it still runs */
	if (r == 0)
		r = hold_take(&p->c->tree, p->id, &p->hold, e);
	p->held_ms = clock_ms();
	if (r == 0)
		r = sync_upper(p, e);
	p->uid_base = (uint32_t)json_int(p->hold.spec, "uid_base", 0);
	return r;
}

/* --- the walk ------------------------------------------------------------ */

static int on_chunk(void *arg, const void *data, size_t len,
		    struct fschunk *ret, struct err *e)
{
	struct pack *p = arg;

	return blob_add(p->blob, data, len, ret, e);
}

static int on_progress(void *arg, uint64_t entries, uint64_t bytes,
		       struct err *e)
{
	struct pack *p = arg;

	(void)bytes;
	return img_progress(p->c, entries, 0, "pack entries", e);
}

static int on_removed(void *arg, const char *rule, const char *path,
		      uint64_t bytes, struct err *e)
{
	struct pack *p = arg;
	json_t *rec;

	if (json_array_size(p->removed) >= REMOVED_LISTED)
		return 0;
	rec = json_pack("{s:s, s:I}", "rule", rule, "bytes", (json_int_t)bytes);
	if (!rec || json_set_bytes(rec, "path", path, strlen(path)) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "pack");
	}
	return json_array_append_new(p->removed, rec) < 0
		       ? err_sys(e, ENOMEM, "pack")
		       : 0;
}

/* The upper into tree and blob. */
static int walk(struct pack *p, struct err *e)
{
	struct pack_upper up = {
		.dirfd = p->upper,
		.tree = p->tree,
		.residue = p->residue,
		.list_only = p->list_only,
		.uid_base = p->uid_base,
		.chunk = p->dry_run ? NULL : on_chunk,
		.removed = on_removed,
		.progress = on_progress,
		.arg = p,
	};
	int r;

	r = pack_upper(&up, &p->n, e);
	if (r == 0)
		r = hold_check(&p->hold, e);
	return r < 0 ? err_wrap(e, r, "sandbox %s", p->id) : 0;
}

/* It stands still for this and nothing else. */
static int walk_held(struct pack *p, struct err *e)
{
	int r = stand_still(p, e);

	if (r == 0)
		r = walk(p, e);
	hold_done(&p->hold);
	p->held_ms = clock_ms() - p->held_ms;
	return r;
}

/* Where the blob is written first: in the store, or on this node. */
static int pack_into(struct pack *p, int dirfd, struct blob_dict *dict,
		     struct err *e)
{
	int r;

	p->tree = fstree_new();
	if (!p->tree)
		return err_sys(e, ENOMEM, "pack");
	r = blob_open(dirfd, dict, p->tree, &p->blob, e);
	if (r == 0)
		r = walk_held(p, e);
	if (r == 0 && !p->dry_run)
		r = blob_finish(p->blob, p->tree, store_open_blob,
				(void *)(uintptr_t)p->store, MIN_SAVED, &p->dev,
				e);
	return r;
}

static int pack_dry(struct pack *p, struct err *e)
{
	p->tree = fstree_new();
	return p->tree ? walk_held(p, e) : err_sys(e, ENOMEM, "pack");
}

/* --- the answer ---------------------------------------------------------- */

static int answer_of(struct pack *p, json_t *answer, struct err *e)
{
	const struct pack_upper_result *n = &p->n;
	auto_json json_t *rec = NULL;
	int r;

	r = json_pack_or(&rec, e,
			 "{s:s, s:I, s:I, s:I, s:I, s:O, s:I, s:I, s:I}",
			 "kind", layer_kind_name(p->layer.kind), "entries",
			 (json_int_t)n->entries, "bytes", (json_int_t)n->bytes,
			 "whiteouts", (json_int_t)n->whiteouts, "opaques",
			 (json_int_t)n->opaques, "removed", p->removed,
			 "removed_count", (json_int_t)n->removed,
			 "removed_bytes", (json_int_t)n->removed_bytes,
			 "held_ms", (json_int_t)p->held_ms);
	if (r == 0 && json_object_update(answer, rec) < 0)
		r = err_sys(e, ENOMEM, "pack");
	return r;
}

static int pack(struct pack *p, const json_t *req, json_t *answer,
		struct err *e)
{
	int r;

	r = request(p, req, e);
	if (r == 0)
		r = recover_find_any(&p->c->tree, json_str(req, "sandbox"),
				     p->id, e);
	if (r == 0 && !p->dry_run)
		r = pack_find_store(p, e);
	if (r == 0)
		r = find_sandbox(p, e);
	if (r < 0)
		return r;
	if (p->dry_run)
		r = pack_dry(p, e);
	else if (p->store->builder)
		r = pack_to_store(p, req, pack_into, answer, e);
	else
		r = pack_to_inbox(p, pack_into, answer, e);
	return r < 0 ? r : answer_of(p, answer, e);
}

int op_pack(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	struct pack p = {.c = c, .upper = -1, .removed = json_array()};
	int r;

	r = p.removed ? pack(&p, req, answer, e) : err_sys(e, ENOMEM, "pack");
	hold_done(&p.hold);
	blob_free(p.blob);
	fstree_free(p.tree);
	layer_done(&p.layer);
	json_decref(p.removed);
	if (p.upper >= 0)
		fd_close(p.upper);
	return r;
}
