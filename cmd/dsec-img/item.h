/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_ITEM_H
#define DSEC_IMG_ITEM_H

#include "img.h"

/*
 * What operations that look at a store as a whole share: manifests of either
 * kind, the list of tags, sets of digests.
 */

/* A manifest: a layer, or an environment of layers. */
struct item {
	struct digest digest;
	bool is_env;
	struct layer layer; /* of a layer */
	struct env env;	    /* of an environment */
};

/* item_load(s, d, ret, e), item_done(it): as it was when all zero. */
int item_load(const struct store *s, const struct digest *d, struct item *ret,
	      struct err *e);
void item_done(struct item *it);
#define auto_item __attribute__((cleanup(item_done)))

/* item_layers(it, ret_n): the layers, lowest first; a layer is its own. */
const struct digest *item_layers(const struct item *it, size_t *ret_n);
const char *item_kind(const struct item *it); /* "base", .., "env" */
const json_t *item_config(const struct item *it);

/* Amounts of an image: the sum over its layers. */
struct item_size {
	uint64_t entries, bytes, new_bytes;
};
int item_size(const struct store *s, const struct item *it,
	      struct item_size *ret, struct err *e);

/* item_describe(s, it, rec, e): digest, kind, entries, bytes, new_bytes and the
 * number of layers, into ${rec}. */
int item_describe(const struct store *s, const struct item *it, json_t *rec,
		  struct err *e);

/* --- sets of digests ----------------------------------------------------- */

struct dset {
	struct digest *d; /* owned */
	size_t n, cap;
	size_t sorted; /* so many from the start are in order */
};
void dset_done(struct dset *s);
#define auto_dset __attribute__((cleanup(dset_done)))

int dset_add(struct dset *s, const struct digest *d, size_t n, struct err *e);
bool dset_has(struct dset *s, const struct digest *d);

/* --- tags ---------------------------------------------------------------- */

struct tag {
	char *name; /* project/name:version */
	struct digest digest;
	int64_t made_ms;
};

/* All tags of a store, by name. */
struct tags {
	struct tag *at; /* owned */
	size_t n, cap;
};
int tags_load(const struct store *s, struct tags *ret, struct err *e);
void tags_done(struct tags *t);
#define auto_tags __attribute__((cleanup(tags_done)))

/* tags_name(t, d): the first name of ${d}, or NULL. */
const char *tags_name(const struct tags *t, const struct digest *d);

/* tags_match(name, match): is ${name} that of a project or of a name or what
 * the pattern ${match} ("" or NULL: all) fits? */
bool tags_match(const char *name, const char *match);

/* --- what uses images ---------------------------------------------------- */

/*
 * claims_hold(c, ret_fd, e): the lock of the node's ledger (see claim_hold()):
 * 1 held; 0 where this node has no sandboxes at all, or shows us none.
 */
int claims_hold(struct img_ctx *c, int *ret_fd, bool *ret_unseen,
		struct err *e);

/* claims_unseen(unseen, answer): tell who asked that they were not looked at.
 */
int claims_unseen(bool unseen, json_t *answer);

/* claims_in_use(c, set, e): the layers that claims of this node name; the
 * caller holds the lock. */
int claims_in_use(struct img_ctx *c, struct dset *set, struct err *e);

/* --- for people ---------------------------------------------------------- */

/* fmt_bytes(n, buf): "17K", "1.2G", into buf[16]; returns ${buf}. */
char *fmt_bytes(int64_t n, char *buf);
char *fmt_age(int64_t since_ms, char *buf);
const char *fmt_digest(const char *digest, char *buf); /* 12 digits of it */

#endif
