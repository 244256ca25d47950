/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "base/cleanup.h"
#include "box/claim.h"
#include "box/ledger_priv.h"
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
static size_t digests_of(const json_t *claim, struct digest *d)
{
	const json_t *v;
	size_t i, n = 0;

	json_array_foreach(json_object_get(claim, "layers"), i, v) {
		const char *hex = json_string_value(v);

		if (hex && n < ENV_LAYERS_MAX && digest_parse(hex, &d[n]) == 0)
			n++;
	}
	return n;
}

struct each {
	const struct tree *t;
	claim_layers_fn *fn;
	void *arg;
};

static int one(void *arg, const char *id, struct err *e)
{
	struct digest layers[ENV_LAYERS_MAX];
	auto_json json_t *claim = NULL;
	const struct each *u = arg;
	char path[PATH_MAX];
	size_t n;
	int r;

	r = tree_path(path, e, "%s/sb/%s/claim.json", u->t->run, id);
	if (r == 0)
		r = json_read_file(AT_FDCWD, path, &claim, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return 0;
	/* What it uses is not known: nothing may be taken away. */
	if (r < 0)
		return err_wrap(e, r, "claim of '%s'", id);
	n = digests_of(claim, layers);
	return n ? u->fn(u->arg, id, claim, layers, n, e) : 0;
}

int claim_layers(const struct tree *t, claim_layers_fn *fn, void *arg,
		 struct err *e)
{
	struct each u = {t, fn, arg};

	return tree_each(t->run, one, &u, e);
}
