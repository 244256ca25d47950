/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "transfer.h"
#include "wire/jsonl.h"
#include "wire/record.h"

#define INLINE_MAX (700 * 1024) /* of data in a record, before base64 */
#define TEXT_MAX   (950 * 1024) /* of it as JSON text */

/* An operation of the helper: its record, or -errno. */
typedef int op_fn(struct file_call *c, json_t *rec, struct err *e);

/* A path of the request, which has it as text or in base64. */
static int req_path(const struct file_call *c, const char *key, char **ret,
		    struct err *e)
{
	auto_free char *text = NULL;
	size_t len = 0;
	int r = json_get_bytes(c->req, key, &text, &len, e);

	if (r < 0)
		return err_set(e, r, "bad_value", "'%s' is malformed", key);
	if (r == 0)
		return err_set(e, -EBADMSG, "missing_field", "'%s' is missing",
			       key);
	if (len == 0 || strlen(text) != len)
		return err_set(e, -EBADMSG, "bad_path",
			       "'%s' is empty or has a NUL", key);
	*ret = steal_ptr(text);
	return 0;
}

static int add_path(const struct file_call *c, json_t *args, const char *key,
		    struct err *e)
{
	auto_free char *path = NULL;
	int r = req_path(c, key, &path, e);

	if (r < 0)
		return r;
	return remote_path(args, key, path) < 0 ? err_sys(e, ENOMEM, "request")
						: 0;
}

static int add_mode(const struct file_call *c, json_t *args, struct err *e)
{
	const char *mode = json_str(c->req, "mode");

	if (!*mode)
		return 0;
	if (mode[strspn(mode, "01234567")] || strlen(mode) > 5)
		return err_set(e, -EBADMSG, "bad_value",
			       "'mode' is '%.16s': octal digits, as 0644",
			       mode);
	return remote_arg(args, "mode=%s", mode) < 0
		       ? err_sys(e, ENOMEM, "request")
		       : 0;
}

/* The integers and flags of the request go on as they are. */
static int add_plain(const struct file_call *c, json_t *args, struct err *e)
{
	static const char *const keys[] = {"offset",  "depth",	   "timeout_ms",
					   "parents", "recursive", "follow"};
	int r = 0;

	for (size_t i = 0; i < array_len(keys) && r == 0; i++) {
		const json_t *v = json_object_get(c->req, keys[i]);

		if (json_is_integer(v))
			r = remote_arg(args, "%s=%lld", keys[i],
				       (long long)json_integer_value(v));
		else if (json_is_true(v))
			r = remote_arg(args, "%s=1", keys[i]);
	}
	return r < 0 ? err_sys(e, ENOMEM, "request") : 0;
}

/* The arguments that come from the request alone. */
static int make_args(const struct file_call *c, json_t **ret, struct err *e)
{
	auto_json json_t *args = NULL;
	int r;

	r = json_pack_or(&args, e, "[s]", json_str(c->req, "op"));
	if (r == 0)
		r = add_path(c, args, "path", e);
	if (r == 0 && (json_object_get(c->req, "to") ||
		       json_object_get(c->req, "to_b64")))
		r = add_path(c, args, "to", e);
	if (r == 0)
		r = add_mode(c, args, e);
	if (r == 0)
		r = add_plain(c, args, e);
	if (r == 0)
		*ret = steal_ptr(args);
	return r;
}

/* One key of a result, if it is of the type it should be. */
static void take(json_t *rec, const json_t *result, const char *key,
		 json_type type)
{
	json_t *v = json_object_get(result, key);

	if (v && json_typeof(v) == type)
		json_object_set(rec, key, v);
}

static void take_stat(json_t *rec, const json_t *result)
{
	static const char *const strings[] = {"name", "name_b64", "type",
					      "mode", "target",	  "target_b64"};
	static const char *const numbers[] = {"size", "uid", "gid", "mtime_ms"};

	for (size_t i = 0; i < array_len(strings); i++)
		take(rec, result, strings[i], JSON_STRING);
	for (size_t i = 0; i < array_len(numbers); i++)
		take(rec, result, numbers[i], JSON_INTEGER);
}

/* Control characters take six bytes each: too many of them go as base64. */
static int set_data(json_t *rec, const char *data, size_t len, struct err *e)
{
	size_t written = 0;
	int r;

	for (size_t i = 0; i < len; i++) {
		unsigned char ch = (unsigned char)data[i];

		written += ch < 0x20 ? 6 : ch == '"' || ch == '\\' ? 2 : 1;
	}
	r = written > TEXT_MAX ? json_set_b64(rec, "data", data, len)
			       : json_set_bytes(rec, "data", data, len);
	return r < 0 ? err_sys(e, ENOMEM, "record") : 0;
}

static int read_some(struct remote *rm, struct buf *data, struct err *e)
{
	ssize_t n;

	if (buf_reserve(data, INLINE_MAX + 1) < 0)
		return err_sys(e, ENOMEM, "record");
	while (data->len <= INLINE_MAX) {
		n = remote_read(rm, data->data + data->len,
				INLINE_MAX + 1 - data->len, e);
		if (n <= 0)
			return (int)n;
		data->len += (size_t)n;
	}
	return err_set(e, -EFBIG, "too_large",
		       "more than %d bytes do not go into a record: use get, "
		       "or limit and offset",
		       INLINE_MAX);
}

static int do_read(struct file_call *c, json_t *rec, struct err *e)
{
	auto_json json_t *result = NULL;
	auto_buf struct buf data = {0};
	int64_t limit = json_int(c->req, "limit", INLINE_MAX + 1);
	struct remote rm = {0};
	json_t *args = NULL;
	int r;

	r = make_args(c, &args, e);
	if (r < 0)
		return r;
	if (remote_arg(args, "limit=%lld", (long long)limit) < 0)
		json_decref(steal_ptr(args));
	r = remote_start(&rm, c, args, e);
	if (r == 0)
		r = read_some(&rm, &data, e);
	if (r == 0)
		r = remote_end(&rm, &result, e);
	remote_done(&rm);
	if (r < 0)
		return r;
	take(rec, result, "size", JSON_INTEGER);
	return set_data(rec, data.len ? data.data : "", data.len, e);
}

/* The data is no argument; its hash is, so that a key knows it. */
static uint64_t hash_of(const char *data, size_t len)
{
	uint64_t h = 0xcbf29ce484222325u;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)data[i]) * 0x100000001b3u;
	return h;
}

static int do_write(struct file_call *c, json_t *rec, struct err *e)
{
	auto_json json_t *result = NULL;
	auto_free char *data = NULL;
	struct remote rm = {0};
	json_t *args = NULL;
	size_t len = 0;
	int r;

	r = json_get_bytes(c->req, "data", &data, &len, e);
	if (r == 0)
		return err_set(e, -EBADMSG, "missing_field",
			       "'data' is missing");
	if (r > 0)
		r = make_args(c, &args, e);
	if (r < 0)
		return r;
	if (remote_arg(args, "size=%zu", len) < 0 ||
	    (c->key && remote_arg(args, "tag=%016llx",
				  (unsigned long long)hash_of(data, len)) < 0))
		json_decref(steal_ptr(args));
	r = remote_start(&rm, c, args, e);
	if (r == 0)
		r = remote_write(&rm, data, len, e);
	/* When it reads no more, it says why. */
	if (r == 0 || (r == -EPIPE && rm.started))
		r = remote_end(&rm, &result, e);
	remote_done(&rm);
	if (r < 0)
		return r;
	take(rec, result, "size", JSON_INTEGER);
	return 0;
}

/* Operations whose answer is their result alone. */
static int do_plain(struct file_call *c, json_t *rec, struct err *e)
{
	auto_json json_t *result = NULL;
	struct remote rm = {0};
	json_t *args = NULL;
	int r;

	r = make_args(c, &args, e);
	if (r < 0)
		return r;
	r = remote_start(&rm, c, args, e);
	if (r == 0)
		r = remote_end(&rm, &result, e);
	remote_done(&rm);
	if (r == 0 && !strcmp(json_str(c->req, "op"), "stat"))
		take_stat(rec, result);
	return r;
}

/*
 * Lines of its output, each an object, given to ${fn}; 1 from it: enough.  A
 * line that is none of ours ends it: we did not write it.
 */
typedef int line_fn(void *arg, const json_t *line, struct err *e);

static int lines(struct remote *rm, line_fn *fn, void *arg, struct err *e)
{
	struct jsonl in = {.fd = -1};
	char data[16 * 1024], *text;
	ssize_t n = 0;
	size_t len;
	int r = 0;

	while (r == 0 && (n = remote_read(rm, data, sizeof(data), e)) > 0) {
		r = jsonl_feed(&in, data, (size_t)n);
		while (r == 0 && jsonl_next(&in, &text, &len, NULL) == 1) {
			auto_json json_t *line = NULL;

			r = json_parse(text, len, &line, e);
			if (r == 0)
				r = fn(arg, line, e);
		}
		if (r == -ENOMEM)
			err_sys(e, ENOMEM, "record");
	}
	jsonl_done(&in);
	return n < 0 ? (int)n : r;
}

#define ENTRIES_BYTES_MAX (900 * 1024)

struct listing {
	json_t *entries;
	size_t bytes;
	bool full;
};

static int list_line(void *arg, const json_t *line, struct err *e)
{
	struct listing *l = arg;
	json_t *entry = json_object();
	size_t len;

	if (!entry)
		return err_sys(e, ENOMEM, "record");
	take_stat(entry, line);
	len = json_dumpb(entry, NULL, 0, JSON_COMPACT) + 1;
	if (l->bytes + len > ENTRIES_BYTES_MAX) {
		l->full = true;
		json_decref(entry);
		return 1;
	}
	l->bytes += len;
	json_array_append_new(l->entries, entry);
	return 0;
}

static int do_list(struct file_call *c, json_t *rec, struct err *e)
{
	struct listing l = {.entries = json_array()};
	auto_json json_t *result = NULL;
	struct remote rm = {0};
	json_t *args = NULL;
	int r = make_args(c, &args, e);

	if (r == 0 && json_object_get(c->req, "limit") &&
	    remote_arg(args, "limit=%lld",
		       (long long)json_int(c->req, "limit", 1)) < 0)
		json_decref(steal_ptr(args));
	if (r == 0)
		r = remote_start(&rm, c, args, e);
	if (r == 0)
		r = lines(&rm, list_line, &l, e);
	if (r == 0)
		r = remote_end(&rm, &result, e);
	if (rm.started)
		remote_done(&rm);
	json_object_set_new(rec, "entries", l.entries);
	if (l.full || json_flag(result, "truncated"))
		json_object_set_new(rec, "truncated", json_true());
	return r < 0 ? r : 0;
}

static int watch_line(void *arg, const json_t *line, struct err *e)
{
	static const char *const keys[] = {"event", "name",   "name_b64",
					   "to",    "to_b64", "type"};
	const struct file_call *c = arg;
	auto_json json_t *rec = record_ok(c->req);

	if (!rec)
		return err_sys(e, ENOMEM, "record");
	json_object_del(rec, "ok");
	for (size_t i = 0; i < array_len(keys); i++)
		take(rec, line, keys[i], JSON_STRING);
	/* Not everything that says so is an event. */
	if (!json_object_get(rec, "event"))
		return err_set(e, -EBADMSG, "internal",
			       "the file helper answered no event");
	return record_write(c->events, rec, e);
}

static int do_watch(struct file_call *c, json_t *rec, struct err *e)
{
	auto_json json_t *result = NULL;
	struct remote rm = {0};
	json_t *args = NULL;
	int r = make_args(c, &args, e);

	if (r < 0)
		return r;
	r = remote_start(&rm, c, args, e);
	if (r == 0)
		r = lines(&rm, watch_line, c, e);
	if (r == 0)
		r = remote_end(&rm, &result, e);
	remote_done(&rm);
	if (r == 0)
		take(rec, result, "events", JSON_INTEGER);
	return r;
}

static int do_transfer(struct file_call *c, bool in, json_t **ret_rec,
		       struct err *e)
{
	struct transfer t = {.c = c, .quiet = true};
	const char *host = json_str(c->req, in ? "source" : "target");
	auto_json json_t *rec = NULL;
	auto_free char *path = NULL;
	int r;

	r = req_path(c, "path", &path, e);
	if (r < 0)
		return r;
	r = in ? transfer_in(&t, host, path, e)
	       : transfer_out(&t, path, host, e);
	if (r < 0 && t.refused_count == 0)
		return r;
	rec = r < 0 ? record_error(c->req, e) : record_ok(c->req);
	if (!rec || transfer_report(&t, rec) < 0) {
		transfer_done(&t);
		return err_sys(e, ENOMEM, "record");
	}
	transfer_done(&t);
	*ret_rec = steal_ptr(rec);
	return r < 0 ? -EREMOTEIO : 0;
}

static const struct {
	const char *name;
	op_fn *fn;    /* NULL: put and get */
	bool changes; /* the sandbox: "key" matters */
} file_ops[] = {
	{"read", do_read, false},   {"write", do_write, true},
	{"list", do_list, false},   {"stat", do_plain, false},
	{"mkdir", do_plain, true},  {"move", do_plain, true},
	{"remove", do_plain, true}, {"watch", do_watch, false},
	{"put", NULL, true},	    {"get", NULL, false},
};

bool file_is_op(const char *op)
{
	for (size_t i = 0; i < array_len(file_ops); i++)
		if (!strcmp(file_ops[i].name, op))
			return true;
	return false;
}

/* Done before, for the same key: that is the answer, and no more is known. */
static int say_repeated(const struct file_call *c, json_t **ret_rec,
			struct err *e)
{
	json_t *rec = record_ok(c->req);

	if (!rec || json_object_set_new(rec, "repeated", json_true()) < 0) {
		json_decref(rec);
		return err_sys(e, ENOMEM, "record");
	}
	*ret_rec = rec;
	return 0;
}

int file_run(struct file_call *c, json_t **ret_rec, struct err *e)
{
	const char *op = json_str(c->req, "op");
	auto_json json_t *rec = NULL;
	op_fn *fn = NULL;
	int r;

	for (size_t i = 0; i < array_len(file_ops); i++) {
		if (strcmp(file_ops[i].name, op))
			continue;
		fn = file_ops[i].fn;
		if (file_ops[i].changes && json_object_get(c->req, "key"))
			c->key = json_str(c->req, "key");
	}
	rec = record_ok(c->req);
	if (!rec)
		return err_sys(e, ENOMEM, "record");
	r = fn ? fn(c, rec, e) : do_transfer(c, !strcmp(op, "put"), ret_rec, e);
	if (r < 0 && c->repeated)
		return say_repeated(c, ret_rec, e);
	if (r == 0 && fn)
		*ret_rec = steal_ptr(rec);
	return r;
}
