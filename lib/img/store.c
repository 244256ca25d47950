/* SPDX-License-Identifier: Apache-2.0 */
/* A store, opened and read.  This file needs no libcrypto. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "img/store_priv.h"

static const struct {
	const char *dir, *ext;
} places[] = {
	[STORE_MANIFEST] = {"manifest/sha256", ".json"},
	[STORE_META] = {"meta/sha256", ".erofs"},
	[STORE_DATA] = {"blob/sha256", ".data"},
	[STORE_IDX] = {"blob/sha256", ".idx"},
	[STORE_SOURCE] = {"source/sha256", ".json"},
};

const char *store_dir_of(enum store_kind kind)
{
	return places[kind].dir;
}

const char *store_ext_of(enum store_kind kind)
{
	return places[kind].ext;
}

char *store_rel(enum store_kind kind, const struct digest *d, char *rel)
{
	char hex[DIGEST_HEX + 1];

	digest_hex(d, hex);
	snprintf(rel, STORE_REL_MAX, "%s/%.2s/%s%s", places[kind].dir, hex, hex,
		 places[kind].ext);
	return rel;
}

char *store_pruned_rel(enum store_kind kind, const struct digest *d, char *rel)
{
	char hex[DIGEST_HEX + 1];

	snprintf(rel, STORE_REL_MAX, STORE_PRUNE "/%s%s", digest_hex(d, hex),
		 places[kind].ext);
	return rel;
}

char *store_tag_rel(const struct img_name *name, char *rel)
{
	int len = snprintf(rel, STORE_TAG_REL, "tag/%s/%s/%s.json",
			   name->project, name->name, name->version);

	assert(len < STORE_TAG_REL); /* img_name_parse() took no longer one */
	return rel;
}

int store_file_digest(const char *name, const char *ext, struct digest *ret)
{
	char hex[DIGEST_HEX + 1];

	if (strlen(name) != DIGEST_HEX + strlen(ext) ||
	    strcmp(name + DIGEST_HEX, ext) != 0)
		return -EINVAL;
	memcpy(hex, name, DIGEST_HEX);
	hex[DIGEST_HEX] = '\0';
	return digest_parse(hex, ret);
}

int store_at(const struct store *s, const char *rel, int flags)
{
	uint64_t how = (unsigned)flags;
	bool file = !(flags & (O_PATH | O_DIRECTORY));
	struct stat st;
	int fd;

	/* Others may write a store: a pipe would have us wait for them. */
	if (file)
		how |= O_NONBLOCK | O_NOCTTY;
	fd = fd_openat2(s->fd, rel, how,
			RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
				RESOLVE_NO_MAGICLINKS);
	if (fd < 0)
		return fd;
	if (!file || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
		return fd;
	fd_close(fd);
	return -EBADMSG;
}

/* Why store_at() did not open ${rel}. */
static int not_opened(int r, const char *rel, struct err *e)
{
	if (r != -EBADMSG && r != -ELOOP)
		return err_sys(e, -r, "open '%s'", rel);
	return err_set(e, -EBADMSG, "image_damaged",
		       "'%s' of the store is no file", rel);
}

static int read_json(int fd, const char *rel, size_t max, json_t **ret,
		     struct err *e)
{
	auto_free char *text = NULL;
	size_t len;
	int r;

	r = fd_read_all(fd, max, &text, &len, e);
	if (r == 0)
		r = json_parse(text, len, ret, e);
	if (r == -EBADMSG || r == -EFBIG) {
		err_wrap(e, r, "'%s'", rel);
		if (e)
			e->code = "image_damaged";
		return -EBADMSG;
	}
	return r < 0 ? err_wrap(e, r, "'%s'", rel) : 0;
}

int store_read(const struct store *s, const char *rel, size_t max, json_t **ret,
	       struct err *e)
{
	auto_close int fd = -1;

	fd = store_at(s, rel, O_RDONLY);
	if (fd < 0)
		return not_opened(fd, rel, e);
	return read_json(fd, rel, max, ret, e);
}

/* --- opening ------------------------------------------------------------- */

void store_close(struct store *s)
{
	if (s->fd >= 0)
		fd_close(s->fd);
	*s = STORE_INIT;
}

static int check_head(struct store *s, const char *path, struct err *e)
{
	auto_json json_t *head = NULL;
	auto_close int fd = -1;
	struct stat st;
	int64_t v;
	int r;

	fd = store_at(s, "store.json", O_RDONLY);
	if (fd == -ENOENT)
		return err_set(e, -ENOENT, "image_unknown",
			       "'%s' is no store of images", path);
	r = fd < 0 ? not_opened(fd, "store.json", e)
		   : read_json(fd, "store.json", STORE_SMALL, &head, e);
	if (r < 0)
		return err_wrap(e, r, "store '%s'", path);
	v = json_int(head, "v", -1);
	if (v != 1)
		return err_set(e, -EPROTO, "unsupported",
			       "store '%s' is of version %lld: this program "
			       "knows 1",
			       path, (long long)v);
	if (fstat(fd, &st) < 0)
		return err_sys(e, errno, "store '%s'", path);
	/* Ours, and yet not to be written: mounted read-only, or root squashed.
	 */
	s->builder = st.st_uid == geteuid() &&
		     faccessat(s->fd, ".", W_OK, AT_EACCESS) == 0;
	return 0;
}

int store_open(const char *path, struct store *ret, struct err *e)
{
	auto_store struct store s = STORE_INIT;
	int r;

	s.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s.fd < 0 && errno == ENOENT)
		return err_set(e, -ENOENT, "image_unknown",
			       "there is no store of images at '%s': the "
			       "first import makes it",
			       path);
	if (s.fd < 0)
		return err_sys(e, errno, "open the store '%s'", path);
	/* told to people, who are elsewhere */
	if (path[0] == '/' && strlen(path) < sizeof(s.path))
		memcpy(s.path, path, strlen(path) + 1);
	else if (!realpath(path, s.path))
		return err_sys(e, errno, "the path of the store '%s'", path);
	r = check_head(&s, path, e);
	if (r < 0)
		return r;
	*ret = s;
	s = STORE_INIT;
	return 0;
}

/* --- objects ------------------------------------------------------------- */

int store_open_kind(const struct store *s, enum store_kind kind,
		    const struct digest *d, struct err *e)
{
	char rel[STORE_REL_MAX], pruned[STORE_REL_MAX];
	int fd;

	store_rel(kind, d, rel);
	store_pruned_rel(kind, d, pruned);
	fd = store_at(s, rel, O_RDONLY);
	/* A prune may have it in hand, or just have put it back. */
	if (fd == -ENOENT)
		fd = store_at(s, pruned, O_RDONLY);
	if (fd == -ENOENT)
		fd = store_at(s, rel, O_RDONLY);
	return fd < 0 ? not_opened(fd, rel, e) : fd;
}

int store_open_blob(void *arg, const struct digest *root, struct err *e)
{
	return store_open_kind(arg, STORE_DATA, root, e);
}

int store_open_idx(const struct store *s, const struct digest *root,
		   struct err *e)
{
	return store_open_kind(s, STORE_IDX, root, e);
}

int store_open_meta(const struct store *s, const struct digest *meta,
		    struct err *e)
{
	return store_open_kind(s, STORE_META, meta, e);
}

static int no_manifest(const struct digest *d, struct err *e)
{
	char hex[DIGEST_HEX + 1];

	return err_set(e, -ENOENT, "image_unknown",
		       "there is no image sha256:%s in the store",
		       digest_hex(d, hex));
}

int store_manifest(const struct store *s, const struct digest *digest,
		   json_t **ret, struct err *e)
{
	char rel[STORE_REL_MAX];
	auto_close int fd = -1;

	fd = store_open_kind(s, STORE_MANIFEST, digest, e);
	if (fd < 0)
		return fd == -ENOENT ? no_manifest(digest, e) : fd;
	return read_json(fd, store_rel(STORE_MANIFEST, digest, rel),
			 MANIFEST_MAX, ret, e);
}

int store_layer(const struct store *s, const struct digest *digest,
		struct layer *ret, struct err *e)
{
	auto_json json_t *obj = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	r = store_manifest(s, digest, &obj, e);
	if (r < 0)
		return r;
	r = layer_parse(obj, ret, e);
	return r < 0 ? err_wrap(e, r, "layer %s", digest_hex(digest, hex)) : 0;
}

/* --- names --------------------------------------------------------------- */

struct likes {
	const struct img_name *name;
	struct buf same, project; /* versions of it; else of its project */
	size_t nsame, nproject;
};

#define LIKES_MAX 8

static int like_add(struct buf *b, size_t *n, const char *s)
{
	if (++*n > LIKES_MAX)
		return 0;
	return buf_addf(b, "%s%s", b->len ? ", " : "",
			*n == LIKES_MAX ? ".." : s);
}

static int like_one(void *arg, const struct img_name *name,
		    const struct digest *digest, int64_t made_ms, struct err *e)
{
	char str[IMG_NAME_MAX + 1];
	struct likes *l = arg;

	(void)digest;
	(void)made_ms;
	(void)e;
	if (strcmp(name->project, l->name->project) != 0)
		return 0;
	img_name_str(name, str);
	if (!strcmp(name->name, l->name->name))
		return like_add(&l->same, &l->nsame, str);
	return like_add(&l->project, &l->nproject, str);
}

static int unknown_name(const struct store *s, const struct img_name *name,
			struct err *e)
{
	struct likes l = {.name = name};
	char str[IMG_NAME_MAX + 1];
	const char *there;

	/* best effort: it is help in an error */
	(void)store_tags(s, like_one, &l, NULL);
	there = l.nsame ? l.same.data : l.nproject ? l.project.data : NULL;
	if (there)
		err_set(e, -ENOENT, "image_unknown",
			"there is no image '%s'; there is %s",
			img_name_str(name, str), there);
	else
		err_set(e, -ENOENT, "image_unknown",
			"there is no image '%s', nor any of project '%s'",
			img_name_str(name, str), name->project);
	buf_done(&l.same);
	buf_done(&l.project);
	return -ENOENT;
}

int store_resolve(const struct store *s, const struct img_name *name,
		  struct digest *ret_digest, struct err *e)
{
	char rel[STORE_TAG_REL];
	auto_json json_t *tag = NULL;
	auto_close int fd = -1;
	int r;

	if (name->by_digest) {
		fd = store_open_kind(s, STORE_MANIFEST, &name->digest, e);
		if (fd == -ENOENT)
			return no_manifest(&name->digest, e);
		if (fd < 0)
			return fd;
		*ret_digest = name->digest;
		return 0;
	}
	r = store_read(s, store_tag_rel(name, rel), STORE_SMALL, &tag, e);
	if (r == -ENOENT || r == -ENOTDIR)
		return unknown_name(s, name, e);
	if (r < 0)
		return r;
	if (digest_parse(json_str(tag, "digest"), ret_digest) < 0)
		return err_set(e, -EBADMSG, "image_damaged",
			       "'%s' holds no digest", rel);
	return 0;
}
