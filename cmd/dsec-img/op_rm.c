/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "box/claim.h"
#include "life/uses.h"
#include "item.h"

#define LISTED_MAX 380 /* bytes of users in the message */

/*
 * A name goes; what no other name leads to then must have no users.  Users are
 * told as events, all of them, and as many as fit in the error.
 */
struct removal {
	struct img_ctx *c;
	const struct store *s;
	const char *name;   /* with its version */
	struct tags others; /* all tags; the one that goes is left out below */
	struct dset kept;   /* what the others lead to */
	struct dset gone;   /* what only this one leads to */
	const char *kept_by;
	char users[LISTED_MAX + 64];
	size_t len; /* of users */
	unsigned count, unlisted;
	bool unseen; /* the claims of this node: leases must do */
};

static int add_user(struct removal *rm, const char *type, const char *user,
		    const char *more, struct err *e)
{
	char one[LISTED_MAX];
	int n;

	rm->count++;
	n = snprintf(one, sizeof(one), "%s%s %s%s%s%s", rm->len ? ", " : "",
		     type, user, *more ? " (" : "", more, *more ? ")" : "");
	if (rm->unlisted || (size_t)n >= sizeof(one) ||
	    rm->len + (size_t)n > LISTED_MAX) {
		rm->unlisted++;
	} else {
		memcpy(rm->users + rm->len, one, (size_t)n + 1);
		rm->len += (size_t)n;
	}
	return img_event(rm->c, "user",
			 json_pack("{s:s, s:s, s:s*}", "type", type, "user",
				   user, "name", *more ? more : NULL),
			 e);
}

static bool any_gone(struct removal *rm, const struct digest *d, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (dset_has(&rm->gone, &d[i]))
			return true;
	return false;
}

/* --- what else leads there ----------------------------------------------- */

static int keep_one(struct removal *rm, const struct tag *t,
		    const struct digest *target, struct err *e)
{
	auto_item struct item it = {0};
	const struct digest *layers;
	size_t n;
	int r;

	if (!strcmp(t->name, rm->name))
		return 0;
	r = item_load(rm->s, &t->digest, &it, NULL);
	if (r < 0)
		return r == -ENOMEM ? err_sys(e, ENOMEM, "list of images") : 0;
	layers = item_layers(&it, &n);
	r = dset_add(&rm->kept, &t->digest, 1, e);
	if (r == 0)
		r = dset_add(&rm->kept, layers, n, e);
	for (size_t i = 0; i < n; i++)
		if (digest_eq(&layers[i], target))
			rm->kept_by = t->name;
	if (digest_eq(&t->digest, target))
		rm->kept_by = t->name;
	return r;
}

/* What goes with the name: the manifest, and of an environment its layers,
 * without what others keep.  A manifest that is lost still has a name. */
static int find_gone(struct removal *rm, const struct digest *d, struct err *e)
{
	auto_item struct item it = {0};
	const struct digest *layers = NULL;
	size_t n = 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < rm->others.n; i++)
		r = keep_one(rm, &rm->others.at[i], d, e);
	if (r < 0)
		return r;
	if (item_load(rm->s, d, &it, NULL) == 0)
		layers = item_layers(&it, &n);
	if (!dset_has(&rm->kept, d))
		r = dset_add(&rm->gone, d, 1, e);
	for (size_t i = 0; r == 0 && i < n; i++)
		if (!dset_has(&rm->kept, &layers[i]))
			r = dset_add(&rm->gone, &layers[i], 1, e);
	return r;
}

/* --- users --------------------------------------------------------------- */

static int node_uses(void *arg, const char *type, const char *id,
		     const char *name, const struct digest *layers, size_t n,
		     struct err *e)
{
	struct removal *rm = arg;

	if (!any_gone(rm, layers, n))
		return 0;
	return add_user(rm, type, id, name, e);
}

/* A layer that was packed on one of them, reached by ${name}. */
static int child_uses(struct removal *rm, const struct digest *d,
		      const char *name, struct err *e)
{
	auto_layer struct layer l = {0};

	if (dset_has(&rm->gone, d) || store_layer(rm->s, d, &l, NULL) < 0 ||
	    !any_gone(rm, l.parents, l.nparents))
		return 0;
	return add_user(rm, "layer", name, "", e);
}

static int children_use(struct removal *rm, struct err *e)
{
	const struct digest *layers;
	size_t n;
	int r = 0;

	for (size_t i = 0; r == 0 && i < rm->others.n; i++) {
		const struct tag *t = &rm->others.at[i];
		auto_item struct item it = {0};

		if (!strcmp(t->name, rm->name) ||
		    item_load(rm->s, &t->digest, &it, NULL) < 0)
			continue;
		layers = item_layers(&it, &n);
		for (size_t k = 0; r == 0 && k < n; k++)
			r = child_uses(rm, &layers[k], t->name, e);
	}
	return r;
}

struct lease_arg {
	struct removal *rm;
	const char *own; /* this node, whose claims were looked at; or NULL */
};

static int lease_uses(void *arg, const char *holder, const struct digest *d,
		      int64_t until_ms, const char *why, struct err *e)
{
	struct lease_arg *a = arg;

	if ((until_ms && until_ms < (int64_t)clock_wall_ms()) ||
	    (a->own && !strcmp(a->own, holder)) || !dset_has(&a->rm->gone, d))
		return 0;
	return add_user(a->rm, "lease", holder, why, e);
}

static int leases_use(struct removal *rm, struct err *e)
{
	char node[TREE_NODE_LEN + 1];
	struct lease_arg a = {.rm = rm};

	/* Its mounts that no sandbox uses are no reason. */
	if (!rm->unseen && tree_node(&rm->c->tree, node, NULL) == 0)
		a.own = node;
	return store_leases(rm->s, lease_uses, &a, e);
}

static int refuse_users(struct removal *rm, struct err *e)
{
	if (!rm->count)
		return 0;
	if (rm->unlisted)
		snprintf(rm->users + rm->len, sizeof(rm->users) - rm->len,
			 " and %u more", rm->unlisted);
	return err_set(e, -EBUSY, "image_in_use", "'%s' is used by %s",
		       rm->name, rm->users);
}

/* --- the operation ------------------------------------------------------- */

/*
 * With the ledger's lock held, so that no launch claims it meanwhile; whoever
 * has looked the name up before will claim, and then what it leads to is kept
 * for him.
 */
static int remove_locked(struct removal *rm, const struct img_name *name,
			 const struct digest *d, struct err *e)
{
	struct digest now;
	int r;

	r = store_resolve(rm->s, name, &now, e);
	if (r == 0 && !digest_eq(&now, d))
		r = err_set(e, -EAGAIN, "busy",
			    "'%s' leads to another image since just now",
			    rm->name);
	if (r == 0)
		r = leases_use(rm, e);
	if (r == 0)
		r = refuse_users(rm, e);
	return r < 0 ? r : store_untag(rm->s, name, e);
}

/* What takes long, reading all manifests, is done before the lock is taken:
 * launches wait for it. */
static int remove_name(struct removal *rm, const struct img_name *name,
		       const json_t *req, struct err *e)
{
	auto_close int lock = -1;
	struct digest d;
	int r;

	r = store_resolve(rm->s, name, &d, e);
	if (r == 0)
		r = tags_load(rm->s, &rm->others, e);
	if (r == 0)
		r = find_gone(rm, &d, e);
	if (r == 0 && !json_flag(req, "force"))
		r = children_use(rm, e);
	if (r < 0)
		return r;
	r = claims_hold(rm->c, &lock, &rm->unseen, e);
	if (r > 0)
		r = uses_layers(&rm->c->tree, node_uses, rm, e);
	return r < 0 ? r : remove_locked(rm, name, &d, e);
}

int op_rm(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	struct removal rm = {.c = c};
	char text[IMG_NAME_MAX + 1];
	struct img_name name;
	int r;

	r = img_name_parse(json_str(req, "name"), &name, e);
	if (r < 0)
		return r;
	if (name.by_digest)
		return err_set(e, -EINVAL, "bad_value",
			       "names are removed; what no name leads to, "
			       "dsec-img prune removes");
	rm.name = img_name_str(&name, text);
	r = img_store(c, false, &rm.s, e);
	if (r == 0)
		r = remove_name(&rm, &name, req, e);
	if (r == 0 &&
	    (json_object_set_new(answer, "name", json_string(rm.name)) < 0 ||
	     claims_unseen(rm.unseen, answer) < 0 ||
	     (rm.kept_by && json_object_set_new(answer, "kept_by",
						json_string(rm.kept_by)) < 0)))
		r = err_sys(e, ENOMEM, "answer");
	tags_done(&rm.others);
	dset_done(&rm.kept);
	dset_done(&rm.gone);
	return r;
}
