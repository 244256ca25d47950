/* SPDX-License-Identifier: Apache-2.0 */
#ifndef IMG_FSTREE_H
#define IMG_FSTREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/err.h"
#include "img/digest.h"

/*
 * The metadata of a file tree in memory: every inode with all its attributes,
 * and for the data of files where it lies, in chunks of devices (blobs).  It is
 * what importers fill, the EROFS writer writes, the EROFS reader gives back,
 * and merge, diff, export and lint work on.
 *
 * A layer's tree is in overlay's terms: a whiteout is a character device 0:0,
 * an opaque directory has the attribute trusted.overlay.opaque=y.
 *
 * All memory belongs to the tree; nodes live as long as it does.
 */
#define FS_CHUNK_BITS  20
#define FS_CHUNK       (1U << FS_CHUNK_BITS) /* bytes of a chunk */
#define FS_BLOCK       4096U
#define FS_HOLE	       UINT32_MAX /* fschunk.block: reads as zeros */
#define FS_DEVICES_MAX 255
#define FS_NAME_MAX    255
#define FS_FILE_MAX    (1ULL << 43) /* bytes of a file, holes included */
#define FS_OPAQUE      "trusted.overlay.opaque"

/*
 * What an implied directory has, besides 0755 root:root.  An image tells it by
 * this time alone, so it is reserved: an entry that has the very same
 * attributes gets 0 ns.
 */
#define FS_IMPLIED_MTIME ((struct timespec){.tv_sec = 0, .tv_nsec = 1})

/* Where ${block} (of FS_BLOCK bytes) of device ${device} (from 1) has them. */
struct fschunk {
	uint32_t block;
	uint16_t device;
};

struct fsxattr {
	char *name; /* full: "user.x", "security.capability" */
	void *value;
	size_t len;
};

struct fsnode {
	mode_t mode; /* S_IFMT too */
	uid_t uid;
	gid_t gid;
	dev_t rdev; /* makedev() */
	/* names in the tree; a directory: 2 + directories in it */
	uint32_t nlink;
	struct timespec mtime;
	uint64_t size; /* of a file or of a link's target */
	char *link;    /* target of a symbolic link */
	/* of a file: one for each FS_CHUNK bytes begun */
	struct fschunk *chunks;
	struct fsxattr *xattrs; /* by name, byte order */
	size_t nchunks, nxattrs;
	bool implied;  /* a directory no entry named, made for what is below */
	uint32_t num;  /* fstree's and erofs's own */
	uint64_t mark; /* the user's: inode number, visited.. */
	struct fsdir *dir; /* fstree's own */
};

struct fsdevice {
	struct digest root;
	uint32_t blocks; /* of FS_BLOCK bytes */
};

struct fstree;

/* fstree_new(): with an implied root directory (0755 root:root); NULL: out of
 * memory. */
struct fstree *fstree_new(void);
void fstree_free(struct fstree *t);
#define auto_fstree __attribute__((cleanup(fstree_cleanup)))
static inline void fstree_cleanup(struct fstree **t)
{
	fstree_free(*t);
}

struct fsnode *fstree_root(struct fstree *t);
size_t fstree_count(const struct fstree *t); /* inodes, the root too */

/* What a limit of memory goes by.  fstree_made(t): inodes, those that were
 * removed or replaced too.  fstree_bytes(t): of them, their names and all else
 * they have. */
size_t fstree_made(const struct fstree *t);
uint64_t fstree_bytes(const struct fstree *t);

/*
 * The device table.  fstree_device(t, dev, ret_index, e): the index (from 1) of
 * ${dev}, entered if it is not there; -E2BIG beyond FS_DEVICES_MAX.
 */
int fstree_device(struct fstree *t, const struct fsdevice *dev,
		  uint16_t *ret_index, struct err *e);
size_t fstree_ndevices(const struct fstree *t);
struct fsdevice *fstree_device_at(struct fstree *t, uint16_t index);

/* fstree_trim_devices(t): drop those no chunk names, renumber the others in
 * the order they have. */
void fstree_trim_devices(struct fstree *t);

/*
 * fstree_put(t, path, attr, ret, e):
 * What tar -x does with an entry: enter a node with the attributes of ${attr}
 * (mode, ids, rdev, mtime, size, link; no chunks or xattrs, which are set on
 * *${ret} afterwards) at ${path}.  Missing parents are made, implied.  Another
 * node of that name is replaced, what is below included, but a directory over
 * a directory keeps its content and its xattrs and takes the new attributes;
 * attr->implied keeps those that are there.  A directory over a whiteout is
 * opaque, and one on the way becomes an implied opaque directory.  ${path} is
 * bytes: components "" and "." are skipped, a leading '/' means nothing, ".."
 * never leaves the root; symbolic links on the way (not the last component) are
 * followed inside the root, 40 at most.  "" or "/" is the root.
 * -ELOOP, -ENOTDIR (a file on the way), -ENAMETOOLONG (a name; a link's target
 * of PATH_MAX), -EFBIG, -EINVAL (type, ids, times, device numbers that cannot
 * be): the entry cannot be; the tree is as it was.
 */
int fstree_put(struct fstree *t, const char *path, const struct fsnode *attr,
	       struct fsnode **ret, struct err *e);

/* fstree_link(t, path, node, e): one more name for ${node}, no directory; what
 * has that name is replaced. */
int fstree_link(struct fstree *t, const char *path, struct fsnode *node,
		struct err *e);

/* fstree_find(t, path): as fstree_put() walks; NULL: not there.  The last
 * component is not followed. */
struct fsnode *fstree_find(struct fstree *t, const char *path);

/* fstree_remove(t, path): with all below; absent is fine. */
void fstree_remove(struct fstree *t, const char *path);

/* fstree_clear_dir(t, dir): everything in ${dir} goes (an opaque marker). */
void fstree_clear_dir(struct fstree *t, struct fsnode *dir);

/*
 * On nodes of ${t}.  fsnode_set_xattr() replaces one of the same name, value
 * copied; len 0 is a value.  fsnode_add_chunk() appends.  -ENOMEM.
 */
int fsnode_set_xattr(struct fstree *t, struct fsnode *n, const char *name,
		     const void *value, size_t len);
void fsnode_drop_xattr(struct fsnode *n, const char *name);
const struct fsxattr *fsnode_xattr(const struct fsnode *n, const char *name);
int fsnode_add_chunk(struct fstree *t, struct fsnode *n,
		     const struct fschunk *chunk);
bool fsnode_is_whiteout(const struct fsnode *n);
bool fsnode_is_opaque(const struct fsnode *n);

/*
 * What is in a directory, by name in byte order (without "." and "..").
 * fsdir_count() sorts: after it, fsdir_at(dir, i) is cheap; both are invalid
 * after a change.
 */
struct fsdirent {
	char *name;
	struct fsnode *node;
};
size_t fsdir_count(struct fsnode *dir);
const struct fsdirent *fsdir_at(const struct fsnode *dir, size_t i);
struct fsnode *fsdir_get(struct fsnode *dir, const char *name, size_t len);

/*
 * fstree_walk(t, fn, arg, e):
 * Every name, parents first, in byte order of names, depth first, without
 * recursion (trees are as deep as a stranger likes).  ${path} has no leading
 * '/'; the root is "".  Each name of a hard link is visited.  Ends early with
 * what ${fn} returned if that is not 0.  ${fn} adds and removes no names.
 */
typedef int fstree_fn(void *arg, const char *path, struct fsnode *n,
		      struct err *e);
int fstree_walk(struct fstree *t, fstree_fn *fn, void *arg, struct err *e);

/*
 * fstree_merge(t, upper, final, e):
 * Lay ${upper} over ${t} as overlay would show both, data by reference (device
 * tables joined).  Whiteouts remove, opaque directories hide, a directory over
 * a directory is joined and takes the upper's attributes unless implied, hard
 * links hold within a layer.  An implied directory over a symbolic link follows
 * it, inside the root, and is joined there (an explicit one replaces the link).
 * ${final}: nothing lies below ${t}, so whiteouts and opaque marks are dropped,
 * ${t}'s own too; else they stay, and a directory over something else is
 * opaque.  ${upper} is used up (its nodes become ${t}'s) but still has to be
 * freed.
 */
int fstree_merge(struct fstree *t, struct fstree *upper, bool final,
		 struct err *e);

/* fstree_rebase(t, at, e): the whole tree moves below the absolute path ${at}
 * (implied parents): a workspace's place. */
int fstree_rebase(struct fstree *t, const char *at, struct err *e);

#endif
