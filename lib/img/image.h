/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_IMAGE_H
#define IMG_IMAGE_H

#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "img/digest.h"
#include "wire/json.h"

/*
 * What a sandbox's root is made of: layers for overlay, directories of the host
 * mounted on top, and the image's configuration.  An image is "host", this
 * machine's own /usr, read-only, on a small root made from parts of /etc that
 * hold no secret; or layers of the store.
 */
#define IMAGE_BINDS_MAX 8
#define IMAGE_CWD_MAX	4095

/* How layers are brought to overlay. */
enum image_way {
	IMAGE_AUTO,	 /* the first of these that this node can do */
	IMAGE_FILE,	 /* EROFS, mounted from files */
	IMAGE_LOOP,	 /* EROFS, mounted from loop devices */
	IMAGE_DIRECTORY, /* unpacked */
};
const char *image_way_name(enum image_way way);

/*
 * $DSEC_CONFIG/images.json: {"store":"/DIR","mount":"auto"|"file"|"loop"|
 * "directory","prune_grace_s":N}, each with a default: the store at
 * $DSEC_LIB/img/store, "auto", a day.
 */
struct image_config {
	char store[PATH_MAX];
	enum image_way way;
	unsigned prune_grace_s;
};

/* image_config_load(config_dir, lib, ret, e): "configuration" for a file that
 * is not as above, unknown keys included. */
int image_config_load(const char *config_dir, const char *lib,
		      struct image_config *ret, struct err *e);

/* $DSEC_RUN, $DSEC_LIB, $DSEC_CONFIG; borrowed. */
struct image_where {
	const char *run, *lib, *config;
};

struct image_layer {
	bool stored;	      /* of the store; else a directory of ours */
	struct digest digest; /* of its manifest, where it is stored */
	/* Owned: where overlay finds it; of one of the store image_missing()
	 * sets it. */
	char *path;
	bool mounted; /* a mount of its own, ids to be mapped */
};

/* What a name stood for when it was looked up. */
struct image_tag {
	char *path; /* owned */
	struct timespec mtime;
	ino_t ino;
};

struct image {
	struct image_layer *layers; /* lowest first */
	size_t nlayers;
	const char *binds[IMAGE_BINDS_MAX + 1]; /* host directories, "/usr" */
	json_t *config; /* owned; the next five are of it */
	json_t *env;	/* an object */
	const char *cwd, *user;
	const json_t *entrypoint, *cmd; /* arrays or NULL */
	json_t *digests; /* owned: of the store's layers, lowest first, in hex;
			    NULL: there is none */
	bool checkpointable;
	const char *why_not; /* "" where it is */
	enum image_way way;
	struct image_tag *tags;
	size_t ntags;
};

/*
 * image_open(where, name, layers, ret, e):
 * Resolve ${name} and, on top of it in their order, the names in ${layers} (an
 * array of strings, or NULL): each is "host" (${name} alone), a name or digest
 * of the store, of a layer or of an environment.  Prepares what is prepared
 * once per node, but mounts nothing: see image_missing().  A layer that comes
 * twice counts where it comes last.  "image_unknown", "bad_value",
 * "image_damaged".
 */
int image_open(const struct image_where *where, const char *name,
	       const json_t *layers, struct image *ret, struct err *e);
void image_done(struct image *img);

/*
 * image_again(where, spec, ret, e):
 * What a sandbox of the complete ${spec} (spec.json) was made of: the layers
 * that names stood for then, its image_env, image_cwd and image_user.  Fails as
 * image_open(), "image_unknown" where a layer is gone from the store.
 */
int image_again(const struct image_where *where, const json_t *spec,
		struct image *ret, struct err *e);

/* image_check(where, spec, e): would image_again() find all of it? */
int image_check(const struct image_where *where, const json_t *spec,
		struct err *e);

/* image_fresh(img): every name still is the file it was when image_open()
 * looked: one stat each. */
bool image_fresh(const struct image *img);

/*
 * image_missing(img, where, ret, e):
 * Look where the layers of the store are on this node; *${ret}: the first that
 * is nowhere, NULL: all are there.  One statfs each where they are mounted.
 */
int image_missing(struct image *img, const struct image_where *where,
		  const struct digest **ret, struct err *e);

/* image_command(img, ret, e): entrypoint and cmd in one new array; NULL where
 * the image says neither. */
int image_command(const struct image *img, json_t **ret, struct err *e);

#endif
