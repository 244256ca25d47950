/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>

#include "box/claim.h"
#include "life/recover.h"
#include "ckpt/snap.h"
#include "life/uses.h"
#include "img/manifest.h"

struct uses {
	uses_fn *fn;
	void *arg;
};

static int of_claim(void *arg, const char *id, const json_t *claim,
		    const struct digest *layers, size_t n, struct err *e)
{
	const struct uses *u = arg;

	return u->fn(u->arg, "sandbox", id, json_str(claim, "name"), layers, n,
		     e);
}

static int of_snapshot(void *arg, const char *id, const char *name,
		       const struct digest *layers, size_t n, struct err *e)
{
	const struct uses *u = arg;

	return u->fn(u->arg, "snapshot", id, name, layers, n, e);
}

static int of_paused(void *arg, const char *id, const json_t *spec,
		     struct err *e)
{
	struct digest layers[ENV_LAYERS_MAX];
	const struct uses *u = arg;
	const json_t *v;
	size_t i, n = 0;

	json_array_foreach(json_object_get(spec, "image_layers"), i, v) {
		const char *hex = json_string_value(v);

		if (hex && n < ENV_LAYERS_MAX &&
		    digest_parse(hex, &layers[n]) == 0)
			n++;
	}
	return n ? u->fn(u->arg, "sandbox", id, json_str(spec, "name"), layers,
			 n, e)
		 : 0;
}

int uses_layers(const struct tree *t, uses_fn *fn, void *arg, struct err *e)
{
	struct uses u = {fn, arg};
	struct err why = {0};
	int r;

	r = claim_layers(t, of_claim, &u, e);
	if (r != 0)
		return r;
	r = recover_each(t, of_paused, &u, &why);
	if (r == 0)
		r = snap_layers(t, of_snapshot, &u, &why);
	if (r == -EACCES || r == -EPERM)
		return 0;
	if (r < 0 && e)
		*e = why;
	return r;
}
