/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_PACK_H
#define DSEC_IMG_PACK_H

#include "hold.h"
#include "img.h"
#include "img/blob.h"
#include "img/pack_upper.h"

/* A sandbox on its way into a layer: op_pack.c reads it, pack_put.c publishes
 * what came of it. */
struct pack {
	struct img_ctx *c;
	char id[BOX_ID_LEN + 1];
	struct img_name name; /* if named */
	bool named, dry_run, list_only;
	residue_set residue;
	int upper;
	uint32_t uid_base;
	struct hold hold;
	uint64_t held_ms;

	const struct store *store;
	struct layer layer;
	struct fstree *tree;
	struct blob *blob;
	struct fsdevice dev; /* our blob; blocks 0: none */
	struct pack_upper_result n;
	json_t *removed;
};

/* pack_find_store(p, e): the store it goes to; a store that is ours wants a
 * name. */
int pack_find_store(struct pack *p, struct err *e);

/* Do it: into ${dirfd}, sharing chunks with ${dict} (may be NULL). */
typedef int pack_fn(struct pack *p, int dirfd, struct blob_dict *dict,
		    struct err *e);

/* pack_to_store(p, req, fn, answer, e): published and tagged, or nothing. */
int pack_to_store(struct pack *p, const json_t *req, pack_fn *fn,
		  json_t *answer, struct err *e);

/* pack_to_inbox(p, fn, answer, e): on a runner, for a builder: export.h. */
int pack_to_inbox(struct pack *p, pack_fn *fn, json_t *answer, struct err *e);

#endif
