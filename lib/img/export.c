/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "img/export.h"

#define WHITEOUT ".wh."
#define OPAQUE	 ".wh..wh..opq"

struct exporting {
	const struct export_tar *x;
	struct tar_writer *w;
	char **first; /* names of files with several; a node's mark, from 1 */
	size_t nfirst, cap;
	struct buf path, runs;
	char *data; /* FS_CHUNK bytes */
};

static void exporting_done(struct exporting *k)
{
	for (size_t i = 0; i < k->nfirst; i++)
		free(k->first[i]);
	free(k->first);
	free(k->data);
	buf_done(&k->path);
	buf_done(&k->runs);
}

static int no_memory(struct err *e)
{
	return err_sys(e, ENOMEM, "export");
}

static const char *base_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int unmark(void *arg, const char *path, struct fsnode *n, struct err *e)
{
	(void)arg;
	(void)path;
	(void)e;
	n->mark = 0;
	return 0;
}

/* --- files with several names -------------------------------------------- */

static int remember(struct exporting *k, const char *path, struct fsnode *n)
{
	if (k->nfirst == k->cap) {
		size_t cap = k->cap ? k->cap * 2 : 64;
		char **p = realloc(k->first, cap * sizeof(*p));

		if (!p)
			return -ENOMEM;
		k->first = p;
		k->cap = cap;
	}
	k->first[k->nfirst] = strdup(path);
	if (!k->first[k->nfirst])
		return -ENOMEM;
	n->mark = ++k->nfirst;
	return 0;
}

/* --- data ---------------------------------------------------------------- */

/* Runs of chunks that are there.  A map that grows too long takes the rest of
 * the file as one run: zeros can be written as well. */
static int find_runs(struct exporting *k, const struct fsnode *n)
{
	struct tar_run run = {0, 0};

	k->runs.len = 0;
	for (size_t i = 0; i < n->nchunks; i++) {
		uint64_t off = (uint64_t)i << FS_CHUNK_BITS;
		uint64_t len = n->size - off;

		if (len > FS_CHUNK)
			len = FS_CHUNK;
		if (k->runs.len / sizeof(run) == TAR_RUNS_MAX - 1 && !run.len) {
			run = (struct tar_run){off, n->size - off};
			break;
		}
		if (n->chunks[i].block != FS_HOLE) {
			if (!run.len)
				run.off = off;
			run.len += len;
		} else if (run.len) {
			if (buf_add(&k->runs, &run, sizeof(run)) < 0)
				return -ENOMEM;
			run.len = 0;
		}
	}
	return run.len ? buf_add(&k->runs, &run, sizeof(run)) : 0;
}

static uint64_t holes(const struct fsnode *n)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < n->nchunks; i++)
		if (n->chunks[i].block == FS_HOLE)
			sum += FS_CHUNK;
	return sum;
}

static int step(const struct exporting *k, struct err *e)
{
	return k->x->step ? k->x->step(k->x->arg, e) : 0;
}

static int copy_run(struct exporting *k, const char *path,
		    const struct fsnode *n, struct tar_run run, struct err *e)
{
	int r = 0;

	while (run.len > 0 && r == 0) {
		size_t want = run.len < FS_CHUNK ? (size_t)run.len : FS_CHUNK;
		ssize_t got = blob_reader_read(k->x->reader, n, run.off,
					       k->data, want, e);

		if (got < 0)
			return err_wrap(e, (int)got, "'%.200s'", path);
		if ((size_t)got != want)
			return err_set(e, -EBADMSG, "image_damaged",
				       "'%.200s' ends too early", path);
		r = tar_write_data(k->w, k->data, want, e);
		if (r == 0)
			r = step(k, e);
		run.off += want;
		run.len -= want;
	}
	return r;
}

static int put_file(struct exporting *k, const char *path,
		    const struct fsnode *n, struct tar_entry *en, struct err *e)
{
	const struct tar_run *run;
	int r;

	en->type = TAR_FILE;
	en->size = n->size;
	if (holes(n) < k->x->sparse_from) {
		r = tar_write_entry(k->w, en, e);
		return r < 0 ? r
			     : copy_run(k, path, n,
					(struct tar_run){0, n->size}, e);
	}
	if (find_runs(k, n) < 0)
		return no_memory(e);
	run = (const void *)k->runs.data;
	en->nruns = k->runs.len / sizeof(*run);
	en->runs = run;
	en->sparse = n->size > 0 &&
		     !(en->nruns == 1 && run->off == 0 && run->len == n->size);
	r = tar_write_entry(k->w, en, e);
	for (size_t i = 0; i < en->nruns && r == 0; i++)
		r = copy_run(k, path, n, en->runs[i], e);
	return r;
}

/* --- entries ------------------------------------------------------------- */

/* An empty file that says something about its directory. */
static int put_marker(struct exporting *k, const char *path, const char *dir,
		      const char *prefix, struct err *e)
{
	size_t dir_len = dir ? (size_t)(dir - path) : strlen(path);
	struct tar_entry en = {.type = TAR_FILE, .link = "", .mode = 0644};

	k->path.len = 0;
	if (buf_add(&k->path, path, dir_len) < 0 ||
	    (!dir && dir_len && buf_add(&k->path, "/", 1) < 0) ||
	    buf_add(&k->path, prefix, strlen(prefix)) < 0 ||
	    (dir && buf_add(&k->path, dir, strlen(dir)) < 0))
		return no_memory(e);
	en.path = k->path.data;
	return tar_write_entry(k->w, &en, e);
}

static int add_xattrs(const char *path, const struct fsnode *n,
		      struct tar_entry *en, struct err *e)
{
	for (size_t i = 0; i < n->nxattrs; i++) {
		const struct fsxattr *x = &n->xattrs[i];

		if (!strcmp(x->name, FS_OPAQUE))
			continue;
		if (en->nxattrs == TAR_XATTRS_MAX)
			return err_set(e, -EOPNOTSUPP, "unsupported",
				       "'%.200s' has over %d attributes, which "
				       "an archive of ours cannot hold",
				       path, TAR_XATTRS_MAX);
		en->xattrs[en->nxattrs++] = (struct tar_xattr){x->name,
							       x->value,
							       x->len};
	}
	return 0;
}

static int put_dir(struct exporting *k, const char *path,
		   const struct fsnode *n, struct tar_entry *en, struct err *e)
{
	int r = 0;

	en->type = TAR_DIR;
	/* One that nobody gave attributes keeps those of what is below. */
	if (!n->implied || k->x->form == EXPORT_ROOT) {
		k->path.len = 0;
		if (buf_add(&k->path, *path ? path : ".",
			    strlen(path) + !*path) < 0 ||
		    buf_add(&k->path, "/", 1) < 0)
			return no_memory(e);
		en->path = k->path.data;
		r = tar_write_entry(k->w, en, e);
	}
	if (r == 0 && k->x->form == EXPORT_OCI && fsnode_is_opaque(n))
		r = put_marker(k, path, NULL, OPAQUE, e);
	return r;
}

static int put_typed(struct exporting *k, const char *path,
		     const struct fsnode *n, struct tar_entry *en,
		     struct err *e)
{
	switch (n->mode & S_IFMT) {
	case S_IFREG:
		return put_file(k, path, n, en, e);
	case S_IFDIR:
		return put_dir(k, path, n, en, e);
	case S_IFLNK:
		en->type = TAR_SYMLINK;
		en->link = n->link;
		break;
	case S_IFIFO:
		en->type = TAR_FIFO;
		break;
	case S_IFCHR:
	case S_IFBLK:
		en->type = S_ISCHR(n->mode) ? TAR_CHAR : TAR_BLOCK;
		en->rdev = n->rdev;
		break;
	default:
		if (k->x->left_out)
			k->x->left_out(k->x->arg, path);
		return 0;
	}
	return tar_write_entry(k->w, en, e);
}

static int put_link(struct exporting *k, const struct fsnode *n,
		    struct tar_entry *en, struct err *e)
{
	en->type = TAR_HARDLINK;
	en->link = k->first[n->mark - 1];
	return tar_write_entry(k->w, en, e);
}

static int put(void *arg, const char *path, struct fsnode *n, struct err *e)
{
	struct exporting *k = arg;
	struct tar_entry en = {
		.path = path,
		.link = "",
		.mode = n->mode & 07777,
		.uid = n->uid,
		.gid = n->gid,
		.mtime = n->mtime,
	};
	const char *base = base_of(path);
	int r;

	if (fsnode_is_whiteout(n))
		return k->x->form == EXPORT_ROOT
			       ? 0
			       : put_marker(k, path, base, WHITEOUT, e);
	if (k->x->form == EXPORT_OCI && !strncmp(base, WHITEOUT, 4))
		return err_set(e, -EOPNOTSUPP, "unsupported",
			       "'%.200s' would be a whiteout in a layer of an "
			       "archive",
			       path);
	r = step(k, e);
	if (r < 0)
		return r;
	if (n->mark)
		return put_link(k, n, &en, e);
	r = add_xattrs(path, n, &en, e);
	if (r < 0)
		return r;
	if (n->nlink > 1 && !S_ISDIR(n->mode) && !S_ISSOCK(n->mode) &&
	    remember(k, path, n) < 0)
		return no_memory(e);
	return put_typed(k, path, n, &en, e);
}

int export_tar(const struct export_tar *x, struct tar_writer *w, struct err *e)
{
	struct exporting k = {.x = x, .w = w};
	int r;

	k.data = malloc(FS_CHUNK);
	if (!k.data)
		return no_memory(e);
	r = fstree_walk(x->tree, unmark, NULL, e);
	if (r == 0)
		r = fstree_walk(x->tree, put, &k, e);
	if (r == 0)
		r = tar_write_end(w, e);
	exporting_done(&k);
	return r;
}
