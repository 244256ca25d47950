/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_REAPPLY_H
#define BOX_REAPPLY_H

#include "sys/cgroup.h"
#include "sys/pool.h"
#include "wire/json.h"

/*
 * What spec.json says a sandbox may do, put in force on one that is there: the
 * one way for whoever brings processes back, before any of them runs.
 *
 * reapply_first(spec): those that a control group is made with; its CPU limit
 * comes when pid 1 runs.
 * reapply_rest(root, id, spec, e): that one, for a group just made so.
 */
struct cgroup_limits reapply_first(const json_t *spec);
int reapply_rest(const struct cgroup_root *root, const char *id,
		 const json_t *spec, struct err *e);

/*
 * reapply(root, pool, id, spec, e):
 * Limits of its control group, and of its layer in ${pool} (NULL: they are as
 * they should be).  Network policy has its place here.
 */
int reapply(const struct cgroup_root *root, const struct pool *pool,
	    const char *id, const json_t *spec, struct err *e);

/* reapply_cpu(root, id, spec, e): the CPU limit alone; ${spec} NULL: none, for
 * the time in which the engine works in the group of a sandbox that stands
 * still. */
int reapply_cpu(const struct cgroup_root *root, const char *id,
		const json_t *spec, struct err *e);

/*
 * reapply_later(root, pool, id, spec, e): limits with room for the engine and
 * for what a mount needs of the layer, for the time until the processes are
 * there; reapply() follows.
 */
int reapply_later(const struct cgroup_root *root, const struct pool *pool,
		  const char *id, const json_t *spec, struct err *e);

#endif
