/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking away what nobody needs, while builders build and without a lock.
 *
 * A builder holds a digest before it looks whether that is there.  A prune
 * moves what goes to tmp/prune/ first and then looks once more what is held:
 * whoever found it there before the move held it before, is seen, and it is put
 * back; whoever looks after the move does not find it, and makes it, or puts it
 * back.  So nothing that anybody relies on is unlinked.
 *
 * A manifest in its place has all it names: that is there when it comes, does
 * not go before it, and is put back if the manifest is found in its place
 * after the move.
 */
#include <dirent.h>
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

#define LIST_MAX (256UL * 1024 * 1024) /* bytes of prune.json */
#define STALE_MS (10 * 60 * 1000)      /* nothing heard of a prune so long */
#define DAY_MS	 (24LL * 60 * 60 * 1000)

struct object {
	enum store_kind kind;
	struct digest digest;
	int64_t first_ms; /* when it was first a candidate */
	uint64_t bytes;
	bool doomed, moved;
};

struct prune {
	const struct store *s;
	const struct prune_opt *opt;
	struct prune_result *ret;
	struct digest_set marks;
	struct digest_set kept; /* by manifests that are candidates still */
	struct object *v;
	size_t n, cap;
	enum store_kind kind; /* being listed */
	json_t *before;	      /* the candidates of the last mark */
	int fd;		      /* tmp/prune */
	int64_t now_ms;	      /* by the clock that gives files their times */
};

static void prune_done(struct prune *p)
{
	set_done(&p->marks);
	set_done(&p->kept);
	free(p->v);
	json_decref(p->before);
	if (p->fd >= 0)
		fd_close(p->fd);
}

static int64_t mtime_ms(const struct stat *st)
{
	return (int64_t)st->st_mtim.tv_sec * 1000 +
	       st->st_mtim.tv_nsec / 1000000;
}

/* Freeing space must not fail for want of it. */
static bool full(int r)
{
	return r == -ENOSPC || r == -EDQUOT;
}

#define BY     "by."
#define BY_MAX (sizeof(BY) + STORE_TMP_NAME)

static char *by_name(const char *tmp_name, char *by)
{
	snprintf(by, BY_MAX, BY "%s", tmp_name);
	return by;
}

/* The file in tmp/prune that tells whose it is. */
static bool owner(const struct store *s, char *name)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	int fd = store_at(s, STORE_PRUNE, O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		return false;
	d = fdopendir(fd);
	if (!d) {
		fd_close(fd);
		return false;
	}
	while ((de = readdir(d)))
		if (!strncmp(de->d_name, BY, strlen(BY)) &&
		    strlen(de->d_name) < BY_MAX) {
			memcpy(name, de->d_name, strlen(de->d_name) + 1);
			return true;
		}
	return false;
}

/* --- one at a time ------------------------------------------------------- */

/* Everything in tmp/prune goes back, what others need first. */
static int put_all_back(const struct store *s, struct err *e)
{
	static const enum store_kind order[] = {STORE_DATA, STORE_IDX,
						STORE_META, STORE_MANIFEST};

	for (size_t i = 0; i < array_len(order); i++) {
		auto_dir DIR *d = NULL;
		const struct dirent *de;
		struct digest digest;
		int fd, r;

		fd = store_at(s, STORE_PRUNE, O_RDONLY | O_DIRECTORY);
		if (fd < 0)
			return fd == -ENOENT
				       ? 0
				       : err_sys(e, -fd,
						 "open '" STORE_PRUNE "'");
		d = fdopendir(fd);
		if (!d) {
			fd_close(fd);
			return err_sys(e, ENOMEM, "read '" STORE_PRUNE "'");
		}
		while ((de = readdir(d))) {
			if (store_file_digest(de->d_name,
					      store_ext_of(order[i]),
					      &digest) < 0)
				continue;
			r = store_put_back(s, order[i], &digest);
			if (r < 0 && r != -ENOENT)
				return err_sys(e, -r,
					       "put back what a prune took");
		}
	}
	return 0;
}

/* ${by}: the owner's file, or "". */
static int unlock(const struct store *s, const char *by, struct err *e)
{
	char rel[sizeof(STORE_PRUNE) + BY_MAX];
	int r = put_all_back(s, e);

	if (r < 0)
		return r;
	unlinkat(s->fd, STORE_PRUNE "/list", 0);
	snprintf(rel, sizeof(rel), STORE_PRUNE "/%s", by);
	if (by[0] && unlinkat(s->fd, rel, 0) < 0 && errno != ENOENT)
		return err_sys(e, errno, "remove '%s'", rel);
	/* not empty: it is the next one's already */
	if (unlinkat(s->fd, STORE_PRUNE, AT_REMOVEDIR) < 0 && errno != ENOENT &&
	    errno != ENOTEMPTY && errno != EEXIST)
		return err_sys(e, errno, "remove '" STORE_PRUNE "'");
	return 0;
}

/* The one that made tmp/prune will not come back to it.  Its file into ${by}.
 */
static bool stale(const struct store *s, int64_t now_ms, char *by)
{
	struct stat st;

	by[0] = '\0';
	if (fstatat(s->fd, STORE_PRUNE, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return true; /* it just went */
	if (owner(s, by) && store_orphan(by + strlen(BY)))
		return true;
	return now_ms - mtime_ms(&st) > STALE_MS;
}

/* The directory comes into being with its owner in it: 1 it is ours, 0 there is
 * another. */
static int try_lock(struct prune *p, const char *name, struct err *e)
{
	char by[BY_MAX], rel[STORE_TMP_NAME + 8];
	int fd;

	by_name(name, by);
	snprintf(rel, sizeof(rel), "tmp/%s", name);
	fd = openat(p->fd, by, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
		    0644);
	if (fd < 0)
		return err_sys(e, errno, "make '%s'", by);
	fd_close(fd);
	if (renameat(p->s->fd, rel, p->s->fd, STORE_PRUNE) == 0)
		return 1;
	return errno == ENOTEMPTY || errno == EEXIST
		       ? 0
		       : err_sys(e, errno, "make '" STORE_PRUNE "'");
}

static int lock(struct prune *p, const char *name, struct err *e)
{
	char by[BY_MAX];
	int r;

	for (int i = 0; i < 5; i++) {
		r = try_lock(p, name, e);
		if (r != 0)
			return r < 0 ? r : 0;
		if (!stale(p->s, p->now_ms, by))
			break;
		r = unlock(p->s, by, e);
		if (r < 0)
			return r;
	}
	err_set(e, -EBUSY, "busy", "another prune of this store is at work");
	if (e)
		e->retry_after_ms = 5000;
	return -EBUSY;
}

/* A sign of life: see stale(). */
static void beat(const struct prune *p)
{
	(void)futimens(p->fd, NULL);
}

/* --- what goes ----------------------------------------------------------- */

static void read_before(struct prune *p)
{
	auto_free char *text = NULL;
	auto_json json_t *list = NULL;
	auto_close int fd = store_at(p->s, "prune.json", O_RDONLY);
	size_t len;

	/* What cannot be read names nobody: it takes one mark more then. */
	if (fd < 0 || fd_read_all(fd, LIST_MAX, &text, &len, NULL) < 0)
		return;
	list = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	p->before = json_incref(json_object_get(list, "candidates"));
}

static int64_t first_seen(const struct prune *p, const struct digest *d)
{
	char hex[DIGEST_HEX + 1];
	int64_t ms;

	ms = json_int(p->before, digest_hex(d, hex), -1);
	return ms > p->now_ms ? p->now_ms : ms;
}

static int add_object(void *arg, const struct digest *d, struct err *e)
{
	struct object o = {.digest = *d};
	struct prune *p = arg;
	char rel[STORE_REL_MAX];
	struct stat st;

	if (set_has(&p->marks, d))
		return 0;
	o.kind = p->kind;
	if (fstatat(p->s->fd, store_rel(o.kind, d, rel), &st,
		    AT_SYMLINK_NOFOLLOW) == 0)
		o.bytes = (uint64_t)st.st_size;
	o.first_ms = first_seen(p, d);
	o.doomed = o.first_ms >= 0 && !set_has(&p->kept, d) &&
		   p->now_ms - o.first_ms >= (int64_t)p->opt->grace_s * 1000;
	if (o.first_ms < 0)
		o.first_ms = p->now_ms;
	if (p->n == p->cap) {
		size_t cap = p->cap ? 2 * p->cap : 64;
		struct object *v = reallocarray(p->v, cap, sizeof(*v));

		if (!v)
			return err_sys(e, ENOMEM, "prune");
		p->v = v;
		p->cap = cap;
	}
	p->v[p->n++] = o;
	return 0;
}

/* A manifest that stays, if only for another time, needs what it names. */
static int keep_named(struct prune *p, struct err *e)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < p->n; i++)
		if (!p->v[i].doomed)
			r = set_add(&p->kept, &p->v[i].digest, e);
	return r < 0 ? r : store_mark_below(p->s, &p->kept, 0, e);
}

/* In the order they go: what names others first. */
static int list_objects(struct prune *p, struct err *e)
{
	static const enum store_kind order[] = {STORE_MANIFEST, STORE_META,
						STORE_IDX, STORE_DATA};
	int r = 0;

	for (size_t i = 0; r == 0 && i < array_len(order); i++) {
		p->kind = order[i];
		r = store_objects(p->s, p->kind, add_object, p, e);
		if (r == 0 && p->kind == STORE_MANIFEST)
			r = keep_named(p, e);
	}
	for (size_t i = 0; i < p->n; i++)
		p->ret->candidates += !p->v[i].doomed;
	return r;
}

/* prune.json: those that stay for another time. */
static int write_list(struct prune *p, struct err *e)
{
	auto_json json_t *list = NULL;
	json_t *all;
	auto_free char *text = NULL;
	char hex[DIGEST_HEX + 1];
	int r;

	r = json_pack_or(&list, e, "{s:i,s:{}}", "v", 1, "candidates");
	if (r < 0)
		return r;
	all = json_object_get(list, "candidates");
	for (size_t i = 0; i < p->n; i++)
		if (!p->v[i].doomed &&
		    json_object_set_new(all, digest_hex(&p->v[i].digest, hex),
					json_integer(p->v[i].first_ms)) < 0)
			return err_sys(e, ENOMEM, "prune");
	text = json_dumps(list, JSON_COMPACT | JSON_SORT_KEYS);
	if (!text)
		return err_sys(e, ENOMEM, "prune");
	/* in the directory that only we have, under no name of a digest */
	r = store_file(p->fd, "list", text, strlen(text), e);
	if (r < 0)
		return r;
	if (renameat(p->fd, "list", p->s->fd, "prune.json") < 0)
		return err_sys(e, errno, "write 'prune.json'");
	return store_sync_dir(p->s->fd, e);
}

/* --- the way out --------------------------------------------------------- */

static void pruned_name(const struct object *o, char *name)
{
	char hex[DIGEST_HEX + 1];

	snprintf(name, STORE_REL_MAX, "%s%s", digest_hex(&o->digest, hex),
		 store_ext_of(o->kind));
}

static int move_away(struct prune *p, struct err *e)
{
	char rel[STORE_REL_MAX], name[STORE_REL_MAX];
	bool synced = false;
	int r;

	for (size_t i = 0; i < p->n; i++) {
		struct object *o = &p->v[i];

		if (!o->doomed)
			continue;
		/* no manifest may come back without what it names */
		if (o->kind != STORE_MANIFEST && !synced) {
			r = store_sync_dir(p->fd, e);
			if (r < 0)
				return r;
			synced = true;
		}
		pruned_name(o, name);
		if (renameat(p->s->fd, store_rel(o->kind, &o->digest, rel),
			     p->fd, name) == 0)
			o->moved = true;
		else if (errno != ENOENT)
			return err_sys(e, errno, "take '%s' away", rel);
	}
	return 0;
}

static int mark_present(void *arg, const struct digest *d, struct err *e)
{
	return set_add(arg, d, e);
}

/* Also by every manifest that is in its place, whoever put it there. */
static int mark_again(struct prune *p, struct err *e)
{
	size_t n;
	int r;

	set_done(&p->marks);
	r = store_mark(p->s, p->opt, &p->marks, e);
	n = p->marks.n;
	if (r == 0)
		r = store_manifests(p->s, mark_present, &p->marks, e);
	return r < 0 ? r : store_mark_below(p->s, &p->marks, n, e);
}

/* What was needed after all.  Backwards: what names others last. */
static int rescue(struct prune *p, struct err *e)
{
	int r;

	for (size_t i = p->n; i-- > 0;) {
		struct object *o = &p->v[i];

		if (!o->moved || !set_has(&p->marks, &o->digest))
			continue;
		r = store_put_back(p->s, o->kind, &o->digest);
		if (r < 0 && r != -ENOENT)
			return err_sys(e, -r, "put back what is needed");
		o->moved = false;
	}
	return 0;
}

static void count(struct prune *p, const struct object *o)
{
	static const char *const what[] = {
		[STORE_MANIFEST] = "manifest",
		[STORE_META] = "meta",
		[STORE_DATA] = "blob",
	};

	p->ret->freed_bytes += o->bytes;
	p->ret->manifests += o->kind == STORE_MANIFEST;
	p->ret->metas += o->kind == STORE_META;
	p->ret->blobs += o->kind == STORE_DATA;
	if (o->kind != STORE_IDX && p->opt->gone)
		p->opt->gone(p->opt->arg, what[o->kind], &o->digest, o->bytes);
}

/* By our own descriptor: had another taken us for dead, what is under the name
 * now would be its. */
static int remove_moved(struct prune *p, struct err *e)
{
	char name[STORE_REL_MAX];

	for (size_t i = 0; i < p->n; i++) {
		const struct object *o = &p->v[i];

		if (!o->moved)
			continue;
		pruned_name(o, name);
		if (unlinkat(p->fd, name, 0) == 0)
			count(p, o);
		else if (errno != ENOENT)
			return err_sys(e, errno, "remove '%s'", name);
	}
	return 0;
}

static bool any_doomed(const struct prune *p)
{
	for (size_t i = 0; i < p->n; i++)
		if (p->v[i].doomed)
			return true;
	return false;
}

static int sweep(struct prune *p, struct err *e)
{
	int listed, r;

	/* Before anything moves: what comes back is a candidate anew. */
	listed = write_list(p, e);
	if (!any_doomed(p) || (listed < 0 && !full(listed)))
		return listed;
	r = move_away(p, e);
	if (r == 0)
		r = mark_again(p, e);
	beat(p);
	if (r == 0)
		r = rescue(p, e);
	if (r == 0)
		r = remove_moved(p, e);
	if (r == 0 && listed < 0) /* there is space now */
		r = write_list(p, e);
	return r;
}

/* --- what builders and sources left -------------------------------------- */

static int64_t newest_ms(int dirfd)
{
	auto_dir DIR *d = NULL;
	int64_t newest = 0;
	const struct dirent *de;
	struct stat st;
	int fd;

	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return INT64_MAX;
	d = fdopendir(fd);
	if (!d) {
		fd_close(fd);
		return INT64_MAX;
	}
	while ((de = readdir(d)))
		if (strcmp(de->d_name, "..") != 0 &&
		    fstatat(dirfd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    mtime_ms(&st) > newest)
			newest = mtime_ms(&st);
	return newest;
}

static bool left_behind(const struct prune *p, int tmp, const char *name)
{
	auto_close int fd = -1;
	struct stat st;

	if (fstatat(tmp, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	if (!S_ISDIR(st.st_mode))
		return store_orphan(name) || p->now_ms - mtime_ms(&st) > DAY_MS;
	fd = openat(tmp, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0)
		return false;
	return store_orphan(name) || p->now_ms - newest_ms(fd) > DAY_MS;
}

static int clean_tmp(struct prune *p, struct err *e)
{
	auto_dir DIR *d = NULL;
	const struct dirent *de;
	int fd = store_at(p->s, "tmp", O_RDONLY | O_DIRECTORY);

	if (fd < 0)
		return err_sys(e, -fd, "open 'tmp' of the store");
	d = fdopendir(fd);
	if (!d) {
		fd_close(fd);
		return err_sys(e, ENOMEM, "read 'tmp' of the store");
	}
	/* best effort: another time will do */
	while ((de = readdir(d)))
		if (de->d_name[0] != '.' && strcmp(de->d_name, "prune") != 0 &&
		    left_behind(p, fd, de->d_name))
			(void)fd_remove_tree(fd, de->d_name, NULL);
	return 0;
}

/* Long ago: one that ran out just now may be about to be renewed. */
static int clean_lease(void *arg, const char *holder,
		       const struct digest *digest, int64_t until_ms,
		       const char *why, struct err *e)
{
	const struct prune *p = arg;

	(void)why;
	(void)e;
	if (until_ms > 0 && until_ms + DAY_MS < p->now_ms)
		(void)store_lease_drop(p->s, holder, digest, NULL);
	return 0;
}

static int clean_source(void *arg, const struct digest *key, struct err *e)
{
	const struct prune *p = arg;
	char rel[STORE_REL_MAX];
	struct digest d;

	(void)e;
	if (store_source_get(p->s, key, &d, NULL) == 0)
		unlinkat(p->s->fd, store_rel(STORE_SOURCE, key, rel), 0);
	return 0;
}

/* --- all of it ----------------------------------------------------------- */

static int look(struct prune *p, struct err *e)
{
	int r = store_mark(p->s, p->opt, &p->marks, e);

	read_before(p);
	return r < 0 ? r : list_objects(p, e);
}

static int dry_run(struct prune *p, struct err *e)
{
	int r = look(p, e);

	for (size_t i = 0; r == 0 && i < p->n; i++)
		if (p->v[i].doomed)
			count(p, &p->v[i]);
	return r;
}

static int work(struct prune *p, struct err *e)
{
	int r;

	/* dead builders first: the list may need the space */
	r = clean_tmp(p, e);
	if (r == 0)
		r = look(p, e);
	beat(p);
	if (r == 0)
		r = sweep(p, e);
	if (r == 0)
		r = store_leases(p->s, clean_lease, p, e);
	if (r == 0)
		r = store_objects(p->s, STORE_SOURCE, clean_source, p, e);
	return r;
}

static int wet_run(struct prune *p, struct err *e)
{
	char name[STORE_TMP_NAME], by[BY_MAX];
	struct stat st;
	int r, r2;

	r = store_tmp(p->s, &p->fd, name, e);
	if (r < 0)
		return r;
	if (fstat(p->fd, &st) == 0)
		p->now_ms = mtime_ms(&st);
	r = lock(p, name, e);
	if (r < 0) {
		store_tmp_done(p->s, &p->fd, name);
		return r;
	}
	r = work(p, e);
	/* after a failure what was moved goes back */
	r2 = unlock(p->s, by_name(name, by), r < 0 ? NULL : e);
	return r < 0 ? r : r2;
}

int store_prune(const struct store *s, const struct prune_opt *opt,
		struct prune_result *ret, struct err *e)
{
	struct prune_result result = {.manifests = 0};
	struct prune p = {.s = s, .opt = opt, .ret = &result, .fd = -1};
	int r;

	p.now_ms = (int64_t)clock_wall_ms();
	r = opt->dry_run ? 0 : store_must_build(s, e);
	if (r == 0)
		r = opt->dry_run ? dry_run(&p, e) : wet_run(&p, e);
	prune_done(&p);
	if (r == 0)
		*ret = result;
	return r;
}
