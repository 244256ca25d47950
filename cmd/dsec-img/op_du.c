/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/walk.h"
#include "item.h"

/* A blob or metadata image as part of an image: by digest, then image. */
struct part {
	struct digest digest;
	uint64_t bytes;
	uint32_t image; /* index */
	uint32_t users; /* images that have it */
};

struct parts {
	struct part *at; /* owned */
	size_t n, cap;
};

struct usage {
	struct img_ctx *c;
	const struct store *s;
	struct tags tags;
	struct parts parts;
	struct dset images; /* by index: sorted, each once */
	struct sums {
		uint64_t stored, own;
	} * sums; /* owned; of each image */
	unsigned count;
};

static int add_part(struct parts *p, const struct digest *d, uint64_t bytes,
		    size_t image, struct err *e)
{
	size_t cap = p->cap ? 2 * p->cap : 64;
	struct part *more;

	if (p->n == p->cap) {
		more = reallocarray(p->at, cap, sizeof(*more));
		if (!more)
			return err_sys(e, ENOMEM, "list of blobs");
		p->at = more;
		p->cap = cap;
	}
	p->at[p->n++] = (struct part){.digest = *d,
				      .bytes = bytes,
				      .image = (uint32_t)image};
	return 0;
}

static int by_part(const void *a, const void *b)
{
	const struct part *x = a, *y = b;
	int r = memcmp(&x->digest, &y->digest, sizeof(x->digest));

	if (r)
		return r;
	return x->image < y->image ? -1 : x->image > y->image;
}

/* Sort, drop what an image has twice, and count who has each. */
static void count_users(struct parts *p)
{
	size_t n = 0, first;

	if (p->n)
		qsort(p->at, p->n, sizeof(*p->at), by_part);
	for (size_t i = 0; i < p->n; i++)
		if (n == 0 || by_part(&p->at[n - 1], &p->at[i]))
			p->at[n++] = p->at[i];
	p->n = n;
	for (size_t i = 0; i < n; i = first) {
		for (first = i; first < n && digest_eq(&p->at[first].digest,
						       &p->at[i].digest);)
			first++;
		for (size_t k = i; k < first; k++)
			p->at[k].users = (uint32_t)(first - i);
	}
}

static int add_layer(struct usage *u, const struct digest *d, size_t image,
		     struct err *e)
{
	auto_layer struct layer l = {0};
	int r;

	r = store_layer(u->s, d, &l, e);
	if (r == 0)
		r = add_part(&u->parts, &l.meta, l.meta_bytes, image, e);
	for (size_t i = 0; r == 0 && i < l.ndevices; i++)
		r = add_part(&u->parts, &l.devices[i].root,
			     (uint64_t)l.devices[i].blocks * FS_BLOCK, image,
			     e);
	return r;
}

/* One that cannot be read takes what nobody can tell; ls and verify say so. */
static int add_image(struct usage *u, size_t image, struct err *e)
{
	auto_item struct item it = {0};
	const struct digest *layers;
	size_t n;
	int r;

	r = item_load(u->s, &u->images.d[image], &it, e);
	layers = item_layers(&it, &n);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = add_layer(u, &layers[i], image, e);
	if (r < 0 && r != -ENOMEM) {
		memset(e, 0, sizeof(*e));
		return 0;
	}
	return r;
}

static int add_up(struct usage *u, struct err *e)
{
	count_users(&u->parts);
	u->sums = calloc(u->images.n + 1, sizeof(*u->sums));
	if (!u->sums)
		return err_sys(e, ENOMEM, "list of images");
	for (size_t i = 0; i < u->parts.n; i++) {
		const struct part *p = &u->parts.at[i];

		u->sums[p->image].stored += p->bytes;
		u->sums[p->image].own += p->users == 1 ? p->bytes : 0;
	}
	return 0;
}

static int load(struct usage *u, struct err *e)
{
	size_t n = 0;
	int r;

	r = tags_load(u->s, &u->tags, e);
	for (size_t i = 0; r == 0 && i < u->tags.n; i++)
		if (!dset_has(&u->images, &u->tags.at[i].digest))
			r = dset_add(&u->images, &u->tags.at[i].digest, 1, e);
	if (r < 0)
		return r;
	/* Sorted, so that an image's place in it stays. */
	n = u->images.n;
	if (n)
		(void)dset_has(&u->images, &u->images.d[0]);
	for (size_t i = 0; r == 0 && i < n; i++) {
		r = img_progress(u->c, i, n, "read manifests", e);
		if (r == 0)
			r = add_image(u, i, e);
	}
	return r < 0 ? r : add_up(u, e);
}

/* --- answers ------------------------------------------------------------- */

static int by_digest(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

static const struct sums *sums_of(const struct usage *u, const struct digest *d)
{
	const struct digest *at = u->images.n
					  ? bsearch(d, u->images.d, u->images.n,
						    sizeof(*d), by_digest)
					  : NULL;

	return at ? &u->sums[at - u->images.d] : NULL;
}

static int tell(struct usage *u, const struct tag *t, struct err *e)
{
	const struct sums *sums = sums_of(u, &t->digest);
	auto_item struct item it = {0};
	struct item_size size = {0};
	int r;

	if (!sums)
		return err_set(e, -ENOENT, "image_unknown",
			       "'%s' is the digest of no image that has a name",
			       t->name);
	r = item_load(u->s, &t->digest, &it, e);
	if (r == 0)
		r = item_size(u->s, &it, &size, e);
	if (r < 0)
		return err_wrap(e, r, "'%s'", t->name);
	u->count++;
	return img_event(u->c, "image",
			 json_pack("{s:s, s:o, s:I, s:I, s:I, s:I}", "name",
				   t->name, "digest", json_digest(&t->digest),
				   "bytes", (json_int_t)size.bytes, "stored",
				   (json_int_t)sums->stored, "shared",
				   (json_int_t)(sums->stored - sums->own),
				   "own", (json_int_t)sums->own),
			 e);
}

static int tell_name(struct usage *u, const char *name, struct err *e)
{
	char text[IMG_NAME_MAX + 1];
	struct img_name n;
	struct tag t = {.name = text};
	int r;

	r = img_resolve(u->c, u->s, name, &n, &t.digest, e);
	if (r < 0)
		return r;
	img_name_str(&n, text);
	return tell(u, &t, e);
}

static bool is_used(const struct usage *u, const char *name)
{
	char hex[DIGEST_HEX + 1];
	size_t lo = 0, hi = u->parts.n;
	struct digest d;

	snprintf(hex, sizeof(hex), "%.64s", name);
	if (digest_parse(hex, &d) < 0)
		return false;
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		int r = memcmp(&d, &u->parts.at[mid].digest, sizeof(d));

		if (r == 0)
			return true;
		if (r < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return false;
}

/* What lies in a directory of the store, and what of it nothing leads to. */
static int measure(struct usage *u, const char *sub, uint64_t *stored,
		   uint64_t *unused, struct err *e)
{
	auto_walk struct walk *w = NULL;
	struct walk_item it;
	uint64_t n = 0;
	int r;

	r = walk_open(u->s->fd, sub, 0, &w, e);
	if (r == -ENOENT)
		return 0;
	while (r >= 0 && (r = walk_next(w, &it, e)) > 0) {
		uint64_t size = (uint64_t)it.st.st_size;

		if (!it.errnum && S_ISREG(it.st.st_mode)) {
			*stored += size;
			*unused += is_used(u, it.name) ? 0 : size;
		}
		r = img_progress(u->c, ++n, 0, "measure the store", e);
	}
	return r < 0 ? r : 0;
}

static int tell_store(struct usage *u, json_t *answer, struct err *e)
{
	auto_json json_t *more = NULL;
	uint64_t stored = 0, unused = 0;
	int r;

	r = measure(u, "blob", &stored, &unused, e);
	if (r == 0)
		r = measure(u, "meta", &stored, &unused, e);
	if (r == 0)
		r = json_pack_or(&more, e, "{s:s, s:I, s:I, s:I}", "store",
				 u->s->path, "count", (json_int_t)u->count,
				 "stored", (json_int_t)stored, "unused",
				 (json_int_t)unused);
	if (r == 0 && json_object_update(answer, more) < 0)
		r = err_sys(e, ENOMEM, "answer");
	return r;
}

static int tell_all(struct usage *u, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < u->tags.n; i++) {
		r = tell(u, &u->tags.at[i], e);
		/* See add_image(). */
		if (r == -EBADMSG || r == -ENOENT) {
			memset(e, 0, sizeof(*e));
			r = 0;
		}
	}
	return r;
}

int op_du(struct img_ctx *c, const json_t *req, json_t *answer, struct err *e)
{
	const json_t *names = json_object_get(req, "names"), *name;
	struct usage u = {.c = c};
	size_t i;
	int r;

	r = img_store(c, false, &u.s, e);
	if (r == 0)
		r = load(&u, e);
	if (r == 0 && names) {
		json_array_foreach(names, i, name) {
			r = tell_name(&u, json_string_value(name), e);
			if (r < 0)
				break;
		}
	} else if (r == 0) {
		r = tell_all(&u, e);
	}
	if (r == 0)
		r = tell_store(&u, answer, e);
	free(u.parts.at);
	free(u.sums);
	tags_done(&u.tags);
	dset_done(&u.images);
	return r;
}
