/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DSEC_IMG_IMPORT_H
#define DSEC_IMG_IMPORT_H

#include "img.h"
#include "img/import_store.h"

/* A request to import something, what op_import and op_pull share. */
struct import_req {
	struct img_ctx *c;
	const json_t *req;
	const struct store *store;
	struct importing m;
	struct layer layer; /* as it will be */
	struct img_name as;
	bool have_as;
	const char **exclude;
};

/* import_req_start(q, c, req, e): the store, names and flags that all sources
 * have; import_req_done() also after a failure. */
int import_req_start(struct import_req *q, struct img_ctx *c, const json_t *req,
		     struct err *e);
void import_req_done(struct import_req *q);

/* import_req_source(q, type, digest, name, e): what its manifest says of where
 * it is from; digest and name may be NULL. */
int import_req_source(struct import_req *q, const char *type,
		      const struct digest *digest, const char *name,
		      struct err *e);

/* import_req_image(q, f, ref, type, name, answer, e): an image of docker's or
 * OCI's, to its end. */
int import_req_image(struct import_req *q, struct oci_files *f, const char *ref,
		     const char *type, const char *name, json_t *answer,
		     struct err *e);

/* import_req_end(q, digest, answer, e): the tag, and what is answered. */
int import_req_end(struct import_req *q, const struct digest *digest,
		   json_t *answer, struct err *e);

/* import_inbox(q, what, answer, e): NODE/NAME of the store's inbox. */
int import_inbox(struct import_req *q, const char *what, json_t *answer,
		 struct err *e);

#endif
