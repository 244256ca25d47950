/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/claim.h"
#include "box/ledger_priv.h"
#include "box/teardown.h"
#include "img/manifest.h"

int claim_hold(const struct tree *t, int *ret_fd, struct err *e)
{
	struct ledger l;
	int r;

	r = ledger_open(t, &l, e);
	if (r == 0)
		*ret_fd = steal_fd(&l.fd);
	return r;
}

/* What does not read as a digest names nothing that could be removed. */
static size_t digests_of(const json_t *layers, struct digest *d)
{
	const json_t *v;
	size_t i, n = 0;

	json_array_foreach((json_t *)(uintptr_t)layers, i, v) {
		const char *hex = json_string_value(v);

		if (hex && n < ENV_LAYERS_MAX && digest_parse(hex, &d[n]) == 0)
			n++;
	}
	return n;
}

/* Where a sandbox's layers are written down. */
struct source {
	const char *dir; /* its tree */
	const char *file, *key;
	bool waits; /* only of those that have no claim and are kept */
};

struct walk {
	const struct tree *tree;
	const struct source *from;
	claim_layers_fn *fn;
	void *arg;
};

static int one(const struct walk *w, const char *id, struct err *e)
{
	struct digest layers[ENV_LAYERS_MAX];
	auto_json json_t *obj = NULL;
	char path[PATH_MAX];
	size_t n;
	int r;

	if (w->from->waits &&
	    (ledger_has_claim(w->tree, id) || !teardown_kept(w->tree, id)))
		return 0;
	r = tree_path(path, e, "%s/sb/%s/%s", w->from->dir, id, w->from->file);
	if (r == 0)
		r = json_read_file(AT_FDCWD, path, &obj, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0;
	/* What it uses is not known: nothing may be taken away. */
	if (r < 0)
		return err_wrap(e, r, "layers of '%s'", id);
	n = digests_of(json_object_get(obj, w->from->key), layers);
	return n ? w->fn(w->arg, id, obj, layers, n, e) : 0;
}

static int all(const struct walk *w, struct err *e)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	char path[PATH_MAX];
	int r;

	r = tree_path(path, e, "%s/sb", w->from->dir);
	if (r < 0)
		return r;
	d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0
				       : err_sys(e, errno, "open '%s'", path);
	while (r == 0 && (de = readdir(d)))
		if (tree_is_id(de->d_name))
			r = one(w, de->d_name, e);
	return r;
}

int claim_layers(const struct tree *t, claim_layers_fn *fn, void *arg,
		 struct err *e)
{
	const struct source from[] = {
		{t->run, "claim.json", "layers", false},
		{t->lib, "spec.json", "image_layers", true},
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < array_len(from); i++) {
		const struct walk w = {t, &from[i], fn, arg};

		r = all(&w, e);
	}
	return r;
}
