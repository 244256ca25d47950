/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_INHERIT_H
#define BOX_INHERIT_H

#include "wire/json.h"

/*
 * inherit_spec(source, over, ret_spec, e):
 * The spec of a sandbox made from a snapshot, of its source's spec.json and
 * the fields of a request that may differ: name, hostname, task, labels (added
 * to those of the source), ttl_running_stop, ttl_absolute, ttl_paused.  Not
 * inherited: name, id, uid range, creation.  Everything else is the source's.
 */
int inherit_spec(const json_t *source, const json_t *over, json_t **ret_spec,
		 struct err *e);

/* inherit_check(over, e): "bad_value" for a field of a create request that a
 * sandbox made from a snapshot cannot have another value of. */
int inherit_check(const json_t *over, struct err *e);

#endif
