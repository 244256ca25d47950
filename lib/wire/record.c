/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <string.h>

#include "base/cleanup.h"
#include "wire/exit.h"
#include "wire/record.h"

static int set_copy(json_t *to, const char *key, json_t *v)
{
	return json_object_set(to, key, v);
}

/* null means absent, for defaults and ids as well. */
static void drop_nulls(json_t *obj)
{
	const char *key;
	json_t *v;
	void *next;

	json_object_foreach_safe(obj, next, key, v)
		if (json_is_null(v))
			json_object_del(obj, key);
}

int record_to_request(json_t *rec, json_t **ret_req, struct err *e)
{
	auto_json json_t *req = json_object();
	auto_json json_t *in = json_object();
	const char *key;
	json_t *v;

	if (!req || !in)
		return err_sys(e, ENOMEM, "request");
	json_object_foreach(rec, key, v) {
		bool ours = !strcmp(key, "sandbox") || !strcmp(key, "id");

		if (!strcmp(key, "ok"))
			continue;
		if (set_copy(ours ? req : in, key, v) < 0)
			return err_sys(e, ENOMEM, "request");
	}
	if (json_object_size(in) > 0 && set_copy(req, "in", in) < 0)
		return err_sys(e, ENOMEM, "request");
	*ret_req = json_incref(req);
	return 0;
}

int record_take(const struct record_line *line, const struct field *fields,
		size_t n, json_t *defaults, enum record_kind *ret_kind,
		json_t **ret_req, struct err *e)
{
	json_t *req = NULL, *was;
	int r;

	*ret_kind = RECORD_REQUEST;
	r = json_parse(line->text, line->len, &req, e);
	if (r < 0) {
		*ret_req = json_pack("{s:I}", "id", (json_int_t)line->line);
		return err_wrap(e, r, "line %llu",
				(unsigned long long)line->line);
	}
	*ret_req = req;
	if (json_is_false(json_object_get(req, "ok"))) {
		*ret_kind = RECORD_PASS;
		return 0;
	}
	if (json_is_true(json_object_get(req, "ok"))) {
		was = req;
		r = record_to_request(was, ret_req, e);
		if (r < 0)
			return r;
		json_decref(was);
		req = *ret_req;
	}
	drop_nulls(req);
	if (!json_object_get(req, "id"))
		json_object_set_new(req, "id",
				    json_integer((json_int_t)line->line));
	if (defaults && json_object_update_missing(req, defaults) < 0)
		return err_sys(e, ENOMEM, "request");
	return field_check(fields, n, req, e);
}

int record_write(int fd, const json_t *rec, struct err *e)
{
	auto_free char *text = json_dumps(rec, JSON_COMPACT);
	size_t len;
	int r;

	if (!text)
		return err_sys(e, ENOMEM, "record");
	len = strlen(text);
	if (len > JSON_LINE_MAX)
		return err_set(e, -EMSGSIZE, "too_large",
			       "a record of %zu bytes", len);
	text[len] = '\n';
	r = fd_write_all(fd, text, len + 1, NULL);
	return r < 0 ? record_lost(-r, e) : 0;
}

int record_lost(int errnum, struct err *e)
{
	int r = err_set(e, -EPIPE, "stdout_lost",
			"the output could not be written: %s",
			strerror(errnum));

	if (e)
		e->quiet = errnum == EPIPE;
	return r;
}

static json_t *answer(const json_t *req, bool ok)
{
	static const char *const echoed[] = {"id", "sandbox", "in"};
	json_t *rec = json_object(), *v;

	if (!rec)
		return NULL;
	for (size_t i = 0; i < 2; i++) {
		v = req ? json_object_get(req, echoed[i]) : NULL;
		if (v && (json_is_string(v) || json_is_integer(v)))
			json_object_set(rec, echoed[i], v);
	}
	json_object_set_new(rec, "ok", json_boolean(ok));
	v = req ? json_object_get(req, "in") : NULL;
	if (v)
		json_object_set(rec, "in", v);
	return rec;
}

json_t *record_ok(const json_t *req)
{
	return answer(req, true);
}

/* A message may quote bytes from outside that are not UTF-8. */
static json_t *text_of(const char *msg)
{
	json_t *j = json_string(msg);
	char clean[ERR_MSG_MAX];
	size_t i;

	if (j)
		return j;
	for (i = 0; i < sizeof(clean) - 1 && msg[i]; i++)
		clean[i] = (unsigned char)msg[i] < 0x80 ? msg[i] : '?';
	clean[i] = '\0';
	return json_string(clean);
}

json_t *record_error(const json_t *req, const struct err *why)
{
	json_t *rec = answer(req, false), *error = json_object();

	if (!rec || !error) {
		json_decref(rec);
		json_decref(error);
		return NULL;
	}
	json_object_set_new(error, "code",
			    json_string(why->code ? why->code : "internal"));
	json_object_set_new(error, "message", text_of(why->msg));
	if (why->retry_after_ms)
		json_object_set_new(error, "retry_after_ms",
				    json_integer(why->retry_after_ms));
	json_object_set_new(error, "infra", json_boolean(why->infra));
	json_object_set_new(rec, "error", error);
	return rec;
}

int record_to_err(const json_t *rec, struct err *e)
{
	const json_t *error = json_object_get(rec, "error");
	const char *code = json_str(error, "code");
	int64_t retry = json_int(error, "retry_after_ms", 0);

	if (json_is_true(json_object_get(rec, "ok")))
		return 0;
	err_set(e, -EREMOTEIO, "internal", "%s",
		*json_str(error, "message") ? json_str(error, "message")
					    : "no reason was given");
	if (!e)
		return -EREMOTEIO;
	for (size_t i = 0; i < exit_codes_len; i++)
		if (!strcmp(exit_codes[i].code, code))
			e->code = exit_codes[i].code;
	e->infra = json_flag(error, "infra");
	e->retry_after_ms = retry > 0 && retry < UINT_MAX ? (unsigned)retry : 0;
	return -EREMOTEIO;
}
