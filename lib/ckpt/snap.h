/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_SNAP_H
#define CKPT_SNAP_H

#include <stdbool.h>
#include <stdint.h>

#include "box/tree.h"
#include "img/digest.h"
#include "sys/pool.h"
#include "wire/json.h"

/*
 * Snapshots: what sandboxes are made from.  $DSEC_LIB/snap/<id>/, 0700, holds
 *
 *   upper, work, out  a writable layer, as in sb/<id>
 *   ckpt/             what dsec-ckpt dump wrote: manifest.json (last), img/..
 *   name              "root/rl/flask-warm", if it was ever given a name
 *   made.json         dsec-fork's: for which request with a key, if for one
 *
 * and snap/name/root/rl/@flask-warm is a symbolic link whose text is the id:
 * the name is the snapshot's while the two agree ('@' keeps names apart from
 * projects, which are the directories).  Ids are as those of sandboxes.
 *
 * Who makes, uses or removes a snapshot holds a lock (flock) on its directory:
 * its maker and whoever removes it alone, those who restore from it together.
 * One without a name that nobody holds belongs to the dead and is swept.  The
 * lock of snap/ itself is held for a moment where one of those must not be
 * looked at half way.
 */
struct snap {
	char id[BOX_ID_LEN + 1];
	int dir; /* snap/<id>, with the lock; close-on-exec */
};

#define SNAP_INIT     ((struct snap){.dir = -1})
#define SNAP_NAME_MAX 64
#define SNAP_PATH_MAX (256 + 1 + SNAP_NAME_MAX)
#define auto_snap     __attribute__((cleanup(snap_close)))

enum snap_lock {
	SNAP_USE,   /* with others: to restore from it */
	SNAP_ALONE, /* to remove it */
};

/* snap_path(t, id, below, path, e): snap/<id>/${below}, or with "" snap/<id>
 * itself, into path[PATH_MAX].  The dump's directory is below "ckpt". */
int snap_path(const struct tree *t, const char *id, const char *below,
	      char *path, struct err *e);

/*
 * snap_new(t, ret, e): a new one, empty, held alone by the caller.
 * snap_share(t, s, e): from now on held together with those who restore.
 */
int snap_new(const struct tree *t, struct snap *ret, struct err *e);
int snap_share(const struct tree *t, struct snap *s, struct err *e);

/*
 * snap_open(t, project, word, how, ret, e):
 * The snapshot called ${word}: a name in ${project}, a whole path of project
 * and name ("root/rl/flask-warm"), or an id.  "snapshot_unknown"; "busy" while
 * somebody holds it in a way that excludes ${how}.
 */
int snap_open(const struct tree *t, const char *project, const char *word,
	      enum snap_lock how, struct snap *ret, struct err *e);
void snap_close(struct snap *s); /* lets go; a closed one is fine */

/*
 * snap_name_check(project, word, e): can a snapshot be called that?  A name of
 * letters, digits, "._-", not of an id's form; "bad_value".
 *
 * snap_keep(t, s, project, word, replace, ret_old, e):
 * Give ${s}, which is complete, its name, durably.  "exists" where another has
 * it, but for ${replace}: then the name moves, and the other one's id is in
 * ret_old[BOX_ID_LEN + 1] ("" if there was none), for the caller to remove.
 */
int snap_name_check(const char *project, const char *word, struct err *e);
int snap_keep(const struct tree *t, const struct snap *s, const char *project,
	      const char *word, bool replace, char *ret_old, struct err *e);

/*
 * snap_remove(t, pool, s, e):
 * Remove ${s}: its name, its layer, all of it; ${s} is closed.  "busy" while
 * others hold it.  What is left by a failure is swept later.
 */
int snap_remove(const struct tree *t, const struct pool *pool, struct snap *s,
		struct err *e);

/*
 * snap_sweep(t, pool, ret_removed, e):
 * Remove what belongs to nobody: snapshots without a name that nobody holds,
 * and names that lead nowhere.  ${pool} NULL: only count them.  Goes on after a
 * failure and returns the first.
 */
int snap_sweep(const struct tree *t, const struct pool *pool,
	       unsigned *ret_removed, struct err *e);

/* snap_name(t, id, name, e): what it is called now, as "root/rl/flask-warm",
 * into name[SNAP_PATH_MAX + 1]; "": nothing. */
int snap_name(const struct tree *t, const char *id, char *name, struct err *e);

/* snap_manifest(t, id, ret, e): -ENOENT where there is none; else as
 * ckpt_read(). */
int snap_manifest(const struct tree *t, const char *id, json_t **ret,
		  struct err *e);

/*
 * snap_fits(t, c, e):
 * Can this node make a sandbox of what ${c} says?  "incompatible" with the
 * difference: what ckpt_fits() compares, and the image's layers;
 * "unsupported" without a checkpoint engine.
 */
struct ckpt;
int snap_fits(const struct tree *t, const struct ckpt *c, struct err *e);

/*
 * snap_source_open(t, project, word, fs_only, ret, e):
 * A snapshot to make sandboxes from: found, locked, read and fitting.
 */
struct snap_source {
	struct snap snap; /* with SNAP_USE */
	json_t *spec;	  /* of what it was made of */
	bool memory;	  /* it has processes, and they are wanted */
};
#define SNAP_SOURCE_INIT ((struct snap_source){.snap = SNAP_INIT})

int snap_source_open(const struct tree *t, const char *project,
		     const char *word, bool fs_only, struct snap_source *ret,
		     struct err *e);
void snap_source_done(struct snap_source *s);

/*
 * snap_list(t, project, fn, arg, e):
 * Each snapshot with a name in ${project} or below it (NULL: all, those without
 * a name too, as name ""), in the order of the directory.  The manifest is
 * borrowed, NULL where there is none that reads.  Ends early with what ${fn}
 * returned if that is not 0.
 */
typedef int snap_list_fn(void *arg, const char *id, const char *name,
			 const json_t *manifest, struct err *e);
int snap_list(const struct tree *t, const char *project, snap_list_fn *fn,
	      void *arg, struct err *e);

/*
 * snap_layers(t, fn, arg, e):
 * Every snapshot that needs layers of the store, their manifests' digests
 * lowest first: none of them may be pruned; see life/uses.h.
 */
typedef int snap_layers_fn(void *arg, const char *id, const char *name,
			   const struct digest *layers, size_t n,
			   struct err *e);
int snap_layers(const struct tree *t, snap_layers_fn *fn, void *arg,
		struct err *e);

#endif
