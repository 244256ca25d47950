/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_STORE_H
#define IMG_STORE_H

#include <limits.h>

#include "img/manifest.h"
#include "img/name.h"

/*
 * The store of images: a directory, local or shared by many nodes.  Everything
 * but tags and leases is named by its digest and never changes; what is named
 * is complete, for a file is written under tmp/, synced and renamed or linked
 * to its name, blobs first, then metadata, manifest and tag.  No lock: a shared
 * file system may have none.
 *
 *   store.json                        {"v":1}; its owner is the builder
 *   blob/sha256/ab/<root>.data .idx
 *   meta/sha256/ab/<digest>.erofs
 *   manifest/sha256/ab/<digest>.json  layers and environments
 *   tag/<project>/<name>/<version>.json  {"v":1,"digest":HEX,"made_ms":..}
 *   source/sha256/ab/<key>.json       {"v":1,"digest":HEX}: what an input of
 *                                     that digest became, so that it is not
 *                                     imported again
 *   lease/<holder>/<digest>.json      {"v":1,"until_ms":N|0,"why":".."}: keeps
 *                                     a manifest or a blob, for ever or so long
 *   inbox/<node>/..                   what runners packed, for a builder
 *   prune.json                        candidates of the last mark
 *   tmp/<host>.<pid>.<..>/            one a builder; use.<digest> in it keeps
 *                                     what it is about to name
 *   tmp/prune/                        what a prune is just taking away
 *
 * Builders own it and write; runners (any other uid, on a node everybody who
 * only launches, and the owner where it is read-only to him) read.  A store is
 * 0755/0644: images hold no secrets.  What only the builder may do fails for
 * others: -EPERM, code "permission", with who owns the store or that it is
 * read-only.
 *
 * Programs that only read and tag need no libcrypto: what does is in
 * store_build.c, store_tree.c and store_verify.c.
 */
struct store {
	char path[PATH_MAX];
	int fd;	      /* of the directory */
	bool builder; /* the store is ours to write */
};
#define STORE_INIT ((struct store){.fd = -1})
void store_close(struct store *s);
#define auto_store __attribute__((cleanup(store_close)))

/*
 * store_open(path, ret, e): the store at ${path}; -ENOENT, code
 * "image_unknown", where there is none.  store_create(): made if need be, in a
 * directory that is there (else "not_found"); one that is there may be another
 * user's.
 */
int store_open(const char *path, struct store *ret, struct err *e);
int store_create(const char *path, struct store *ret, struct err *e);

/* --- reading --------------------------------------------------------- */

/*
 * store_resolve(s, name, ret_digest, e): the manifest ${name} leads to;
 * "image_unknown" names what there is of like names.
 */
int store_resolve(const struct store *s, const struct img_name *name,
		  struct digest *ret_digest, struct err *e);

/* store_manifest(s, digest, ret, e): the JSON, not checked against its digest
 * (store_verify() does). */
int store_manifest(const struct store *s, const struct digest *digest,
		   json_t **ret, struct err *e);
int store_layer(const struct store *s, const struct digest *digest,
		struct layer *ret, struct err *e);

/* store_layer_checked(s, digest, ret, e): one whose manifest is what ${digest}
 * says. */
int store_layer_checked(const struct store *s, const struct digest *digest,
			struct layer *ret, struct err *e);

/* store_tree(s, layer, ret, e): its metadata, checked against digest, device
 * table and erofs_read(). */
int store_tree(const struct store *s, const struct layer *layer,
	       struct fstree **ret, struct err *e);

/* store_open_blob(arg = struct store *, root, e): a blob_open_fn for .data.
 * store_open_idx(): its index.  store_open_meta(): a layer's metadata. */
int store_open_blob(void *arg, const struct digest *root, struct err *e);
int store_open_idx(const struct store *s, const struct digest *root,
		   struct err *e);
int store_open_meta(const struct store *s, const struct digest *meta,
		    struct err *e);

/*
 * store_tags(s, fn, arg, e), store_manifests(..): each of them, sorted; what
 * comes or goes meanwhile may be missed.  Ends early with what ${fn} returned
 * if that is not 0.
 */
typedef int store_tag_fn(void *arg, const struct img_name *name,
			 const struct digest *digest, int64_t made_ms,
			 struct err *e);
int store_tags(const struct store *s, store_tag_fn *fn, void *arg,
	       struct err *e);
typedef int store_digest_fn(void *arg, const struct digest *digest,
			    struct err *e);
int store_manifests(const struct store *s, store_digest_fn *fn, void *arg,
		    struct err *e);

/* --- building --------------------------------------------------------- */

/*
 * store_tmp(s, ret_fd, name, e): a directory of this builder's own under tmp/;
 * its name into name[STORE_TMP_NAME].  What dead builders of this machine left
 * there goes first.  store_tmp_done() removes it with what is left, after the
 * tag: until then all that was put through it or held is kept.
 */
#define STORE_TMP_NAME 64
int store_tmp(const struct store *s, int *ret_fd, char *name, struct err *e);
void store_tmp_done(const struct store *s, int *fd, const char *name);

/*
 * store_hold(s, tmpfd, digest, e): a lease without a file to sync: keep
 * ${digest} (a manifest with all it names, or a blob) from a prune as long as
 * ${tmpfd} is there.  It is held from the return on: look whether it is there
 * after that, not before.  The same goes for store_lease().
 */
int store_hold(const struct store *s, int tmpfd, const struct digest *digest,
	       struct err *e);

/*
 * store_dict(s, tmpfd, layer, dict, e): hold the layer of that digest and enter
 * its blobs into ${dict}.  Of an environment: all its layers.
 */
struct blob_dict;
int store_dict(const struct store *s, int tmpfd, const struct digest *layer,
	       struct blob_dict *dict, struct err *e);

/* store_put_blob(s, tmpfd, dev, e): publish "data" and "idx" of ${tmpfd}. */
int store_put_blob(const struct store *s, int tmpfd, const struct fsdevice *dev,
		   struct err *e);

/*
 * store_put_layer(s, tmpfd, tree, layer, ret_digest, e):
 * Write the tree's metadata and the layer's manifest (meta, devices, entries
 * and bytes are filled in here) and publish both.
 */
int store_put_layer(const struct store *s, int tmpfd, struct fstree *tree,
		    struct layer *layer, struct digest *ret_digest,
		    struct err *e);
int store_put_env(const struct store *s, int tmpfd, const struct env *env,
		  struct digest *ret_digest, struct err *e);

/* store_tag(s, name, digest, e), store_untag(): atomic; "image_unknown" where
 * there is no such manifest, no such tag. */
int store_tag(const struct store *s, const struct img_name *name,
	      const struct digest *digest, struct err *e);
int store_untag(const struct store *s, const struct img_name *name,
		struct err *e);

/*
 * store_source_get(s, key, ret, e): 1 what ${key} became, still there; 0 not
 * known.  It is kept as long as others need its blobs: store_hold() it before
 * use.  store_source_put().
 */
int store_source_get(const struct store *s, const struct digest *key,
		     struct digest *ret, struct err *e);
int store_source_put(const struct store *s, const struct digest *key,
		     const struct digest *manifest, struct err *e);

/* --- keeping ----------------------------------------------------------- */

/*
 * A lease keeps ${digest} (of a manifest, or of a blob used from a dictionary)
 * from being pruned: ${ttl_s} seconds, or 0 until it is dropped.  Taken again
 * it is renewed.  ${holder} is a node's or a builder's name: letters, digits,
 * "._-", the first no ".".  Dropping what is not there is fine.
 */
int store_lease(const struct store *s, const char *holder,
		const struct digest *digest, unsigned ttl_s, const char *why,
		struct err *e);
int store_lease_drop(const struct store *s, const char *holder,
		     const struct digest *digest, struct err *e);

/*
 * store_leases(s, fn, arg, e): each lease, those that ran out too, and what
 * builders hold, but nothing of a process that is dead; ends early with what
 * ${fn} returned if that is not 0.  until_ms is since 1970.
 */
typedef int store_lease_fn(void *arg, const char *holder,
			   const struct digest *digest, int64_t until_ms,
			   const char *why, struct err *e);
int store_leases(const struct store *s, store_lease_fn *fn, void *arg,
		 struct err *e);

/*
 * store_prune(s, opt, ret, e): two generations.  Mark what tags, leases and
 * ${in_use} lead to; what is not marked now and was a candidate at least
 * ${grace_s} ago goes, the rest of the unmarked become candidates.  Manifests
 * go before what they name.  Directories of tmp/ whose builder is dead or that
 * are older than a day go too.  What goes is first moved to tmp/prune/; what
 * turns out to be needed by then comes back, as all does after a prune that was
 * killed.  A manifest that cannot be read, or a tag, ends it: what that names
 * is not known.  -EBUSY, "busy": another prune is at it.
 */
struct prune_result {
	unsigned manifests, metas, blobs, candidates;
	uint64_t freed_bytes;
};
struct prune_opt {
	unsigned grace_s;
	bool dry_run;
	const struct digest *in_use; /* manifests in use on this node */
	size_t nin_use;
	void (*gone)(void *arg, const char *what, const struct digest *d,
		     uint64_t bytes); /* may be NULL */
	void *arg;
};
int store_prune(const struct store *s, const struct prune_opt *opt,
		struct prune_result *ret, struct err *e);

/*
 * store_verify(s, digest, data, e): manifest, metadata and the indexes of its
 * blobs and, with ${data}, every byte of them are what their digests say.  Of
 * an environment: each layer.
 */
int store_verify(const struct store *s, const struct digest *digest, bool data,
		 struct err *e);

#endif
