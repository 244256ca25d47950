/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SYS_POOL_H
#define SYS_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/err.h"

/*
 * The node pool: where the writable layers of sandboxes live.
 *
 *   btrfs      $DSEC_LIB/pool is on btrfs (a file system mounted there, or
 *              $DSEC_LIB itself is one): a layer is a subvolume pool/<id>, its
 *              disk limit a quota group, a copy of it a snapshot
 *   directory  anything else: a layer is plain directories, without a limit
 *
 * Either way $DSEC_LIB/sb/<id>/{upper,work,out} lead to the layer: as symbolic
 * links into the subvolume, or as the directories themselves.  So what a
 * sandbox writes and what is recorded of it count against one limit, and only
 * this module knows the difference.
 *
 * A layer that belongs to no sandbox, such as a snapshot's, has its three names
 * in another directory, two levels below $DSEC_LIB as sb/<id> is: the functions
 * that end in _at take that directory's descriptor.
 */
enum pool_kind { POOL_DIRECTORY, POOL_BTRFS };

enum pool_quota {
	POOL_QUOTA_NONE,   /* no limit can be enforced */
	POOL_QUOTA_SIMPLE, /* squota: cheap, what was written is charged */
	POOL_QUOTA_GROUP,  /* qgroups: exact, slower with many snapshots */
};

struct pool {
	enum pool_kind kind;
	int sb;	  /* $DSEC_LIB/sb */
	int base; /* $DSEC_LIB/pool; -1 unless btrfs */
};

#define auto_pool __attribute__((cleanup(pool_close)))
#define POOL_INIT ((struct pool){POOL_DIRECTORY, -1, -1})

/*
 * pool_open(lib, ret_pool, e):
 * See what ${lib} ($DSEC_LIB) has.  Makes sb/ and, where ${lib} is on btrfs
 * itself, pool/.  The pool holds two descriptors until pool_close().
 */
must_check int pool_open(const char *lib, struct pool *ret_pool, struct err *e);
void pool_close(struct pool *p);

const char *pool_kind_name(enum pool_kind kind);    /* "btrfs", "directory" */
const char *pool_quota_name(enum pool_quota quota); /* "none", "squota".. */

/*
 * pool_make(p, id, limit_bytes, e):
 * Make the layer of sandbox ${id} and sb/<id> to hold it (which may be there
 * already): upper, work and out, empty, owned by root.  limit_bytes 0: none.
 * "unsupported" where a limit cannot be enforced; the message has the way out.
 * On failure nothing of the layer is left (sb/<id> may be).
 */
must_check int pool_make(const struct pool *p, const char *id,
			 uint64_t limit_bytes, struct err *e);

/*
 * pool_remove(p, id, e):
 * Remove the layer; the rest of sb/<id> is the caller's.  Absent is fine.
 * Works for a layer made while the pool was of another kind, as long as that
 * pool is there.  Crosses no mount: -EXDEV at one, with the rest left.
 */
must_check int pool_remove(const struct pool *p, const char *id, struct err *e);
must_check int pool_remove_at(const struct pool *p, int home, const char *id,
			      struct err *e);

/*
 * pool_snapshot(p, want, ret_how, e):
 * Make layer ${want->id}, whose names come into the empty directory
 * ${want->home}, as a copy of the layer whose names are in ${want->from}: by a
 * snapshot where the pool is btrfs, else file by file, sharing data where the
 * file system can (reflink).  upper and out are the same in the copy to the
 * last attribute, hard link and hole; work is empty.  Nothing may write to the
 * source until ${want->captured} is called, with ${want->arg} (NULL: until the
 * end), and its mount is not touched; it may be mounted volatile.  On failure
 * nothing of the copy is left.
 * -ECANCELED when ${want->stop} said so.
 */
enum pool_copy { POOL_COPY_SNAPSHOT, POOL_COPY_REFLINK, POOL_COPY_COPIED };
struct pool_snapshot {
	int from;	/* directory with upper and out */
	const char *id; /* new: of no layer of this pool */
	int home;	/* directory for upper, work and out */
	uint64_t limit_bytes;
	int stop; /* -1, or a descriptor that reads as "stop now" */
	void (*captured)(void *arg);
	void *arg;
};
must_check int pool_snapshot(const struct pool *p,
			     const struct pool_snapshot *want,
			     enum pool_copy *ret_how, struct err *e);
/* pool_at_once(p, from): would a copy of it be a snapshot? */
bool pool_at_once(const struct pool *p, int from);
const char *pool_copy_name(enum pool_copy how); /* "snapshot", "reflink".. */

/*
 * pool_flush(home, e):
 * Write out what the layer has in memory, while its sandbox runs: a snapshot
 * has to wait for just that, so less is left for the time of the freeze.
 * pool_sync(home, e):
 * Make the layer durable, everything of it.  The mark that its mount is
 * volatile goes with the work directory: see pool_work_new().
 * pool_work_new(home, e):
 * An empty work directory instead of the old one, for a layer that is not
 * mounted any more and is to be again; the mark that its last mount was
 * volatile goes with the old one.
 */
must_check int pool_flush(int home, struct err *e);
must_check int pool_sync(int home, struct err *e);
must_check int pool_work_new(int home, struct err *e);

/*
 * pool_set_limit(p, id, limit_bytes, e): change the limit of a layer; 0: none.
 */
must_check int pool_set_limit(const struct pool *p, const char *id,
			      uint64_t limit_bytes, struct err *e);

/* pool_quota(p): which kind of quota is on now. */
enum pool_quota pool_quota(const struct pool *p);

/*
 * pool_quota_enable(p, e):
 * Turn quota on: simple quotas where the kernel has them, else quota groups.
 * On already: nothing happens.
 */
must_check int pool_quota_enable(const struct pool *p, struct err *e);

/*
 * pool_usage(p, id, ret_bytes, e):
 * What the layer takes: for btrfs with quota what is charged to it, in O(1);
 * "unsupported" elsewhere.
 */
must_check int pool_usage(const struct pool *p, const char *id,
			  uint64_t *ret_bytes, struct err *e);

#endif
