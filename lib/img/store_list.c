/* SPDX-License-Identifier: Apache-2.0 */
/* What there is in a store.  This file needs no libcrypto. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "img/store_priv.h"

int store_files(const struct store *s, const char *dir, unsigned depth_max,
		store_file_fn *fn, void *arg, struct err *e)
{
	auto_walk struct walk *w = NULL;
	auto_close int fd = -1;
	struct walk_item it;
	int r;

	fd = store_at(s, dir, O_RDONLY | O_DIRECTORY);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return err_sys(e, -fd, "open '%s'", dir);
	r = walk_open(fd, ".", 0, &w, e);
	if (r < 0)
		return r;
	while ((r = walk_next(w, &it, e)) > 0) {
		auto_free char *path = NULL;

		if (it.errnum && it.errnum != ENOENT)
			return err_sys(e, it.errnum, "'%s/%s'", dir, it.path);
		if (S_ISDIR(it.st.st_mode) && it.depth >= depth_max)
			walk_skip(w);
		if (it.errnum || !S_ISREG(it.st.st_mode))
			continue;
		path = strdup(it.path);
		if (!path)
			return err_sys(e, ENOMEM, "list '%s'", dir);
		r = fn(arg, path, e);
		if (r != 0)
			return r;
	}
	return r;
}

/* --- tags ---------------------------------------------------------------- */

struct tags {
	const struct store *s;
	store_tag_fn *fn;
	void *arg;
};

/* "root/rl/py/1.json": the last slash becomes a colon. */
static int tag_name(char *path, struct img_name *ret)
{
	char *slash = strrchr(path, '/'), *ext = strrchr(path, '.');

	if (!slash || !ext || strcmp(ext, ".json") != 0)
		return -EINVAL;
	*ext = '\0';
	*slash = ':';
	return img_name_parse(path, ret, NULL);
}

static int tag_file(void *arg, char *path, struct err *e)
{
	const struct tags *t = arg;
	auto_json json_t *tag = NULL;
	char rel[STORE_TAG_REL];
	struct img_name name;
	struct digest d;
	int r;

	if (tag_name(path, &name) < 0)
		return 0; /* nothing of ours */
	r = store_read(t->s, store_tag_rel(&name, rel), STORE_SMALL, &tag, e);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	if (digest_parse(json_str(tag, "digest"), &d) < 0)
		return err_set(e, -EBADMSG, "image_damaged",
			       "'%s' holds no digest", rel);
	return t->fn(t->arg, &name, &d, json_int(tag, "made_ms", 0), e);
}

int store_tags(const struct store *s, store_tag_fn *fn, void *arg,
	       struct err *e)
{
	struct tags t = {.s = s, .fn = fn, .arg = arg};

	return store_files(s, "tag", IMG_NAME_MAX, tag_file, &t, e);
}

/* --- objects ------------------------------------------------------------- */

struct objects {
	enum store_kind kind;
	store_digest_fn *fn;
	void *arg;
};

static int object_file(void *arg, char *path, struct err *e)
{
	const struct objects *o = arg;
	struct digest d;

	/* "ab/<hex>.ext", where no other is looked for */
	if (strlen(path) < 3 || path[2] != '/' ||
	    store_file_digest(path + 3, store_ext_of(o->kind), &d) < 0 ||
	    strncmp(path, path + 3, 2) != 0)
		return 0;
	return o->fn(o->arg, &d, e);
}

int store_objects(const struct store *s, enum store_kind kind,
		  store_digest_fn *fn, void *arg, struct err *e)
{
	struct objects o = {.kind = kind, .fn = fn, .arg = arg};

	return store_files(s, store_dir_of(kind), 2, object_file, &o, e);
}

int store_manifests(const struct store *s, store_digest_fn *fn, void *arg,
		    struct err *e)
{
	return store_objects(s, STORE_MANIFEST, fn, arg, e);
}

/* --- leases -------------------------------------------------------------- */

struct leases {
	const struct store *s;
	store_lease_fn *fn;
	void *arg;
};

static int lease_file(void *arg, char *path, struct err *e)
{
	const struct leases *l = arg;
	auto_json json_t *obj = NULL;
	char *slash = strchr(path, '/');
	struct digest digest;
	char rel[512];
	int r;

	if (!slash || store_file_digest(slash + 1, ".json", &digest) < 0)
		return 0;
	if (snprintf(rel, sizeof(rel), "lease/%s", path) >= (int)sizeof(rel))
		return 0;
	r = store_read(l->s, rel, STORE_SMALL, &obj, e);
	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return r;
	*slash = '\0';
	if (store_orphan(path))
		return 0;
	/* one that says no time holds */
	return l->fn(l->arg, path, &digest, json_int(obj, "until_ms", 0),
		     json_str(obj, "why"), e);
}

/* tmp/NAME/use.<hex> */
static int hold_file(void *arg, char *path, struct err *e)
{
	const struct leases *l = arg;
	char *slash = strchr(path, '/');
	struct digest digest;

	if (!slash || strncmp(slash + 1, "use.", 4) != 0 ||
	    store_file_digest(slash + 5, "", &digest) < 0)
		return 0;
	*slash = '\0';
	return store_orphan(path)
		       ? 0
		       : l->fn(l->arg, path, &digest, 0, "being built", e);
}

int store_leases(const struct store *s, store_lease_fn *fn, void *arg,
		 struct err *e)
{
	struct leases l = {.s = s, .fn = fn, .arg = arg};
	int r;

	/* A builder may take a lease and end: its own are looked at first. */
	r = store_files(s, "tmp", 2, hold_file, &l, e);
	return r != 0 ? r : store_files(s, "lease", 2, lease_file, &l, e);
}
