/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/allow.h"
#include "box/node.h"
#include "box/stage.h"

/* overlay separates layers by ':' and options by ','; we refuse such trees. */
static int plain_path(const char *path, struct err *e)
{
	if (strpbrk(path, ":,\\"))
		return err_set(e, -EINVAL, "configuration",
			       "'%s': a path with ':', ',' or '\\' cannot "
			       "hold layers",
			       path);
	return 0;
}

/* mount(2) takes a page of options. */
#define OPTIONS_MAX 4096

static int too_long(const struct launch *l, struct err *e)
{
	return err_set(e, -ENAMETOOLONG, "unsupported",
		       "the paths of %zu layers below '%s' and '%s' are over "
		       "%d bytes, more than one mount can name: fewer layers, "
		       "or shorter paths for DSEC_RUN and DSEC_LIB",
		       l->image->nlayers, l->tree->run, l->tree->lib,
		       OPTIONS_MAX);
}

static int overlay_options(const struct launch *l, struct stage *st,
			   struct err *e)
{
	const char *lib = l->tree->lib;
	size_t at = 0, size = OPTIONS_MAX;
	int n, r;

	r = plain_path(lib, e);
	if (r == 0 && l->image->digests)
		r = plain_path(l->tree->run, e);
	if (r < 0)
		return r;
	/* overlay wants the uppermost first. */
	for (size_t i = l->image->nlayers; i-- > 0;) {
		n = snprintf(st->overlay + at, size - at, "%s%s",
			     at ? ":" : "lowerdir=", l->image->layers[i].path);
		if (n < 0 || (size_t)n >= size - at)
			return too_long(l, e);
		at += (size_t)n;
	}
	n = snprintf(st->overlay + at, size - at,
		     ",upperdir=%s/sb/%s/upper,"
		     "workdir=%s/sb/%s/work,redirect_dir=off,metacopy=off,"
		     "index=off,xino=off,volatile",
		     lib, l->id, lib, l->id);
	return n < 0 || (size_t)n >= size - at ? too_long(l, e) : 0;
}

/* A mount on a directory of another mount comes after it, whatever the order
 * they were asked for in. */
static void sort_mounts(struct stage *st)
{
	for (unsigned i = 1; i < st->nmounts; i++) {
		struct stage_mount m = st->mounts[i];
		unsigned k = i;

		for (; k > 0 &&
		       strlen(st->mounts[k - 1].target) > strlen(m.target);
		     k--)
			st->mounts[k] = st->mounts[k - 1];
		st->mounts[k] = m;
	}
}

static int lay_out_mounts(struct stage *st, struct err *e)
{
	const json_t *mounts = json_object_get(st->l->spec, "mounts");
	const char *source, *target;
	size_t i;
	json_t *m;
	int r;

	json_array_foreach(mounts, i, m) {
		if (st->nmounts == STAGE_MOUNTS_MAX)
			return err_set(e, -E2BIG, "bad_value",
				       "'mounts': %d at most",
				       STAGE_MOUNTS_MAX);
		source = json_str(m, "source");
		target = json_str(m, "target");
		r = allow_mount(st->l->tree->config, source, target, e);
		if (r < 0)
			return r;
		st->mounts[st->nmounts].source = source;
		st->mounts[st->nmounts++].target = target;
	}
	sort_mounts(st);
	return 0;
}

int stage_lay_out(struct stage *st, struct err *e)
{
	const struct launch *l = st->l;
	long long shm = json_int(l->spec, "shm_mb", 64);
	int r;

	st->hostname = json_str(l->spec, "hostname");
	if (!*st->hostname)
		st->hostname = "sandbox";
	snprintf(st->devpts, sizeof(st->devpts),
		 "newinstance,ptmxmode=0666,mode=0620,gid=%u,max=64",
		 l->uid_base + 5);
	snprintf(st->shm, sizeof(st->shm),
		 "mode=1777,size=%lldm,nr_inodes=%lld,uid=%u,gid=%u", shm,
		 shm * 256, l->uid_base, l->uid_base);
	/* host has its own. */
	if (l->image->digests && strcmp(l->image->cwd, "/") != 0) {
		r = tree_path(st->cwd, e, "%s", l->image->cwd);
		if (r < 0)
			return r;
	}
	r = tree_path(st->root, e, "%s/sb/%s", l->tree->run, l->id);
	if (r == 0 && l->pool->kind == POOL_BTRFS)
		r = tree_path(st->pool, e, "%s/pool", l->tree->lib);
	if (r == 0)
		r = node_dev(l->tree, st->dev, e);
	if (r == 0)
		r = overlay_options(l, st, e);
	if (r == 0)
		r = lay_out_mounts(st, e);
	return r;
}
