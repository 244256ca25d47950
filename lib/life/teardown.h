/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIFE_TEARDOWN_H
#define LIFE_TEARDOWN_H

#include <stdbool.h>

#include "box/tree.h"
#include "sys/cgroup.h"
#include "wire/json.h"

/*
 * The end of a sandbox, for whoever has to see to it: its supervisor, dsec-run
 * for a one-shot or a launch that failed, dsec-doctor for one whose supervisor
 * is gone.  Every step is fine with being done already, so a teardown that was
 * interrupted is simply done again.
 */

/*
 * teardown_record(t, id, why, e):
 * Write dead/<hour>/<id>.json, durably: ${why} ("outcome", "infra" and what
 * else is known) with "sandbox", "ended_ms" and the sandbox's spec under
 * "spec".  A record that is there already stays.  Also drops the hours that are
 * older than $DSEC_RETAIN_S.  Nothing of the sandbox may run any more: where
 * the disk is full, its layer is removed to make room.
 */
int teardown_record(const struct tree *t, const char *id, const json_t *why,
		    struct err *e);

/*
 * teardown_recorded(t, id, ret_rec): is there such a record?
 *
 * teardown_lost(t, id, ret_rec): was ${id} lost with the node, and nobody has
 * recorded that yet?  Then what there will be: outcome "node-lost", infra.  It
 * is so of what the library has of a sandbox without a claim, which goes last
 * otherwise, and that cannot come back.
 *
 * Either record is the caller's.
 *
 * teardown_named(t, name, id): the last that ended with that name and is on
 * record, into id[BOX_ID_LEN + 1].
 */
bool teardown_named(const struct tree *t, const char *name, char *id);
bool teardown_recorded(const struct tree *t, const char *id, json_t **ret_rec);
bool teardown_lost(const struct tree *t, const char *id, json_t **ret_rec);

/* teardown_name(t, id): give its name back, if it is still its own. */
void teardown_name(const struct tree *t, const char *id);

/*
 * teardown(t, cgroups, id, why, e):
 * Kill whatever still runs in its cgroups, record ${why} (NULL: nothing is
 * recorded), and remove its cgroups, its directory in the library with the
 * writable layer, and all in its run directory but the claim and state.json.
 * These go last, by claim_release(), the claim first: until then it still
 * counts, a sweep finds it, and whoever looks reads how it ended.  Goes on
 * after a failure as far as it can and returns the first one; what is left is
 * for the next call.  The caller holds the claim's lock. teardown_layer() is
 * its middle: cgroups and the library's directory, all that a one-shot without
 * a network has beside its claim.
 */
int teardown_layer(const struct tree *t, const struct cgroup_root *cgroups,
		   const char *id, struct err *e);
int teardown(const struct tree *t, const struct cgroup_root *cgroups,
	     const char *id, const json_t *why, struct err *e);

/*
 * teardown_kept(t, id): is a complete checkpoint there that ${id} can come back
 * from?  Then it has not ended, whoever died: see life/recover.h.
 */
bool teardown_kept(const struct tree *t, const char *id);

/*
 * teardown_bury(t, id, claim, arg, e):
 * The claim_bury_fn of the dead: ${arg} is the struct cgroup_root.  A sandbox
 * without a record of its end gets outcome "supervisor-lost", if it ever had a
 * supervisor.  Of one that is kept nothing in the library is touched, and no
 * end is recorded.
 */
int teardown_bury(const struct tree *t, const char *id, const json_t *claim,
		  void *arg, struct err *e);

#endif
