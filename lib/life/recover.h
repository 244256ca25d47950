/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_RECOVER_H
#define LIFE_RECOVER_H

#include "box/tree.h"
#include "sys/cgroup.h"
#include "wire/json.h"

/*
 * Sandboxes that are paused to disk and that nobody holds: the machine was
 * started anew, the run directory is lost, or the supervisor was killed.  What
 * they come back from is in the library: sb/<id>/spec.json, the writable layer,
 * and a complete checkpoint.  Whatever cannot be done about one now, it stays.
 */

/* recover_waits(t, id): is ${id} one of them? */
bool recover_waits(const struct tree *t, const char *id);

/*
 * recover_each(t, fn, arg, e):
 * Each of them with its spec (borrowed; NULL where it does not read), until
 * ${fn} returns something other than 0, which is returned.
 */
typedef int recover_fn(void *arg, const char *id, const json_t *spec,
		       struct err *e);
int recover_each(const struct tree *t, recover_fn *fn, void *arg,
		 struct err *e);

/*
 * recover_find(t, word, id, e):
 * tree_find(), and where no live sandbox has the name, one of them that had it;
 * "sandbox_unknown" too where several had.
 *
 * recover_find_any(t, word, id, e): else the last of that name that ended, of
 * which is told then how.
 */
int recover_find(const struct tree *t, const char *word, char *id,
		 struct err *e);
int recover_find_any(const struct tree *t, const char *word, char *id,
		     struct err *e);

/*
 * recover(t, cgroups, id, e):
 * Give ${id} a claim, of its disk alone, and a supervisor again; it is paused
 * to disk when this returns 0, and answers.  0 too where somebody else did it.
 * The codes: "sandbox_unknown"; "checkpoint_damaged"; "image_unknown" and
 * others of image_open(), a layer is gone; "name_taken"; those of admission;
 * "busy" while another does it.  A claim of the dead is buried before.
 */
int recover(const struct tree *t, struct cgroup_root *cgroups, const char *id,
	    struct err *e);

/* recover_may_begin(t, id, e): 0, or -EBUSY, "busy": somebody is at it. */
int recover_may_begin(const struct tree *t, const char *id, struct err *e);

/*
 * recover_drop(t, cgroups, id, why, e):
 * End one without waking it: record ${why} and remove all that is left of it.
 */
int recover_drop(const struct tree *t, const struct cgroup_root *cgroups,
		 const char *id, const json_t *why, struct err *e);

#endif
