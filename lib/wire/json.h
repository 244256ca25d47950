/* SPDX-License-Identifier: Apache-2.0 */
#ifndef WIRE_JSON_H
#define WIRE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/*
 * Our way with the JSON parser (jansson): one object per text, valid UTF-8, no
 * duplicate keys, no NUL in strings, a bounded size and depth.  References are
 * counted by jansson; a json_t returned through ret_* is the caller's, one that
 * a getter returns is borrowed from its object.
 */

#define JSON_LINE_MAX (1024 * 1024) /* bytes of a line, without its newline */

#define auto_json __attribute__((cleanup(json_cleanup)))

static inline void json_cleanup(json_t **j)
{
	json_decref(*j);
}

/*
 * json_parse(text, len, ret_obj, e):
 * Parse one object.  -EBADMSG, code "bad_record": not an object of that kind,
 * with what is wrong and where.
 */
int json_parse(const char *text, size_t len, json_t **ret_obj, struct err *e);

/*
 * json_pack_or(ret, e, fmt, ...): json_pack() into *${ret}; -ENOMEM when it
 * fails (for formats of ours, which are right, that is the only reason).
 */
int json_pack_or(json_t **ret, struct err *e, const char *fmt, ...);

/*
 * json_str(obj, key), json_int(obj, key, dflt), json_flag(obj, key):
 * A field of one of our own files or records, "" / ${dflt} / false when it is
 * absent or of another type.  For requests use wire/field.h, which is strict.
 */
const char *json_str(const json_t *obj, const char *key);
int64_t json_int(const json_t *obj, const char *key, int64_t dflt);
bool json_flag(const json_t *obj, const char *key);

/* json_unknown(obj, keys, n): a key that is none of ${keys}, or NULL; borrowed.
 * For files of the operator's and the like. */
const char *json_unknown(const json_t *obj, const char *const *keys, size_t n);

/* json_set_bytes(obj, key, data, len): as "key" where it is UTF-8 without NUL,
 * else as "key_b64".  0 or -ENOMEM. */
int json_set_bytes(json_t *obj, const char *key, const void *data, size_t len);

/* json_set_b64(obj, key, data, len): always as "key_b64". */
int json_set_b64(json_t *obj, const char *key, const void *data, size_t len);

/*
 * json_get_bytes(obj, key, ret_data, ret_len, e):
 * The reverse, from "key" or "key_b64", into a new buffer; 0 absent, 1 there,
 * -EBADMSG malformed.
 */
int json_get_bytes(const json_t *obj, const char *key, char **ret_data,
		   size_t *ret_len, struct err *e);

/*
 * json_read_file(dirfd, path, ret_obj, e), json_write_file(...): one of our own
 * state files; flags are those of fd_replace().  One over JSON_LINE_MAX is
 * neither read nor written: "too_large".
 */
int json_read_file(int dirfd, const char *path, json_t **ret_obj,
		   struct err *e);
int json_write_file(int dirfd, const char *path, const json_t *obj,
		    unsigned flags, struct err *e);

/*
 * json_memfd(e), json_to_memfd(fd, obj, e): a file in memory (close-on-exec)
 * that another program of ours reads from its start, whatever its size; the
 * descriptor, and ${obj} written to it.
 */
int json_memfd(struct err *e);
int json_to_memfd(int fd, const json_t *obj, struct err *e);

#endif
