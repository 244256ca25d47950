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
