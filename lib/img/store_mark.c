/* SPDX-License-Identifier: Apache-2.0 */
/* What of a store must stay. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "img/store_priv.h"

#define SKEW_MS 60000 /* between the clocks of nodes */

/* --- sets ---------------------------------------------------------------- */

void set_done(struct digest_set *set)
{
	free(set->v);
	free(set->slots);
	memset(set, 0, sizeof(*set));
}

/* The slot of ${d}, or the empty one where it belongs. */
static size_t set_slot(const struct digest_set *set, const struct digest *d)
{
	uint64_t i;

	memcpy(&i, d->b, sizeof(i));
	for (i &= set->nslots - 1; set->slots[i];
	     i = (i + 1) & (set->nslots - 1))
		if (digest_eq(&set->v[set->slots[i] - 1], d))
			break;
	return (size_t)i;
}

bool set_has(const struct digest_set *set, const struct digest *d)
{
	return set->nslots && set->slots[set_slot(set, d)];
}

static int set_grow(struct digest_set *set)
{
	size_t n = set->nslots ? 2 * set->nslots : 256;
	uint32_t *slots = calloc(n, sizeof(*slots));
	struct digest *v = reallocarray(set->v, n / 2, sizeof(*v));

	if (v)
		set->v = v;
	if (!slots || !v) {
		free(slots);
		return -ENOMEM;
	}
	set->cap = n / 2;
	free(set->slots);
	set->slots = slots;
	set->nslots = n;
	for (size_t i = 0; i < set->n; i++)
		slots[set_slot(set, &v[i])] = (uint32_t)i + 1;
	return 0;
}

int set_add(struct digest_set *set, const struct digest *d, struct err *e)
{
	if (set_has(set, d))
		return 0;
	if (set->n == set->cap && set_grow(set) < 0)
		return err_sys(e, ENOMEM, "mark");
	set->v[set->n++] = *d;
	set->slots[set_slot(set, d)] = (uint32_t)set->n;
	return 0;
}

/* --- roots --------------------------------------------------------------- */

struct mark {
	const struct store *s;
	struct digest_set *set;
	bool lenient; /* with manifests that cannot be read */
};

static int mark_lease(void *arg, const char *holder,
		      const struct digest *digest, int64_t until_ms,
		      const char *why, struct err *e)
{
	const struct mark *m = arg;

	(void)holder;
	(void)why;
	if (until_ms > 0 && until_ms + SKEW_MS < (int64_t)clock_wall_ms())
		return 0;
	return set_add(m->set, digest, e);
}

static int mark_tag(void *arg, const struct img_name *name,
		    const struct digest *digest, int64_t made_ms, struct err *e)
{
	const struct mark *m = arg;

	(void)name;
	(void)made_ms;
	return set_add(m->set, digest, e);
}

/*
 * What keeps a thing may change while we look: a builder holds it, then tags
 * it, then ends; a node takes a lease, then the tag goes.  Whichever way it
 * went, one of these sees it.
 */
static int mark_roots(struct mark *m, struct err *e)
{
	int r;

	r = store_leases(m->s, mark_lease, m, e);
	if (r == 0)
		r = store_tags(m->s, mark_tag, m, e);
	return r != 0 ? r : store_leases(m->s, mark_lease, m, e);
}

/* --- what they name ------------------------------------------------------ */

static int mark_all(struct digest_set *set, const struct digest *v, size_t n,
		    struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++)
		r = set_add(set, &v[i], e);
	return r;
}

static int mark_layer(struct digest_set *set, const struct layer *l,
		      struct err *e)
{
	int r = set_add(set, &l->meta, e);

	for (size_t i = 0; r == 0 && i < l->ndevices; i++)
		r = set_add(set, &l->devices[i].root, e);
	return r < 0 ? r : mark_all(set, l->parents, l->nparents, e);
}

/* ${d} is of anything: of a manifest if there is one. */
static int mark_named(struct mark *m, const struct digest *d, struct err *e)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	auto_env struct env v = {.nlayers = 0};
	auto_json json_t *obj = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	r = store_manifest(m->s, d, &obj, e);
	if (r == -ENOENT)
		return 0;
	if (r == 0 && manifest_is_env(obj)) {
		r = env_parse(obj, &v, e);
		if (r == 0)
			return mark_all(m->set, v.layers, v.nlayers, e);
	} else if (r == 0) {
		r = layer_parse(obj, &l, e);
		if (r == 0)
			return mark_layer(m->set, &l, e);
	}
	return err_wrap(e, r,
			"what image sha256:%s needs is not known (remove what "
			"names it to go on)",
			digest_hex(d, hex));
}

/*
 * What was made of a source is kept while all its data is needed anyway: its
 * metadata is small, and saves importing the source again.
 */
static int mark_source(void *arg, const struct digest *key, struct err *e)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};
	const struct mark *m = arg;
	struct digest d;
	int r;

	if (store_source_get(m->s, key, &d, NULL) <= 0 ||
	    store_layer(m->s, &d, &l, NULL) < 0 || l.ndevices == 0)
		return 0;
	for (size_t i = 0; i < l.ndevices; i++)
		if (!set_has(m->set, &l.devices[i].root))
			return 0;
	r = set_add(m->set, &d, e);
	return r < 0 ? r : mark_layer(m->set, &l, e);
}

static int mark_from(struct mark *m, size_t first, struct err *e)
{
	int r = 0;

	for (size_t i = first; r == 0 && i < m->set->n; i++) {
		struct digest d = m->set->v[i]; /* it may move */

		r = mark_named(m, &d, e);
		if (r == -EBADMSG && m->lenient)
			r = 0;
	}
	return r;
}

int store_mark_below(const struct store *s, struct digest_set *set,
		     size_t first, struct err *e)
{
	struct mark m = {.s = s, .set = set, .lenient = true};

	return mark_from(&m, first, e);
}

int store_mark(const struct store *s, const struct prune_opt *opt,
	       struct digest_set *set, struct err *e)
{
	struct mark m = {.s = s, .set = set};
	size_t n;
	int r;

	r = mark_roots(&m, e);
	if (r == 0)
		r = mark_all(set, opt->in_use, opt->nin_use, e);
	if (r == 0)
		r = mark_from(&m, 0, e);
	n = set->n;
	if (r == 0)
		r = store_objects(s, STORE_SOURCE, mark_source, &m, e);
	return r < 0 ? r : mark_from(&m, n, e);
}
