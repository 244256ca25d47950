/* SPDX-License-Identifier: Apache-2.0 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"
#include "wire/tar_priv.h"

#define OUT_SIZE (64 * 1024) /* what a pipe holds */

static const char zeros[4096];

void tar_writer_done(struct tar_writer *w)
{
	buf_done(&w->out);
}

static int flush(struct tar_writer *w, struct err *e)
{
	int r = w->out.len ? w->sink(w->arg, w->out.data, w->out.len, e) : 0;

	w->out.len = 0;
	return r;
}

static int put(struct tar_writer *w, const void *data, size_t len,
	       struct err *e)
{
	int r = 0;

	if (w->out.len + len > OUT_SIZE)
		r = flush(w, e);
	if (r < 0)
		return r;
	if (len >= OUT_SIZE)
		return w->sink(w->arg, data, len, e);
	if (buf_add(&w->out, data, len) < 0)
		return err_sys(e, ENOMEM, "archive");
	return 0;
}

static int pad(struct tar_writer *w, unsigned n, struct err *e)
{
	return n ? put(w, zeros, n, e) : 0;
}

/* "LENGTH KEY=VALUE\n", its length counting itself. */
static int record(struct buf *b, const char *key, const void *value, size_t len)
{
	size_t body = strlen(key) + len + 3, total = body + 1;
	char head[32];
	int r;

	for (size_t was = 0; was != total;) {
		was = total;
		total = body + (size_t)snprintf(head, sizeof(head), "%zu", was);
	}
	r = buf_addf(b, "%zu %s=", total, key);
	if (r == 0)
		r = buf_add(b, value, len);
	return r < 0 ? r : buf_add(b, "\n", 1);
}

static int record_str(struct buf *b, const char *key, const char *value)
{
	return record(b, key, value, strlen(value));
}

static int record_int(struct buf *b, const char *key, int64_t v)
{
	char text[24];

	snprintf(text, sizeof(text), "%lld", (long long)v);
	return record_str(b, key, text);
}

/* Octal where it fits; a number that does not goes by the pax header. */
static bool octal(char *field, size_t len, int64_t v)
{
	bool fits = v >= 0 && (uint64_t)v < (uint64_t)1 << 3 * (len - 1);
	char text[32];

	snprintf(text, sizeof(text), "%0*llo", (int)len - 1,
		 fits ? (unsigned long long)v : 0ULL);
	memcpy(field, text, len);
	return fits;
}

static char type_char(enum tar_type t)
{
	static const char chars[] = {
		[TAR_FILE] = '0',     [TAR_DIR] = '5',	 [TAR_SYMLINK] = '2',
		[TAR_HARDLINK] = '1', [TAR_FIFO] = '6',	 [TAR_CHAR] = '3',
		[TAR_BLOCK] = '4',    [TAR_OTHER] = '0',
	};

	return chars[t];
}

static void finish(struct tar_header *h)
{
	memcpy(h->magic, "ustar\00000", 8);
	snprintf(h->checksum, sizeof(h->checksum), "%06o", tar_sum(h));
	h->checksum[7] = ' ';
}

static int name_record(struct buf *pax, const char *key, const char *s,
		       char *field, size_t len)
{
	size_t n = strlen(s);

	memcpy(field, s, n < len ? n : len);
	return n > len ? record_str(pax, key, s) : 0;
}

static int time_record(struct buf *pax, struct timespec t)
{
	char text[48];
	bool minus = t.tv_sec < 0 && t.tv_nsec > 0;
	long ns = minus ? 1000000000 - t.tv_nsec : t.tv_nsec;

	if (minus)
		t.tv_sec++;
	snprintf(text, sizeof(text), "%s%lld.%09ld",
		 minus && t.tv_sec == 0 ? "-" : "", (long long)t.tv_sec, ns);
	return record_str(pax, "mtime", text);
}

static int sparse_records(struct buf *pax, struct tar_header *h,
			  const struct tar_entry *en)
{
	static const char stand_in[] = "GNUSparseFile.0/file";
	int r = record_str(pax, "GNU.sparse.major", "1");

	memset(h->name, 0, sizeof(h->name));
	memcpy(h->name, stand_in, sizeof(stand_in));
	if (r == 0)
		r = record_str(pax, "GNU.sparse.minor", "0");
	if (r == 0)
		r = record_str(pax, "GNU.sparse.name", en->path);
	if (r == 0)
		r = record_int(pax, "GNU.sparse.realsize", (int64_t)en->size);
	return r;
}

/* A key ends at the first '=': that is written as GNU tar writes it. */
static void xattr_key(const char *name, char *key, size_t size)
{
	size_t n = (size_t)snprintf(key, size, "SCHILY.xattr.");

	for (; *name && n + 4 < size; name++) {
		if (*name == '=' || *name == '%')
			n += (size_t)snprintf(key + n, size - n, "%%%02X",
					      *name);
		else
			key[n++] = *name;
	}
	key[n] = '\0';
}

static int xattr_records(struct buf *pax, const struct tar_entry *en)
{
	char key[800]; /* of 255 bytes, each three times as long */
	int r = 0;

	for (size_t i = 0; i < en->nxattrs && r == 0; i++) {
		const struct tar_xattr *x = &en->xattrs[i];

		xattr_key(x->name, key, sizeof(key));
		r = record(pax, key, x->value, x->len);
	}
	return r;
}

/* The header's fields, and in ${pax} what they cannot hold. */
static int fields(const struct tar_entry *en, uint64_t stored,
		  struct tar_header *h, struct buf *pax)
{
	int r;

	if (en->sparse)
		r = sparse_records(pax, h, en);
	else
		r = name_record(pax, "path", en->path, h->name,
				sizeof(h->name));
	if (r == 0)
		r = name_record(pax, "linkpath", en->link, h->linkname,
				sizeof(h->linkname));
	h->type = type_char(en->type);
	octal(h->mode, sizeof(h->mode), en->mode & 07777);
	octal(h->devmajor, sizeof(h->devmajor), major(en->rdev));
	octal(h->devminor, sizeof(h->devminor), minor(en->rdev));
	if (!octal(h->size, sizeof(h->size), (int64_t)stored) && r == 0)
		r = record_int(pax, "size", (int64_t)stored);
	if (!octal(h->uid, sizeof(h->uid), en->uid) && r == 0)
		r = record_int(pax, "uid", en->uid);
	if (!octal(h->gid, sizeof(h->gid), en->gid) && r == 0)
		r = record_int(pax, "gid", en->gid);
	if ((!octal(h->mtime, sizeof(h->mtime), en->mtime.tv_sec) ||
	     en->mtime.tv_nsec) &&
	    r == 0)
		r = time_record(pax, en->mtime);
	return r < 0 ? r : xattr_records(pax, en);
}

static int pax_header(struct tar_writer *w, const struct buf *pax,
		      struct err *e)
{
	struct tar_header h;
	int r;

	memset(&h, 0, sizeof(h));
	memcpy(h.name, "PaxHeader/entry", 15);
	h.type = 'x';
	octal(h.mode, sizeof(h.mode), 0644);
	octal(h.uid, sizeof(h.uid), 0);
	octal(h.gid, sizeof(h.gid), 0);
	octal(h.mtime, sizeof(h.mtime), 0);
	octal(h.size, sizeof(h.size), (int64_t)pax->len);
	finish(&h);
	r = put(w, &h, sizeof(h), e);
	if (r == 0)
		r = put(w, pax->data, pax->len, e);
	return r < 0 ? r : pad(w, tar_padding(pax->len), e);
}

/* The map of form 1.0: decimal numbers, a line each, padded to a block. */
static int sparse_map(const struct tar_entry *en, struct buf *map,
		      uint64_t *ret_sum)
{
	int r = buf_addf(map, "%zu\n", en->nruns);

	*ret_sum = 0;
	for (size_t i = 0; i < en->nruns && r == 0; i++) {
		r = buf_addf(map, "%llu\n%llu\n",
			     (unsigned long long)en->runs[i].off,
			     (unsigned long long)en->runs[i].len);
		*ret_sum += en->runs[i].len;
	}
	return r < 0 ? r : buf_add(map, zeros, tar_padding(map->len));
}

int tar_write_entry(struct tar_writer *w, const struct tar_entry *en,
		    struct err *e)
{
	auto_buf struct buf pax = {0};
	auto_buf struct buf map = {0};
	struct tar_header h;
	uint64_t data = en->type == TAR_FILE ? en->size : 0;
	int r = 0;

	assert(w->left == 0);
	memset(&h, 0, sizeof(h));
	if (en->sparse)
		r = sparse_map(en, &map, &data);
	if (r == 0)
		r = fields(en, data + map.len, &h, &pax);
	if (r < 0)
		return err_sys(e, ENOMEM, "archive");
	finish(&h);
	r = pad(w, w->pad, e);
	w->pad = 0;
	if (r == 0 && pax.len > 0)
		r = pax_header(w, &pax, e);
	if (r == 0)
		r = put(w, &h, sizeof(h), e);
	if (r == 0 && map.len > 0)
		r = put(w, map.data, map.len, e);
	w->left = data;
	w->pad = tar_padding(data);
	return r;
}

int tar_write_data(struct tar_writer *w, const void *data, size_t len,
		   struct err *e)
{
	assert(len <= w->left);
	w->left -= len;
	return put(w, data, len, e);
}

int tar_write_zeros(struct tar_writer *w, uint64_t len, struct err *e)
{
	int r = 0;

	while (len > 0 && r == 0) {
		size_t n = len < sizeof(zeros) ? (size_t)len : sizeof(zeros);

		r = tar_write_data(w, zeros, n, e);
		len -= n;
	}
	return r;
}

int tar_write_end(struct tar_writer *w, struct err *e)
{
	int r = pad(w, w->pad, e);

	w->pad = 0;
	if (r == 0)
		r = put(w, zeros, (size_t)2 * TAR_BLOCK_SIZE, e);
	return r < 0 ? r : flush(w, e);
}
