/* SPDX-License-Identifier: Apache-2.0 */
/* Making a store, tags, leases, sources, and how files get their names.  This
 * file needs no libcrypto. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "img/store_priv.h"

#define COMPARE_SIZE (64 * 1024)

int store_must_build(const struct store *s, struct err *e)
{
	struct stat st;

	if (s->builder)
		return 0;
	if (fstatat(s->fd, "store.json", &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "store '%s'", s->path);
	if (st.st_uid == geteuid())
		return err_set(e, -EPERM, "permission",
			       "the store '%s' is read-only here: write it "
			       "where it is mounted for writing",
			       s->path);
	return err_set(e, -EPERM, "permission",
		       "the store '%s' belongs to uid %u and only that user "
		       "(not uid %u) writes it: leave layers in its 'inbox' "
		       "for it to import",
		       s->path, st.st_uid, geteuid());
}

int store_sync_dir(int fd, struct err *e)
{
	if (fsync(fd) == 0 || errno == EINVAL || errno == EOPNOTSUPP)
		return 0;
	return err_sys(e, errno, "sync a directory of the store");
}

/* One component of a path, in ${dir}. */
static int make_dir(int dir, const char *name, mode_t mode, int *ret_fd,
		    struct err *e)
{
	bool made = mkdirat(dir, name, mode) == 0;

	if (!made && errno != EEXIST)
		return err_sys(e, errno, "make '%s' in the store", name);
	*ret_fd = openat(dir, name,
			 O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (*ret_fd < 0)
		return err_sys(e, errno, "open '%s' of the store", name);
	if (!made)
		return 0;
	if (fchmod(*ret_fd, mode) < 0) /* whatever our umask */
		return err_sys(e, errno, "mode of '%s' in the store", name);
	return store_sync_dir(dir, e);
}

int store_mkdirs(const struct store *s, const char *rel, mode_t mode,
		 struct err *e)
{
	auto_close int dir = -1;
	char name[NAME_MAX + 1];
	int r;

	dir = openat(s->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return err_sys(e, errno, "open the store");
	while (*rel) {
		size_t n = strcspn(rel, "/");
		int sub = -1;

		assert(n > 0 && n < sizeof(name));
		memcpy(name, rel, n);
		name[n] = '\0';
		r = make_dir(dir, name, mode, &sub, e);
		if (r < 0) {
			if (sub >= 0)
				fd_close(sub);
			return r;
		}
		fd_close(dir);
		dir = sub;
		rel += n + (rel[n] == '/');
	}
	return 0;
}

int store_file(int dirfd, const char *name, const void *data, size_t len,
	       struct err *e)
{
	auto_close int fd = -1;
	int r;

	fd = openat(dirfd, name,
		    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
		    0644);
	if (fd < 0)
		return err_sys(e, errno, "make a file of the store");
	r = fd_write_all(fd, data, len, e);
	if (r < 0)
		return r;
	if (fchmod(fd, 0644) < 0 || fsync(fd) < 0)
		return err_sys(e, errno, "sync a file of the store");
	return 0;
}

/* --- making one ---------------------------------------------------------- */

static const char *const dirs[] = {
	"blob/sha256", "meta/sha256", "manifest/sha256", "source/sha256", "tag",
	"lease",       "tmp",
};

/* store.json comes last: with it, all is there. */
static int make_head(const struct store *s, struct err *e)
{
	static const char head[] = "{\"v\":1}\n";
	char name[STORE_TMP_NAME];
	int r;

	r = store_tmp_name(name, e);
	if (r == 0)
		r = store_file(s->fd, name, head, strlen(head), e);
	if (r == 0 && linkat(s->fd, name, s->fd, "store.json", 0) < 0 &&
	    errno != EEXIST)
		r = renameat(s->fd, name, s->fd, "store.json") < 0
			    ? err_sys(e, errno, "make 'store.json'")
			    : 0;
	unlinkat(s->fd, name, 0);
	return r < 0 ? r : store_sync_dir(s->fd, e);
}

/* Not its parents: where a disk that should hold it is not mounted, another
 * would be filled. */
static int make_root(const char *path, struct err *e)
{
	if (mkdir(path, 0755) == 0 || errno == EEXIST)
		return 0;
	if (errno != ENOENT)
		return err_sys(e, errno, "make '%s'", path);
	return err_set(e, -ENOENT, "not_found",
		       "the directory it is to be in is missing: mount or "
		       "make that first");
}

static int make_store(const char *path, struct err *e)
{
	auto_store struct store s = STORE_INIT;
	struct stat st;
	int r;

	r = make_root(path, e);
	if (r < 0)
		return r;
	s.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s.fd < 0)
		return err_sys(e, errno, "open '%s'", path);
	if (fstatat(s.fd, "store.json", &st, AT_SYMLINK_NOFOLLOW) == 0)
		return 0;
	if (fchmod(s.fd, 0755) < 0) /* whatever our umask */
		return err_sys(e, errno, "mode of '%s'", path);
	for (size_t i = 0; i < array_len(dirs); i++) {
		r = store_mkdirs(&s, dirs[i], 0755, e);
		if (r < 0)
			return r;
	}
	/* whoever runs sandboxes leaves there what the builder may take */
	r = store_mkdirs(&s, "inbox", 01777, e);
	return r < 0 ? r : make_head(&s, e);
}

int store_create(const char *path, struct store *ret, struct err *e)
{
	int r = make_store(path, e);

	if (r < 0)
		return err_wrap(e, r, "make the store '%s'", path);
	return store_open(path, ret, e);
}

/* --- names that move ----------------------------------------------------- */

/* The directory of ${rel}, made if need be; its last component. */
static int parent_dir(const struct store *s, const char *rel, int *ret_fd,
		      const char **ret_base, struct err *e)
{
	char dir[PATH_MAX];
	const char *slash = strrchr(rel, '/');
	int fd, r;

	assert(slash && (size_t)(slash - rel) < sizeof(dir));
	memcpy(dir, rel, (size_t)(slash - rel));
	dir[slash - rel] = '\0';
	fd = store_at(s, dir, O_RDONLY | O_DIRECTORY);
	if (fd == -ENOENT) {
		r = store_mkdirs(s, dir, 0755, e);
		if (r < 0)
			return r;
		fd = store_at(s, dir, O_RDONLY | O_DIRECTORY);
	}
	if (fd < 0)
		return err_sys(e, -fd, "open '%s' of the store", dir);
	*ret_fd = fd;
	*ret_base = slash + 1;
	return 0;
}

static int replace_once(const struct store *s, int tmp, const char *name,
			const char *rel, struct err *e)
{
	auto_close int dir = -1;
	const char *base;
	int r;

	r = parent_dir(s, rel, &dir, &base, e);
	if (r < 0)
		return r;
	if (renameat(tmp, name, dir, base) < 0)
		return err_sys(e, errno, "rename to '%s'", rel);
	return store_sync_dir(dir, e);
}

int store_replace(const struct store *s, const char *rel, const json_t *obj,
		  struct err *e)
{
	auto_free char *text = json_dumps(obj, JSON_COMPACT | JSON_SORT_KEYS);
	auto_close int tmp = -1;
	char name[STORE_TMP_NAME];
	int r;

	if (!text)
		return err_sys(e, ENOMEM, "'%s'", rel);
	tmp = store_at(s, "tmp", O_RDONLY | O_DIRECTORY);
	if (tmp < 0)
		return err_sys(e, -tmp, "open 'tmp' of the store");
	r = store_tmp_name(name, e);
	if (r == 0)
		r = store_file(tmp, name, text, strlen(text), e);
	/* Whoever removes the last tag removes the directory as well. */
	for (int i = 0; r == 0 && i < 10; i++) {
		r = replace_once(s, tmp, name, rel, e);
		if (r != -ENOENT)
			break;
		r = i < 9 ? 0 : r;
	}
	if (r < 0)
		unlinkat(tmp, name, 0);
	return r < 0 ? err_wrap(e, r, "write '%s'", rel) : 0;
}

/* --- names that stay ----------------------------------------------------- */

/* A file on its way to its name. */
struct fresh {
	int dir;
	const char *name;
	off_t size;
	bool compare; /* what has that name already, byte by byte */
};

static ssize_t read_full(int fd, char *data, size_t len)
{
	size_t got = 0;

	while (got < len) {
		ssize_t n = read(fd, data + got, len - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

/* 1: both are the same; 0: they differ, or the second cannot be read. */
static int same_bytes(int ours, int theirs)
{
	auto_free char *data = malloc(2 * COMPARE_SIZE);
	ssize_t n;

	if (!data)
		return -ENOMEM;
	do {
		n = read_full(ours, data, COMPARE_SIZE);
		if (n < 0)
			return (int)n;
		if (read_full(theirs, data + COMPARE_SIZE, COMPARE_SIZE) != n ||
		    memcmp(data, data + COMPARE_SIZE, (size_t)n) != 0)
			return 0;
	} while (n > 0);
	return 1;
}

/* 1: ${base} is that file already; 0: another one; or -errno. */
static int there(const struct fresh *f, int dir, const char *base)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	auto_close int ours = -1;
	auto_close int theirs = -1;
	struct stat st;

	if (fstatat(dir, base, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size != f->size)
		return 0;
	if (!f->compare)
		return 1;
	ours = openat(f->dir, f->name, flags);
	if (ours < 0)
		return -errno;
	theirs = openat(dir, base, flags);
	return theirs < 0 ? -errno : same_bytes(ours, theirs);
}

/*
 * A second file of the same name would be the same, but whoever has the first
 * open on another node would lose it: so link(), which never replaces.
 */
static int give_name(const struct fresh *f, int dir, const char *base)
{
	bool exists;
	int r;

	for (int i = 0; i < 10; i++) {
		if (linkat(f->dir, f->name, dir, base, 0) == 0)
			return 0;
		r = -errno;
		if (r == -ENOENT)
			return r;
		/* EEXIST, or a file system that has no links */
		exists = r == -EEXIST;
		r = there(f, dir, base);
		if (r == 1)
			return 0;
		if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
			return r;
		if (r == -ENOENT && exists)
			continue; /* a prune just took it: link again */
		/* damaged, or not there: ours is right */
		return renameat(f->dir, f->name, dir, base) < 0 ? -errno : 0;
	}
	return -EAGAIN;
}

int store_publish(const struct store *s, int tmpfd, const char *name,
		  enum store_kind kind, const struct digest *d, struct err *e)
{
	/* Data is many times all else, and has a check of its own. */
	struct fresh f = {tmpfd, name, .compare = kind != STORE_DATA};
	auto_close int dir = -1;
	char rel[STORE_REL_MAX];
	const char *base;
	struct stat st;
	int r;

	if (fstatat(tmpfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return err_sys(e, errno, "publish '%s'", name);
	f.size = st.st_size;
	r = parent_dir(s, store_rel(kind, d, rel), &dir, &base, e);
	if (r < 0)
		return r;
	r = give_name(&f, dir, base);
	if (r < 0)
		return err_sys(e, -r, "publish '%s'", rel);
	unlinkat(tmpfd, name, 0);
	/* Also where it was there: whoever made it may not have come so far. */
	return store_sync_dir(dir, e);
}

int store_put_back(const struct store *s, enum store_kind kind,
		   const struct digest *d)
{
	char rel[STORE_REL_MAX], pruned[STORE_REL_MAX];
	auto_close int dir = -1;
	struct fresh f;
	const char *base;
	struct stat st;
	int r;

	store_pruned_rel(kind, d, pruned);
	if (fstatat(s->fd, pruned, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	r = parent_dir(s, store_rel(kind, d, rel), &dir, &base, NULL);
	if (r < 0)
		return r;
	/* It may be damaged itself: what is there stays. */
	f = (struct fresh){s->fd, pruned, st.st_size, .compare = false};
	r = give_name(&f, dir, base);
	if (r < 0)
		return r;
	unlinkat(s->fd, pruned, 0);
	return store_sync_dir(dir, NULL);
}

static bool in_place(const struct store *s, enum store_kind kind,
		     const struct digest *d)
{
	char rel[STORE_REL_MAX];
	int fd = store_at(s, store_rel(kind, d, rel), O_PATH);

	if (fd >= 0)
		fd_close(fd);
	return fd >= 0;
}

/* It may just have been put back by another. */
static bool fetch(const struct store *s, enum store_kind kind,
		  const struct digest *d)
{
	return in_place(s, kind, d) || store_put_back(s, kind, d) == 0 ||
	       in_place(s, kind, d);
}

static bool fetch_parts(const struct store *s, const struct layer *l)
{
	bool all = fetch(s, STORE_META, &l->meta);

	for (size_t i = 0; i < l->ndevices; i++)
		all = fetch(s, STORE_DATA, &l->devices[i].root) &&
		      fetch(s, STORE_IDX, &l->devices[i].root) && all;
	return all;
}

static bool fetch_layer(const struct store *s, const struct digest *d)
{
	auto_layer struct layer l = {.kind = LAYER_BASE};

	return in_place(s, STORE_MANIFEST, d) ||
	       (store_layer(s, d, &l, NULL) == 0 && fetch_parts(s, &l) &&
		fetch(s, STORE_MANIFEST, d));
}

/*
 * A prune that has looked for the last time removes what it moved, manifests
 * first.  So what a manifest names comes back before it; where that is gone
 * already, so is the manifest, or it had better be.  One that is in its place
 * has all it names in theirs, or gets it back: see store_prune.c.
 */
static bool fetch_manifest(const struct store *s, const struct digest *d)
{
	auto_env struct env v = {.nlayers = 0};
	auto_json json_t *obj = NULL;

	if (in_place(s, STORE_MANIFEST, d))
		return true;
	if (store_manifest(s, d, &obj, NULL) < 0)
		return in_place(s, STORE_MANIFEST, d);
	if (!manifest_is_env(obj))
		return fetch_layer(s, d);
	if (env_parse(obj, &v, NULL) < 0)
		return false;
	for (size_t i = 0; i < v.nlayers; i++)
		if (!fetch_layer(s, &v.layers[i]))
			return false;
	return fetch(s, STORE_MANIFEST, d);
}

int store_want(const struct store *s, enum store_kind kind,
	       const struct digest *d, struct err *e)
{
	char hex[DIGEST_HEX + 1];

	if (kind == STORE_MANIFEST ? fetch_manifest(s, d) : fetch(s, kind, d))
		return 0;
	return err_set(e, -ENOENT, "image_unknown",
		       "the store has no %s sha256:%s",
		       kind == STORE_MANIFEST ? "image" : "part",
		       digest_hex(d, hex));
}

void store_rescue(const struct store *s, const struct digest *d)
{
	if (fetch_manifest(s, d))
		return;
	(void)store_put_back(s, STORE_META, d);
	(void)store_put_back(s, STORE_DATA, d);
	(void)store_put_back(s, STORE_IDX, d);
}

/* --- tags ---------------------------------------------------------------- */

static int write_tag(const struct store *s, int tmpfd,
		     const struct img_name *name, const struct digest *digest,
		     struct err *e)
{
	auto_json json_t *obj = NULL;
	char rel[STORE_TAG_REL], hex[DIGEST_HEX + 1];
	int r;

	/* Held before we look: a prune that took it by then puts it back. */
	r = store_hold_only(tmpfd, digest, e);
	if (r == 0)
		r = store_want(s, STORE_MANIFEST, digest, e);
	if (r == 0)
		r = json_pack_or(&obj, e, "{s:i,s:s,s:I}", "v", 1, "digest",
				 digest_hex(digest, hex), "made_ms",
				 (json_int_t)clock_wall_ms());
	return r < 0 ? r : store_replace(s, store_tag_rel(name, rel), obj, e);
}

int store_tag(const struct store *s, const struct img_name *name,
	      const struct digest *digest, struct err *e)
{
	char tmp[STORE_TMP_NAME];
	int tmpfd = -1, r;

	if (name->by_digest)
		return err_set(e, -EINVAL, "bad_value",
			       "a digest cannot be a tag");
	r = store_tmp(s, &tmpfd, tmp, e);
	if (r < 0)
		return r;
	r = write_tag(s, tmpfd, name, digest, e);
	store_tmp_done(s, &tmpfd, tmp);
	return r;
}

static int remove_tag(const struct store *s, const struct img_name *name,
		      const char *rel, struct err *e)
{
	char dir[STORE_TAG_REL], str[IMG_NAME_MAX + 1];
	const char *slash = strrchr(rel, '/');
	auto_close int fd = -1;

	snprintf(dir, sizeof(dir), "%.*s", (int)(slash - rel), rel);
	fd = store_at(s, dir, O_RDONLY | O_DIRECTORY);
	if (fd < 0 && fd != -ENOENT && fd != -ENOTDIR)
		return err_sys(e, -fd, "open '%s'", dir);
	if (fd >= 0 && unlinkat(fd, slash + 1, 0) == 0)
		return store_sync_dir(fd, e);
	if (fd >= 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", rel);
	return err_set(e, -ENOENT, "image_unknown", "there is no image '%s'",
		       img_name_str(name, str));
}

int store_untag(const struct store *s, const struct img_name *name,
		struct err *e)
{
	char rel[STORE_TAG_REL];
	int r;

	if (name->by_digest)
		return err_set(e, -EINVAL, "bad_value",
			       "a digest cannot be a tag");
	r = store_must_build(s, e);
	if (r == 0)
		r = remove_tag(s, name, store_tag_rel(name, rel), e);
	if (r < 0)
		return r;
	/* Directories of nothing: as far up as they are empty. */
	for (char *slash; (slash = strrchr(rel, '/')) && slash > rel + 3;) {
		*slash = '\0';
		if (unlinkat(s->fd, rel, AT_REMOVEDIR) < 0)
			break;
	}
	return 0;
}

/* --- leases and sources -------------------------------------------------- */

static bool holder_ok(const char *s)
{
	static const char ok[] = "abcdefghijklmnopqrstuvwxyz"
				 "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t len = strlen(s);

	return len >= 1 && len <= 128 && s[0] != '.' && strspn(s, ok) == len;
}

static int lease_rel(const char *holder, const struct digest *d, char *rel,
		     size_t size, struct err *e)
{
	char hex[DIGEST_HEX + 1];

	if (!holder_ok(holder))
		return err_set(e, -EINVAL, "bad_value",
			       "'%.100s' cannot hold a lease", holder);
	snprintf(rel, size, "lease/%s/%s.json", holder, digest_hex(d, hex));
	return 0;
}

int store_lease(const struct store *s, const char *holder,
		const struct digest *digest, unsigned ttl_s, const char *why,
		struct err *e)
{
	auto_json json_t *obj = NULL;
	uint64_t until = 0;
	char rel[256];
	int r;

	r = lease_rel(holder, digest, rel, sizeof(rel), e);
	if (r == 0)
		r = store_must_build(s, e);
	if (ttl_s > 0)
		until = clock_wall_ms() + (uint64_t)ttl_s * 1000;
	if (r == 0)
		r = json_pack_or(&obj, e, "{s:i,s:I,s:s}", "v", 1, "until_ms",
				 (json_int_t)until, "why", why);
	if (r == 0)
		r = store_replace(s, rel, obj, e);
	if (r == 0)
		store_rescue(s, digest);
	return r;
}

int store_lease_drop(const struct store *s, const char *holder,
		     const struct digest *digest, struct err *e)
{
	char rel[256], *slash;
	int r;

	r = lease_rel(holder, digest, rel, sizeof(rel), e);
	if (r == 0)
		r = store_must_build(s, e);
	if (r < 0)
		return r;
	if (unlinkat(s->fd, rel, 0) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", rel);
	slash = strrchr(rel, '/');
	*slash = '\0';
	(void)unlinkat(s->fd, rel, AT_REMOVEDIR); /* if it was the last */
	return 0;
}

int store_source_get(const struct store *s, const struct digest *key,
		     struct digest *ret, struct err *e)
{
	auto_json json_t *obj = NULL;
	char rel[STORE_REL_MAX];
	auto_close int fd = -1;
	struct digest d;
	int r;

	r = store_read(s, store_rel(STORE_SOURCE, key, rel), STORE_SMALL, &obj,
		       e);
	/* It only saves work: what cannot be read is not known. */
	if (r == -ENOENT || r == -EBADMSG ||
	    (r == 0 && digest_parse(json_str(obj, "digest"), &d) < 0))
		return 0;
	if (r < 0)
		return r;
	fd = store_open_kind(s, STORE_MANIFEST, &d, e);
	if (fd == -ENOENT)
		return 0;
	if (fd < 0)
		return fd;
	*ret = d;
	return 1;
}

int store_source_put(const struct store *s, const struct digest *key,
		     const struct digest *manifest, struct err *e)
{
	char rel[STORE_REL_MAX], hex[DIGEST_HEX + 1];
	auto_json json_t *obj = NULL;
	int r;

	r = store_must_build(s, e);
	if (r == 0)
		r = json_pack_or(&obj, e, "{s:i,s:s}", "v", 1, "digest",
				 digest_hex(manifest, hex));
	return r < 0 ? r
		     : store_replace(s, store_rel(STORE_SOURCE, key, rel), obj,
				     e);
}
