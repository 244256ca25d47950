/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "import.h"

enum source_type {
	SRC_PATH, /* a bare one: what is there says what it is */
	SRC_DOCKER,
	SRC_OCI_ARCHIVE,
	SRC_OCI_DIR,
	SRC_TAR,
	SRC_DIR,
	SRC_INBOX,
};

static const struct {
	const char *prefix;
	enum source_type type;
	bool has_ref; /* PATH[:REF] */
} types[] = {
	{"docker-archive:", SRC_DOCKER, true},
	{"oci-archive:", SRC_OCI_ARCHIVE, true},
	{"oci:", SRC_OCI_DIR, true},
	{"tar:", SRC_TAR, false},
	{"dir:", SRC_DIR, false},
	{"inbox:", SRC_INBOX, false},
};

/* A source: what it is and where. */
struct from {
	enum source_type type;
	char *path; /* owned */
	char *ref;  /* in path; or NULL */
	int fd;
};

/* The longest beginning that is there, up to a ':', is the path. */
static void split_ref(struct from *f)
{
	struct stat st;

	if (stat(f->path, &st) == 0)
		return;
	for (size_t i = strlen(f->path); i-- > 1;) {
		if (f->path[i] != ':')
			continue;
		f->path[i] = '\0';
		if (stat(f->path, &st) == 0) {
			f->ref = f->path + i + 1;
			return;
		}
		f->path[i] = ':';
	}
}

static int not_there(const struct from *f, const char *source, struct err *e)
{
	int errnum = errno;

	if (errnum != ENOENT && errnum != ENOTDIR)
		return err_sys(e, errnum, "'%s'", f->path);
	return err_set(e, -ENOENT, "not_found",
		       f->type == SRC_PATH
			       ? "no such file: '%s' (for an image of a "
				 "registry: dsec-img pull)"
			       : "no such file: '%s'",
		       f->type == SRC_PATH ? source : f->path);
}

static int open_from(struct from *f, const char *source, struct err *e)
{
	bool has_ref = false;
	size_t skip = 0;

	*f = (struct from){.type = SRC_PATH, .fd = -1};
	for (size_t i = 0; i < array_len(types); i++) {
		size_t n = strlen(types[i].prefix);

		if (strncmp(source, types[i].prefix, n))
			continue;
		f->type = types[i].type;
		has_ref = types[i].has_ref;
		skip = n;
		break;
	}
	f->path = strdup(source + skip);
	if (!f->path)
		return err_sys(e, ENOMEM, "source");
	if (f->type == SRC_INBOX)
		return 0;
	if (has_ref)
		split_ref(f);
	f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
	return f->fd < 0 ? not_there(f, source, e) : 0;
}

static void from_done(struct from *f)
{
	free(f->path);
	if (f->fd >= 0)
		fd_close(f->fd);
}

/* What a bare path leads to. */
static void guess(struct from *f, const struct stat *st)
{
	if (S_ISDIR(st->st_mode)) {
		f->type = faccessat(f->fd, "oci-layout", F_OK, 0) == 0 &&
					  faccessat(f->fd, "index.json", F_OK,
						    0) == 0
				  ? SRC_OCI_DIR
				  : SRC_DIR;
		return;
	}
	switch (oci_guess(f->fd)) {
	case OCI_DOCKER:
		f->type = SRC_DOCKER;
		break;
	case OCI_LAYOUT:
		f->type = SRC_OCI_ARCHIVE;
		break;
	default:
		f->type = SRC_TAR;
	}
}

static int check_kind(struct from *f, struct err *e)
{
	struct stat st;
	bool dir;

	if (fstat(f->fd, &st) < 0)
		return err_sys(e, errno, "'%s'", f->path);
	if (f->type == SRC_PATH)
		guess(f, &st);
	dir = f->type == SRC_DIR || f->type == SRC_OCI_DIR;
	if (dir && !S_ISDIR(st.st_mode))
		return err_set(e, -ENOTDIR, "not_directory",
			       "'%s' is no directory", f->path);
	if (!dir && S_ISDIR(st.st_mode))
		return err_set(e, -EISDIR, "is_directory",
			       "'%s' is a directory", f->path);
	return 0;
}

static int on_unpack(void *arg, uint64_t taken, struct err *e)
{
	return img_progress(arg, taken, 0, "unpack the archive", e);
}

static int from_image(struct import_req *q, struct from *f, json_t *answer,
		      struct err *e)
{
	static const char *const names[] = {
		[SRC_DOCKER] = "docker-archive",
		[SRC_OCI_ARCHIVE] = "oci",
		[SRC_OCI_DIR] = "oci",
	};
	struct oci_files *files = NULL;
	int r;

	r = f->type == SRC_OCI_DIR
		    ? oci_files_dir(f->fd, &files, e)
		    : oci_files_archive(f->fd, q->m.tmpfd, on_unpack, q->c,
					&files, e);
	if (r == 0)
		r = import_req_image(q, files, f->ref, names[f->type], NULL,
				     answer, e);
	oci_files_free(files);
	return r;
}

/* Named as a tree, which it can be, but hardly is. */
static int warn_of_image(const struct from *f, json_t *answer, struct err *e)
{
	const char *text = NULL;

	switch (oci_guess(f->fd)) {
	case OCI_DOCKER:
		text = "this looks like an image as docker saves it, imported "
		       "as a file tree: docker-archive:FILE imports the image";
		break;
	case OCI_LAYOUT:
		text = "this looks like an OCI image, imported as a file tree: "
		       "oci-archive:FILE imports the image";
		break;
	default:
		return 0;
	}
	if (json_object_set_new(answer, "warning", json_string(text)) < 0)
		return err_sys(e, ENOMEM, "import");
	return 0;
}

static int from_tar(struct import_req *q, struct from *f, json_t *answer,
		    struct err *e)
{
	unsigned flags = json_flag(q->req, "oci_whiteouts") ? IMPORT_OCI : 0;
	auto_source struct source *s = NULL;
	struct digest digest;
	int r;

	r = import_req_source(q, "tar", NULL, NULL, e);
	if (r == 0)
		r = warn_of_image(f, answer, e);
	if (r == 0)
		r = source_open(f->fd, 0, UINT64_MAX, 0, &s, e);
	if (r == 0)
		r = importing_tar(&q->m, s, flags, &q->layer, &digest, e);
	return r < 0 ? r : import_req_end(q, &digest, answer, e);
}

static int from_dir(struct import_req *q, struct from *f, json_t *answer,
		    struct err *e)
{
	struct digest digest;
	int r;

	r = import_req_source(q, "dir", NULL, NULL, e);
	if (r == 0)
		r = importing_dir(&q->m, f->fd, &q->layer, &digest, e);
	return r < 0 ? r : import_req_end(q, &digest, answer, e);
}

static int from_any(struct import_req *q, struct from *f, json_t *answer,
		    struct err *e)
{
	int r;

	if (f->type == SRC_INBOX)
		return import_inbox(q, f->path, answer, e);
	r = check_kind(f, e);
	if (r < 0)
		return r;
	switch (f->type) {
	case SRC_TAR:
		r = from_tar(q, f, answer, e);
		break;
	case SRC_DIR:
		r = from_dir(q, f, answer, e);
		break;
	default:
		r = from_image(q, f, answer, e);
	}
	/* One line: which archive, which entry, what. */
	return r == -EBADMSG ? err_wrap(e, r, "'%s'", f->path) : r;
}

int op_import(struct img_ctx *c, const json_t *req, json_t *answer,
	      struct err *e)
{
	struct import_req q;
	struct from f;
	int r;

	r = open_from(&f, json_str(req, "source"), e);
	if (r == 0) {
		r = import_req_start(&q, c, req, e);
		if (r == 0)
			r = from_any(&q, &f, answer, e);
		import_req_done(&q);
	}
	from_done(&f);
	return r;
}
