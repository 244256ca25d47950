/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BOX_SPEC_H
#define BOX_SPEC_H

#include <stdbool.h>

#include "box/tree.h"
#include "wire/field.h"

/*
 * What a sandbox is to be: the create request of PROTOCOL.md, checked and with
 * its defaults filled in.  It stays JSON: it is what spec.json holds.
 */
extern const struct field spec_fields[];
extern const size_t spec_fields_len;

/*
 * spec_complete(obj, e):
 * ${obj} passed field_check(); fill in the defaults and check what one field
 * says about another.  Codes: "bad_value", "unsupported", "memory_too_small".
 */
int spec_complete(json_t *obj, struct err *e);

/* spec_is_project(p): root, root/rl, root/rl/job-42: segments of names, none of
 * them empty. */
bool spec_is_project(const char *p);

/*
 * spec_read(t, id, ret, e), spec_write(t, id, spec, e): spec.json of sandbox
 * ${id}, in the library; -ENOENT.
 */
int spec_read(const struct tree *t, const char *id, json_t **ret,
	      struct err *e);
int spec_write(const struct tree *t, const char *id, const json_t *spec,
	       struct err *e);

/* The least memory_limit_mb a sandbox can be held in. */
#define SPEC_MEMORY_MIN_MB 16

#define SPEC_PHASES_MAX 32

#endif
