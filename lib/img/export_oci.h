/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_EXPORT_OCI_H
#define IMG_EXPORT_OCI_H

#include "img/export.h"
#include "wire/json.h"

/*
 * An image as one archive that both readers of OCI layouts (oci-layout,
 * index.json) and of "docker save" (manifest.json) take.  Equal images are
 * equal bytes: no time of making, keys sorted.
 */
enum export_compress { EXPORT_PLAIN, EXPORT_GZIP, EXPORT_ZSTD };
int export_compress_parse(const char *s, enum export_compress *ret,
			  struct err *e);

struct export_oci;

/*
 * export_oci_open(out, spool, compress, ret, e):
 * Begin an archive on descriptor ${out}.  A layer's digest must be known before
 * it can be written, so each is first written to a nameless file in the
 * directory ${spool}.  Both are borrowed.
 */
int export_oci_open(int out, int spool, enum export_compress compress,
		    struct export_oci **ret, struct err *e);
void export_oci_free(struct export_oci *o);

/*
 * export_oci_layer(o, x, e): one more layer on top; x->form is EXPORT_OCI.
 * podman loads sparse files, but cannot save or push an image that has them:
 * x->sparse_from of EXPORT_SPARSE_FROM keeps that to files nobody would want
 * as zeros.
 */
#define EXPORT_SPARSE_FROM (1ULL << 30)
int export_oci_layer(struct export_oci *o, const struct export_tar *x,
		     struct err *e);

/*
 * export_oci_end(o, config, name, ret_manifest, e):
 * ${config} as in manifest.h; ${name} ("root/py:3.12") or NULL; the digest of
 * the OCI manifest into *${ret_manifest}.  ${out} is not synced.
 */
int export_oci_end(struct export_oci *o, const json_t *config, const char *name,
		   struct digest *ret_manifest, struct err *e);

#endif
