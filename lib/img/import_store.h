/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_IMPORT_STORE_H
#define IMG_IMPORT_STORE_H

#include "img/import.h"
#include "img/oci.h"
#include "img/store.h"

/*
 * What is imported, as layers of a store.  Until importing_done() what was made
 * or is referred to is held, so a tag can still be set.
 */
#define IMPORT_DICT_MAX	 16
#define IMPORT_SAVED_MIN (1024 * 1024) /* for a foreign blob to be named */

struct importing {
	const struct store *store;
	const char *const *exclude; /* of directories, see struct import */
	size_t nexclude;
	/* May be NULL: ${done} of ${total} bytes (0: not known), doing
	 * ${what}. */
	int (*progress)(void *arg, uint64_t done, uint64_t total,
			const char *what, struct err *e);
	void *arg;

	/* What was done, set by the functions below. */
	uint64_t new_bytes;	 /* of blobs the store had not */
	unsigned cached, made;	 /* layers of an OCI image */
	uint64_t entries, bytes; /* read */
	struct import_dropped dropped;

	/* The rest is import_store.c's own. */
	struct blob_dict *dict;
	struct digest dict_layers[IMPORT_DICT_MAX];
	size_t ndict;
	char holder[STORE_TMP_NAME];
	int tmpfd; /* one of our own, for what is not a layer's */
};

/*
 * importing_start(m, dict, ndict, e): m->store is set and ours to write; chunks
 * of the layers ${dict} are not stored again.  importing_done() also after a
 * failure.
 */
int importing_start(struct importing *m, const struct digest *dict,
		    size_t ndict, struct err *e);
void importing_done(struct importing *m);

/*
 * importing_tar(m, s, flags, layer, ret, e), importing_dir(m, dirfd, layer,
 * ret, e): a layer of a tar stream, up to its end, or of a directory.  Kind,
 * at, configuration, source and parents are set in ${layer} before, the rest is
 * afterwards.
 */
int importing_tar(struct importing *m, struct source *s, unsigned flags,
		  struct layer *layer, struct digest *ret, struct err *e);
int importing_dir(struct importing *m, int dirfd, struct layer *layer,
		  struct digest *ret, struct err *e);

/* importing_oci(m, f, img, layer, ret, e): each layer of ${img} by itself,
 * unless the store has it, and all merged to one. */
int importing_oci(struct importing *m, struct oci_files *f,
		  const struct oci_image *img, struct layer *layer,
		  struct digest *ret, struct err *e);

#endif
