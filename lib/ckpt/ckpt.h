/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_CKPT_H
#define CKPT_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "box/tree.h"
#include "wire/json.h"

/*
 * A checkpoint: a directory (0700, files 0600) that a sandbox, or many, can be
 * made from.  sb/<id>/ckpt is what a sandbox paused to disk comes back from,
 * snap/<id>/ckpt is a snapshot's, with a writable layer beside it: both
 * directories are there, and hold upper, work and out (ckpt/snap.h).
 *
 *   manifest.json  written last: what has none is no checkpoint
 *   files          all the others: a line each of size, checksum, path
 *   img/           the engine's images (0755 and 0644, as sys/engine.h tells);
 *                  not with engine "none"
 *   init           the program that pid 1 runs
 *   state.json     what the supervisor knew (dsec-box's --state)
 *   pipe-<inode>   bytes that stood in a pipe between inside and supervisor
 *   steps.jsonl    of a snapshot: the steps log
 *   names          of a snapshot: what names stood for (net/fakename.h)
 *   dump.log       what the engine said
 *
 * It is made under another name (CKPT_NEW) and renamed when it is complete, so
 * whoever finds one under its name has all of it.  All of it is secret.
 */
#define CKPT_VERSION  1
#define CKPT_NEW      ".new" /* after the name, while it is being made */
#define CKPT_MANIFEST "manifest.json"
#define CKPT_FILES    "files"
#define CKPT_IMAGES   "img"
#define CKPT_INIT     "init"
#define CKPT_STATE    "state.json"
#define CKPT_STEPS    "steps.jsonl"
#define CKPT_NAMES    "names"
#define CKPT_LOG      "dump.log"

/* Mounts of the host inside: --external mnt[KEY]:.. at restore. */
#define CKPT_KEY_DEV "dev" /* the template of /dev */
#define CKPT_KEY_PTS "pts" /* a devpts whose masters are outside */

struct ckpt_mount {
	const char *key;    /* CKPT_KEY_DEV, CKPT_KEY_PTS, or "m0", "m1".. */
	const char *inside; /* where: "/dev" */
	const char *source; /* a host directory; NULL for DEV and PTS */
	bool file;	    /* the source is no directory */
};

/*
 * A pipe with an end inside and one at the supervisor: --inherit-fd
 * fd[N]:${of}.  Everyone of them must be given at restore, the bytes of
 * ${pending} in it first.
 */
struct ckpt_pipe {
	const char *of;	     /* "pipe:[123]" */
	const char *pending; /* a file of the directory, or NULL: empty */
	unsigned size;	     /* F_GETPIPE_SZ */
	unsigned uid, gid;   /* whose it is, as ids inside */
	bool report;	     /* the one pid 1 reports on */
};

/* A terminal whose master is the supervisor's: --inherit-fd fd[N]:${of}, of the
 * other end of number ${index} of CKPT_KEY_PTS. */
struct ckpt_tty {
	const char *of; /* "tty[8803:1d]" */
	unsigned index; /* /dev/pts/<index> */
};

/* What a manifest says, checked; strings belong to json. */
struct ckpt {
	json_t *json;
	const char *sandbox; /* that it was made of */
	const json_t *spec;
	bool processes;	       /* there are images; else the layer alone */
	const char *layer;     /* "snapshot", "reflink", "copied", "kept" */
	const json_t *leaves;  /* {"7":"e0"}: by pid inside, but pid 1's own */
	const json_t *stopped; /* [9, ..]: pids inside that were stopped */
	int64_t made_ms, bytes, state_v;
	unsigned nprocesses;
	struct ckpt_mount *mounts;
	struct ckpt_pipe *pipes;
	struct ckpt_tty *ttys;
	size_t nmounts, npipes, nttys;
};

#define auto_ckpt __attribute__((cleanup(ckpt_done)))

/*
 * ckpt_dir(t, id, path, e), ckpt_snap_dir(t, id, path, e):
 * $DSEC_LIB/sb/<id>/ckpt and $DSEC_LIB/snap/<id>/ckpt into path[PATH_MAX].
 */
int ckpt_dir(const struct tree *t, const char *id, char *path, struct err *e);
int ckpt_snap_dir(const struct tree *t, const char *id, char *path,
		  struct err *e);

/*
 * ckpt_read(dirfd, ret, e):
 * The manifest of the checkpoint in ${dirfd}.  "checkpoint_damaged": there is
 * none, it is torn, was edited, or is of a version we do not know.  Free with
 * ckpt_done().
 */
must_check int ckpt_read(int dirfd, struct ckpt *ret, struct err *e);
void ckpt_done(struct ckpt *c);

/*
 * ckpt_verify(dirfd, c, e):
 * The files are those the manifest lists: their sizes, and the content of all
 * but memory pages.  "checkpoint_damaged", naming the file.
 */
must_check int ckpt_verify(int dirfd, const struct ckpt *c, struct err *e);

/*
 * ckpt_fits(c, engine_version, e):
 * Can it be restored on this node, by this engine?  "incompatible", naming
 * what does not fit: architecture, CPU features, kernel, engine.  Layers of the
 * image are not looked at: image_open() tells.
 */
must_check int ckpt_fits(const struct ckpt *c, const char *engine_version,
			 struct err *e);

/*
 * ckpt_facts(obj, e): put what ckpt_fits() compares into a manifest to be:
 * arch, kernel, cpu.
 * ckpt_write(dirfd, obj, durable, e): list the files of ${dirfd}, put what that
 * comes to into ${obj}, seal it, and write the manifest.  ${durable}: files and
 * directories are synced before, the manifest after.
 */
must_check int ckpt_facts(json_t *obj, struct err *e);
must_check int ckpt_write(int dirfd, json_t *obj, bool durable, struct err *e);

/*
 * ckpt_begin(path, ret_dirfd, e): make ${path}.new, empty (what an earlier try
 * left is removed), and its img/.
 * ckpt_commit(path, durable, e): ${path}.new becomes ${path}; one that is there
 * already goes then.
 * ckpt_discard(path): remove ${path}.new, if it is there.
 * ckpt_remove(path, e): remove ${path} whole; absent is fine.  It is no
 * checkpoint any more before its first file goes.
 * ckpt_forget(path, e): ${path} is no checkpoint any more, nor after a crash;
 * what is left of it is for ckpt_remove().
 */
must_check int ckpt_begin(const char *path, int *ret_dirfd, struct err *e);
must_check int ckpt_commit(const char *path, bool durable, struct err *e);
void ckpt_discard(const char *path);
must_check int ckpt_remove(const char *path, struct err *e);
must_check int ckpt_forget(const char *path, struct err *e);

#endif
