/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "img/import_priv.h"

#define WH	  ".wh."
#define WH_META	  ".wh..wh."
#define WH_OPAQUE ".wh..wh..opq"

struct taking {
	struct import *x;
	struct tar_reader r;
	struct filling f;
	struct buf whiteouts; /* paths, each with its NUL */
	struct buf name;      /* of the last entry, for messages */
	uint64_t offset;
	bool any;
};

/* Is it the entry's fault, or the machine's? */
static bool is_entry(int r)
{
	switch (-r) {
	case EBADMSG:
	case EINVAL:
	case ELOOP:
	case ENOTDIR:
	case EISDIR:
	case ENAMETOOLONG:
	case ENOENT:
	case EEXIST:
	case EPERM:
		return true;
	default:
		return false;
	}
}

/* What went wrong with the entry at hand, or behind it. */
static int told(const struct taking *k, int r, struct err *e)
{
	char name[IMPORT_NAME_SIZE];

	if (r != -ECANCELED && r != -ETIMEDOUT && k->any)
		err_wrap(e, r, "entry '%s' at offset %llu",
			 import_name(k->name.data, name),
			 (unsigned long long)k->offset);
	if (e && r == -EFBIG)
		e->code = "too_large";
	if (e && is_entry(r)) {
		e->code = "bad_archive";
		e->r = -EBADMSG;
		return -EBADMSG;
	}
	return r;
}

static int bad(struct err *e, const char *what)
{
	return err_set(e, -EBADMSG, "bad_archive", "%s", what);
}

/* --- whiteouts -------------------------------------------------------------
 */

enum meaning { IS_FILE, IS_WHITEOUT, IS_OPAQUE, IS_NOTHING };

/*
 * What a path means in a layer.  ".wh..wh.x" is what a file system of old kept
 * for itself, with all that is below it.
 */
static int meaning_of(const char *path, enum meaning *ret, struct err *e)
{
	const char *p = path;
	size_t n;

	*ret = IS_FILE;
	for (; *p; p += n) {
		bool last;

		p += strspn(p, "/");
		n = strcspn(p, "/");
		last = p[n + strspn(p + n, "/")] == '\0';
		if (strncmp(p, WH, 4))
			continue;
		if (n == strlen(WH_OPAQUE) && !strncmp(p, WH_OPAQUE, n)) {
			*ret = IS_OPAQUE;
			return last ? 0 : bad(e, "something in a whiteout");
		}
		if (!strncmp(p, WH_META, 8)) {
			*ret = IS_NOTHING;
			return 0;
		}
		if (!last)
			return bad(e, "something in a whiteout");
		if (n == 4 || (n == 5 && p[4] == '.') ||
		    (n == 6 && p[4] == '.' && p[5] == '.'))
			return bad(e, "a whiteout of nothing");
		*ret = IS_WHITEOUT;
		return 0;
	}
	return 0;
}

/* The path without ".wh." in its last name, or without that name. */
static int keep_whiteout(struct taking *k, const char *path, bool opaque,
			 struct err *e)
{
	size_t len = strlen(path), dir;
	int r = import_text(k->x, len, e);

	if (r < 0)
		return r;
	while (len > 0 && path[len - 1] == '/')
		len--;
	for (dir = len; dir > 0 && path[dir - 1] != '/';)
		dir--;
	/* The last name of a mark is empty, which says that it is one. */
	if (buf_add(&k->whiteouts, path, dir) < 0 ||
	    (dir == 0 && buf_add(&k->whiteouts, "/", 1) < 0) ||
	    (!opaque &&
	     buf_add(&k->whiteouts, path + dir + 4, len - dir - 4) < 0) ||
	    buf_add(&k->whiteouts, "", 1) < 0)
		return err_sys(e, ENOMEM, "import");
	return 0;
}

static int set_opaque(struct import *x, struct fsnode *n, struct err *e)
{
	if (fsnode_set_xattr(x->tree, n, FS_OPAQUE, "y", 1) < 0)
		return err_sys(e, ENOMEM, "import");
	return 0;
}

/*
 * A whiteout hides what is below its layer and nothing of the layer itself,
 * wherever it stands in the archive: so they come last.
 */
static int put_whiteout(struct import *x, const char *path, struct err *e)
{
	const struct fsnode dir = {.mode = S_IFDIR | 0755, .implied = true};
	const struct fsnode wh = {.mode = S_IFCHR};
	bool opaque = path[strlen(path) - 1] == '/';
	struct fsnode *n = fstree_find(x->tree, path);
	int r = 0;

	if (opaque && n && !S_ISDIR(n->mode))
		return 0;
	if (opaque && !n)
		r = fstree_put(x->tree, path, &dir, &n, e);
	if (!opaque && !n)
		return fstree_put(x->tree, path, &wh, &n, e);
	if (r < 0 || !S_ISDIR(n->mode))
		return r;
	return set_opaque(x, n, e);
}

static int put_whiteouts(struct taking *k, struct err *e)
{
	char name[IMPORT_NAME_SIZE];
	const char *p;
	int r;

	for (size_t at = 0; at < k->whiteouts.len; at += strlen(p) + 1) {
		p = k->whiteouts.data + at;
		/* Not an entry more, but the parents it implies may be. */
		r = import_nodes(k->x, e);
		if (r == 0)
			r = put_whiteout(k->x, p, e);
		if (r < 0 && is_entry(r)) {
			err_wrap(e, r, "whiteout of '%s'",
				 import_name(p, name));
			if (e)
				e->code = "bad_archive";
			return -EBADMSG;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- entries ---------------------------------------------------------------
 */

static int put_link(struct taking *k, const struct tar_entry *en, struct err *e)
{
	const char *slash = strrchr(en->path, '/');
	struct fstree *t = k->x->tree;
	struct fsnode *n;
	int r;

	if (strlen(en->link) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "the name it links to");
	n = *en->link ? fstree_find(t, en->link) : NULL;
	if (!n)
		return bad(e, "a hard link to what is not there");
	if (S_ISDIR(n->mode))
		return bad(e, "a hard link to a directory");
	/* To itself, or once more: it is there. */
	if (fstree_find(t, en->path) == n)
		return 0;
	r = import_text(k->x, strlen(slash ? slash + 1 : en->path), e);
	return r < 0 ? r : fstree_link(t, en->path, n, e);
}

static int attr_of(const struct tar_entry *en, struct fsnode *ret,
		   struct err *e)
{
	static const mode_t modes[] = {
		[TAR_FILE] = S_IFREG,	 [TAR_DIR] = S_IFDIR,
		[TAR_SYMLINK] = S_IFLNK, [TAR_FIFO] = S_IFIFO,
		[TAR_CHAR] = S_IFCHR,	 [TAR_BLOCK] = S_IFBLK,
	};
	enum tar_type type = en->type;

	/* What tar --incremental writes of a directory, its list apart. */
	if (type == TAR_OTHER && en->kind == 'D')
		type = TAR_DIR;
	if (type == TAR_OTHER)
		return err_set(e, -EBADMSG, "bad_archive",
			       "an entry of an unknown kind (0x%02x)",
			       (unsigned char)en->kind);
	if (en->uid < 0 || en->gid < 0 || en->uid >= UINT32_MAX ||
	    en->gid >= UINT32_MAX)
		return bad(e, "an impossible owner");
	*ret = (struct fsnode){
		.mode = modes[type] | en->mode,
		.uid = (uid_t)en->uid,
		.gid = (gid_t)en->gid,
		.rdev = en->rdev,
		.mtime = en->mtime,
	};
	if (type == TAR_FILE)
		ret->size = en->size;
	if (type != TAR_SYMLINK)
		return 0;
	if (!*en->link || strlen(en->link) >= PATH_MAX)
		return bad(e, *en->link ? "the target of a link is too long"
					: "a link to nothing");
	ret->mode = S_IFLNK | 0777;
	ret->link = (char *)(uintptr_t)en->link;
	ret->size = strlen(en->link);
	return 0;
}

static int put_data(struct taking *k, struct fsnode *n, struct err *e)
{
	struct import *x = k->x;
	const void *data = NULL;
	uint64_t off = 0;
	size_t len = 0;
	int r;

	filling_start(&k->f, n);
	while ((r = tar_data(&k->r, &data, &len, &off, e)) > 0) {
		r = filling_add(&k->f, off, data, len, e);
		if (r < 0)
			return r;
		x->bytes += len;
		if (x->progress) {
			r = x->progress(x->arg, x->bytes, e);
			if (r < 0)
				return r;
		}
	}
	return r < 0 ? r : filling_end(&k->f, e);
}

static int put_node(struct taking *k, const struct tar_entry *en, struct err *e)
{
	struct fsnode attr, *n = NULL;
	struct import *x = k->x;
	int r;

	if (en->bad_acl)
		return bad(e, en->bad_acl);
	r = attr_of(en, &attr, e);
	if (r < 0)
		return r;
	if (fsnode_is_whiteout(&attr)) {
		x->dropped.devices++;
		return 0;
	}
	r = attr.link ? import_text(x, attr.size, e) : 0;
	if (r == 0)
		r = fstree_put(x->tree, en->path, &attr, &n, e);
	for (size_t i = 0; i < en->nxattrs && r == 0; i++)
		r = import_xattr(x, n, en->xattrs[i].name, en->xattrs[i].value,
				 en->xattrs[i].len, e);
	if (r == 0 && S_ISREG(attr.mode))
		r = put_data(k, n, e);
	return r;
}

static int put_entry(struct taking *k, const struct tar_entry *en,
		     struct err *e)
{
	enum meaning what = IS_FILE;
	struct import *x = k->x;
	int r = 0;

	if (en->bad)
		return bad(e, en->bad);
	if (en->type == TAR_OTHER && en->kind == 'V') {
		x->dropped.others++; /* the archive's own label */
		return 0;
	}
	if (strlen(en->path) >= PATH_MAX)
		return err_sys(e, ENAMETOOLONG, "its name");
	r = import_room(x, e);
	if (r == 0 && x->flags & IMPORT_OCI)
		r = meaning_of(en->path, &what, e);
	if (r < 0)
		return r;
	x->entries++;
	if (what == IS_NOTHING) {
		x->dropped.others++;
		return 0;
	}
	if (what != IS_FILE)
		return keep_whiteout(k, en->path, what == IS_OPAQUE, e);
	return en->type == TAR_HARDLINK ? put_link(k, en, e)
					: put_node(k, en, e);
}

static int remember(struct taking *k, const struct tar_entry *en, struct err *e)
{
	k->name.len = 0;
	if (buf_add(&k->name, en->path, strnlen(en->path, PATH_MAX)) < 0 ||
	    buf_add(&k->name, "", 1) < 0)
		return err_sys(e, ENOMEM, "import");
	k->offset = en->offset;
	k->any = true;
	return 0;
}

static int take_all(struct taking *k, struct err *e)
{
	const struct tar_entry *en = NULL;
	int r;

	while ((r = tar_next(&k->r, &en, e)) > 0) {
		r = remember(k, en, e);
		if (r == 0)
			r = put_entry(k, en, e);
		if (r < 0)
			return told(k, r, e);
	}
	if (r == 0 && k->r.offset == 0 && k->r.eof && k->r.have == 0)
		r = bad(e, "there is nothing in it");
	return r < 0 ? told(k, r, e) : put_whiteouts(k, e);
}

int import_tar(struct import *x, tar_source *source, tar_skip *skip, void *arg,
	       struct err *e)
{
	struct taking k = {.x = x};
	int r;

	r = tar_reader_init(&k.r, source, arg, e);
	if (r < 0)
		return r;
	k.r.skip = skip;
	r = filling_init(&k.f, x, e);
	if (r == 0)
		r = take_all(&k, e);
	filling_done(&k.f);
	buf_done(&k.whiteouts);
	buf_done(&k.name);
	tar_reader_done(&k.r);
	return r;
}
