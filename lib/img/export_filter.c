/* SPDX-License-Identifier: Apache-2.0 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "img/export_filter.h"
#include "img/sha256.h"

struct export_filter {
	int fd;
	struct archive *a; /* NULL: not compressed */
	struct sha256 *plain, *packed;
	uint64_t bytes;
	struct err why; /* of a failed write, which the archive only hears of */
};

static int put(struct export_filter *f, const void *data, size_t len,
	       struct err *e)
{
	sha256_add(f->packed, data, len);
	f->bytes += len;
	return fd_write_all(f->fd, data, len, e);
}

static la_ssize_t on_write(struct archive *a, void *arg, const void *data,
			   size_t len)
{
	struct export_filter *f = arg;

	if (put(f, data, len, &f->why) == 0)
		return (la_ssize_t)len;
	archive_set_error(a, -f->why.r, "write");
	return -1;
}

static int failed(struct export_filter *f, const char *what, struct err *e)
{
	const char *why = archive_error_string(f->a);

	if (f->why.r < 0) {
		if (e)
			*e = f->why;
		return f->why.r;
	}
	return err_set(e, -EIO, "system", "%s: %s", what, why ? why : "?");
}

/* No time in the header: equal input is equal output. */
static int choose(struct archive *a, enum export_compress how)
{
	if (how == EXPORT_ZSTD)
		return archive_write_add_filter_zstd(a);
	if (archive_write_add_filter_gzip(a) != ARCHIVE_OK)
		return ARCHIVE_FATAL;
	return archive_write_set_filter_option(a, "gzip", "timestamp", NULL);
}

static int start(struct export_filter *f, enum export_compress how,
		 struct err *e)
{
	struct archive_entry *en = archive_entry_new();
	struct archive *a = archive_write_new();
	bool ok;

	f->a = a;
	if (!a || !en) {
		archive_entry_free(en);
		return err_sys(e, ENOMEM, "compress");
	}
	archive_entry_set_filetype(en, AE_IFREG);
	ok = archive_write_set_format_raw(a) == ARCHIVE_OK &&
	     choose(a, how) == ARCHIVE_OK &&
	     archive_write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK &&
	     archive_write_open(a, f, NULL, on_write, NULL) == ARCHIVE_OK &&
	     archive_write_header(a, en) == ARCHIVE_OK;
	archive_entry_free(en);
	return ok ? 0 : failed(f, "compress", e);
}

int export_filter_open(int fd, enum export_compress how,
		       struct export_filter **ret, struct err *e)
{
	struct export_filter *f = calloc(1, sizeof(*f));
	int r = 0;

	if (!f)
		return err_sys(e, ENOMEM, "export");
	f->fd = fd;
	f->plain = sha256_new();
	f->packed = sha256_new();
	if (!f->plain || !f->packed)
		r = err_sys(e, ENOMEM, "export");
	else if (how != EXPORT_PLAIN)
		r = start(f, how, e);
	if (r < 0)
		export_filter_free(f);
	else
		*ret = f;
	return r;
}

int export_filter_write(void *arg, const void *data, size_t len, struct err *e)
{
	struct export_filter *f = arg;

	sha256_add(f->plain, data, len);
	if (!f->a)
		return put(f, data, len, e);
	if (archive_write_data(f->a, data, len) != (la_ssize_t)len)
		return failed(f, "compress", e);
	return 0;
}

int export_filter_end(struct export_filter *f, struct digest *ret_plain,
		      struct digest *ret_packed, uint64_t *ret_bytes,
		      struct err *e)
{
	if (f->a && archive_write_close(f->a) != ARCHIVE_OK)
		return failed(f, "compress", e);
	sha256_end(f->plain, ret_plain);
	sha256_end(f->packed, ret_packed);
	*ret_bytes = f->bytes;
	return 0;
}

void export_filter_free(struct export_filter *f)
{
	if (!f)
		return;
	/* Freed before it is closed it would write on. */
	if (f->a && f->why.r < 0)
		archive_write_fail(f->a);
	archive_write_free(f->a);
	sha256_free(f->plain);
	sha256_free(f->packed);
	free(f);
}
