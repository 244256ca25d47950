/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <linux/openat2.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "img/import_priv.h"
#include "img/oci.h"

#define LINKS_MAX  16
#define SPOOL_SIZE (256 * 1024)

/* A name of an archive. */
struct member {
	size_t name, link; /* in text; link 0: none */
	uint64_t off, len;
};

struct oci_files {
	int fd; /* our own: of the directory, or of the plain archive */
	bool is_dir;
	struct buf members, text;
};

static int bad(struct err *e, const char *what, const char *name)
{
	char text[IMPORT_NAME_SIZE];

	return err_set(e, -EBADMSG, "bad_archive", "%s: '%s'", what,
		       import_name(name, text));
}

char *oci_blob_name(const struct digest *d, char *name)
{
	char hex[DIGEST_HEX + 1];

	snprintf(name, OCI_BLOB_NAME, "blobs/sha256/%s", digest_hex(d, hex));
	return name;
}

/* --- names ------------------------------------------------------------------
 */

/* Append ${path} without "." and "", ".." taken lexically; ${from} bytes of the
 * buffer were there before. */
static int add_clean(struct buf *b, size_t from, const char *path)
{
	for (size_t n; *path; path += n) {
		path += strspn(path, "/");
		n = strcspn(path, "/");
		if (n == 0 || (n == 1 && *path == '.'))
			continue;
		if (n == 2 && path[0] == '.' && path[1] == '.') {
			while (b->len > from && b->data[b->len - 1] != '/')
				b->len--;
			if (b->len > from)
				b->len--;
			continue;
		}
		if ((b->len > from && buf_add(b, "/", 1) < 0) ||
		    buf_add(b, path, n) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int add_text(struct oci_files *f, const char *dir, size_t dir_len,
		    const char *path, size_t *ret)
{
	size_t at = f->text.len;

	*ret = at;
	if (buf_add(&f->text, dir, dir_len) < 0 ||
	    add_clean(&f->text, at, path) < 0 || buf_add(&f->text, "", 1) < 0)
		return -ENOMEM;
	return 0;
}

static int add_member(struct oci_files *f, const struct tar_entry *en,
		      uint64_t off, struct err *e)
{
	struct member m = {.off = off, .len = en->size};
	const char *slash = strrchr(en->path, '/');
	int r;

	if (f->members.len / sizeof(m) >= OCI_FILES_MAX)
		return err_set(e, -EFBIG, "too_large",
			       "more than %d names in the archive",
			       OCI_FILES_MAX);
	r = add_text(f, "", 0, en->path, &m.name);
	/* A symbolic link's target begins at its own directory. */
	if (r == 0 && en->type == TAR_SYMLINK) {
		auto_buf struct buf whole = {0};

		r = slash && *en->link != '/'
			    ? buf_add(&whole, en->path,
				      (size_t)(slash + 1 - en->path))
			    : 0;
		if (r == 0)
			r = buf_add(&whole, en->link, strlen(en->link));
		if (r == 0)
			r = add_text(f, "", 0, whole.data ? whole.data : "",
				     &m.link);
	} else if (r == 0 && en->type == TAR_HARDLINK) {
		r = add_text(f, "", 0, en->link, &m.link);
	}
	if (r < 0 || buf_add(&f->members, &m, sizeof(m)) < 0)
		return err_sys(e, ENOMEM, "read the archive");
	return 0;
}

static const struct member *find(const struct oci_files *f, const char *name)
{
	const struct member *m = (const void *)f->members.data;

	/* The last one of a name counts, as when it is extracted. */
	for (size_t i = f->members.len / sizeof(*m); i-- > 0;)
		if (!strcmp(f->text.data + m[i].name, name))
			return &m[i];
	return NULL;
}

/* --- archives ---------------------------------------------------------------
 */

static int read_members(struct oci_files *f, struct source *s, struct err *e)
{
	const struct tar_entry *en = NULL;
	struct tar_reader r;
	int rc;

	rc = tar_reader_init(&r, source_read, s, e);
	if (rc < 0)
		return rc;
	r.skip = source_skip;
	while ((rc = tar_next(&r, &en, e)) > 0) {
		if (en->bad || en->type == TAR_DIR || en->type == TAR_OTHER)
			continue;
		if (strlen(en->path) >= PATH_MAX ||
		    strlen(en->link) >= PATH_MAX) {
			rc = bad(e, "a name that is too long", en->path);
			break;
		}
		if (en->type == TAR_FILE && en->sparse) {
			rc = bad(e, "a sparse file in an image's archive",
				 en->path);
			break;
		}
		rc = add_member(f, en, r.offset, e);
		if (rc < 0)
			break;
	}
	tar_reader_done(&r);
	if (rc == -EBADMSG && e)
		e->code = "bad_archive";
	return rc;
}

/* Unpack what cannot be read at any place into a file without name. */
static int spool(struct oci_files *f, struct source *s, int tmpfd,
		 struct err *e)
{
	auto_free char *data = malloc(SPOOL_SIZE);
	auto_close int out = -1;
	ssize_t n;
	int r = 0;

	if (!data)
		return err_sys(e, ENOMEM, "read the archive");
	out = openat(tmpfd, "spool", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
		     0600);
	if (out < 0)
		return err_sys(e, errno, "make a file to unpack to");
	unlinkat(tmpfd, "spool", 0);
	while (r == 0 && (n = source_read(s, data, SPOOL_SIZE, e)) != 0)
		r = n < 0 ? (int)n : fd_write_all(out, data, (size_t)n, e);
	if (r == 0)
		r = source_end(s, e);
	if (r == 0 && lseek(out, 0, SEEK_SET) < 0)
		r = err_sys(e, errno, "seek");
	if (r == 0) {
		fd_close(f->fd);
		f->fd = steal_fd(&out);
	}
	return r;
}

static int open_archive(struct oci_files *f, int tmpfd, source_watch_fn *watch,
			void *arg, struct err *e)
{
	auto_source struct source *s = NULL;
	struct stat st;
	int r;

	if (fstat(f->fd, &st) < 0)
		return err_sys(e, errno, "archive");
	r = source_open(f->fd, 0,
			S_ISREG(st.st_mode) ? (uint64_t)st.st_size : UINT64_MAX,
			0, &s, e);
	if (r < 0)
		return r;
	if (S_ISREG(st.st_mode) && source_is_plain(s))
		return read_members(f, s, e);
	source_watch(s, watch, arg);
	r = spool(f, s, tmpfd, e);
	source_free(steal_ptr(s));
	if (r == 0)
		r = source_open(f->fd, 0, UINT64_MAX, SOURCE_RAW, &s, e);
	return r < 0 ? r : read_members(f, s, e);
}

static struct oci_files *files_new(int fd, struct err *e)
{
	struct oci_files *f = calloc(1, sizeof(*f));

	if (!f) {
		err_sys(e, ENOMEM, "image");
		return NULL;
	}
	f->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	/* No name is at 0: there, it means none. */
	if (f->fd >= 0 && buf_add(&f->text, "", 1) == 0)
		return f;
	err_sys(e, f->fd < 0 ? errno : ENOMEM, "image");
	oci_files_free(f);
	return NULL;
}

int oci_files_archive(int fd, int tmpfd, source_watch_fn *watch, void *arg,
		      struct oci_files **ret, struct err *e)
{
	struct oci_files *f = files_new(fd, e);
	int r;

	if (!f)
		return -ENOMEM;
	r = open_archive(f, tmpfd, watch, arg, e);
	if (r < 0) {
		oci_files_free(f);
		return r;
	}
	*ret = f;
	return 0;
}

int oci_files_dir(int dirfd, struct oci_files **ret, struct err *e)
{
	struct oci_files *f = files_new(dirfd, e);

	if (!f)
		return -ENOMEM;
	f->is_dir = true;
	*ret = f;
	return 0;
}

void oci_files_free(struct oci_files *f)
{
	if (!f)
		return;
	if (f->fd >= 0)
		fd_close(f->fd);
	buf_done(&f->members);
	buf_done(&f->text);
	free(f);
}

static bool has(const struct oci_files *f, const char *name)
{
	return f->is_dir ? faccessat(f->fd, name, F_OK, 0) == 0
			 : find(f, name) != NULL;
}

enum oci_form oci_files_form(const struct oci_files *f)
{
	/* Newer docker writes both: then the one with the names it knows. */
	if (has(f, "manifest.json"))
		return OCI_DOCKER;
	return has(f, "index.json") ? OCI_LAYOUT : OCI_NONE;
}

/* --- guessing ---------------------------------------------------------------
 */

/* Could this be a name of an image's archive? */
static bool is_image_name(const char *path, enum oci_form *form)
{
	size_t n;

	while (!strncmp(path, "./", 2))
		path += 2;
	n = strcspn(path, "/");
	if (!strcmp(path, "manifest.json"))
		*form = OCI_DOCKER;
	else if (!strcmp(path, "index.json") && *form == OCI_NONE)
		*form = OCI_LAYOUT;
	if (n == 5 && !memcmp(path, "blobs", 5))
		return true;
	if (n == DIGEST_HEX && strspn(path, "0123456789abcdef") >= n)
		return true;
	return path[n] == '\0' &&
	       (n == 0 || strstr(path, ".json") || strstr(path, ".tar") ||
		!strcmp(path, "oci-layout") || !strcmp(path, "repositories") ||
		!strcmp(path, "."));
}

enum oci_form oci_guess(int fd)
{
	enum oci_form form = OCI_NONE;
	auto_source struct source *s = NULL;
	const struct tar_entry *en = NULL;
	struct tar_reader r;
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    source_open(fd, 0, (uint64_t)st.st_size, 0, &s, NULL) < 0 ||
	    tar_reader_init(&r, source_read, s, NULL) < 0)
		return OCI_NONE;
	r.skip = source_skip;
	while (tar_next(&r, &en, NULL) > 0) {
		if (is_image_name(en->path, &form))
			continue;
		form = OCI_NONE;
		break;
	}
	tar_reader_done(&r);
	return form;
}

/* --- looking up -------------------------------------------------------------
 */

static int find_in_dir(const struct oci_files *f, const char *name,
		       struct oci_part *ret, struct err *e)
{
	auto_close int fd = -1;
	struct stat st;

	fd = fd_openat2(f->fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY,
			RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS);
	if (fd == -ENOENT || fd == -EXDEV)
		return bad(e, "the image lacks a file", name);
	if (fd < 0)
		return err_sys(e, -fd, "'%s'", name);
	if (fstat(fd, &st) < 0)
		return err_sys(e, errno, "'%s'", name);
	if (!S_ISREG(st.st_mode))
		return bad(e, "not a file", name);
	*ret = (struct oci_part){steal_fd(&fd), 0, (uint64_t)st.st_size};
	return 0;
}

int oci_files_find(struct oci_files *f, const char *name, struct oci_part *ret,
		   struct err *e)
{
	auto_buf struct buf clean = {0};
	const struct member *m;
	const char *at;

	if (add_clean(&clean, 0, name) < 0 || buf_add(&clean, "", 1) < 0)
		return err_sys(e, ENOMEM, "image");
	if (f->is_dir)
		return find_in_dir(f, clean.data, ret, e);
	at = clean.data;
	for (int i = 0; i < LINKS_MAX; i++) {
		m = find(f, at);
		if (!m)
			return bad(e, "the archive lacks a file", at);
		if (!m->link) {
			ret->fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
			ret->off = m->off;
			ret->len = m->len;
			return ret->fd < 0 ? err_sys(e, errno, "archive") : 0;
		}
		at = f->text.data + m->link;
	}
	return bad(e, "links that lead nowhere", name);
}

static int read_small(struct oci_part *part, const struct digest *want,
		      struct buf *ret, struct err *e)
{
	struct digest got;
	int r;

	if (part->len > OCI_JSON_MAX)
		return err_set(e, -EFBIG, "too_large", "over %d bytes",
			       OCI_JSON_MAX);
	r = buf_reserve(ret, (size_t)part->len + 1);
	if (r < 0)
		return err_sys(e, ENOMEM, "image");
	while (ret->len < part->len) {
		ssize_t n = pread(part->fd, ret->data + ret->len,
				  (size_t)part->len - ret->len,
				  (off_t)(part->off + ret->len));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(e, errno, "read");
		if (n == 0)
			return err_set(e, -EBADMSG, "bad_archive",
				       "it is cut short");
		ret->len += (size_t)n;
	}
	if (!want)
		return 0;
	if (sha256_of(ret->data, ret->len, &got) < 0)
		return err_sys(e, ENOMEM, "digest");
	return digest_eq(&got, want)
		       ? 0
		       : err_set(e, -EBADMSG, "bad_archive",
				 "its bytes are not what its digest says");
}

int oci_files_json(struct oci_files *f, const char *name,
		   const struct digest *want, json_t **ret, struct err *e)
{
	auto_buf struct buf text = {0};
	char shown[IMPORT_NAME_SIZE], why[IMPORT_NAME_SIZE];
	struct oci_part part = {.fd = -1};
	json_error_t je;
	int r;

	r = oci_files_find(f, name, &part, e);
	if (r < 0)
		return r;
	r = read_small(&part, want, &text, e);
	fd_close(part.fd);
	if (r < 0)
		return err_wrap(e, r, "'%s'", import_name(name, shown));
	*ret = json_loadb(text.data ? text.data : "", text.len,
			  JSON_REJECT_DUPLICATES, &je);
	if (*ret)
		return 0;
	return err_set(e, -EBADMSG, "bad_archive",
		       "'%s' is no valid JSON: %s (line %d)",
		       import_name(name, shown), import_name(je.text, why),
		       je.line);
}
