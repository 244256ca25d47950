/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_FIELD_H
#define WIRE_FIELD_H

#include "base/opt.h"
#include "wire/json.h"

/*
 * The fields of a request and the flags of a program are one table.  A row has
 * a key (a field of the record), a flag, or both; a request made of flags goes
 * through the same checks as one that came as a line.
 */
enum field_type {
	FIELD_NONE,  /* a flag without value that is no field */
	FIELD_STR,   /* string; min, max: its length in bytes */
	FIELD_NAME,  /* string of [A-Za-z0-9._-], first alphanumeric */
	FIELD_INT,   /* exact integer between min and max */
	FIELD_NUM,   /* number, min to max in thousandths */
	FIELD_BOOL,  /* true or false; the flag takes no value */
	FIELD_MB,    /* integer MiB; the flag takes 512, 512M, 2G */
	FIELD_S,     /* integer seconds; the flag takes 300, 300s, 5m, 2h, 1d */
	FIELD_MS,    /* integer milliseconds; the flag takes seconds (1.5) or
			500ms, 10s, 5m */
	FIELD_CMD,   /* argv array; a string means /bin/sh -c string */
	FIELD_STRS,  /* array of strings; the flag repeats */
	FIELD_MAP,   /* object of strings; the flag repeats K=V */
	FIELD_OBJ,   /* object or array; the flag takes JSON text */
	FIELD_ID,    /* an integer, or a string of at most 128 bytes */
	FIELD_BYTES, /* "key" (text) or "key_b64"; the flag takes text */
};

struct field {
	struct opt opt;	 /* first: see OPT_TABLE */
	const char *key; /* NULL: a flag only */
	enum field_type type;
	int64_t min, max;  /* 0, 0: the type's own bounds */
	const char *later; /* refused by name: the feature it waits for */
};

#define FIELD_STR_MAX 4096

/*
 * field_of_flag(f, arg, obj, e):
 * Put the flag's value ${arg} into the request ${obj}.  Code "usage" when it
 * does not read as ${f}'s type.
 */
int field_of_flag(const struct field *f, const char *arg, json_t *obj,
		  struct err *e);

/*
 * field_check(fields, n, obj, e):
 * Hold a request against the table: every key known ("unknown_field"), of its
 * type and range ("bad_value", naming it), none of a later feature
 * ("unsupported").  A FIELD_CMD string becomes its array in place.  null counts
 * as absent and is removed.  Every request may have id, key, deadline_ms and,
 * from a pipe, in: they are checked here too and need no row.
 */
int field_check(const struct field *fields, size_t n, json_t *obj,
		struct err *e);

/* field_need(obj, key, e): "missing_field" unless ${obj} has ${key}. */
int field_need(const json_t *obj, const char *key, struct err *e);

#endif
