/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_EXPORT_FILTER_H
#define IMG_EXPORT_FILTER_H

#include "img/digest.h"
#include "img/export_oci.h"

/*
 * A stream of bytes on its way into a file: digested, compressed, digested
 * again.  export_filter_write() is a tar_sink.
 */
struct export_filter;
int export_filter_open(int fd, enum export_compress how,
		       struct export_filter **ret, struct err *e);
int export_filter_write(void *arg, const void *data, size_t len, struct err *e);

/* export_filter_end(f, ret_plain, ret_packed, ret_bytes, e): what went in, what
 * came out and how many bytes that is. */
int export_filter_end(struct export_filter *f, struct digest *ret_plain,
		      struct digest *ret_packed, uint64_t *ret_bytes,
		      struct err *e);
void export_filter_free(struct export_filter *f);

#endif
