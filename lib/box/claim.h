/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_CLAIM_H
#define BOX_CLAIM_H

#include <stdint.h>

#include "box/tree.h"
#include "img/digest.h"
#include "policy/admit.h"
#include "wire/json.h"

/*
 * What a sandbox holds of its node: memory, CPU, disk and processes, a range of
 * uids, a name, a place in its task.  A claim is sb/<id>/claim.json, and it is
 * alive while somebody holds the lock (flock) that claim_take() put on it: the
 * lock is of the open file, so it passes on with the descriptor, through fork
 * and exec, and ends with its last holder however that ends.
 *
 * All changes are made under the lock of $DSEC_RUN/ledger, which also caches
 * the sum of the claims.  A change that was cut short leaves the ledger marked,
 * and the next one rebuilds it from the claims.
 *
 * A claim whose holder died still counts, for its processes may be running yet:
 * it ends when somebody has buried it.
 */

#define CLAIM_UID_RANGE 65536

struct claim {
	uint32_t slot;	   /* of uid/: the number of the uid range */
	uint32_t uid_base; /* slot * CLAIM_UID_RANGE */
	int fd;		   /* holds the lock; close-on-exec, the caller's */
};

/*
 * Called for a claim whose holder is dead, to end what is left of the sandbox:
 * processes, cgroup, mounts, directories.  The caller holds the claim's lock,
 * not the ledger's.  On success the claim is released (it may have been
 * already, by claim_release()); on failure it stays.
 */
typedef int claim_bury_fn(const struct tree *t, const char *id,
			  const json_t *claim, void *arg, struct err *e);

/* What of its amounts a sandbox holds: one without processes needs a place to
 * lie, no memory, CPU or pids.  It counts as a sandbox and keeps its name,
 * task, uid range and image layers either way. */
enum claim_size { CLAIM_FULL, CLAIM_DISK_ONLY };

struct claim_want {
	const char *id;	    /* new, of tree_new_id() */
	const json_t *spec; /* complete: see spec_complete() */
	enum claim_size size;
	uint32_t slot;	      /* of uid/: this one if it is free; 0: any */
	const char *kind;     /* "supervised" or "one-shot" */
	const json_t *layers; /* digests of its layers in hex, or NULL */
	claim_bury_fn *bury;  /* NULL: the dead keep what they hold */
	void *bury_arg;
};

/*
 * claim_take(t, want, ret_claim, e):
 * Admit the sandbox and make its claim: directory sb/<id>, claim.json, links.
 * All of it or nothing.  Before it refuses, the dead are buried.  Codes: those
 * of admit_decide(), "count" with no uid range left, "name_taken".
 */
int claim_take(const struct tree *t, const struct claim_want *want,
	       struct claim *ret_claim, struct err *e);

/*
 * claim_resize(t, want, fd, e):
 * Make the live claim of ${want->id}, whose lock is held by ${fd}, as large as
 * ${want->size} says, with the amounts of ${want->spec}; kind and layers are
 * not looked at.  Growing is admitted like a new sandbox, with the same codes,
 * and changes nothing if refused.  The claim changes at once or, whatever
 * fails, not at all.  ${fd} is still the lock's holder, under the same number;
 * a copy that another process or number has is not any more.
 */
int claim_resize(const struct tree *t, const struct claim_want *want, int fd,
		 struct err *e);

/*
 * claim_check(t, spec, e):
 * Would claim_take() admit this now?  Takes nothing and buries nobody, so it
 * may refuse where claim_take() would first make room.
 */
int claim_check(const struct tree *t, const json_t *spec, struct err *e);

/*
 * claim_release(t, id, fd, e):
 * Give everything back, the last step of a sandbox's end: the links, the share
 * of the ledger, claim.json, and sb/<id> with whatever else is in it.  *${fd},
 * which holds the lock, is closed on success (NULL: not our affair).
 * A claim that is gone already is fine.  claim.json must be removed by this
 * alone, or the sums are wrong until the ledger is rebuilt.
 */
int claim_release(const struct tree *t, const char *id, int *fd, struct err *e);

/*
 * claim_sweep(t, bury, arg, ret_buried, e):
 * Bury and release every claim of the dead (${bury} NULL: nothing but the claim
 * is left of them), and remove links and directories that belong to no claim.
 * How many into *${ret_buried} (may be NULL).  Goes on after a failure and
 * returns the first.
 */
int claim_sweep(const struct tree *t, claim_bury_fn *bury, void *arg,
		unsigned *ret_buried, struct err *e);

/*
 * claim_hold(t, ret_fd, e): take the ledger's lock, waiting for it: until
 * *${ret_fd} is closed no claim begins or ends.
 *
 * claim_layers(t, fn, arg, e): every claim that has layers, those of the dead
 * too (their processes may run yet; claim_sweep() before, if they are not to
 * count); ${layers} lowest first.  Ends early
 * with what ${fn} returned if that is not 0.  Whoever acts on the answer calls
 * it under claim_hold(), and lets go when he has acted.
 */
typedef int claim_layers_fn(void *arg, const char *id, const json_t *claim,
			    const struct digest *layers, size_t n,
			    struct err *e);
int claim_hold(const struct tree *t, int *ret_fd, struct err *e);
int claim_layers(const struct tree *t, claim_layers_fn *fn, void *arg,
		 struct err *e);

/* claim_amounts(spec): what a sandbox asks for, from its spec or claim.json. */
struct admit_amounts claim_amounts(const json_t *spec);

/* claim_slots(t, ret_n, e): how many uid ranges the node has, and with them
 * slots, one after the other. */
int claim_slots(const struct tree *t, uint32_t *ret_n, struct err *e);

/* claim_node(t, ret_node, e): the node as admission sees it now. */
int claim_node(const struct tree *t, struct admit_node *ret_node,
	       struct err *e);

#endif
