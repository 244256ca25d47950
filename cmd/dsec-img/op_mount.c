/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "box/claim.h"
#include "life/uses.h"
#include "img.h"
#include "img/mount.h"

/* The layers that a name leads to. */
static int layers_of(struct img_ctx *c, const struct store *s, const char *name,
		     struct env *ret, struct err *e)
{
	auto_json json_t *manifest = NULL;
	struct digest digest;
	int r;

	r = img_resolve(c, s, name, NULL, &digest, e);
	if (r == 0)
		r = store_manifest(s, &digest, &manifest, e);
	if (r < 0)
		return r;
	if (manifest_is_env(manifest))
		return env_parse(manifest, ret, e);
	ret->layers[0] = digest;
	ret->nlayers = 1;
	return 0;
}

static int node_of(const struct img_ctx *c, char *name, struct layer_node *ret,
		   struct err *e)
{
	*ret = (struct layer_node){
		.run = c->tree.run,
		.lib = c->tree.lib,
		.holder = name,
	};
	return tree_node(&c->tree, name, e);
}

static int need_root(struct err *e)
{
	return geteuid() == 0 ? 0
			      : err_set(e, -EPERM, "not_root",
					"layers are mounted by root");
}

static int tell(const struct layer_node *n, const struct digest *d,
		enum image_way way, json_t *list, struct err *e)
{
	char path[PATH_MAX];
	int r;

	r = way == IMAGE_DIRECTORY ? layer_dir_path(n->lib, d, path, e)
				   : layer_mount_path(n->run, d, path, e);
	if (r == 0 &&
	    json_array_append_new(list, json_pack("{s:o, s:s, s:s}", "digest",
						  json_digest(d), "way",
						  image_way_name(way), "path",
						  path)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

int op_mount(struct img_ctx *c, const json_t *req, json_t *answer,
	     struct err *e)
{
	char name[TREE_NODE_LEN + 1];
	struct env layers = {.nlayers = 0};
	const struct store *s = NULL;
	struct image_config config;
	struct layer_node n;
	enum image_way way = IMAGE_AUTO;
	json_t *list = json_array();
	int r;

	if (!list || json_object_set_new(answer, "layers", list) < 0)
		return err_sys(e, ENOMEM, "answer");
	r = need_root(e);
	if (r == 0)
		r = image_config_load(c->tree.config, c->tree.lib, &config, e);
	if (r == 0)
		r = tree_make(&c->tree, e);
	if (r == 0)
		r = node_of(c, name, &n, e);
	if (r == 0)
		r = img_store(c, false, &s, e);
	if (r == 0)
		r = layers_of(c, s, json_str(req, "name"), &layers, e);
	for (size_t i = 0; r == 0 && i < layers.nlayers; i++) {
		r = layer_mount(&n, s, &layers.layers[i], config.way, &way, e);
		if (r == 0)
			r = tell(&n, &layers.layers[i], way, list, e);
	}
	env_done(&layers);
	return r;
}

/* --- unmount ------------------------------------------------------------- */

struct gone {
	const struct tree *tree;
	const struct layer_node *n;
	const struct store *s; /* NULL: there is none, nor a lease */
	const struct digest *d;
	json_t *list, *users; /* users: borrowed from the answer, or NULL */
};

static int add_user(void *arg, const char *type, const char *id,
		    const char *name, const struct digest *layers, size_t n,
		    struct err *e)
{
	struct gone *g = arg;

	(void)type;
	(void)name;
	for (size_t i = 0; i < n; i++)
		if (digest_eq(&layers[i], g->d) &&
		    json_array_append_new(g->users, json_string(id)) < 0)
			return err_sys(e, ENOMEM, "answer");
	return 0;
}

/* 0: it is gone, or *${ret_used}. */
static int unmount(struct gone *g, const struct digest *d, bool *ret_used,
		   struct err *e)
{

	auto_close int hold = -1;
	size_t before = json_array_size(g->users);
	int r;

	g->d = d;
	r = claim_hold(g->tree, &hold, e);
	if (r == 0)
		r = uses_layers(g->tree, add_user, g, e);
	*ret_used = r == 0 && json_array_size(g->users) > before;
	if (r < 0 || *ret_used)
		return r;
	r = layer_unmount(g->n, d, e);
	if (r == 0 && g->s)
		r = layer_lease_drop(g->n, g->s, d, e);
	if (r == 0 && json_array_append_new(g->list, json_digest(d)) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

static int in_use(const struct gone *g, const char *name, struct err *e)
{
	return err_set(e, -EBUSY, "image_in_use",
		       "'%s' is used by %zu sandboxes, %s for one", name,
		       json_array_size(g->users),
		       json_string_value(json_array_get(g->users, 0)));
}

static int unmount_named(struct img_ctx *c, struct gone *g, const char *name,
			 struct err *e)
{
	struct env layers = {.nlayers = 0};
	struct img_name parsed;
	bool used = false;
	int r;

	r = img_name_parse(name, &parsed, e);
	if (r < 0)
		return r;
	/* By digest also when the store has it no more. */
	if (parsed.by_digest &&
	    layer_ready(g->n, &parsed.digest, IMAGE_AUTO) != IMAGE_AUTO) {
		layers.layers[0] = parsed.digest;
		layers.nlayers = 1;
	} else if (g->s) {
		r = layers_of(c, g->s, name, &layers, e);
	} else {
		r = err_set(e, -ENOENT, "image_unknown",
			    "no image '%s': there is no store", name);
	}
	for (size_t i = 0; r == 0 && i < layers.nlayers; i++) {
		r = unmount(g, &layers.layers[i], &used, e);
		if (used)
			r = in_use(g, name, e);
	}
	env_done(&layers);
	return r;
}

struct found {
	struct digest *d;
	size_t n;
};

static int note(void *arg, const struct digest *d, enum image_way way,
		struct err *e)
{
	struct found *f = arg;
	struct digest *p = realloc(f->d, (f->n + 1) * sizeof(*p));

	(void)way;
	if (!p)
		return err_sys(e, ENOMEM, "layers");
	f->d = p;
	f->d[f->n++] = *d;
	return 0;
}

static int note_used(void *arg, const char *type, const char *id,
		     const char *name, const struct digest *layers, size_t n,
		     struct err *e)
{
	int r = 0;

	(void)type;
	(void)id;
	(void)name;
	for (size_t i = 0; r == 0 && i < n; i++)
		r = note(arg, &layers[i], IMAGE_AUTO, e);
	return r;
}

static int tidy(const struct gone *g, struct err *e)
{
	struct found used = {NULL, 0};
	int r;

	r = uses_layers(g->tree, note_used, &used, e);
	if (r == 0)
		r = layer_leases_tidy(g->n, g->s, used.d, used.n, e);
	free(used.d);
	return r;
}

/* One that is being mounted just now is used. */
static int unmount_all(struct gone *g, struct err *e)
{
	struct found f = {NULL, 0};
	bool used;
	int r;

	r = layer_each(g->n, note, &f, e);
	for (size_t i = 0; r == 0 && i < f.n; i++) {
		r = unmount(g, &f.d[i], &used, e);
		if (r == -EBUSY)
			r = 0;
	}
	free(f.d);
	return r < 0 || !g->s ? r : tidy(g, e);
}

int op_unmount(struct img_ctx *c, const json_t *req, json_t *answer,
	       struct err *e)
{
	char name[TREE_NODE_LEN + 1];
	const char *which = json_str(req, "name");
	auto_json json_t *users = json_array();
	struct gone g = {.tree = &c->tree, .users = users};
	struct layer_node n;
	int r;

	g.list = json_array();
	if (!users || !g.list ||
	    json_object_set_new(answer, "unmounted", g.list) < 0)
		return err_sys(e, ENOMEM, "answer");
	if (!*which && !json_flag(req, "all"))
		return err_set(e, -EBADMSG, "missing_field",
			       "'name' or 'all' is missing");
	g.n = &n;
	r = need_root(e);
	if (r == 0)
		r = tree_make(&c->tree, e);
	if (r == 0)
		r = node_of(c, name, &n, e);
	if (r == 0)
		r = img_store(c, false, &g.s, e);
	if (r == -ENOENT)
		r = 0;
	if (r == 0)
		r = *which ? unmount_named(c, &g, which, e)
			   : unmount_all(&g, e);
	/* What was put out of use is removed with no lock held. */
	if (r == 0)
		r = layer_sweep(&n, e);
	return r;
}
