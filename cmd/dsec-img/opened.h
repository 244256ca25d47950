/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_OPENED_H
#define DSEC_IMG_OPENED_H

#include "img.h"
#include "img/blob.h"

/* An image of the store, a layer or an environment, to be read. */
struct opened {
	const struct store *store; /* borrowed */
	struct img_name name;
	struct digest digest; /* of its manifest */
	bool env;
	struct digest layers[ENV_LAYERS_MAX]; /* lowest first */
	size_t n;
	json_t *config; /* owned; joined, lowest to topmost */
};

#define auto_opened __attribute__((cleanup(opened_done)))

int opened_init(struct img_ctx *c, const char *name, struct opened *ret,
		struct err *e);
void opened_done(struct opened *o);

/* opened_tree(o, i, ret, e): of layer ${i} alone. */
int opened_tree(const struct opened *o, size_t i, struct fstree **ret,
		struct err *e);

/*
 * opened_merged(o, ret, e): the root file system: all layers merged, whiteouts
 * gone.  A single layer is as it is, unless ${final}.
 */
int opened_merged(const struct opened *o, bool final, struct fstree **ret,
		  struct err *e);

/* opened_reader(o, t, ret, e): of the files of ${t}. */
int opened_reader(const struct opened *o, struct fstree *t,
		  struct blob_reader **ret, struct err *e);

#define auto_reader __attribute__((cleanup(reader_cleanup)))
static inline void reader_cleanup(struct blob_reader **r)
{
	blob_reader_free(*r);
}

/* opened_layer(o, i, ret, e): the manifest of layer ${i}. */
int opened_layer(const struct opened *o, size_t i, struct layer *ret,
		 struct err *e);

#endif
