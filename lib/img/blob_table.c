/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "img/blob_priv.h"

void table_done(struct chunk_table *t)
{
	free(t->chunks);
	free(t->slots);
	memset(t, 0, sizeof(*t));
}

/* A digest is as good as random already. */
static size_t table_slot(const struct chunk_table *t, const struct digest *d)
{
	uint64_t v;

	memcpy(&v, d->b, sizeof(v));
	return (size_t)(v & (t->nslots - 1));
}

ssize_t table_find(const struct chunk_table *t, const struct digest *digest,
		   uint32_t bytes)
{
	size_t i;

	if (t->nslots == 0)
		return -1;
	for (i = table_slot(t, digest); t->slots[i];
	     i = (i + 1) & (t->nslots - 1)) {
		const struct table_chunk *c = &t->chunks[t->slots[i] - 1];

		if (c->bytes == bytes && digest_eq(&c->digest, digest))
			return t->slots[i] - 1;
	}
	return -1;
}

static void table_enter(struct chunk_table *t, uint32_t index)
{
	size_t i = table_slot(t, &t->chunks[index].digest);

	while (t->slots[i])
		i = (i + 1) & (t->nslots - 1);
	t->slots[i] = index + 1;
}

static int table_grow_slots(struct chunk_table *t)
{
	size_t n = t->nslots ? 2 * t->nslots : 1024;
	uint32_t *slots = calloc(n, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	free(t->slots);
	t->slots = slots;
	t->nslots = n;
	for (size_t i = 0; i < t->n; i++)
		table_enter(t, (uint32_t)i);
	return 0;
}

int table_add(struct chunk_table *t, const struct table_chunk *chunk)
{
	if (t->n >= UINT32_MAX - 1)
		return -ENOMEM;
	if (t->n == t->cap) {
		size_t cap = t->cap ? t->cap + t->cap / 2 : 512;
		struct table_chunk *p = reallocarray(t->chunks, cap,
						     sizeof(*p));

		if (!p)
			return -ENOMEM;
		t->chunks = p;
		t->cap = cap;
	}
	/* at most three quarters full */
	if (t->n + t->n / 3 >= t->nslots && table_grow_slots(t) < 0)
		return -ENOMEM;
	t->chunks[t->n] = *chunk;
	table_enter(t, (uint32_t)t->n++);
	return 0;
}

struct blob_dict *blob_dict_new(void)
{
	return calloc(1, sizeof(struct blob_dict));
}

void blob_dict_free(struct blob_dict *d)
{
	if (!d)
		return;
	table_done(&d->table);
	free(d->blobs);
	free(d);
}

static int dict_chunks(struct blob_dict *d, struct idx_reader *r, struct err *e)
{
	struct table_chunk t = {.blob = (uint32_t)d->nblobs & 2047};
	auto_sha256 struct sha256 *h = sha256_new();
	struct idx_chunk c;
	int n;

	if (!h)
		return err_sys(e, ENOMEM, "dictionary");
	while ((n = idx_next(r, &c, e)) > 0) {
		idx_chunk_digest(&c, h, &t.digest);
		/* The blob that was named first has it. */
		if (table_find(&d->table, &t.digest, c.bytes) >= 0)
			continue;
		t.block = c.block;
		t.bytes = c.bytes & 0x1fffff;
		if (table_add(&d->table, &t) < 0)
			return err_sys(e, ENOMEM, "dictionary");
	}
	return n;
}

/* What a damaged index brought in goes again. */
static void dict_truncate(struct chunk_table *t, size_t n)
{
	t->n = n;
	memset(t->slots, 0, t->nslots * sizeof(*t->slots));
	for (size_t i = 0; i < n; i++)
		table_enter(t, (uint32_t)i);
}

int blob_dict_add(struct blob_dict *d, int idx_fd, const struct digest *root,
		  struct err *e)
{
	size_t was = d->table.n;
	struct fsdevice *blobs;
	struct idx_reader r;
	int rc;

	for (size_t i = 0; i < d->nblobs; i++)
		if (digest_eq(&d->blobs[i].root, root))
			return 0;
	if (d->nblobs == TABLE_BLOBS_MAX)
		return err_set(e, -E2BIG, "too_large",
			       "a dictionary of more than %d blobs",
			       TABLE_BLOBS_MAX);
	blobs = reallocarray(d->blobs, d->nblobs + 1, sizeof(*blobs));
	if (!blobs)
		return err_sys(e, ENOMEM, "dictionary");
	d->blobs = blobs;
	rc = idx_open(&r, idx_fd, root, e);
	if (rc == 0)
		rc = dict_chunks(d, &r, e);
	if (rc == 0)
		d->blobs[d->nblobs++] = (struct fsdevice){.root = *root,
							  .blocks = r.blocks};
	else if (d->table.nslots)
		dict_truncate(&d->table, was);
	idx_done(&r);
	return rc;
}
