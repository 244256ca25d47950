/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_REAPPLY_H
#define BOX_REAPPLY_H

#include "sys/cgroup.h"
#include "wire/json.h"

/*
 * What spec.json says a sandbox may do, put in force on one that is there: the
 * one way for whoever brings processes back, before any of them runs.
 *
 * reapply(root, id, spec, e):
 * Limits of its control group.  Network policy has its place here.
 */
int reapply(const struct cgroup_root *root, const char *id, const json_t *spec,
	    struct err *e);

/*
 * reapply_later(root, id, spec, e): limits with room for the engine, for the
 * time it makes the processes; reapply() follows.
 */
int reapply_later(const struct cgroup_root *root, const char *id,
		  const json_t *spec, struct err *e);

#endif
