/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_OCI_H
#define IMG_OCI_H

#include "img/source.h"
#include "wire/json.h"

/*
 * Images as docker and OCI store them: an archive of `docker save`, an OCI
 * layout in an archive or a directory.  Everything in them is a stranger's:
 * names in archives are looked up among the archive's own and never on this
 * machine, digests and sizes are checked as bytes are read.
 */
#define OCI_LAYERS_MAX 127
#define OCI_JSON_MAX                                                           \
	(4 * 1024 * 1024)    /* bytes of an index or configuration             \
			      */
#define OCI_FILES_MAX 100000 /* names in an archive */

enum oci_form {
	OCI_DOCKER, /* manifest.json */
	OCI_LAYOUT, /* index.json */
	OCI_NONE,   /* some other tar */
};

/* --- the files of one ------------------------------------------------------
 */

struct oci_files;

/*
 * oci_files_archive(fd, tmpfd, watch, arg, ret, e):
 * Those of the archive ${fd}, which stays the caller's and open.  One that is
 * compressed or a pipe is unpacked to a file without name in the directory
 * ${tmpfd} first, which ${watch} (or NULL) sees and may end.
 * oci_files_dir(dirfd, ret, e): those of a directory, links within it included.
 */
int oci_files_archive(int fd, int tmpfd, source_watch_fn *watch, void *arg,
		      struct oci_files **ret, struct err *e);
int oci_files_dir(int dirfd, struct oci_files **ret, struct err *e);
void oci_files_free(struct oci_files *f);

/* oci_files_form(f): what the names in it say. */
enum oci_form oci_files_form(const struct oci_files *f);

/*
 * oci_guess(fd): what the plain archive ${fd} (a file, not moved) is, without
 * reading all of one that is a file tree.
 */
enum oci_form oci_guess(int fd);

/* Where a file's bytes are: what source_open() takes. */
struct oci_part {
	int fd; /* the caller's to close */
	uint64_t off, len;
};

/* oci_files_find(f, name, ret, e): -ENOENT, code "bad_archive". */
int oci_files_find(struct oci_files *f, const char *name, struct oci_part *ret,
		   struct err *e);

/* oci_files_json(f, name, want, ret, e): all of a small file, parsed; the
 * digest it must have, or NULL. */
int oci_files_json(struct oci_files *f, const char *name,
		   const struct digest *want, json_t **ret, struct err *e);

/* oci_blob_name(d, name): "blobs/sha256/<hex>" into name[OCI_BLOB_NAME]. */
#define OCI_BLOB_NAME (13 + DIGEST_HEX + 1)
char *oci_blob_name(const struct digest *d, char *name);

/* --- an image --------------------------------------------------------------
 */

struct oci_layer {
	char *name; /* in the files; owned */
	struct digest diff_id;
	bool has_blob; /* of its bytes as they are there */
	struct digest blob;
	uint64_t blob_bytes;
};

struct oci_image {
	enum oci_form form;
	json_t *config;	      /* the image's, as it is */
	struct digest digest; /* of the configuration: the image's id */
	struct oci_layer layers[OCI_LAYERS_MAX]; /* lowest first */
	size_t nlayers;
};

/*
 * oci_image_open(f, ref, platform, ret, e):
 * The image that is called ${ref} (NULL: there is but one) for ${platform}
 * ("linux/arm64", "linux/arm/v7"; NULL: this machine's).  Indexes in indexes
 * are followed, attestations passed over.  Codes: "image_unknown" names what
 * there is; "bad_archive"; "unsupported".
 */
int oci_image_open(struct oci_files *f, const char *ref, const char *platform,
		   struct oci_image *ret, struct err *e);
void oci_image_done(struct oci_image *img);
#define auto_oci_image __attribute__((cleanup(oci_image_done)))

/* oci_config(img, ret, e): its configuration as a layer's manifest has it. */
int oci_config(const struct oci_image *img, json_t **ret, struct err *e);

/*
 * oci_layer_open(f, layer, ret_part, ret, e):
 * The layer's tar stream.  oci_layer_end(layer, s, e), after the stream was
 * used: read it to its end and check it against size and digests.
 */
int oci_layer_open(struct oci_files *f, const struct oci_layer *layer,
		   struct oci_part *ret_part, struct source **ret,
		   struct err *e);
int oci_layer_end(const struct oci_layer *layer, struct source *s,
		  struct err *e);

/* oci_ref_normal(ref, buf, size): "python" is
 * "docker.io/library/python:latest"; 0, or -EINVAL: no reference. */
int oci_ref_normal(const char *ref, char *buf, size_t size);

/* --- between the files of oci*.c -------------------------------------------
 */

/* The manifest chosen of an index (its digest and size), or of manifest.json.
 */
int oci_choose(struct oci_files *f, const char *ref, const char *platform,
	       json_t **ret_manifest, struct err *e);
bool oci_digest(const json_t *descriptor, struct digest *ret);

/* oci_platform_is(platform, os, arch): is that what is asked for (NULL: this
 * machine)?  Empty text fits all. */
bool oci_platform_is(const char *platform, const char *os, const char *arch);

#endif
