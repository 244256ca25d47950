/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_STORE_PRIV_H
#define IMG_STORE_PRIV_H

#include "img/store.h"

/* What is named by a digest. */
enum store_kind {
	STORE_MANIFEST,
	STORE_META,
	STORE_DATA,
	STORE_IDX,
	STORE_SOURCE,
};

#define STORE_REL_MAX 128 /* bytes of a path of the kinds above */
#define STORE_PRUNE   "tmp/prune"
#define STORE_SMALL   (64 * 1024) /* bytes of tags, leases, sources */
#define STORE_TAG_REL (IMG_NAME_MAX + 16)

/* store_dir_of(kind): "meta/sha256"; store_ext_of(kind): ".erofs". */
const char *store_dir_of(enum store_kind kind);
const char *store_ext_of(enum store_kind kind);

/* store_rel(kind, d, rel): "meta/sha256/ab/<hex>.erofs" into
 * rel[STORE_REL_MAX]; returns ${rel}.  store_pruned_rel(): its place while it
 * is pruned. */
char *store_rel(enum store_kind kind, const struct digest *d, char *rel);
char *store_pruned_rel(enum store_kind kind, const struct digest *d, char *rel);

/* store_tag_rel(name, rel): into rel[STORE_TAG_REL]. */
char *store_tag_rel(const struct img_name *name, char *rel);

/*
 * store_at(s, rel, flags): openat() that leaves the store by no "..", no link,
 * and waits for nobody; without O_PATH and O_DIRECTORY, a file or -EBADMSG.
 * The fd or -errno.
 */
int store_at(const struct store *s, const char *rel, int flags);

/* store_read(s, rel, max, ret, e): a JSON file; -ENOENT where there is none,
 * "image_damaged" where it is not JSON. */
int store_read(const struct store *s, const char *rel, size_t max, json_t **ret,
	       struct err *e);

/* store_open_kind(s, kind, d, e): for reading; where it is, or is pruned. */
int store_open_kind(const struct store *s, enum store_kind kind,
		    const struct digest *d, struct err *e);

/* store_file_digest(name, ext, ret): "<hex><ext>"; 0 or -EINVAL. */
int store_file_digest(const char *name, const char *ext, struct digest *ret);

/* store_must_build(s, e): 0, or why we may not. */
int store_must_build(const struct store *s, struct err *e);

/* store_mkdirs(s, rel, mode, e): the directories of ${rel}, durable. */
int store_mkdirs(const struct store *s, const char *rel, mode_t mode,
		 struct err *e);

/* store_sync_dir(fd, e): where the file system has it. */
int store_sync_dir(int fd, struct err *e);

/* store_file(dirfd, name, data, len, e): a new file, 0644, synced. */
int store_file(int dirfd, const char *name, const void *data, size_t len,
	       struct err *e);

/* store_replace(s, rel, obj, e): ${rel} becomes that JSON, atomic, durable. */
int store_replace(const struct store *s, const char *rel, const json_t *obj,
		  struct err *e);

/*
 * store_publish(s, tmpfd, name, kind, d, e): the finished, synced file ${name}
 * gets its place.  The same that is there stays, another, which is damaged, is
 * replaced; of data (STORE_DATA) the length alone is looked at.
 */
int store_publish(const struct store *s, int tmpfd, const char *name,
		  enum store_kind kind, const struct digest *d, struct err *e);

/*
 * store_want(s, kind, d, e): it is in its place, or is put back there from
 * tmp/prune; a manifest only after all it names, and not without.  -ENOENT,
 * "image_unknown".  To rely on it, hold it first.
 */
int store_want(const struct store *s, enum store_kind kind,
	       const struct digest *d, struct err *e);

/* store_hold_only(tmpfd, d, e): store_hold() for what is looked for, or made,
 * right after. */
int store_hold_only(int tmpfd, const struct digest *d, struct err *e);

/* store_rescue(s, d): put back what a prune has in hand of ${d}, be it of a
 * manifest, metadata or a blob, as far as it is there. */
void store_rescue(const struct store *s, const struct digest *d);

/* store_put_back(s, kind, d): from tmp/prune.  0 or -errno. */
int store_put_back(const struct store *s, enum store_kind kind,
		   const struct digest *d);

/* store_files(s, dir, depth_max, fn, arg, e): each file below ${dir}, at most
 * so deep, with its path from there, which ${fn} may change. */
typedef int store_file_fn(void *arg, char *path, struct err *e);
int store_files(const struct store *s, const char *dir, unsigned depth_max,
		store_file_fn *fn, void *arg, struct err *e);

/* store_objects(s, kind, fn, arg, e): each of a kind. */
int store_objects(const struct store *s, enum store_kind kind,
		  store_digest_fn *fn, void *arg, struct err *e);

/* store_tree_bytes(t, ret, e): bytes of its files (sets fsnode.mark). */
int store_tree_bytes(struct fstree *t, uint64_t *ret, struct err *e);

/*
 * store_tmp_name(name, e): one of our own for tmp/, into name[STORE_TMP_NAME].
 * store_orphan(name): whoever made that name is certainly dead.
 */
int store_tmp_name(char *name, struct err *e);
bool store_orphan(const char *name);

/* --- marks (store_mark.c) ------------------------------------------------ */

/* A set of digests, in the order they came. */
struct digest_set {
	struct digest *v;
	uint32_t *slots;
	size_t n, cap, nslots;
};
void set_done(struct digest_set *set);
bool set_has(const struct digest_set *set, const struct digest *d);
int set_add(struct digest_set *set, const struct digest *d, struct err *e);

/*
 * store_mark(s, opt, set, e): all that must stay.  store_mark_below(s, set,
 * first, e): also what the members from ${first} on name; a manifest that
 * cannot be read names nothing here.
 */
int store_mark_below(const struct store *s, struct digest_set *set,
		     size_t first, struct err *e);
int store_mark(const struct store *s, const struct prune_opt *opt,
	       struct digest_set *set, struct err *e);

#endif
