/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"
#include "wire/tar_priv.h"

/*
 * Everything here comes from outside.  What concerns one entry makes that entry
 * bad and the reading goes on; what leaves it unknown where the next header
 * begins ends the archive.
 */

#define BUF_SIZE (64 * 1024)

int tar_reader_init(struct tar_reader *r, tar_source *source, void *arg,
		    struct err *e)
{
	memset(r, 0, sizeof(*r));
	r->source = source;
	r->arg = arg;
	r->buf = malloc(BUF_SIZE);
	if (!r->buf)
		return err_sys(e, ENOMEM, "archive");
	return 0;
}

void tar_reader_done(struct tar_reader *r)
{
	free(r->buf);
	buf_done(&r->path);
	buf_done(&r->link);
	buf_done(&r->pax);
	buf_done(&r->global);
	buf_done(&r->runs);
	buf_done(&r->acl[0]);
	buf_done(&r->acl[1]);
	memset(r, 0, sizeof(*r));
}

static int damaged(struct tar_reader *r, const char *what, struct err *e)
{
	r->failed = true;
	return err_set(e, -EBADMSG, "bad_value",
		       "damaged archive: %s at offset %llu", what,
		       (unsigned long long)r->offset);
}

/* At least ${want} bytes in one piece; fewer only at the end of input. */
static int fill(struct tar_reader *r, size_t want, struct err *e)
{
	ssize_t n;

	if (r->have >= want)
		return 0;
	memmove(r->buf, r->buf + r->pos, r->have);
	r->pos = 0;
	while (r->have < want && !r->eof) {
		n = r->source(r->arg, r->buf + r->have, BUF_SIZE - r->have, e);
		if (n < 0) {
			r->failed = true;
			return (int)n;
		}
		r->eof = n == 0;
		r->have += (size_t)n;
	}
	return 0;
}

static void take(struct tar_reader *r, size_t n)
{
	r->pos += n;
	r->have -= n;
	r->offset += n;
}

/* Past what is not in the buffer, if that is much and the source can. */
static int jump(struct tar_reader *r, uint64_t *n, struct err *e)
{
	int64_t some;

	if (!r->skip || *n < r->have + BUF_SIZE)
		return 0;
	*n -= r->have;
	take(r, r->have);
	some = r->skip(r->arg, *n, e);
	if (some < 0) {
		r->failed = true;
		return (int)some;
	}
	*n -= (uint64_t)some;
	r->offset += (uint64_t)some;
	return 0;
}

static int skip(struct tar_reader *r, uint64_t n, struct err *e)
{
	int rc = jump(r, &n, e);

	if (rc < 0)
		return rc;
	while (n > 0) {
		size_t some;

		rc = fill(r, 1, e);
		if (rc < 0)
			return rc;
		if (r->have == 0)
			return damaged(r, "it ends inside an entry", e);
		some = n < r->have ? (size_t)n : r->have;
		take(r, some);
		n -= some;
	}
	return 0;
}

/* The data of the entry at hand: up to the whole buffer, 0 at its end. */
static int raw_data(struct tar_reader *r, const char **ret, size_t *ret_len,
		    uint64_t max, struct err *e)
{
	uint64_t n = r->left < max ? r->left : max;
	int rc;

	*ret_len = 0;
	if (n == 0)
		return 0;
	rc = fill(r, 1, e);
	if (rc < 0)
		return rc;
	if (r->have == 0)
		return damaged(r, "it ends inside an entry", e);
	if (n > r->have)
		n = r->have;
	*ret = r->buf + r->pos;
	*ret_len = (size_t)n;
	r->left -= n;
	take(r, (size_t)n);
	return 1;
}

/* A number: octal digits, or base 256 with the high bit of the first byte. */
static bool number(const char *field, size_t len, int64_t *ret)
{
	const unsigned char *p = (const unsigned char *)field;
	bool minus = p[0] == 0xff;
	uint64_t v = minus ? UINT64_MAX : 0;
	size_t i = 0;

	if (p[0] & 0x80) {
		for (i = 1; i < len; i++) {
			if (len - i > 8 && p[i] != (minus ? 0xff : 0))
				return false;
			v = v << 8 | p[i];
		}
		*ret = (int64_t)v;
		return (p[0] == 0x80 || minus) && (*ret < 0) == minus;
	}
	while (i < len && p[i] == ' ')
		i++;
	for (; i < len && p[i] >= '0' && p[i] <= '7'; i++)
		v = v << 3 | (uint64_t)(p[i] - '0');
	*ret = (int64_t)v;
	return i == len || p[i] == ' ' || p[i] == '\0';
}

static bool checksum_ok(const struct tar_header *h)
{
	const signed char *s = (const signed char *)h;
	unsigned sum = tar_sum(h);
	int old = 8 * ' ';
	int64_t want;

	for (int i = 0; i < TAR_BLOCK_SIZE; i++)
		old += i >= 148 && i < 156 ? 0 : s[i];
	return number(h->checksum, sizeof(h->checksum), &want) &&
	       (want == (int64_t)sum || want == old);
}

static bool all_zero(const char *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (p[i])
			return false;
	return true;
}

/* 1 and a good header, or 0 at the end of the archive. */
static int header(struct tar_reader *r, struct tar_header *h, int64_t *ret_size,
		  struct err *e)
{
	int rc = fill(r, TAR_BLOCK_SIZE, e);

	if (rc < 0)
		return rc;
	if (r->have == 0)
		return 0;
	if (r->have < TAR_BLOCK_SIZE)
		return damaged(r, "it ends inside a header", e);
	memcpy(h, r->buf + r->pos, sizeof(*h));
	if (all_zero((const char *)h, sizeof(*h)))
		return 0;
	if (!checksum_ok(h))
		return damaged(r,
			       r->offset ? "a header's checksum is wrong"
					 : "not a tar archive",
			       e);
	if (!number(h->size, sizeof(h->size), ret_size) || *ret_size < 0)
		return damaged(r, "an impossible size", e);
	take(r, TAR_BLOCK_SIZE);
	return 1;
}

/* The body of an extended header or a long name, into ${b}. */
static int body(struct tar_reader *r, int64_t size, struct buf *b,
		struct err *e)
{
	const char *p = NULL;
	size_t n;
	int rc;

	if (size > TAR_HEADER_MAX)
		return damaged(r, "an extended header over 1 MiB", e);
	b->len = 0;
	if (buf_reserve(b, (size_t)size) < 0)
		return err_sys(e, ENOMEM, "archive");
	r->left = (uint64_t)size;
	while ((rc = raw_data(r, &p, &n, UINT64_MAX, e)) > 0)
		if (buf_add(b, p, n) < 0)
			return err_sys(e, ENOMEM, "archive");
	return rc < 0 ? rc : skip(r, tar_padding((uint64_t)size), e);
}

static int long_name(struct tar_reader *r, int64_t size, struct buf *b,
		     bool *has, struct err *e)
{
	int rc = body(r, size, b, e);

	if (rc < 0)
		return rc;
	if (b->len > 0)
		b->len = strnlen(b->data, b->len);
	*has = b->len > 0;
	return 0;
}

static int field_name(struct buf *b, const char *prefix, size_t plen,
		      const char *name, size_t len, struct err *e)
{
	plen = strnlen(prefix, plen);
	len = strnlen(name, len);
	b->len = 0;
	if ((plen &&
	     (buf_add(b, prefix, plen) < 0 || buf_add(b, "/", 1) < 0)) ||
	    buf_add(b, name, len) < 0)
		return err_sys(e, ENOMEM, "archive");
	return 0;
}

static const char *old_runs(struct tar_reader *r, const char *p, int n)
{
	for (; n > 0; n--, p += 24) {
		int64_t off, len;

		if (p[0] == '\0')
			return NULL;
		if (!number(p, 12, &off) || !number(p + 12, 12, &len) ||
		    off < 0 || len < 0 ||
		    !tar_add_run(r, (uint64_t)off, (uint64_t)len))
			return "a damaged sparse map";
	}
	return NULL;
}

/* GNU's first form: the map stands in the header and in blocks after it. */
static int old_sparse(struct tar_reader *r, const struct tar_header *h,
		      struct tar_pax *p, struct err *e)
{
	const char *raw = (const char *)h;
	bool more = raw[482];
	int64_t real;
	int rc;

	p->map_in_header = true;
	p->bad = old_runs(r, raw + 386, 4);
	if (!number(raw + 483, 12, &real) || real < 0)
		return damaged(r, "an impossible size", e);
	p->real_size = (uint64_t)real;
	p->has_real_size = true;
	while (more) {
		rc = fill(r, TAR_BLOCK_SIZE, e);
		if (rc < 0)
			return rc;
		if (r->have < TAR_BLOCK_SIZE)
			return damaged(r, "it ends inside a sparse map", e);
		raw = r->buf + r->pos;
		more = raw[504];
		if (!p->bad)
			p->bad = old_runs(r, raw, 21);
		take(r, TAR_BLOCK_SIZE);
	}
	return 0;
}

/* A line of the map that stands before the data in form 1.0. */
static int map_number(struct tar_reader *r, uint64_t *used, uint64_t *ret,
		      bool *good, struct err *e)
{
	char digits[24];
	const char *p;
	size_t n = 0, got;
	int rc;

	while (n < sizeof(digits)) {
		rc = raw_data(r, &p, &got, 1, e);
		if (rc < 0)
			return rc;
		*used += got;
		if (got == 0 || *p == '\n')
			break;
		digits[n++] = *p;
	}
	*good = *good && tar_digits(digits, n, ret);
	return 0;
}

static int map_in_data(struct tar_reader *r, struct tar_pax *p, struct err *e)
{
	uint64_t used = 0, n = 0, off = 0, len = 0, pad;
	bool good = true;
	int rc;

	r->runs.len = 0;
	rc = map_number(r, &used, &n, &good, e);
	for (; rc == 0 && good && n > 0; n--) {
		rc = map_number(r, &used, &off, &good, e);
		if (rc == 0)
			rc = map_number(r, &used, &len, &good, e);
		good = good && tar_add_run(r, off, len);
	}
	pad = tar_padding(used);
	if (rc < 0)
		return rc;
	if (!good || pad > r->left) {
		p->bad = "a damaged sparse map";
		return 0;
	}
	r->left -= pad;
	return skip(r, pad, e);
}

static bool runs_ok(const struct tar_reader *r, uint64_t size)
{
	const struct tar_run *run = (const void *)r->runs.data;
	size_t n = r->runs.len / sizeof(*run);
	uint64_t end = 0, sum = 0;

	for (size_t i = 0; i < n; i++) {
		if (run[i].off < end || run[i].off > size ||
		    run[i].len > size - run[i].off)
			return false;
		end = run[i].off + run[i].len;
		sum += run[i].len;
	}
	return sum == r->left;
}

static enum tar_type type_of(const struct tar_header *h, const struct buf *path)
{
	switch (h->type) {
	case '\0':
		/* Before ustar a directory was a name with a slash. */
		if (path->len > 0 && path->data[path->len - 1] == '/')
			return TAR_DIR;
		return TAR_FILE;
	case '0':
	case '7':
	case 'S':
		return TAR_FILE;
	case '1':
		return TAR_HARDLINK;
	case '2':
		return TAR_SYMLINK;
	case '3':
		return TAR_CHAR;
	case '4':
		return TAR_BLOCK;
	case '5':
		return TAR_DIR;
	case '6':
		return TAR_FIFO;
	default:
		return TAR_OTHER;
	}
}

static void device(struct tar_entry *en, const struct tar_header *h,
		   const struct tar_pax *p)
{
	int64_t major = p->devmajor, minor = p->devminor;

	if ((!p->has_devmajor &&
	     !number(h->devmajor, sizeof(h->devmajor), &major)) ||
	    (!p->has_devminor &&
	     !number(h->devminor, sizeof(h->devminor), &minor)) ||
	    major < 0 || minor < 0 || major > 0xfff || minor > 0xfffff)
		en->bad = "an impossible device number";
	else
		en->rdev = makedev((unsigned)major, (unsigned)minor);
}

static void attributes(struct tar_reader *r, const struct tar_header *h,
		       const struct tar_pax *p)
{
	struct tar_entry *en = &r->entry;
	int64_t mode = 0, sec = 0;
	bool good;

	good = number(h->mode, sizeof(h->mode), &mode) &&
	       number(h->uid, sizeof(h->uid), &en->uid) &&
	       number(h->gid, sizeof(h->gid), &en->gid) &&
	       number(h->mtime, sizeof(h->mtime), &sec);
	en->mode = (mode_t)mode & 07777;
	en->mtime = (struct timespec){.tv_sec = sec};
	if (p->has_uid)
		en->uid = p->uid;
	if (p->has_gid)
		en->gid = p->gid;
	if (p->has_mtime)
		en->mtime = p->mtime;
	if (!good)
		en->bad = "a damaged header field";
	if (en->type == TAR_CHAR || en->type == TAR_BLOCK)
		device(en, h, p);
}

static int sparse_data(struct tar_reader *r, struct tar_pax *p, struct err *e)
{
	struct tar_entry *en = &r->entry;
	int rc = 0;

	if (p->major > 1)
		p->bad = "an unknown sparse form";
	else if (p->major == 1 && !p->bad)
		rc = map_in_data(r, p, e);
	if (rc < 0)
		return rc;
	if (p->has_real_size)
		en->size = p->real_size;
	if (!p->bad && (!p->has_real_size || !runs_ok(r, en->size)))
		p->bad = "a damaged sparse map";
	en->sparse = true;
	return 0;
}

/* An empty name has no bytes of its own, or those of the entry before. */
static const char *text(const struct buf *b)
{
	return b->len > 0 ? b->data : "";
}

/* Header and extended headers are read: what is the entry? */
static int entry(struct tar_reader *r, const struct tar_header *h,
		 int64_t stored, struct tar_pax *p, struct err *e)
{
	struct tar_entry *en = &r->entry;
	bool ustar = !memcmp(h->magic, "ustar\0", 6);
	int rc = 0;

	if (!p->has_path)
		rc = field_name(&r->path, h->prefix,
				ustar ? sizeof(h->prefix) : 0, h->name,
				sizeof(h->name), e);
	if (rc == 0 && !p->has_link)
		rc = field_name(&r->link, "", 0, h->linkname,
				sizeof(h->linkname), e);
	if (rc < 0)
		return rc;
	en->type = type_of(h, &r->path);
	en->kind = h->type;
	en->size = p->has_size ? p->size : (uint64_t)stored;
	if (en->type == TAR_HARDLINK)
		en->size = 0; /* whatever it says, no data follows */
	r->left = en->size;
	r->pad = tar_padding(en->size);
	attributes(r, h, p);
	if (h->type == 'S')
		rc = old_sparse(r, h, p, e);
	if (rc == 0 && (p->major > 0 || p->map_in_header))
		rc = sparse_data(r, p, e);
	en->path = text(&r->path);
	en->link = text(&r->link);
	en->runs = (const void *)r->runs.data;
	en->nruns = r->runs.len / sizeof(*en->runs);
	if (p->bad)
		en->bad = p->bad;
	if (r->path.len == 0)
		en->bad = "an empty name";
	return rc;
}

static int globals(struct tar_reader *r, struct tar_pax *p, struct err *e)
{
	if (r->global.len == 0)
		return 0;
	return tar_pax_parse(r, r->global.data, r->global.len, false, p, e);
}

/* One header that is about the entry to come; 0 when it is none. */
static int prelude(struct tar_reader *r, char type, int64_t size,
		   struct tar_pax *p, struct err *e)
{
	int rc;

	switch (type) {
	case 'x':
		rc = body(r, size, &r->pax, e);
		if (rc == 0 && r->pax.len > 0) {
			r->entry.nxattrs = 0;
			r->entry.bad_acl = NULL;
			rc = tar_pax_parse(r, r->pax.data, r->pax.len, true, p,
					   e);
		}
		break;
	case 'g':
		rc = body(r, size, &r->global, e);
		if (rc == 0)
			rc = globals(r, p, e);
		break;
	case 'L':
		rc = long_name(r, size, &r->path, &p->has_path, e);
		break;
	case 'K':
		rc = long_name(r, size, &r->link, &p->has_link, e);
		break;
	default:
		return 0;
	}
	return rc < 0 ? rc : 1;
}

int tar_next(struct tar_reader *r, const struct tar_entry **ret_entry,
	     struct err *e)
{
	struct tar_pax p = {.major = -1};
	struct tar_header h;
	int64_t size;
	int rc;

	if (r->ended)
		return 0;
	rc = skip(r, r->left, e);
	if (rc == 0)
		rc = skip(r, r->pad, e);
	if (rc < 0)
		return rc;
	memset(&r->entry, 0, sizeof(r->entry));
	r->runs.len = r->run = 0;
	r->left = r->pad = 0;
	r->run_done = r->at = 0;
	r->entry.offset = r->offset;
	rc = globals(r, &p, e);
	if (rc < 0)
		return rc;
	for (unsigned n = 0;; n++) {
		rc = header(r, &h, &size, e);
		if (rc == 0 && n > 0)
			return damaged(r, "an extended header without entry",
				       e);
		if (rc <= 0)
			break;
		rc = prelude(r, h.type, size, &p, e);
		if (rc == 0)
			rc = entry(r, &h, size, &p, e);
		else if (rc > 0)
			continue;
		if (rc < 0)
			return rc;
		*ret_entry = &r->entry;
		return 1;
	}
	r->ended = rc == 0;
	return rc;
}

int tar_data(struct tar_reader *r, const void **ret_data, size_t *ret_len,
	     uint64_t *ret_off, struct err *e)
{
	const struct tar_entry *en = &r->entry;
	uint64_t off = r->at, max = UINT64_MAX;
	const char *p;
	int rc;

	if (en->bad || en->type != TAR_FILE)
		return 0;
	if (en->sparse) {
		while (r->run < en->nruns &&
		       r->run_done == en->runs[r->run].len) {
			r->run++;
			r->run_done = 0;
		}
		if (r->run == en->nruns)
			return 0;
		off = en->runs[r->run].off + r->run_done;
		max = en->runs[r->run].len - r->run_done;
	}
	rc = raw_data(r, &p, ret_len, max, e);
	if (rc <= 0)
		return rc;
	r->run_done += *ret_len;
	r->at += *ret_len;
	*ret_data = p;
	*ret_off = off;
	return 1;
}
