/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "img/mount.h"
#include "item.h"

#define GRACE_MAX_S (3650U * 86400)

struct pruning {
	struct img_ctx *c;
	const struct store *s; /* NULL: this node has none */
	struct layer_node node;
	struct dset in_use; /* layers that claims name, or that are busy */
	struct dset idle;   /* layers that were unmounted */
	bool dry_run;
	bool unseen;	 /* the claims of this node: leases must do */
	struct err lost; /* of an event that could not be written */
};

/* --- the node ------------------------------------------------------------ */

static int end_idle(void *arg, const struct digest *d, enum image_way way,
		    struct err *e)
{
	struct pruning *p = arg;
	int r = 0;

	(void)way;
	if (dset_has(&p->in_use, d))
		return 0;
	/* The lease goes under the lock too: after it, it may be a new one. */
	if (!p->dry_run)
		r = layer_unmount(&p->node, d, e);
	if (r == 0 && !p->dry_run && p->s)
		r = layer_lease_drop(&p->node, p->s, d, e);
	if (r == 0)
		return dset_add(&p->idle, d, 1, e);
	/* Somebody mounts it, or stands in it: it stays. */
	if (r == -EBUSY || r == -EAGAIN) {
		memset(e, 0, sizeof(*e));
		return dset_add(&p->in_use, d, 1, e);
	}
	return r;
}

/* What no sandbox of this node uses is unmounted, with the ledger's lock held:
 * a launch claims before it looks for its layers. */
static int unmount_idle(struct pruning *p, struct err *e)
{
	auto_close int lock = -1;
	int r;

	r = claims_hold(p->c, &lock, &p->unseen, e);
	if (r <= 0)
		return r;
	r = claims_in_use(p->c, &p->in_use, e);
	if (r == 0)
		r = layer_each(&p->node, end_idle, p, e);
	fd_close(steal_fd(&lock));
	if (r == 0 && !p->dry_run)
		r = layer_sweep(&p->node, e);
	if (r == 0 && !p->dry_run && p->s)
		r = layer_leases_tidy(&p->node, p->s, p->in_use.d, p->in_use.n,
				      e);
	return r;
}

static int prune_node(struct pruning *p, char *holder, struct err *e)
{
	int r = tree_node(&p->c->tree, holder, NULL);

	if (r == 0)
		return unmount_idle(p, e);
	/* Who may not see its name sees no sandbox and no mount of it. */
	p->unseen = r != -ENOENT;
	return 0;
}

/* --- the store ----------------------------------------------------------- */

static void tell_gone(void *arg, const char *what, const struct digest *d,
		      uint64_t bytes)
{
	struct pruning *p = arg;

	if (p->lost.r)
		return;
	(void)img_event(p->c, "gone",
			json_pack("{s:s, s:o, s:I}", "what", what, "digest",
				  json_digest(d), "bytes", (json_int_t)bytes),
			&p->lost);
}

static int grace(const struct img_ctx *c, const json_t *req)
{
	return (int)json_int(req, "grace_s", (int64_t)c->config.prune_grace_s);
}

static int prune_store(struct pruning *p, const json_t *req,
		       struct prune_result *ret, struct err *e)
{
	struct prune_opt opt = {
		.grace_s = (unsigned)grace(p->c, req),
		.dry_run = p->dry_run,
		.in_use = p->in_use.d,
		.nin_use = p->in_use.n,
		.gone = tell_gone,
		.arg = p,
	};
	int r;

	if (!p->s || !p->s->builder)
		return 0;
	r = store_prune(p->s, &opt, ret, e);
	if (r == 0 && p->lost.r) {
		*e = p->lost;
		r = p->lost.r;
	}
	return r;
}

/* A node without a store of its own has nothing to prune but its mounts; one
 * that is named must be there. */
static int open_store(struct pruning *p, const json_t *req, struct err *e)
{
	int r = img_store(p->c, false, &p->s, e);

	if (r != -ENOENT || *json_str(req, "store"))
		return r;
	p->s = NULL;
	memset(e, 0, sizeof(*e));
	return 0;
}

static int answer_of(const struct pruning *p, const struct prune_result *res,
		     json_t *answer, struct err *e)
{
	auto_json json_t *more = NULL;
	int r;

	r = json_pack_or(&more, e, "{s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b}",
			 "manifests", (json_int_t)res->manifests, "metas",
			 (json_int_t)res->metas, "blobs",
			 (json_int_t)res->blobs, "candidates",
			 (json_int_t)res->candidates, "freed_bytes",
			 (json_int_t)res->freed_bytes, "unmounted",
			 (json_int_t)p->idle.n, "dry_run", p->dry_run,
			 "read_only", !p->s || !p->s->builder);
	if (r == 0 && (json_object_update(answer, more) < 0 ||
		       claims_unseen(p->unseen, answer) < 0))
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

int op_prune(struct img_ctx *c, const json_t *req, json_t *answer,
	     struct err *e)
{
	struct pruning p = {.c = c, .dry_run = json_flag(req, "dry_run")};
	char holder[TREE_NODE_LEN + 1] = "";
	struct prune_result res = {0};
	int r;

	p.node = (struct layer_node){c->tree.run, c->tree.lib, holder};
	r = open_store(&p, req, e);
	/* After a boot nothing is mounted, and leases are to be dropped. */
	if (r == 0 && geteuid() == 0 && !p.dry_run)
		r = tree_make(&c->tree, e);
	if (r == 0)
		r = prune_node(&p, holder, e);
	if (r == 0)
		r = prune_store(&p, req, &res, e);
	if (r == 0)
		r = answer_of(&p, &res, answer, e);
	dset_done(&p.in_use);
	dset_done(&p.idle);
	return r;
}
